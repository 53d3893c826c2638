-- The one statement of the audited write path: a batch of planned commands is one call, one round
-- trip, one transaction. Runs with the caller's rights; NULL stands for "no rows of this table".

CREATE FUNCTION callboard.commit_batch(
    p_epoch bigint,
    p_accounts json,
    p_commands json,
    p_workflows json,
    p_changes json,
    p_nodes json,
    p_attempts json,
    p_escrows json,
    p_entries json,
    p_audit text,
    p_audit_events json,
    p_releases uuid[],
    p_registry json,
    p_market json,
    p_reputation json,
    p_now_ms bigint
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    expected bigint;
    written bigint;
BEGIN
    -- (1) The fence. The row lock makes a take-over wait for this batch, and this batch for it.
    PERFORM 1 FROM callboard.head WHERE epoch = p_epoch FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'ledger writer fenced off' USING ERRCODE = 'CB001';
    END IF;

    -- (2) Keys first: whatever else a repeat would run into, it is known by its key.
    IF p_commands IS NOT NULL THEN
        INSERT INTO callboard.command (id, request_hash, result, error, detail, audit_id, created_ms)
        SELECT id, decode(request_hash, 'hex'), result, error, detail, audit_id, p_now_ms
        FROM json_to_recordset(p_commands) AS r(
            id text, request_hash text, result json, error text, detail text, audit_id bigint);
    END IF;
    IF p_accounts IS NOT NULL THEN
        INSERT INTO callboard.account (id, address, owner_did, kind, created_ms)
        SELECT id, address, owner_did, kind, p_now_ms FROM json_to_recordset(p_accounts)
            AS r(id bigint, address text, owner_did text, kind text);
    END IF;

    -- (3) The audit chain: an entry per line, its columns before the body, all between tabs; canonical
    -- JSON has neither raw tabs nor line feeds. The table checks hash and links. Before the money,
    -- which names the entry that it belongs to.
    IF p_audit IS NOT NULL THEN
        INSERT INTO callboard.audit (
            id, event_types, actor_did, workflow_id, created_ms, body, hash)
        SELECT
            part[1]::bigint, string_to_array(part[2], ','), part[3], nullif(part[4], '')::uuid,
            p_now_ms, part[6], decode(part[5], 'hex')
        FROM (
            SELECT string_to_array(line, E'\t') AS part
            FROM string_to_table(p_audit, E'\n') AS line
            OFFSET 0  -- so that a line is taken apart once
        ) AS r;
    END IF;
    IF p_audit_events IS NOT NULL THEN
        INSERT INTO callboard.audit_event (audit_id, number, event_type, target_type, target_id)
        SELECT audit_id, number, event_type, target_type, target_id
        FROM json_to_recordset(p_audit_events) AS r(
            audit_id bigint, number integer, event_type text, target_type text, target_id text);
    END IF;

    -- (4) Workflows: new ones, then those that started or ended. A finished one never changes.
    IF p_workflows IS NOT NULL THEN
        INSERT INTO callboard.workflow (
            id, task_id, payer_did, status, intent, manifest, owner, created_ms, started_ms,
            completed_ms, deadline_ms, estimate_micro, hold_micro, reserved, fee_bps,
            spent_micro, error, end_reason, end_details, ended_by_did)
        SELECT
            id, task_id, payer_did, status, intent, manifest, owner, created_ms, started_ms,
            completed_ms, deadline_ms, estimate_micro, hold_micro, reserved, fee_bps,
            spent_micro, error, end_reason, end_details, ended_by_did
        FROM json_to_recordset(p_workflows) AS r(
            id uuid, task_id uuid, payer_did text, status text, intent text, manifest text,
            owner text, created_ms bigint, started_ms bigint, completed_ms bigint,
            deadline_ms bigint, estimate_micro bigint, hold_micro bigint, reserved text,
            fee_bps integer, spent_micro bigint, error json, end_reason text, end_details text,
            ended_by_did text);
    END IF;
    IF p_changes IS NOT NULL THEN
        UPDATE callboard.workflow w SET
            status = r.status,
            started_ms = coalesce(w.started_ms, r.started_ms),
            completed_ms = r.completed_ms,
            spent_micro = r.spent_micro,
            error = r.error,
            end_reason = r.end_reason,
            end_details = r.end_details,
            ended_by_did = r.ended_by_did
        FROM json_to_recordset(p_changes) AS r(
            id uuid, status text, started_ms bigint, completed_ms bigint, spent_micro bigint,
            error json, end_reason text, end_details text, ended_by_did text)
        WHERE w.id = r.id AND w.completed_ms IS NULL;
        GET DIAGNOSTICS written = ROW_COUNT;
        expected := json_array_length(p_changes);
        IF written <> expected THEN
            RAISE EXCEPTION 'a finished or unknown workflow would change' USING ERRCODE = 'CB003';
        END IF;
    END IF;

    -- (5) Nodes and the history of their attempts. A node that succeeded never changes.
    IF p_nodes IS NOT NULL THEN
        INSERT INTO callboard.node AS n (
            workflow_id, name, status, attempt, agent_did, price_micro, dispatched_ms, deadline_ms,
            retry_at_ms, retries_used, agents_tried, verifier_did, verify_attempt,
            verifier_price_micro, verify_retries_used, verifiers_tried,
            result_json, result_ref, error, started_ms, completed_ms, cost_micro, metrics,
            input_hash, selection_json, price_json, stake_micro, auction_round, auction_closes_ms,
            key_version)
        SELECT
            workflow_id, name, status, coalesce(attempt, 0), agent_did, coalesce(price_micro, 0),
            dispatched_ms, deadline_ms, retry_at_ms, coalesce(retries_used, 0), agents_tried,
            verifier_did, coalesce(verify_attempt, 0), coalesce(verifier_price_micro, 0),
            coalesce(verify_retries_used, 0), verifiers_tried,
            result_json, result_ref, error, started_ms, completed_ms, coalesce(cost_micro, 0),
            metrics, input_hash, selection_json, price_json, coalesce(stake_micro, 0),
            coalesce(auction_round, 0), auction_closes_ms, coalesce(key_version, 0)
        FROM json_to_recordset(p_nodes) AS r(
            workflow_id uuid, name text, status text, attempt integer, agent_did text,
            price_micro bigint, dispatched_ms bigint, deadline_ms bigint, retry_at_ms bigint,
            retries_used integer, agents_tried json, verifier_did text, verify_attempt integer,
            verifier_price_micro bigint, verify_retries_used integer, verifiers_tried json,
            result_json text, result_ref json, error json, started_ms bigint,
            completed_ms bigint, cost_micro bigint, metrics json, input_hash text,
            selection_json text, price_json text, stake_micro bigint, auction_round integer,
            auction_closes_ms bigint, key_version smallint)
        ON CONFLICT (workflow_id, name) DO UPDATE SET
            status = excluded.status,
            attempt = excluded.attempt,
            agent_did = excluded.agent_did,
            price_micro = excluded.price_micro,
            dispatched_ms = excluded.dispatched_ms,
            deadline_ms = excluded.deadline_ms,
            retry_at_ms = excluded.retry_at_ms,
            retries_used = excluded.retries_used,
            agents_tried = excluded.agents_tried,
            verifier_did = excluded.verifier_did,
            verify_attempt = excluded.verify_attempt,
            verifier_price_micro = excluded.verifier_price_micro,
            verify_retries_used = excluded.verify_retries_used,
            verifiers_tried = excluded.verifiers_tried,
            result_json = excluded.result_json,
            result_ref = excluded.result_ref,
            error = excluded.error,
            started_ms = excluded.started_ms,
            completed_ms = excluded.completed_ms,
            cost_micro = excluded.cost_micro,
            metrics = excluded.metrics,
            input_hash = excluded.input_hash,
            selection_json = excluded.selection_json,
            price_json = excluded.price_json,
            stake_micro = excluded.stake_micro,
            auction_round = excluded.auction_round,
            auction_closes_ms = excluded.auction_closes_ms,
            key_version = excluded.key_version
        WHERE n.status <> 'success';
        GET DIAGNOSTICS written = ROW_COUNT;
        expected := json_array_length(p_nodes);
        IF written <> expected THEN
            RAISE EXCEPTION 'a node that succeeded would change' USING ERRCODE = 'CB004';
        END IF;
    END IF;
    IF p_attempts IS NOT NULL THEN
        INSERT INTO callboard.attempt (
            workflow_id, node, attempt, kind, agent_did, outcome, started_ms, completed_ms,
            input_hash, output_hash, error_code, error_message)
        SELECT
            workflow_id, node, attempt, kind, agent_did, outcome, started_ms, completed_ms,
            input_hash, output_hash, error_code, error_message
        FROM json_to_recordset(p_attempts) AS r(
            workflow_id uuid, node text, attempt integer, kind text, agent_did text, outcome text,
            started_ms bigint, completed_ms bigint, input_hash text, output_hash text,
            error_code text, error_message text);
    END IF;

    -- (6) Money: escrows, entries (whose trigger moves the balances), then emptied escrows.
    IF p_escrows IS NOT NULL THEN
        INSERT INTO callboard.escrow (
            workflow_id, payer_did, account_id, amount, fee_bps, status, created_ms)
        SELECT workflow_id, payer_did, account_id, amount, fee_bps, 'held', p_now_ms
        FROM json_to_recordset(p_escrows) AS r(
            workflow_id uuid, payer_did text, account_id bigint, amount bigint, fee_bps integer);
    END IF;
    IF p_entries IS NOT NULL THEN
        INSERT INTO callboard.entry (
            id, debit_account_id, credit_account_id, amount, kind, description, workflow_id,
            node_id, audit_id, created_ms)
        SELECT
            id, debit, credit, amount, kind, description, workflow_id, node_id, audit_id, p_now_ms
        FROM json_to_recordset(p_entries) AS r(
            id bigint, debit bigint, credit bigint, amount bigint, kind text, description text,
            workflow_id uuid, node_id text, audit_id bigint);
    END IF;
    IF p_releases IS NOT NULL THEN
        UPDATE callboard.escrow SET status = 'released', released_ms = p_now_ms
        WHERE workflow_id = ANY (p_releases) AND status = 'held';
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written <> cardinality(p_releases) THEN
            RAISE EXCEPTION 'an escrow would be released twice' USING ERRCODE = 'CB003';
        END IF;
    END IF;

    -- (7) What is rare, in functions of their own; and what agents are now known for.
    IF p_registry IS NOT NULL THEN
        PERFORM callboard.commit_registry(p_registry, p_now_ms);
    END IF;
    IF p_market IS NOT NULL THEN
        PERFORM callboard.commit_market(p_market, p_now_ms);
    END IF;
    IF p_reputation IS NOT NULL THEN
        PERFORM callboard.commit_reputation(p_reputation, p_now_ms);
    END IF;
END $$;
