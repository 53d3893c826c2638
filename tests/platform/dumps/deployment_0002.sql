--
-- PostgreSQL database dump
--

\restrict 9dsqsqUePg0eHm2I1xiosrzImYOON1N3HM91XdRFwFZyHr8ly4BdJbna9jOX277

-- Dumped from database version 18.4
-- Dumped by pg_dump version 18.4

SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET transaction_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

--
-- Name: callboard; Type: SCHEMA; Schema: -; Owner: callboard_owner
--

CREATE SCHEMA callboard;


ALTER SCHEMA callboard OWNER TO callboard_owner;

--
-- Name: apply_entries(); Type: FUNCTION; Schema: callboard; Owner: callboard_owner
--

CREATE FUNCTION callboard.apply_entries() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    lowest bigint;
    highest bigint;
    total bigint;
    touched bigint;
    audit_lowest bigint;
    audit_highest bigint;
    audited bigint;
BEGIN
    SELECT min(id), max(id), count(*), min(audit_id), max(audit_id)
    INTO lowest, highest, total, audit_lowest, audit_highest FROM fresh;
    IF total = 0 THEN
        RETURN NULL;
    END IF;
    UPDATE callboard.head SET entry_seq = highest  -- (1)
    WHERE epoch = nullif(current_setting('callboard.epoch', true), '')::bigint
        AND entry_seq = lowest - 1 AND highest - lowest + 1 = total
    RETURNING audit_seq INTO audited;
    IF NOT FOUND THEN
        PERFORM callboard.raise_fenced();
        RAISE EXCEPTION 'entry ids are not contiguous: got % to %', lowest, highest
            USING ERRCODE = 'CB005';
    END IF;
    IF audit_lowest < 1 OR audit_highest > audited THEN  -- (2) these ids have no gap
        RAISE EXCEPTION 'an entry belongs to no audit entry' USING ERRCODE = 'CB003';
    END IF;
    UPDATE callboard.account a SET balance = a.balance + moved.amount  -- (3)
    FROM (
        SELECT leg.account_id, sum(leg.amount)::bigint AS amount
        FROM (
            SELECT debit_account_id AS account_id, -amount AS amount FROM fresh
            UNION ALL
            SELECT credit_account_id, amount FROM fresh
        ) leg
        GROUP BY leg.account_id
    ) moved
    WHERE a.id = moved.account_id;
    GET DIAGNOSTICS touched = ROW_COUNT;
    IF touched <> (SELECT count(*) FROM (
            SELECT debit_account_id FROM fresh UNION SELECT credit_account_id FROM fresh) d) THEN
        RAISE EXCEPTION 'an entry names an account that does not exist' USING ERRCODE = 'CB003';
    END IF;
    RETURN NULL;
END $$;


ALTER FUNCTION callboard.apply_entries() OWNER TO callboard_owner;

--
-- Name: check_escrow(); Type: FUNCTION; Schema: callboard; Owner: callboard_owner
--

CREATE FUNCTION callboard.check_escrow() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    IF EXISTS (
            SELECT 1 FROM past p LEFT JOIN fresh f ON f.workflow_id = p.workflow_id
            WHERE (f.payer_did, f.account_id, f.amount, f.fee_bps)
                IS DISTINCT FROM (p.payer_did, p.account_id, p.amount, p.fee_bps)) THEN
        RAISE EXCEPTION 'the terms of an escrow are immutable' USING ERRCODE = 'CB003';
    END IF;
    IF EXISTS (
            SELECT 1 FROM past p JOIN fresh f ON f.workflow_id = p.workflow_id
            WHERE p.status = 'released' AND f.status <> 'released') THEN
        RAISE EXCEPTION 'a released escrow stays released' USING ERRCODE = 'CB003';
    END IF;
    IF EXISTS (
            SELECT 1 FROM fresh f JOIN callboard.account a ON a.id = f.account_id
            WHERE f.status = 'released' AND a.balance <> 0) THEN
        RAISE EXCEPTION 'an escrow is released when its account is empty' USING ERRCODE = 'CB003';
    END IF;
    RETURN NULL;
END $$;


ALTER FUNCTION callboard.check_escrow() OWNER TO callboard_owner;

--
-- Name: check_new_escrow(); Type: FUNCTION; Schema: callboard; Owner: callboard_owner
--

CREATE FUNCTION callboard.check_new_escrow() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM fresh f WHERE NOT EXISTS (
            SELECT 1 FROM callboard.account a WHERE a.id = f.account_id)) THEN
        RAISE EXCEPTION 'an escrow names an account that does not exist' USING ERRCODE = 'CB003';
    END IF;
    RETURN NULL;
END $$;


ALTER FUNCTION callboard.check_new_escrow() OWNER TO callboard_owner;

--
-- Name: commit_batch(bigint, json, json, json, json, json, json, json, json, text, json, uuid[], json, json, json, bigint); Type: FUNCTION; Schema: callboard; Owner: callboard_owner
--

CREATE FUNCTION callboard.commit_batch(p_epoch bigint, p_accounts json, p_commands json, p_workflows json, p_changes json, p_nodes json, p_attempts json, p_escrows json, p_entries json, p_audit text, p_audit_events json, p_releases uuid[], p_registry json, p_market json, p_reputation json, p_now_ms bigint) RETURNS void
    LANGUAGE plpgsql
    AS $$
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


ALTER FUNCTION callboard.commit_batch(p_epoch bigint, p_accounts json, p_commands json, p_workflows json, p_changes json, p_nodes json, p_attempts json, p_escrows json, p_entries json, p_audit text, p_audit_events json, p_releases uuid[], p_registry json, p_market json, p_reputation json, p_now_ms bigint) OWNER TO callboard_owner;

--
-- Name: commit_market(json, bigint); Type: FUNCTION; Schema: callboard; Owner: callboard_owner
--

CREATE FUNCTION callboard.commit_market(p_market json, p_now_ms bigint) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    written bigint;
BEGIN
    INSERT INTO callboard.capability_price AS p (
        capability_id, price_cents, input_rate, output_rate, set_by_did, updated_ms)
    SELECT capability_id, price_cents, input_rate, output_rate, set_by_did, p_now_ms
    FROM json_to_recordset(p_market -> 'prices') AS r(
        capability_id text, price_cents bigint, input_rate text, output_rate text, set_by_did text)
    ON CONFLICT (capability_id) DO UPDATE SET
        price_cents = excluded.price_cents, input_rate = excluded.input_rate,
        output_rate = excluded.output_rate, set_by_did = excluded.set_by_did,
        updated_ms = excluded.updated_ms;

    INSERT INTO callboard.stake AS s (agent_did, free_account_id, locked_account_id, updated_ms)
    SELECT agent_did, free_account_id, locked_account_id, p_now_ms
    FROM json_to_recordset(p_market -> 'stakes') AS r(
        agent_did text, free_account_id bigint, locked_account_id bigint)
    ON CONFLICT (agent_did) DO UPDATE SET updated_ms = excluded.updated_ms;
    INSERT INTO callboard.stake_share AS s (agent_did, depositor_did, micro)
    SELECT agent_did, depositor_did, micro
    FROM json_to_recordset(p_market -> 'stake_shares') AS r(
        agent_did text, depositor_did text, micro bigint)
    ON CONFLICT (agent_did, depositor_did) DO UPDATE SET micro = excluded.micro;

    INSERT INTO callboard.auction (
        workflow_id, node, round, capability_id, reserve_micro, stake_bps, opened_ms, closes_ms,
        status)
    SELECT
        workflow_id, node, round, capability_id, reserve_micro, stake_bps, opened_ms, closes_ms,
        'open'
    FROM json_to_recordset(p_market -> 'auctions') AS r(
        workflow_id uuid, node text, round integer, capability_id text, reserve_micro bigint,
        stake_bps integer, opened_ms bigint, closes_ms bigint);
    IF p_market -> 'closed_auctions' IS NOT NULL THEN
        UPDATE callboard.auction a SET
            status = r.status, winner_did = r.winner_did, price_micro = r.price_micro,
            excluded = r.excluded, closed_ms = p_now_ms
        FROM json_to_recordset(p_market -> 'closed_auctions') AS r(
            workflow_id uuid, node text, round integer, status text, winner_did text,
            price_micro bigint, excluded json)
        WHERE a.workflow_id = r.workflow_id AND a.node = r.node AND a.round = r.round
            AND a.status = 'open';
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written <> json_array_length(p_market -> 'closed_auctions') THEN
            RAISE EXCEPTION 'an auction would close twice' USING ERRCODE = 'CB003';
        END IF;
    END IF;
    INSERT INTO callboard.bid (
        workflow_id, node, round, agent_did, amount_micro, eta_ms, stake_offered_micro,
        is_standing, received_ms)
    SELECT
        workflow_id, node, round, agent_did, amount_micro, eta_ms, stake_offered_micro,
        is_standing, received_ms
    FROM json_to_recordset(p_market -> 'bids') AS r(
        workflow_id uuid, node text, round integer, agent_did text, amount_micro bigint,
        eta_ms bigint, stake_offered_micro bigint, is_standing boolean, received_ms bigint);

    INSERT INTO callboard.quota AS q (
        did, max_workflows_per_day, max_concurrent_workflows, max_spend_per_day_cents, set_by_did,
        updated_ms)
    SELECT
        did, max_workflows_per_day, max_concurrent_workflows, max_spend_per_day_cents, set_by_did,
        p_now_ms
    FROM json_to_recordset(p_market -> 'quotas') AS r(
        did text, max_workflows_per_day bigint, max_concurrent_workflows bigint,
        max_spend_per_day_cents bigint, set_by_did text)
    ON CONFLICT (did) DO UPDATE SET
        max_workflows_per_day = excluded.max_workflows_per_day,
        max_concurrent_workflows = excluded.max_concurrent_workflows,
        max_spend_per_day_cents = excluded.max_spend_per_day_cents,
        set_by_did = excluded.set_by_did, updated_ms = excluded.updated_ms;

    INSERT INTO callboard.invoice (
        id, payer_did, period_start_ms, period_end_ms, workflow_id, subtotal_cents,
        protocol_fee_cents, total_cents, subtotal_micro, status, created_ms)
    SELECT
        id, payer_did, period_start_ms, period_end_ms, workflow_id, subtotal_cents,
        protocol_fee_cents, total_cents, subtotal_micro, 'pending', p_now_ms
    FROM json_to_recordset(p_market -> 'invoices') AS r(
        id uuid, payer_did text, period_start_ms bigint, period_end_ms bigint, workflow_id uuid,
        subtotal_cents bigint, protocol_fee_cents bigint, total_cents bigint,
        subtotal_micro bigint);
    INSERT INTO callboard.invoice_line (invoice_id, entry_id, amount_micro)
    SELECT r.invoice_id, l.entry_id, l.amount_micro
    FROM json_to_recordset(p_market -> 'invoice_lines') AS r(
            invoice_id uuid, entry_ids bigint[], amounts_micro bigint[]),
        unnest(r.entry_ids, r.amounts_micro) AS l(entry_id, amount_micro);
    IF p_market -> 'settled_invoices' IS NOT NULL THEN
        UPDATE callboard.invoice i SET
            status = r.status, settled_ms = p_now_ms, settled_by_did = r.settled_by_did
        FROM json_to_recordset(p_market -> 'settled_invoices') AS r(
            id uuid, status text, settled_by_did text)
        WHERE i.id = r.id AND i.status = 'pending';
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written <> json_array_length(p_market -> 'settled_invoices') THEN
            RAISE EXCEPTION 'an invoice would be settled twice' USING ERRCODE = 'CB003';
        END IF;
        UPDATE callboard.invoice_line l SET is_void = true
        FROM json_to_recordset(p_market -> 'settled_invoices') AS r(id uuid, status text)
        WHERE l.invoice_id = r.id AND r.status = 'void';
    END IF;

    INSERT INTO callboard.dispute (
        id, workflow_id, complainant_did, respondent_did, node_id, dispute_type, description,
        evidence, status, created_ms)
    SELECT
        id, workflow_id, complainant_did, respondent_did, node_id, dispute_type, description,
        evidence, 'open', p_now_ms
    FROM json_to_recordset(p_market -> 'disputes') AS r(
        id uuid, workflow_id uuid, complainant_did text, respondent_did text, node_id text,
        dispute_type text, description text, evidence json);
    IF p_market -> 'resolved_disputes' IS NOT NULL THEN
        UPDATE callboard.dispute d SET
            status = r.status, resolution = r.resolution,
            refund_asked_micro = r.refund_asked_micro, refunded_micro = r.refunded_micro,
            short_micro = r.short_micro, resolved_ms = p_now_ms,
            resolved_by_did = r.resolved_by_did
        FROM json_to_recordset(p_market -> 'resolved_disputes') AS r(
            id uuid, status text, resolution text, refund_asked_micro bigint,
            refunded_micro bigint, short_micro bigint, resolved_by_did text)
        WHERE d.id = r.id AND d.status = 'open';
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written <> json_array_length(p_market -> 'resolved_disputes') THEN
            RAISE EXCEPTION 'a dispute would be resolved twice' USING ERRCODE = 'CB003';
        END IF;
    END IF;

    -- Stake that a dispute has taken or freed while its attempt was open.
    UPDATE callboard.node n SET stake_micro = 0
    FROM json_to_recordset(p_market -> 'ended_locks') AS r(workflow_id uuid, name text)
    WHERE n.workflow_id = r.workflow_id AND n.name = r.name;

    -- What history has more or less of than was counted: of counted agents, and of others.
    UPDATE callboard.reputation o SET
        total = o.total + r.successful + r.failed + r.cancelled,
        successful = o.successful + r.successful, failed = o.failed + r.failed,
        cancelled = o.cancelled + r.cancelled,
        latency_ms_sum = o.latency_ms_sum + r.latency_ms_sum, updated_ms = p_now_ms
    FROM json_to_recordset(p_market -> 'corrections') AS r(
        agent_did text, successful bigint, failed bigint, cancelled bigint, latency_ms_sum bigint)
    WHERE o.agent_did = r.agent_did;
    INSERT INTO callboard.reputation (
        agent_did, total, successful, failed, cancelled, latency_ms_sum, updated_ms)
    SELECT
        agent_did, successful + failed + cancelled, successful, failed, cancelled, latency_ms_sum,
        p_now_ms
    FROM json_to_recordset(p_market -> 'corrections') AS r(
        agent_did text, successful bigint, failed bigint, cancelled bigint, latency_ms_sum bigint)
    WHERE NOT EXISTS (SELECT 1 FROM callboard.reputation o WHERE o.agent_did = r.agent_did);

    INSERT INTO callboard.feedback (workflow_id, agent_did, payer_did, rating, comment, created_ms)
    SELECT workflow_id, agent_did, payer_did, rating, comment, p_now_ms
    FROM json_to_recordset(p_market -> 'feedback') AS r(
        workflow_id uuid, agent_did text, payer_did text, rating numeric, comment text);
END $$;


ALTER FUNCTION callboard.commit_market(p_market json, p_now_ms bigint) OWNER TO callboard_owner;

--
-- Name: commit_registry(json, bigint); Type: FUNCTION; Schema: callboard; Owner: callboard_owner
--

CREATE FUNCTION callboard.commit_registry(p_registry json, p_now_ms bigint) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO callboard.owner AS o (name, epoch, address, registered_ms)
    SELECT name, epoch, address, p_now_ms FROM json_to_recordset(p_registry -> 'owners')
        AS r(name text, epoch bigint, address text)
    ON CONFLICT (name) DO UPDATE SET
        epoch = excluded.epoch, address = excluded.address, registered_ms = excluded.registered_ms;

    UPDATE callboard.workflow w SET owner = r.to_owner
    FROM json_to_recordset(p_registry -> 'claims') AS r(from_owner text, to_owner text)
    WHERE w.owner = r.from_owner AND w.completed_ms IS NULL;

    INSERT INTO callboard.agent AS a (
        did, owner_did, card, endpoint, capability_ids, public_key, signing_secret, status,
        revision, token_revision, registered_ms, updated_ms)
    SELECT
        did, owner_did, card, endpoint, capability_ids, public_key,
        decode(signing_secret, 'hex'), 'active', revision, token_revision, p_now_ms, p_now_ms
    FROM json_to_recordset(p_registry -> 'agents') AS r(
        did text, owner_did text, card text, endpoint text, capability_ids text[],
        public_key text, signing_secret text, revision integer, token_revision integer)
    ON CONFLICT (did) DO UPDATE SET
        card = excluded.card, endpoint = excluded.endpoint,
        capability_ids = excluded.capability_ids,
        public_key = coalesce(excluded.public_key, a.public_key),
        signing_secret = coalesce(excluded.signing_secret, a.signing_secret),
        status = 'active', revision = excluded.revision,
        token_revision = excluded.token_revision, updated_ms = excluded.updated_ms;

    UPDATE callboard.agent a SET
        status = 'inactive', revision = r.revision, updated_ms = p_now_ms
    FROM json_to_recordset(p_registry -> 'deregistered') AS r(did text, revision integer)
    WHERE a.did = r.did AND a.status = 'active';

    INSERT INTO callboard.revocation AS v (
        did, reason, evidence, revoked_ms, expires_ms, revoked_by_did)
    SELECT did, reason, evidence, p_now_ms, expires_ms, revoked_by_did
    FROM json_to_recordset(p_registry -> 'revocations') AS r(
        did text, reason text, evidence json, expires_ms bigint, revoked_by_did text)
    ON CONFLICT (did) DO UPDATE SET
        reason = excluded.reason, evidence = excluded.evidence, revoked_ms = excluded.revoked_ms,
        expires_ms = excluded.expires_ms, revoked_by_did = excluded.revoked_by_did,
        ended_ms = NULL, ended_by_did = NULL;

    UPDATE callboard.revocation v SET ended_ms = p_now_ms, ended_by_did = r.ended_by_did
    FROM json_to_recordset(p_registry -> 'unrevocations') AS r(did text, ended_by_did text)
    WHERE v.did = r.did;

    UPDATE callboard.workflow w SET
        is_halted = r.is_halted,
        quarantine_code = r.quarantine_code,
        quarantined_ms =
            CASE WHEN r.quarantine_code IS NOT NULL THEN coalesce(w.quarantined_ms, p_now_ms) END
    FROM json_to_recordset(p_registry -> 'halts')
        AS r(id uuid, is_halted boolean, quarantine_code text)
    WHERE w.id = r.id;

    INSERT INTO callboard.api_key (
        id, hash, owner_did, name, scopes, rate_class, rate_limits, created_ms, expires_ms,
        parent_id, depth)
    SELECT
        id, decode(hash, 'hex'), owner_did, name, scopes, rate_class, rate_limits, p_now_ms,
        expires_ms, parent_id, depth
    FROM json_to_recordset(p_registry -> 'keys') AS r(
        id text, hash text, owner_did text, name text, scopes text[], rate_class text,
        rate_limits json, expires_ms bigint, parent_id text, depth integer);

    UPDATE callboard.api_key k SET revoked_ms = p_now_ms
    FROM json_array_elements_text(p_registry -> 'revoked') AS r(id)
    WHERE k.id = r.id AND k.revoked_ms IS NULL;

    IF p_registry ->> 'notice' IS NOT NULL THEN
        PERFORM pg_notify('callboard_directory', p_registry ->> 'notice');
    END IF;
END $$;


ALTER FUNCTION callboard.commit_registry(p_registry json, p_now_ms bigint) OWNER TO callboard_owner;

--
-- Name: commit_reputation(json, bigint); Type: FUNCTION; Schema: callboard; Owner: callboard_owner
--

CREATE FUNCTION callboard.commit_reputation(p_reputation json, p_now_ms bigint) RETURNS void
    LANGUAGE sql
    AS $$
    INSERT INTO callboard.reputation AS o (
        agent_did, total, successful, failed, cancelled, latency_ms_sum, updated_ms)
    SELECT
        agent_did, successful + failed + cancelled, successful, failed, cancelled, latency_ms_sum,
        p_now_ms
    FROM json_to_recordset(p_reputation) AS r(
        agent_did text, successful bigint, failed bigint, cancelled bigint, latency_ms_sum bigint)
    ON CONFLICT (agent_did) DO UPDATE SET
        total = o.total + excluded.total,
        successful = o.successful + excluded.successful,
        failed = o.failed + excluded.failed,
        cancelled = o.cancelled + excluded.cancelled,
        latency_ms_sum = o.latency_ms_sum + excluded.latency_ms_sum,
        updated_ms = excluded.updated_ms;
$$;


ALTER FUNCTION callboard.commit_reputation(p_reputation json, p_now_ms bigint) OWNER TO callboard_owner;

--
-- Name: link_audit(); Type: FUNCTION; Schema: callboard; Owner: callboard_owner
--

CREATE FUNCTION callboard.link_audit() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    lowest bigint;
    highest bigint;
    total bigint;
    before bytea;
    latest bytea;
BEGIN
    SELECT min(id), max(id), count(*) INTO lowest, highest, total FROM fresh;
    IF total = 0 THEN
        RETURN NULL;
    END IF;
    SELECT hash INTO before FROM callboard.head;
    SELECT hash INTO latest FROM fresh WHERE id = highest;
    UPDATE callboard.head SET audit_seq = highest, hash = latest
    WHERE epoch = nullif(current_setting('callboard.epoch', true), '')::bigint
        AND audit_seq = lowest - 1 AND highest - lowest + 1 = total;
    IF NOT FOUND THEN
        PERFORM callboard.raise_fenced();
        RAISE EXCEPTION 'audit ids are not contiguous: got % to %', lowest, highest
            USING ERRCODE = 'CB005';
    END IF;
    IF EXISTS (
            SELECT 1 FROM (
                SELECT id, body, lag(hash, 1, before) OVER (ORDER BY id) AS prev_hash FROM fresh
            ) linked
            WHERE position(
                    '"prevHash":"sha256:' || encode(prev_hash, 'hex') || '"' IN body) = 0
                OR position('"id":' || id || ',' IN body) = 0) THEN
        RAISE EXCEPTION 'an audit body does not carry the hash before it' USING ERRCODE = 'CB005';
    END IF;
    RETURN NULL;
END $$;


ALTER FUNCTION callboard.link_audit() OWNER TO callboard_owner;

--
-- Name: offered_words(text); Type: FUNCTION; Schema: callboard; Owner: callboard_owner
--

CREATE FUNCTION callboard.offered_words(card text) RETURNS TABLE(capability_id text, words tsvector)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    RETURN QUERY SELECT
        c ->> 'id',
        setweight(to_tsvector('english', translate(c ->> 'id', '._-', '   ')), 'A')
            || setweight(to_tsvector('english', concat_ws(
                ' ', c ->> 'name', card::jsonb #>> '{metadata,name}')), 'B')
            || setweight(to_tsvector('english', coalesce(c ->> 'description', '')), 'C')
    FROM jsonb_array_elements(card::jsonb -> 'capabilities') c;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN;
END $$;


ALTER FUNCTION callboard.offered_words(card text) OWNER TO callboard_owner;

--
-- Name: raise_fenced(); Type: FUNCTION; Schema: callboard; Owner: callboard_owner
--

CREATE FUNCTION callboard.raise_fenced() RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    IF NOT EXISTS (
            SELECT 1 FROM callboard.head
            WHERE epoch = nullif(current_setting('callboard.epoch', true), '')::bigint) THEN
        RAISE EXCEPTION 'ledger writer fenced off' USING ERRCODE = 'CB001';
    END IF;
END $$;


ALTER FUNCTION callboard.raise_fenced() OWNER TO callboard_owner;

--
-- Name: refuse_change(); Type: FUNCTION; Schema: callboard; Owner: callboard_owner
--

CREATE FUNCTION callboard.refuse_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'CB002';
END $$;


ALTER FUNCTION callboard.refuse_change() OWNER TO callboard_owner;

SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: account; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.account (
    id bigint NOT NULL,
    address text NOT NULL,
    owner_did text,
    kind text NOT NULL,
    balance bigint DEFAULT 0 NOT NULL,
    currency text DEFAULT 'CREDITS'::text NOT NULL,
    created_ms bigint NOT NULL,
    CONSTRAINT account_balance_bounds CHECK (((balance <= '9000000000000000000'::bigint) AND (balance >=
CASE
    WHEN (kind = 'external'::text) THEN '-9000000000000000000'::bigint
    ELSE (0)::bigint
END))),
    CONSTRAINT account_currency_check CHECK ((currency = 'CREDITS'::text)),
    CONSTRAINT account_kind_check CHECK ((kind = ANY (ARRAY['external'::text, 'wallet'::text, 'escrow'::text, 'stake'::text, 'stake_locked'::text, 'fee'::text])))
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.02');


ALTER TABLE callboard.account OWNER TO callboard_owner;

--
-- Name: agent; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.agent (
    did text NOT NULL,
    owner_did text NOT NULL,
    card text NOT NULL,
    endpoint text NOT NULL,
    capability_ids text[] NOT NULL,
    public_key text,
    signing_secret bytea,
    status text NOT NULL,
    revision integer NOT NULL,
    token_revision integer DEFAULT 1 NOT NULL,
    registered_ms bigint NOT NULL,
    updated_ms bigint NOT NULL,
    CONSTRAINT agent_revision_check CHECK ((revision > 0)),
    CONSTRAINT agent_status_check CHECK ((status = ANY (ARRAY['active'::text, 'inactive'::text]))),
    CONSTRAINT agent_token_revision_check CHECK ((token_revision > 0))
);


ALTER TABLE callboard.agent OWNER TO callboard_owner;

--
-- Name: agent_live; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.agent_live (
    did text NOT NULL,
    status text,
    load double precision,
    queue_depth integer,
    version text,
    latency_ms double precision,
    heartbeat_ms bigint,
    probe_ms bigint,
    probe_ok boolean,
    probe_failures integer DEFAULT 0 NOT NULL,
    updated_ms bigint NOT NULL,
    CONSTRAINT agent_live_latency_ms_check CHECK ((latency_ms >= (0)::double precision)),
    CONSTRAINT agent_live_load_check CHECK (((load >= (0)::double precision) AND (load <= (1)::double precision))),
    CONSTRAINT agent_live_probe_failures_check CHECK ((probe_failures >= 0)),
    CONSTRAINT agent_live_queue_depth_check CHECK ((queue_depth >= 0))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.05');


ALTER TABLE callboard.agent_live OWNER TO callboard_owner;

--
-- Name: alembic_version; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.alembic_version (
    version_num character varying(32) NOT NULL
);


ALTER TABLE callboard.alembic_version OWNER TO callboard_owner;

--
-- Name: api_key; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.api_key (
    id text NOT NULL,
    hash bytea NOT NULL,
    owner_did text NOT NULL,
    name text NOT NULL,
    scopes text[] NOT NULL,
    rate_class text NOT NULL,
    rate_limits json,
    created_ms bigint NOT NULL,
    expires_ms bigint,
    revoked_ms bigint,
    parent_id text,
    depth integer NOT NULL,
    CONSTRAINT api_key_check CHECK (((parent_id IS NULL) = (depth = 0))),
    CONSTRAINT api_key_depth_check CHECK ((depth >= 0)),
    CONSTRAINT api_key_hash_check CHECK ((octet_length(hash) = 32))
);


ALTER TABLE callboard.api_key OWNER TO callboard_owner;

--
-- Name: attempt; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.attempt (
    workflow_id uuid NOT NULL,
    id bigint NOT NULL,
    node text NOT NULL,
    attempt integer NOT NULL,
    kind text NOT NULL,
    agent_did text NOT NULL,
    outcome text NOT NULL,
    started_ms bigint NOT NULL,
    completed_ms bigint NOT NULL,
    input_hash text,
    output_hash text,
    error_code text,
    error_message text,
    CONSTRAINT attempt_kind_check CHECK ((kind = ANY (ARRAY['primary'::text, 'verify'::text]))),
    CONSTRAINT attempt_outcome_check CHECK ((outcome = ANY (ARRAY['success'::text, 'error'::text, 'timeout'::text, 'lost'::text, 'discarded'::text, 'rejected'::text])))
);


ALTER TABLE callboard.attempt OWNER TO callboard_owner;

--
-- Name: attempt_id_seq; Type: SEQUENCE; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE callboard.attempt ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME callboard.attempt_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: auction; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.auction (
    workflow_id uuid NOT NULL,
    node text NOT NULL,
    round integer NOT NULL,
    capability_id text NOT NULL,
    reserve_micro bigint NOT NULL,
    stake_bps integer NOT NULL,
    opened_ms bigint NOT NULL,
    closes_ms bigint NOT NULL,
    status text NOT NULL,
    winner_did text,
    price_micro bigint,
    excluded json,
    closed_ms bigint,
    CONSTRAINT auction_check CHECK ((closes_ms >= opened_ms)),
    CONSTRAINT auction_check1 CHECK (((price_micro >= 0) AND (price_micro <= reserve_micro))),
    CONSTRAINT auction_check2 CHECK (((status = 'open'::text) = (closed_ms IS NULL))),
    CONSTRAINT auction_check3 CHECK (((status = 'awarded'::text) = ((winner_did IS NOT NULL) AND (price_micro IS NOT NULL)))),
    CONSTRAINT auction_reserve_micro_check CHECK ((reserve_micro >= 0)),
    CONSTRAINT auction_round_check CHECK ((round > 0)),
    CONSTRAINT auction_stake_bps_check CHECK (((stake_bps >= 0) AND (stake_bps <= 10000))),
    CONSTRAINT auction_status_check CHECK ((status = ANY (ARRAY['open'::text, 'awarded'::text, 'no_bids'::text, 'cancelled'::text])))
)
WITH (fillfactor='70');


ALTER TABLE callboard.auction OWNER TO callboard_owner;

--
-- Name: audit; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.audit (
    id bigint NOT NULL,
    event_types text[] NOT NULL,
    actor_did text NOT NULL,
    workflow_id uuid,
    created_ms bigint NOT NULL,
    body text NOT NULL,
    hash bytea NOT NULL,
    CONSTRAINT audit_check CHECK ((hash = sha256(convert_to(body, 'UTF8'::name)))),
    CONSTRAINT audit_event_types_check CHECK ((cardinality(event_types) > 0))
);


ALTER TABLE callboard.audit OWNER TO callboard_owner;

--
-- Name: audit_event; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.audit_event (
    audit_id bigint NOT NULL,
    number integer NOT NULL,
    event_type text NOT NULL,
    target_type text NOT NULL,
    target_id text NOT NULL,
    CONSTRAINT audit_event_number_check CHECK ((number >= 0))
);


ALTER TABLE callboard.audit_event OWNER TO callboard_owner;

--
-- Name: bid; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.bid (
    workflow_id uuid NOT NULL,
    node text NOT NULL,
    round integer NOT NULL,
    agent_did text NOT NULL,
    amount_micro bigint NOT NULL,
    eta_ms bigint,
    stake_offered_micro bigint,
    is_standing boolean NOT NULL,
    received_ms bigint NOT NULL,
    CONSTRAINT bid_amount_micro_check CHECK (((amount_micro >= 0) AND (amount_micro <= '1000000000000000'::bigint))),
    CONSTRAINT bid_eta_ms_check CHECK ((eta_ms >= 0)),
    CONSTRAINT bid_stake_offered_micro_check CHECK ((stake_offered_micro >= 0))
);


ALTER TABLE callboard.bid OWNER TO callboard_owner;

--
-- Name: blob; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.blob (
    hash bytea NOT NULL,
    bytes bytea NOT NULL,
    created_ms bigint DEFAULT ((EXTRACT(epoch FROM clock_timestamp()) * (1000)::numeric))::bigint NOT NULL,
    CONSTRAINT blob_is_its_hash CHECK ((hash = sha256(bytes)))
);


ALTER TABLE callboard.blob OWNER TO callboard_owner;

--
-- Name: capability_price; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.capability_price (
    capability_id text NOT NULL,
    price_cents bigint,
    input_rate text,
    output_rate text,
    set_by_did text NOT NULL,
    updated_ms bigint NOT NULL,
    CONSTRAINT capability_price_check CHECK (((price_cents IS NULL) = (input_rate IS NOT NULL))),
    CONSTRAINT capability_price_check1 CHECK (((input_rate IS NULL) = (output_rate IS NULL))),
    CONSTRAINT capability_price_price_cents_check CHECK (((price_cents >= 0) AND (price_cents <= '100000000000'::bigint)))
);


ALTER TABLE callboard.capability_price OWNER TO callboard_owner;

--
-- Name: command; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.command (
    id text NOT NULL,
    request_hash bytea,
    result json,
    error text,
    detail text,
    audit_id bigint,
    created_ms bigint NOT NULL
);


ALTER TABLE callboard.command OWNER TO callboard_owner;

--
-- Name: compatibility; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.compatibility (
    one boolean DEFAULT true NOT NULL,
    min_code_version integer NOT NULL,
    CONSTRAINT compatibility_min_code_version_check CHECK ((min_code_version > 0)),
    CONSTRAINT compatibility_one_check CHECK (one)
);


ALTER TABLE callboard.compatibility OWNER TO callboard_owner;

--
-- Name: dispute; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.dispute (
    id uuid NOT NULL,
    workflow_id uuid,
    complainant_did text NOT NULL,
    respondent_did text,
    node_id text,
    dispute_type text NOT NULL,
    description text NOT NULL,
    evidence json NOT NULL,
    status text NOT NULL,
    resolution text,
    refund_asked_micro bigint,
    refunded_micro bigint DEFAULT 0 NOT NULL,
    short_micro bigint DEFAULT 0 NOT NULL,
    created_ms bigint NOT NULL,
    resolved_ms bigint,
    resolved_by_did text,
    CONSTRAINT dispute_check CHECK (((status = 'open'::text) = (resolved_ms IS NULL))),
    CONSTRAINT dispute_dispute_type_check CHECK ((dispute_type = ANY (ARRAY['quality'::text, 'timeout'::text, 'incorrect_output'::text, 'overcharge'::text, 'fraud'::text, 'other'::text]))),
    CONSTRAINT dispute_refund_asked_micro_check CHECK ((refund_asked_micro >= 0)),
    CONSTRAINT dispute_refunded_micro_check CHECK ((refunded_micro >= 0)),
    CONSTRAINT dispute_short_micro_check CHECK ((short_micro >= 0)),
    CONSTRAINT dispute_status_check CHECK ((status = ANY (ARRAY['open'::text, 'resolved_complainant'::text, 'resolved_respondent'::text, 'resolved_split'::text, 'dismissed'::text])))
);


ALTER TABLE callboard.dispute OWNER TO callboard_owner;

--
-- Name: entry; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.entry (
    id bigint NOT NULL,
    debit_account_id bigint NOT NULL,
    credit_account_id bigint NOT NULL,
    amount bigint NOT NULL,
    kind text NOT NULL,
    description text NOT NULL,
    workflow_id uuid,
    node_id text,
    audit_id bigint NOT NULL,
    created_ms bigint NOT NULL,
    CONSTRAINT entry_amount_check CHECK (((amount >= 1) AND (amount <= '1000000000000000'::bigint))),
    CONSTRAINT entry_check CHECK ((debit_account_id <> credit_account_id)),
    CONSTRAINT entry_kind_check CHECK ((kind = ANY (ARRAY['deposit'::text, 'escrow_hold'::text, 'node_payment'::text, 'protocol_fee'::text, 'escrow_release'::text, 'stake_deposit'::text, 'stake_withdrawal'::text, 'stake_lock'::text, 'stake_unlock'::text, 'stake_slash'::text, 'refund'::text, 'fee_refund'::text, 'stake_refund'::text])))
);


ALTER TABLE callboard.entry OWNER TO callboard_owner;

--
-- Name: escrow; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.escrow (
    workflow_id uuid NOT NULL,
    payer_did text NOT NULL,
    account_id bigint NOT NULL,
    amount bigint NOT NULL,
    fee_bps integer NOT NULL,
    status text NOT NULL,
    created_ms bigint NOT NULL,
    released_ms bigint,
    CONSTRAINT escrow_amount_check CHECK (((amount >= 0) AND (amount <= '1000000000000000'::bigint))),
    CONSTRAINT escrow_fee_bps_check CHECK (((fee_bps >= 0) AND (fee_bps <= 10000))),
    CONSTRAINT escrow_status_check CHECK ((status = ANY (ARRAY['held'::text, 'released'::text])))
)
WITH (fillfactor='80');


ALTER TABLE callboard.escrow OWNER TO callboard_owner;

--
-- Name: feedback; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.feedback (
    workflow_id uuid NOT NULL,
    agent_did text NOT NULL,
    payer_did text NOT NULL,
    rating numeric(4,3) NOT NULL,
    comment text,
    created_ms bigint NOT NULL,
    CONSTRAINT feedback_rating_check CHECK (((rating >= (0)::numeric) AND (rating <= (1)::numeric)))
);


ALTER TABLE callboard.feedback OWNER TO callboard_owner;

--
-- Name: head; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.head (
    one boolean DEFAULT true NOT NULL,
    epoch bigint NOT NULL,
    entry_seq bigint NOT NULL,
    audit_seq bigint NOT NULL,
    hash bytea NOT NULL,
    CONSTRAINT head_hash_check CHECK ((octet_length(hash) = 32)),
    CONSTRAINT head_one_check CHECK (one)
)
WITH (fillfactor='10');


ALTER TABLE callboard.head OWNER TO callboard_owner;

--
-- Name: http_reply; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.http_reply (
    principal text NOT NULL,
    key text NOT NULL,
    request_hash bytea NOT NULL,
    reply bytea,
    expires_ms bigint NOT NULL,
    CONSTRAINT http_reply_request_hash_check CHECK ((octet_length(request_hash) = 32))
);


ALTER TABLE callboard.http_reply OWNER TO callboard_owner;

--
-- Name: invoice; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.invoice (
    id uuid NOT NULL,
    payer_did text NOT NULL,
    period_start_ms bigint NOT NULL,
    period_end_ms bigint NOT NULL,
    workflow_id uuid,
    subtotal_cents bigint NOT NULL,
    protocol_fee_cents bigint NOT NULL,
    total_cents bigint NOT NULL,
    subtotal_micro bigint NOT NULL,
    status text NOT NULL,
    created_ms bigint NOT NULL,
    settled_ms bigint,
    settled_by_did text,
    CONSTRAINT invoice_check CHECK ((period_end_ms > period_start_ms)),
    CONSTRAINT invoice_check1 CHECK ((total_cents = (subtotal_cents + protocol_fee_cents))),
    CONSTRAINT invoice_protocol_fee_cents_check CHECK ((protocol_fee_cents >= 0)),
    CONSTRAINT invoice_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'paid'::text, 'void'::text]))),
    CONSTRAINT invoice_subtotal_cents_check CHECK ((subtotal_cents >= 0)),
    CONSTRAINT invoice_subtotal_micro_check CHECK ((subtotal_micro >= 0))
);


ALTER TABLE callboard.invoice OWNER TO callboard_owner;

--
-- Name: invoice_line; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.invoice_line (
    invoice_id uuid NOT NULL,
    entry_id bigint NOT NULL,
    amount_micro bigint NOT NULL,
    is_void boolean DEFAULT false NOT NULL,
    CONSTRAINT invoice_line_amount_micro_check CHECK ((amount_micro > 0))
);


ALTER TABLE callboard.invoice_line OWNER TO callboard_owner;

--
-- Name: node; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.node (
    workflow_id uuid NOT NULL,
    name text NOT NULL,
    status text NOT NULL,
    attempt integer DEFAULT 0 NOT NULL,
    agent_did text,
    price_micro bigint DEFAULT 0 NOT NULL,
    dispatched_ms bigint,
    deadline_ms bigint,
    retry_at_ms bigint,
    retries_used integer DEFAULT 0 NOT NULL,
    agents_tried json,
    verifier_did text,
    verify_attempt integer DEFAULT 0 NOT NULL,
    verifier_price_micro bigint DEFAULT 0 NOT NULL,
    verify_retries_used integer DEFAULT 0 NOT NULL,
    verifiers_tried json,
    result_json text,
    result_ref json,
    error json,
    started_ms bigint,
    completed_ms bigint,
    cost_micro bigint DEFAULT 0 NOT NULL,
    metrics json,
    input_hash text,
    selection_json text,
    price_json text,
    stake_micro bigint DEFAULT 0 NOT NULL,
    auction_round integer DEFAULT 0 NOT NULL,
    auction_closes_ms bigint,
    key_version smallint DEFAULT 0 NOT NULL,
    CONSTRAINT node_cost_micro_check CHECK ((cost_micro >= 0)),
    CONSTRAINT node_key_version_check CHECK ((key_version >= 0)),
    CONSTRAINT node_result_once CHECK (((result_json IS NULL) OR (result_ref IS NULL))),
    CONSTRAINT node_stake_micro_check CHECK ((stake_micro >= 0)),
    CONSTRAINT node_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'ready'::text, 'dispatched'::text, 'running'::text, 'success'::text, 'failed'::text, 'skipped'::text, 'timeout'::text])))
)
WITH (fillfactor='70');


ALTER TABLE callboard.node OWNER TO callboard_owner;

--
-- Name: owner; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.owner (
    name text NOT NULL,
    epoch bigint NOT NULL,
    address text NOT NULL,
    registered_ms bigint NOT NULL,
    CONSTRAINT owner_epoch_check CHECK ((epoch > 0))
);


ALTER TABLE callboard.owner OWNER TO callboard_owner;

--
-- Name: quota; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.quota (
    did text NOT NULL,
    max_workflows_per_day bigint,
    max_concurrent_workflows bigint,
    max_spend_per_day_cents bigint,
    set_by_did text NOT NULL,
    updated_ms bigint NOT NULL,
    CONSTRAINT quota_max_concurrent_workflows_check CHECK ((max_concurrent_workflows >= 0)),
    CONSTRAINT quota_max_spend_per_day_cents_check CHECK ((max_spend_per_day_cents >= 0)),
    CONSTRAINT quota_max_workflows_per_day_check CHECK ((max_workflows_per_day >= 0))
);


ALTER TABLE callboard.quota OWNER TO callboard_owner;

--
-- Name: rate_lease; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.rate_lease (
    principal text NOT NULL,
    class text NOT NULL,
    window_ms bigint NOT NULL,
    used integer NOT NULL,
    granted integer NOT NULL,
    CONSTRAINT rate_lease_check CHECK (((granted >= 0) AND (granted <= used))),
    CONSTRAINT rate_lease_used_check CHECK ((used >= 0))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.05');


ALTER TABLE callboard.rate_lease OWNER TO callboard_owner;

--
-- Name: reputation; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.reputation (
    agent_did text NOT NULL,
    total bigint NOT NULL,
    successful bigint NOT NULL,
    failed bigint NOT NULL,
    cancelled bigint NOT NULL,
    latency_ms_sum bigint NOT NULL,
    updated_ms bigint NOT NULL,
    CONSTRAINT reputation_cancelled_check CHECK ((cancelled >= 0)),
    CONSTRAINT reputation_check CHECK ((total = ((successful + failed) + cancelled))),
    CONSTRAINT reputation_failed_check CHECK ((failed >= 0)),
    CONSTRAINT reputation_latency_ms_sum_check CHECK ((latency_ms_sum >= 0)),
    CONSTRAINT reputation_successful_check CHECK ((successful >= 0))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.05');


ALTER TABLE callboard.reputation OWNER TO callboard_owner;

--
-- Name: revocation; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.revocation (
    did text NOT NULL,
    reason text NOT NULL,
    evidence json NOT NULL,
    revoked_ms bigint NOT NULL,
    expires_ms bigint,
    revoked_by_did text NOT NULL,
    ended_ms bigint,
    ended_by_did text,
    CONSTRAINT revocation_check CHECK (((ended_ms IS NULL) = (ended_by_did IS NULL))),
    CONSTRAINT revocation_expires_ms_check CHECK ((expires_ms > 0))
);


ALTER TABLE callboard.revocation OWNER TO callboard_owner;

--
-- Name: stake; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.stake (
    agent_did text NOT NULL,
    free_account_id bigint NOT NULL,
    locked_account_id bigint NOT NULL,
    updated_ms bigint NOT NULL
);


ALTER TABLE callboard.stake OWNER TO callboard_owner;

--
-- Name: stake_share; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.stake_share (
    agent_did text NOT NULL,
    depositor_did text NOT NULL,
    micro bigint NOT NULL,
    CONSTRAINT stake_share_micro_check CHECK (((micro >= 0) AND (micro <= '1000000000000000'::bigint)))
);


ALTER TABLE callboard.stake_share OWNER TO callboard_owner;

--
-- Name: workflow; Type: TABLE; Schema: callboard; Owner: callboard_owner
--

CREATE TABLE callboard.workflow (
    id uuid NOT NULL,
    task_id uuid NOT NULL,
    payer_did text NOT NULL,
    status text NOT NULL,
    intent text NOT NULL,
    manifest text NOT NULL,
    owner text NOT NULL,
    created_ms bigint NOT NULL,
    started_ms bigint,
    completed_ms bigint,
    deadline_ms bigint NOT NULL,
    estimate_micro bigint NOT NULL,
    hold_micro bigint NOT NULL,
    reserved text NOT NULL,
    fee_bps integer NOT NULL,
    spent_micro bigint,
    error json,
    end_reason text,
    end_details text,
    ended_by_did text,
    is_halted boolean DEFAULT false NOT NULL,
    quarantined_ms bigint,
    quarantine_code text,
    CONSTRAINT workflow_check CHECK (((quarantined_ms IS NULL) = (quarantine_code IS NULL))),
    CONSTRAINT workflow_check1 CHECK (((completed_ms IS NULL) = (status = ANY (ARRAY['pending'::text, 'running'::text])))),
    CONSTRAINT workflow_estimate_micro_check CHECK ((estimate_micro >= 0)),
    CONSTRAINT workflow_hold_micro_check CHECK ((hold_micro >= 0)),
    CONSTRAINT workflow_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'running'::text, 'success'::text, 'failed'::text, 'cancelled'::text, 'timeout'::text])))
)
WITH (fillfactor='85');


ALTER TABLE callboard.workflow OWNER TO callboard_owner;

--
-- Data for Name: account; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.account (id, address, owner_did, kind, balance, currency, created_ms) FROM stdin;
18	escrow:01a2047d-964b-7bef-bb14-ec456854d5ce	did:dump:payer	escrow	200000	CREDITS	1795371669097
1	world	\N	external	-200000000	CREDITS	0
12	stake_locked:did:dump:cheap-bidder	did:dump:cheap-bidder	stake_locked	0	CREDITS	1795371668764
19	escrow:01a2047d-969e-76a2-be04-6306f6763b59	did:dump:payer	escrow	400000	CREDITS	1795371669159
11	stake:did:dump:cheap-bidder	did:dump:cheap-bidder	stake	5000000	CREDITS	1795371668764
14	stake_locked:did:dump:dear-bidder	did:dump:dear-bidder	stake_locked	0	CREDITS	1795371668798
13	stake:did:dump:dear-bidder	did:dump:dear-bidder	stake	5000000	CREDITS	1795371668798
4	wallet:did:dump:owner	did:dump:owner	wallet	75000000	CREDITS	1795371667699
21	escrow:01a2047d-9b49-7f74-9b6e-07425d106e9a	did:dump:payer	escrow	200000	CREDITS	1795371670346
8	stake_locked:did:dump:signed	did:dump:signed	stake_locked	10000	CREDITS	1795371668705
24	escrow:01a2047d-9bcb-7a0f-a799-74a2fa722969	did:dump:payer	escrow	100000	CREDITS	1795371670499
7	stake:did:dump:signed	did:dump:signed	stake	4990000	CREDITS	1795371668705
20	escrow:01a2047d-96c8-7b26-84cb-1b00adc2d0a8	did:dump:payer	escrow	400000	CREDITS	1795371669214
17	escrow:01a2047d-9610-722b-b54b-48c1f898a2dd	did:dump:payer	escrow	400000	CREDITS	1795371669010
15	escrow:01a2047d-95b4-7238-93e1-412c1fa259d2	did:dump:payer	escrow	0	CREDITS	1795371668919
2	fee	\N	fee	50000	CREDITS	0
16	wallet:did:dump:worker	did:dump:worker	wallet	950000	CREDITS	1795371668968
6	stake_locked:did:dump:worker	did:dump:worker	stake_locked	70010	CREDITS	1795371668622
25	escrow:01a2047d-9c1a-7b57-b9b9-b058a032c442	did:dump:payer	escrow	200000	CREDITS	1795371670584
5	stake:did:dump:worker	did:dump:worker	stake	4929990	CREDITS	1795371668622
22	escrow:01a2047d-9b5e-7309-aad5-e6290f56ceca	did:dump:payer	escrow	250000	CREDITS	1795371670368
10	stake_locked:did:dump:metered	did:dump:metered	stake_locked	100000	CREDITS	1795371668727
9	stake:did:dump:metered	did:dump:metered	stake	4900000	CREDITS	1795371668727
23	escrow:01a2047d-9b8d-7b4f-99e4-0d741bf507c0	did:dump:payer	escrow	1000000	CREDITS	1795371670429
26	escrow:01a2047d-9ded-70b5-af9d-9b08630712ae	did:dump:payer	escrow	1000000	CREDITS	1795371671023
3	wallet:did:dump:payer	did:dump:payer	wallet	94850000	CREDITS	1795371667647
\.


--
-- Data for Name: agent; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.agent (did, owner_did, card, endpoint, capability_ids, public_key, signing_secret, status, revision, token_revision, registered_ms, updated_ms) FROM stdin;
did:dump:worker	did:dump:owner	{"did":"did:dump:worker","endpoint":"http://127.0.0.1:9","version":1,"capabilities":[{"id":"cap.dump.work.v1","description":"A dump's","price_cents":20}]}	http://127.0.0.1:9	{cap.dump.work.v1}	\N	\N	active	1	1	1795371667778	1795371667778
did:dump:signed	did:dump:owner	{"did":"did:dump:signed","endpoint":"http://127.0.0.1:9","version":1,"capabilities":[{"id":"cap.dump.sign.v1","description":"A dump's","price_cents":10}]}	http://127.0.0.1:9	{cap.dump.sign.v1}	\N	\\x0171e1ff0a1c86817051cd254e112f1de343ed2e44f4e50fa492a7fa4d26eac2d8dc002a971254f6109ee45d42ee33eb669ae0257b027a46d4440d308d776f81cf19bafb2c12f5e6cc49d98c8bfd	active	1	1	1795371667997	1795371667997
did:dump:metered	did:dump:owner	{"did":"did:dump:metered","endpoint":"http://127.0.0.1:9","version":1,"capabilities":[{"id":"cap.dump.meter.v1","description":"A dump's","pricing":{"model":"per-token","inputRate":"0.00001","outputRate":"0.00002"}}]}	http://127.0.0.1:9	{cap.dump.meter.v1}	\N	\N	active	1	1	1795371668180	1795371668180
did:dump:cheap-bidder	did:dump:owner	{"did":"did:dump:cheap-bidder","endpoint":"http://127.0.0.1:9","version":1,"capabilities":[{"id":"cap.dump.auction.v1","description":"A dump's","price_cents":90}]}	http://127.0.0.1:9	{cap.dump.auction.v1}	\N	\N	active	1	1	1795371668236	1795371668236
did:dump:dear-bidder	did:dump:owner	{"did":"did:dump:dear-bidder","endpoint":"http://127.0.0.1:9","version":1,"capabilities":[{"id":"cap.dump.auction.v1","description":"A dump's","price_cents":90,"standingBid":{"bidAmount":0.3}}]}	http://127.0.0.1:9	{cap.dump.auction.v1}	\N	\N	active	1	1	1795371668344	1795371668344
did:dump:judge	did:dump:judge-owner	{"did":"did:dump:judge","endpoint":"http://127.0.0.1:9","version":1,"capabilities":[{"id":"cap.verify.generic.v1","description":"A dump's","price_cents":5}]}	http://127.0.0.1:9	{cap.verify.generic.v1}	\N	\N	active	1	1	1795371668424	1795371668424
did:dump:revoked	did:dump:owner	{"did":"did:dump:revoked","endpoint":"http://127.0.0.1:9","version":1,"capabilities":[{"id":"cap.dump.work.v1","description":"A dump's","price_cents":0}]}	http://127.0.0.1:9	{cap.dump.work.v1}	\N	\N	active	1	1	1795371668523	1795371668523
\.


--
-- Data for Name: agent_live; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.agent_live (did, status, load, queue_depth, version, latency_ms, heartbeat_ms, probe_ms, probe_ok, probe_failures, updated_ms) FROM stdin;
did:dump:worker	healthy	0	\N	\N	\N	1795371667934	\N	\N	0	1795371667934
did:dump:signed	healthy	0	\N	\N	\N	1795371668145	\N	\N	0	1795371668145
did:dump:metered	healthy	0	\N	\N	\N	1795371668223	\N	\N	0	1795371668223
did:dump:cheap-bidder	healthy	0	\N	\N	\N	1795371668328	\N	\N	0	1795371668328
did:dump:dear-bidder	healthy	0	\N	\N	\N	1795371668400	\N	\N	0	1795371668400
did:dump:judge	healthy	0	\N	\N	\N	1795371668508	\N	\N	0	1795371668508
did:dump:revoked	healthy	0	\N	\N	\N	1795371668607	\N	\N	0	1795371668607
\.


--
-- Data for Name: alembic_version; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.alembic_version (version_num) FROM stdin;
0002
\.


--
-- Data for Name: api_key; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.api_key (id, hash, owner_did, name, scopes, rate_class, rate_limits, created_ms, expires_ms, revoked_ms, parent_id, depth) FROM stdin;
admin-40344bf6f50541d8	\\x40344bf6f50541d85d76228a01cedaf42313003e97cd51204417deb900eb527c	did:callboard:admin	made at the first start	{admin,ledger:deposit,workflows:read,workflows:write,agents:read,agents:write,capabilities:read,capabilities:write,ledger:read,ledger:write,trust:read,trust:write,identity:read,identity:write,schedules:read,schedules:write,webhooks:read,webhooks:write,audit:read,audit:write,federation:read,federation:write,keys:read,keys:write}	unlimited	\N	1795371661086	\N	\N	\N	0
01a2047d-8a89-7dcc-b985-5a7da4467737	\\x1a31154de92324a533d10b6b449c7aa11a2ef05d4ec25d77c101b62de069e277	did:dump:payer		{workflows:read,workflows:write,agents:read,agents:write,capabilities:read,capabilities:write,ledger:read,ledger:write,trust:read,trust:write,identity:read,identity:write,schedules:read,schedules:write,webhooks:read,webhooks:write,audit:read,audit:write,federation:read,federation:write,keys:read,keys:write}	unlimited	\N	1795371666058	\N	\N	\N	0
01a2047d-8db6-765c-80d7-3c7a90e3ea41	\\xc7bc8576bba972907164b98f03da26742339cb5cb67472345e38510d7815266c	did:dump:owner		{workflows:read,workflows:write,agents:read,agents:write,capabilities:read,capabilities:write,ledger:read,ledger:write,trust:read,trust:write,identity:read,identity:write,schedules:read,schedules:write,webhooks:read,webhooks:write,audit:read,audit:write,federation:read,federation:write,keys:read,keys:write}	unlimited	\N	1795371666871	\N	\N	\N	0
01a2047d-8dd3-7cc1-b351-cf0e715c390d	\\xcfa48697fb3ac3eda8affcb0f555dfec1c426155d515be70a919d92f93055a3d	did:dump:judge-owner		{workflows:read,workflows:write,agents:read,agents:write,capabilities:read,capabilities:write,ledger:read,ledger:write,trust:read,trust:write,identity:read,identity:write,schedules:read,schedules:write,webhooks:read,webhooks:write,audit:read,audit:write,federation:read,federation:write,keys:read,keys:write}	unlimited	\N	1795371666900	\N	\N	\N	0
\.


--
-- Data for Name: attempt; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.attempt (workflow_id, id, node, attempt, kind, agent_did, outcome, started_ms, completed_ms, input_hash, output_hash, error_code, error_message) FROM stdin;
01a2047d-95b4-7238-93e1-412c1fa259d2	1	a	1	primary	did:dump:worker	success	1795371668929	1795371668938	sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a	sha256:219e06202d427cee4403e727815631f0c44fb9555d83942a80e78c657c6cdc29	\N	\N
01a2047d-95b4-7238-93e1-412c1fa259d2	2	b	1	primary	did:dump:worker	success	1795371668989	1795371669014	sha256:2bfd14f43d17fc7cea24e0917a8879b4b2f880b8baeec1b9d90fbaad655e71bd	sha256:219e06202d427cee4403e727815631f0c44fb9555d83942a80e78c657c6cdc29	\N	\N
01a2047d-964b-7bef-bb14-ec456854d5ce	3	a	1	primary	did:dump:worker	success	1795371669106	1795371669112	sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a	sha256:219e06202d427cee4403e727815631f0c44fb9555d83942a80e78c657c6cdc29	\N	\N
01a2047d-96c8-7b26-84cb-1b00adc2d0a8	4	a	1	primary	did:dump:worker	error	1795371669228	1795371669231	\N	\N	AGENT_ERROR	HTTP 503
01a2047d-9b5e-7309-aad5-e6290f56ceca	5	a	1	primary	did:dump:worker	success	1795371670388	1795371670404	sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a	sha256:219e06202d427cee4403e727815631f0c44fb9555d83942a80e78c657c6cdc29	\N	\N
01a2047d-9b49-7f74-9b6e-07425d106e9a	6	a	1	primary	did:dump:worker	success	1795371670359	1795371670361	sha256:1c586d0065cab872cf3cf00196696302e10d59afe60825d6176699384640aa04	sha256:a75eacf99010a0ba28689529854f9fc49a14d02889e7e60adcc567b531740c20	\N	\N
01a2047d-9c1a-7b57-b9b9-b058a032c442	7	a	1	primary	did:dump:worker	success	1795371670590	1795371670598	sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a	sha256:219e06202d427cee4403e727815631f0c44fb9555d83942a80e78c657c6cdc29	\N	\N
\.


--
-- Data for Name: auction; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.auction (workflow_id, node, round, capability_id, reserve_micro, stake_bps, opened_ms, closes_ms, status, winner_did, price_micro, excluded, closed_ms) FROM stdin;
01a2047d-9ded-70b5-af9d-9b08630712ae	a	1	cap.dump.auction.v1	1000000	1000	1795371671022	1795371731022	open	\N	\N	\N	\N
\.


--
-- Data for Name: audit; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.audit (id, event_types, actor_did, workflow_id, created_ms, body, hash) FROM stdin;
1	{ledger.created}		\N	1700000000000	{"action":"created","actorDid":"","createdAt":"2023-11-14T22:13:20.000Z","eventType":"ledger.created","id":1,"payload":{"centsPerCredit":100,"currency":"CREDITS","feeBps":500,"microPerCredit":1000000,"origin":"test","publicKey":""},"prevHash":"sha256:0000000000000000000000000000000000000000000000000000000000000000","targetId":"test","targetType":"ledger"}	\\x66e84f00f3388744925f89af75f4b9bb56590147a80efed0e8e2517b2f918562
2	{owner.registered}		\N	1700000000000	{"action":"registered","actorDid":"","createdAt":"2023-11-14T22:13:20.000Z","eventType":"owner.registered","id":2,"payload":{"address":"","epoch":1},"prevHash":"sha256:66e84f00f3388744925f89af75f4b9bb56590147a80efed0e8e2517b2f918562","targetId":"owner-1","targetType":"owner"}	\\x8c237fa4642845a100fe788f5b08284cb09417dcae968aac9bb6a2d653e03138
3	{ledger.deposited}	did:test:payer	\N	1700000000000	{"action":"deposited","actorDid":"did:test:payer","createdAt":"2023-11-14T22:13:20.000Z","eventType":"ledger.deposited","id":3,"payload":{"amountCredits":"100","entryIds":[1]},"prevHash":"sha256:8c237fa4642845a100fe788f5b08284cb09417dcae968aac9bb6a2d653e03138","targetId":"did:test:payer","targetType":"account"}	\\x4cab53240e795f72c06f4588e8480b42695adcd64219caed46433da8c6f7cfa7
4	{agent.registered}	did:test:payer	\N	1700000000001	{"action":"registered","actorDid":"did:test:payer","createdAt":"2023-11-14T22:13:20.001Z","eventType":"agent.registered","id":4,"payload":{"capabilities":["cap.test.echo.v1"],"cardSha256":"94da4d93910840d310625652615fdc0f9753055f66dd6e1290a1f995fe1c39da","endpoint":"http://127.0.0.1:9","revision":1},"prevHash":"sha256:4cab53240e795f72c06f4588e8480b42695adcd64219caed46433da8c6f7cfa7","targetId":"did:test:agent","targetType":"agent"}	\\xf6de98b644ab493eabae4f7e78c11acb36e4dc7d9458f79cca62fa3fa11e65ce
5	{key.created}	did:test:payer	\N	1700000000001	{"action":"created","actorDid":"did:test:payer","createdAt":"2023-11-14T22:13:20.001Z","eventType":"key.created","id":5,"payload":{"ownerDid":"did:test:payer","parentId":null,"scopes":["ledger:read","ledger:write"]},"prevHash":"sha256:f6de98b644ab493eabae4f7e78c11acb36e4dc7d9458f79cca62fa3fa11e65ce","targetId":"k","targetType":"key"}	\\xc217bbf844782da482f5abd43dc364b72adfb4958cf653a424356c13122f0408
6	{workflow.published}	did:test:payer	018bcfe5-6800-7dfe-9150-303c61bd863e	1700000000002	{"action":"published","actorDid":"did:test:payer","createdAt":"2023-11-14T22:13:20.002Z","eventType":"workflow.published","id":6,"payload":{"estimateCredits":"5","payerDid":"did:test:payer","taskId":"018bcfe5-6800-78b6-9c9d-cdbefb64d576"},"prevHash":"sha256:c217bbf844782da482f5abd43dc364b72adfb4958cf653a424356c13122f0408","targetId":"018bcfe5-6800-7dfe-9150-303c61bd863e","targetType":"workflow"}	\\xcd6ad72c391e59689a6bea5d04d885c22cb7be2b712d80cfbbfd28ee1e264ad2
7	{escrow.held}	did:test:payer	018bcfe5-6800-7dfe-9150-303c61bd863e	1700000000002	{"action":"held","actorDid":"did:test:payer","createdAt":"2023-11-14T22:13:20.002Z","eventType":"escrow.held","id":7,"payload":{"amountCredits":"10","entryIds":[2],"feeBps":500},"prevHash":"sha256:cd6ad72c391e59689a6bea5d04d885c22cb7be2b712d80cfbbfd28ee1e264ad2","targetId":"018bcfe5-6800-7dfe-9150-303c61bd863e","targetType":"workflow"}	\\x8886cc70a047b258fee70ec4e37a8deb4369d94bc34b417ea447a5a2a916dd1e
8	{workflow.published}	did:test:payer	018bcfe5-6800-7f18-a2ae-4fcfc1c821a3	1700000000002	{"action":"published","actorDid":"did:test:payer","createdAt":"2023-11-14T22:13:20.002Z","eventType":"workflow.published","id":8,"payload":{"estimateCredits":"5","payerDid":"did:test:payer","taskId":"018bcfe5-6800-7f01-b3da-acbc4ba0dcfc"},"prevHash":"sha256:8886cc70a047b258fee70ec4e37a8deb4369d94bc34b417ea447a5a2a916dd1e","targetId":"018bcfe5-6800-7f18-a2ae-4fcfc1c821a3","targetType":"workflow"}	\\x4c8a07c4b1092b503c3744323ddd744c1cdb34eb3d30566087e67997b7b9e73f
9	{escrow.held}	did:test:payer	018bcfe5-6800-7f18-a2ae-4fcfc1c821a3	1700000000002	{"action":"held","actorDid":"did:test:payer","createdAt":"2023-11-14T22:13:20.002Z","eventType":"escrow.held","id":9,"payload":{"amountCredits":"10","entryIds":[3],"feeBps":500},"prevHash":"sha256:4c8a07c4b1092b503c3744323ddd744c1cdb34eb3d30566087e67997b7b9e73f","targetId":"018bcfe5-6800-7f18-a2ae-4fcfc1c821a3","targetType":"workflow"}	\\x84e2a000411f738533e72b47de963e90a0753ee34141a7d4987a060cb224699f
10	{node.succeeded}	did:test:agent	018bcfe5-6800-7dfe-9150-303c61bd863e	1700000000003	{"action":"succeeded","actorDid":"did:test:agent","createdAt":"2023-11-14T22:13:20.003Z","eventType":"node.succeeded","id":10,"payload":{"agentDid":"did:test:agent","attempt":1,"inputHash":"sha256:1111111111111111111111111111111111111111111111111111111111111111","nodeId":"a","outputHash":"sha256:2222222222222222222222222222222222222222222222222222222222222222"},"prevHash":"sha256:84e2a000411f738533e72b47de963e90a0753ee34141a7d4987a060cb224699f","targetId":"018bcfe5-6800-7dfe-9150-303c61bd863e","targetType":"workflow"}	\\xdf56a18eb271e132a5e12732a1d9734308f4b82a37b6a25866a9ad987c79d2e7
11	{payment.settled}	did:test:agent	018bcfe5-6800-7dfe-9150-303c61bd863e	1700000000003	{"action":"settled","actorDid":"did:test:agent","createdAt":"2023-11-14T22:13:20.003Z","eventType":"payment.settled","id":11,"payload":{"agentCredits":"0.95","agentDid":"did:test:agent","entryIds":[4,5],"feeCredits":"0.05","nodeId":"a"},"prevHash":"sha256:df56a18eb271e132a5e12732a1d9734308f4b82a37b6a25866a9ad987c79d2e7","targetId":"018bcfe5-6800-7dfe-9150-303c61bd863e","targetType":"workflow"}	\\x664c4c0da958e4a3a14bb99fbcc6bca22647b0c5d8842d583febafc1c5335090
12	{workflow.finished}	did:test:agent	018bcfe5-6800-7dfe-9150-303c61bd863e	1700000000004	{"action":"finished","actorDid":"did:test:agent","createdAt":"2023-11-14T22:13:20.004Z","eventType":"workflow.finished","id":12,"payload":{"spentCredits":"1","status":"success"},"prevHash":"sha256:664c4c0da958e4a3a14bb99fbcc6bca22647b0c5d8842d583febafc1c5335090","targetId":"018bcfe5-6800-7dfe-9150-303c61bd863e","targetType":"workflow"}	\\x8baa0d7b418a42ae4d368c3130eee0c21a465016b5fd9c0114ab959449724acb
13	{escrow.released}	did:test:agent	018bcfe5-6800-7dfe-9150-303c61bd863e	1700000000004	{"action":"released","actorDid":"did:test:agent","createdAt":"2023-11-14T22:13:20.004Z","eventType":"escrow.released","id":13,"payload":{"entryIds":[6],"refundedCredits":"9"},"prevHash":"sha256:8baa0d7b418a42ae4d368c3130eee0c21a465016b5fd9c0114ab959449724acb","targetId":"018bcfe5-6800-7dfe-9150-303c61bd863e","targetType":"workflow"}	\\x2f7715bd899908f5c0aad027e37bcc11cad22cded2d0bc2be183b88d4b234165
14	{workflow.finished}	did:test:agent	018bcfe5-6800-7f18-a2ae-4fcfc1c821a3	1700000000004	{"action":"finished","actorDid":"did:test:agent","createdAt":"2023-11-14T22:13:20.004Z","eventType":"workflow.finished","id":14,"payload":{"spentCredits":"0","status":"failed"},"prevHash":"sha256:2f7715bd899908f5c0aad027e37bcc11cad22cded2d0bc2be183b88d4b234165","targetId":"018bcfe5-6800-7f18-a2ae-4fcfc1c821a3","targetType":"workflow"}	\\x22e03f157777309510ae4a7d379db7ce997f00b6c00dba9d0e01ab6e60214427
15	{escrow.released}	did:test:agent	018bcfe5-6800-7f18-a2ae-4fcfc1c821a3	1700000000004	{"action":"released","actorDid":"did:test:agent","createdAt":"2023-11-14T22:13:20.004Z","eventType":"escrow.released","id":15,"payload":{"entryIds":[7],"refundedCredits":"10"},"prevHash":"sha256:22e03f157777309510ae4a7d379db7ce997f00b6c00dba9d0e01ab6e60214427","targetId":"018bcfe5-6800-7f18-a2ae-4fcfc1c821a3","targetType":"workflow"}	\\x3a919fb51dfab689dd34e253c6239f5ef06b877cb3514bcee6125b4bb19f91be
16	{owner.registered}		\N	1795371656332	{"action":"registered","actorDid":"","createdAt":"2026-11-22T18:20:56.332Z","eventType":"owner.registered","id":16,"payload":{"events":[{"payload":{"address":"workflow@c2be5b3587c08fa3dc2c4a386e4dc0296478a19fbfb518b0d98385a0#0","epoch":1},"targetId":"workflow@c2be5b3587c08fa3dc2c4a386e4dc0296478a19fbfb518b0d98385a0#0","targetType":"owner","type":"owner.registered"}]},"prevHash":"sha256:3a919fb51dfab689dd34e253c6239f5ef06b877cb3514bcee6125b4bb19f91be","targetId":"workflow@c2be5b3587c08fa3dc2c4a386e4dc0296478a19fbfb518b0d98385a0#0","targetType":"owner"}	\\xc7d1a8d38868938dc397c784aa17f0a80cff69609de00391567c2acd1c9eeb6a
17	{key.created}	did:callboard:admin	\N	1795371661086	{"action":"created","actorDid":"did:callboard:admin","createdAt":"2026-11-22T18:21:01.086Z","eventType":"key.created","id":17,"payload":{"events":[{"payload":{"ownerDid":"did:callboard:admin","parentId":null,"scopes":["admin","ledger:deposit","workflows:read","workflows:write","agents:read","agents:write","capabilities:read","capabilities:write","ledger:read","ledger:write","trust:read","trust:write","identity:read","identity:write","schedules:read","schedules:write","webhooks:read","webhooks:write","audit:read","audit:write","federation:read","federation:write","keys:read","keys:write"]},"targetId":"admin-40344bf6f50541d8","targetType":"key","type":"key.created"}]},"prevHash":"sha256:c7d1a8d38868938dc397c784aa17f0a80cff69609de00391567c2acd1c9eeb6a","targetId":"admin-40344bf6f50541d8","targetType":"key"}	\\x6e4260456a93dc4fae4447a2ec5fdb32bc166df9218d333c14b27b9d8255df35
18	{key.created}	did:callboard:admin	\N	1795371666058	{"action":"created","actorDid":"did:callboard:admin","createdAt":"2026-11-22T18:21:06.058Z","eventType":"key.created","id":18,"payload":{"events":[{"payload":{"ownerDid":"did:dump:payer","parentId":null,"scopes":["workflows:read","workflows:write","agents:read","agents:write","capabilities:read","capabilities:write","ledger:read","ledger:write","trust:read","trust:write","identity:read","identity:write","schedules:read","schedules:write","webhooks:read","webhooks:write","audit:read","audit:write","federation:read","federation:write","keys:read","keys:write"]},"targetId":"01a2047d-8a89-7dcc-b985-5a7da4467737","targetType":"key","type":"key.created"}]},"prevHash":"sha256:6e4260456a93dc4fae4447a2ec5fdb32bc166df9218d333c14b27b9d8255df35","targetId":"01a2047d-8a89-7dcc-b985-5a7da4467737","targetType":"key"}	\\x7f08a1d9fc6aa53604622a3a24fcf7d705992fb2e35142ea698f70d9a9668ba6
19	{key.created}	did:callboard:admin	\N	1795371666871	{"action":"created","actorDid":"did:callboard:admin","createdAt":"2026-11-22T18:21:06.871Z","eventType":"key.created","id":19,"payload":{"events":[{"payload":{"ownerDid":"did:dump:owner","parentId":null,"scopes":["workflows:read","workflows:write","agents:read","agents:write","capabilities:read","capabilities:write","ledger:read","ledger:write","trust:read","trust:write","identity:read","identity:write","schedules:read","schedules:write","webhooks:read","webhooks:write","audit:read","audit:write","federation:read","federation:write","keys:read","keys:write"]},"targetId":"01a2047d-8db6-765c-80d7-3c7a90e3ea41","targetType":"key","type":"key.created"}]},"prevHash":"sha256:7f08a1d9fc6aa53604622a3a24fcf7d705992fb2e35142ea698f70d9a9668ba6","targetId":"01a2047d-8db6-765c-80d7-3c7a90e3ea41","targetType":"key"}	\\x5529b50c3637b283a4300186064cc1cd0542089b327b2a915bb7801c118d0b6c
20	{key.created}	did:callboard:admin	\N	1795371666900	{"action":"created","actorDid":"did:callboard:admin","createdAt":"2026-11-22T18:21:06.900Z","eventType":"key.created","id":20,"payload":{"events":[{"payload":{"ownerDid":"did:dump:judge-owner","parentId":null,"scopes":["workflows:read","workflows:write","agents:read","agents:write","capabilities:read","capabilities:write","ledger:read","ledger:write","trust:read","trust:write","identity:read","identity:write","schedules:read","schedules:write","webhooks:read","webhooks:write","audit:read","audit:write","federation:read","federation:write","keys:read","keys:write"]},"targetId":"01a2047d-8dd3-7cc1-b351-cf0e715c390d","targetType":"key","type":"key.created"}]},"prevHash":"sha256:5529b50c3637b283a4300186064cc1cd0542089b327b2a915bb7801c118d0b6c","targetId":"01a2047d-8dd3-7cc1-b351-cf0e715c390d","targetType":"key"}	\\x80eb6aa27080ebacc761cdf49fc48c3dc3f1194a709f2a16b772420c0f8aab49
21	{ledger.deposited}	did:callboard:admin	\N	1795371667647	{"action":"deposited","actorDid":"did:callboard:admin","createdAt":"2026-11-22T18:21:07.647Z","eventType":"ledger.deposited","id":21,"payload":{"events":[{"payload":{"amountCredits":"100","entryIds":[1]},"targetId":"did:dump:payer","targetType":"account","type":"ledger.deposited"}]},"prevHash":"sha256:80eb6aa27080ebacc761cdf49fc48c3dc3f1194a709f2a16b772420c0f8aab49","targetId":"did:dump:payer","targetType":"account"}	\\xe65951d193495f2ccbd3618b081bb16e84192d4e287b23072da87400d91ec3c7
22	{ledger.deposited}	did:callboard:admin	\N	1795371667699	{"action":"deposited","actorDid":"did:callboard:admin","createdAt":"2026-11-22T18:21:07.699Z","eventType":"ledger.deposited","id":22,"payload":{"events":[{"payload":{"amountCredits":"100","entryIds":[2]},"targetId":"did:dump:owner","targetType":"account","type":"ledger.deposited"}]},"prevHash":"sha256:e65951d193495f2ccbd3618b081bb16e84192d4e287b23072da87400d91ec3c7","targetId":"did:dump:owner","targetType":"account"}	\\x0c49bbd9bfa44224432f3bbe81957c433495c615c4c78f332773f8bb4f04e403
23	{agent.registered}	did:dump:owner	\N	1795371667778	{"action":"registered","actorDid":"did:dump:owner","createdAt":"2026-11-22T18:21:07.778Z","eventType":"agent.registered","id":23,"payload":{"events":[{"payload":{"capabilities":["cap.dump.work.v1"],"cardSha256":"66ac7f872cc1c32589a234dba410e366b15cee4a9aa8abef92f91cd665328290","endpoint":"http://127.0.0.1:44769","revision":1},"targetId":"did:dump:worker","targetType":"agent","type":"agent.registered"}]},"prevHash":"sha256:0c49bbd9bfa44224432f3bbe81957c433495c615c4c78f332773f8bb4f04e403","targetId":"did:dump:worker","targetType":"agent"}	\\x09bf5a150675e8f199659d61712646a199a42fac4a8855dd72b529e0b7eaba0e
24	{agent.registered}	did:dump:owner	\N	1795371667997	{"action":"registered","actorDid":"did:dump:owner","createdAt":"2026-11-22T18:21:07.997Z","eventType":"agent.registered","id":24,"payload":{"events":[{"payload":{"capabilities":["cap.dump.sign.v1"],"cardSha256":"66468e9fcaca3a8b13f8973a9c6e0c0335a1ed48e024f520dc4ed12bef742bd6","endpoint":"http://127.0.0.1:44769","revision":1},"targetId":"did:dump:signed","targetType":"agent","type":"agent.registered"}]},"prevHash":"sha256:09bf5a150675e8f199659d61712646a199a42fac4a8855dd72b529e0b7eaba0e","targetId":"did:dump:signed","targetType":"agent"}	\\xee7aaff0e59d78965873ffdadca7de52e945d16b183788d9794516dac4825f18
25	{agent.registered}	did:dump:owner	\N	1795371668180	{"action":"registered","actorDid":"did:dump:owner","createdAt":"2026-11-22T18:21:08.180Z","eventType":"agent.registered","id":25,"payload":{"events":[{"payload":{"capabilities":["cap.dump.meter.v1"],"cardSha256":"196023e6b2a61bd2b674f5173035fcc8a2bfce69c37f5ec531582b60465ac8dc","endpoint":"http://127.0.0.1:44769","revision":1},"targetId":"did:dump:metered","targetType":"agent","type":"agent.registered"}]},"prevHash":"sha256:ee7aaff0e59d78965873ffdadca7de52e945d16b183788d9794516dac4825f18","targetId":"did:dump:metered","targetType":"agent"}	\\x84eb640ec35fe9f0ee3b6704f35ae462eb31d8ce7b51a986706e11d1751cdb3d
26	{agent.registered}	did:dump:owner	\N	1795371668236	{"action":"registered","actorDid":"did:dump:owner","createdAt":"2026-11-22T18:21:08.236Z","eventType":"agent.registered","id":26,"payload":{"events":[{"payload":{"capabilities":["cap.dump.auction.v1"],"cardSha256":"4fa48edec69dd8ae9222c8a2c4fd5d44035103ea97db5a0c2fb73dbf1543bbd1","endpoint":"http://127.0.0.1:44769","revision":1},"targetId":"did:dump:cheap-bidder","targetType":"agent","type":"agent.registered"}]},"prevHash":"sha256:84eb640ec35fe9f0ee3b6704f35ae462eb31d8ce7b51a986706e11d1751cdb3d","targetId":"did:dump:cheap-bidder","targetType":"agent"}	\\xc53eb16d743e1dfc7a2212a280fcf221b51fe445cbbe8b42370ca229b18a1416
27	{agent.registered}	did:dump:owner	\N	1795371668344	{"action":"registered","actorDid":"did:dump:owner","createdAt":"2026-11-22T18:21:08.344Z","eventType":"agent.registered","id":27,"payload":{"events":[{"payload":{"capabilities":["cap.dump.auction.v1"],"cardSha256":"ac5779c9ea7fa43ddd445ebd94aa7db03c86779a01ca3452e6f94583263ba54f","endpoint":"http://127.0.0.1:44769","revision":1},"targetId":"did:dump:dear-bidder","targetType":"agent","type":"agent.registered"}]},"prevHash":"sha256:c53eb16d743e1dfc7a2212a280fcf221b51fe445cbbe8b42370ca229b18a1416","targetId":"did:dump:dear-bidder","targetType":"agent"}	\\xf3b8b7f73bfe02f7586bb8d7fa0a80f74dc0dce3f45f5b19cf8fe14584a2142a
28	{agent.registered}	did:dump:judge-owner	\N	1795371668424	{"action":"registered","actorDid":"did:dump:judge-owner","createdAt":"2026-11-22T18:21:08.424Z","eventType":"agent.registered","id":28,"payload":{"events":[{"payload":{"capabilities":["cap.verify.generic.v1"],"cardSha256":"c96fb437a82bf1c64f3fb2b80c5efefb88be3e43d683904aa7ee8afb6ee33ed7","endpoint":"http://127.0.0.1:44769","revision":1},"targetId":"did:dump:judge","targetType":"agent","type":"agent.registered"}]},"prevHash":"sha256:f3b8b7f73bfe02f7586bb8d7fa0a80f74dc0dce3f45f5b19cf8fe14584a2142a","targetId":"did:dump:judge","targetType":"agent"}	\\xbaf7c1a581f82a27b13c146298c1cc56b997ffaa6960cab265009b59237f5deb
29	{agent.registered}	did:dump:owner	\N	1795371668523	{"action":"registered","actorDid":"did:dump:owner","createdAt":"2026-11-22T18:21:08.523Z","eventType":"agent.registered","id":29,"payload":{"events":[{"payload":{"capabilities":["cap.dump.work.v1"],"cardSha256":"de9e4ad7a68190694fabbe6c4e7369da899d328ed1ebcd0ba31b8d4dac65d54a","endpoint":"http://127.0.0.1:44769","revision":1},"targetId":"did:dump:revoked","targetType":"agent","type":"agent.registered"}]},"prevHash":"sha256:baf7c1a581f82a27b13c146298c1cc56b997ffaa6960cab265009b59237f5deb","targetId":"did:dump:revoked","targetType":"agent"}	\\x92a143f15a1a7d26868d52c818d2d389f01eefb233c333622c94021aafb93db2
30	{stake.deposited}	did:dump:owner	\N	1795371668622	{"action":"deposited","actorDid":"did:dump:owner","createdAt":"2026-11-22T18:21:08.622Z","eventType":"stake.deposited","id":30,"payload":{"events":[{"payload":{"amountCredits":"5","entryIds":[3],"walletDid":"did:dump:owner"},"targetId":"did:dump:worker","targetType":"stake","type":"stake.deposited"}]},"prevHash":"sha256:92a143f15a1a7d26868d52c818d2d389f01eefb233c333622c94021aafb93db2","targetId":"did:dump:worker","targetType":"stake"}	\\x9e2d763f637fb908a5f247270f273c6a70fab911a979370a7323383f67d0b140
31	{stake.deposited}	did:dump:owner	\N	1795371668705	{"action":"deposited","actorDid":"did:dump:owner","createdAt":"2026-11-22T18:21:08.705Z","eventType":"stake.deposited","id":31,"payload":{"events":[{"payload":{"amountCredits":"5","entryIds":[4],"walletDid":"did:dump:owner"},"targetId":"did:dump:signed","targetType":"stake","type":"stake.deposited"}]},"prevHash":"sha256:9e2d763f637fb908a5f247270f273c6a70fab911a979370a7323383f67d0b140","targetId":"did:dump:signed","targetType":"stake"}	\\xc5313735a747cf4b6b930c484b8dc5cc1ee0683c88ee8acefde91ecf82004f4a
32	{stake.deposited}	did:dump:owner	\N	1795371668727	{"action":"deposited","actorDid":"did:dump:owner","createdAt":"2026-11-22T18:21:08.727Z","eventType":"stake.deposited","id":32,"payload":{"events":[{"payload":{"amountCredits":"5","entryIds":[5],"walletDid":"did:dump:owner"},"targetId":"did:dump:metered","targetType":"stake","type":"stake.deposited"}]},"prevHash":"sha256:c5313735a747cf4b6b930c484b8dc5cc1ee0683c88ee8acefde91ecf82004f4a","targetId":"did:dump:metered","targetType":"stake"}	\\x6ded478361f189c3687ec9988d6865427ac3c046f3e32a02876c0a857afbd2c5
33	{stake.deposited}	did:dump:owner	\N	1795371668764	{"action":"deposited","actorDid":"did:dump:owner","createdAt":"2026-11-22T18:21:08.764Z","eventType":"stake.deposited","id":33,"payload":{"events":[{"payload":{"amountCredits":"5","entryIds":[6],"walletDid":"did:dump:owner"},"targetId":"did:dump:cheap-bidder","targetType":"stake","type":"stake.deposited"}]},"prevHash":"sha256:6ded478361f189c3687ec9988d6865427ac3c046f3e32a02876c0a857afbd2c5","targetId":"did:dump:cheap-bidder","targetType":"stake"}	\\x6a40610b28ea46957d42d79a086c6b008c43983e4db7830fe91fc295b1ac5aeb
34	{stake.deposited}	did:dump:owner	\N	1795371668798	{"action":"deposited","actorDid":"did:dump:owner","createdAt":"2026-11-22T18:21:08.798Z","eventType":"stake.deposited","id":34,"payload":{"events":[{"payload":{"amountCredits":"5","entryIds":[7],"walletDid":"did:dump:owner"},"targetId":"did:dump:dear-bidder","targetType":"stake","type":"stake.deposited"}]},"prevHash":"sha256:6a40610b28ea46957d42d79a086c6b008c43983e4db7830fe91fc295b1ac5aeb","targetId":"did:dump:dear-bidder","targetType":"stake"}	\\xf50063822a9d26e160e0aad34cdd18f389034c71e6d51f40ff4b39f5e51b86d6
35	{agent.revoked}	did:callboard:admin	\N	1795371668822	{"action":"revoked","actorDid":"did:callboard:admin","createdAt":"2026-11-22T18:21:08.822Z","eventType":"agent.revoked","id":35,"payload":{"events":[{"payload":{"evidenceHash":"sha256:3a493f5ee67f87971f4252763ef493a2a2864abd889f11f8e08c71293acf4412","reason":"It lies."},"targetId":"did:dump:revoked","targetType":"agent","type":"agent.revoked"}]},"prevHash":"sha256:f50063822a9d26e160e0aad34cdd18f389034c71e6d51f40ff4b39f5e51b86d6","targetId":"did:dump:revoked","targetType":"agent"}	\\xfc61082d35497635fa9eb301db6fa200d2fd36d7a1d49eab6039ae51a4fb8549
36	{workflow.published,escrow.held,stake.locked}	did:dump:payer	01a2047d-95b4-7238-93e1-412c1fa259d2	1795371668919	{"action":"published","actorDid":"did:dump:payer","createdAt":"2026-11-22T18:21:08.919Z","eventType":"workflow.published","id":36,"payload":{"events":[{"payload":{"estimateCredits":"0.4","payerDid":"did:dump:payer","taskId":"01a2047d-95b4-71cb-a5b6-b12eb34efef7"},"targetId":"01a2047d-95b4-7238-93e1-412c1fa259d2","targetType":"workflow","type":"workflow.published"},{"payload":{"amountCredits":"0.4","entryIds":[8],"feeBps":500},"targetId":"01a2047d-95b4-7238-93e1-412c1fa259d2","targetType":"workflow","type":"escrow.held"},{"payload":{"amountCredits":"0.02","attempt":1,"entryIds":[9],"nodeId":"a","workflowId":"01a2047d-95b4-7238-93e1-412c1fa259d2"},"targetId":"did:dump:worker","targetType":"stake","type":"stake.locked"}]},"prevHash":"sha256:fc61082d35497635fa9eb301db6fa200d2fd36d7a1d49eab6039ae51a4fb8549","targetId":"01a2047d-95b4-7238-93e1-412c1fa259d2","targetType":"workflow"}	\\x7f733cdb6490f474ba94c23b428a70d5df491cb2093ea8612907d3c645eaced7
37	{node.succeeded,payment.settled,stake.unlocked,stake.locked}	workflow@c2be5b3587c08fa3dc2c4a386e4dc0296478a19fbfb518b0d98385a0#0	01a2047d-95b4-7238-93e1-412c1fa259d2	1795371668968	{"action":"succeeded","actorDid":"workflow@c2be5b3587c08fa3dc2c4a386e4dc0296478a19fbfb518b0d98385a0#0","createdAt":"2026-11-22T18:21:08.968Z","eventType":"node.succeeded","id":37,"payload":{"events":[{"payload":{"agentDid":"did:dump:worker","attempt":1,"inputHash":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","nodeId":"a","outputHash":"sha256:219e06202d427cee4403e727815631f0c44fb9555d83942a80e78c657c6cdc29"},"targetId":"01a2047d-95b4-7238-93e1-412c1fa259d2","targetType":"workflow","type":"node.succeeded"},{"payload":{"agentCredits":"0.19","agentDid":"did:dump:worker","entryIds":[10,11],"feeCredits":"0.01","nodeId":"a"},"targetId":"01a2047d-95b4-7238-93e1-412c1fa259d2","targetType":"workflow","type":"payment.settled"},{"payload":{"amountCredits":"0.02","attempt":1,"entryIds":[12],"nodeId":"a","workflowId":"01a2047d-95b4-7238-93e1-412c1fa259d2"},"targetId":"did:dump:worker","targetType":"stake","type":"stake.unlocked"},{"payload":{"amountCredits":"0.02","attempt":1,"entryIds":[13],"nodeId":"b","workflowId":"01a2047d-95b4-7238-93e1-412c1fa259d2"},"targetId":"did:dump:worker","targetType":"stake","type":"stake.locked"}]},"prevHash":"sha256:7f733cdb6490f474ba94c23b428a70d5df491cb2093ea8612907d3c645eaced7","targetId":"01a2047d-95b4-7238-93e1-412c1fa259d2","targetType":"workflow"}	\\x24bd12235da33ff90a1e9cbd1f2ce1de063dae466e2ac67a61d847255d781657
38	{workflow.published,escrow.held,stake.locked}	did:dump:payer	01a2047d-9610-722b-b54b-48c1f898a2dd	1795371669010	{"action":"published","actorDid":"did:dump:payer","createdAt":"2026-11-22T18:21:09.010Z","eventType":"workflow.published","id":38,"payload":{"events":[{"payload":{"estimateCredits":"0.4","payerDid":"did:dump:payer","taskId":"01a2047d-9610-7792-89c6-58e5ef48a3da"},"targetId":"01a2047d-9610-722b-b54b-48c1f898a2dd","targetType":"workflow","type":"workflow.published"},{"payload":{"amountCredits":"0.4","entryIds":[14],"feeBps":500},"targetId":"01a2047d-9610-722b-b54b-48c1f898a2dd","targetType":"workflow","type":"escrow.held"},{"payload":{"amountCredits":"0.02","attempt":1,"entryIds":[15],"nodeId":"a","workflowId":"01a2047d-9610-722b-b54b-48c1f898a2dd"},"targetId":"did:dump:worker","targetType":"stake","type":"stake.locked"}]},"prevHash":"sha256:24bd12235da33ff90a1e9cbd1f2ce1de063dae466e2ac67a61d847255d781657","targetId":"01a2047d-9610-722b-b54b-48c1f898a2dd","targetType":"workflow"}	\\x7054ce2bd1695da73bbdd4d15b4dabbb7ac83c4f1f8f72f099a61801bc308a7b
39	{node.succeeded,payment.settled,workflow.finished,escrow.released,stake.unlocked}	workflow@c2be5b3587c08fa3dc2c4a386e4dc0296478a19fbfb518b0d98385a0#0	01a2047d-95b4-7238-93e1-412c1fa259d2	1795371669021	{"action":"succeeded","actorDid":"workflow@c2be5b3587c08fa3dc2c4a386e4dc0296478a19fbfb518b0d98385a0#0","createdAt":"2026-11-22T18:21:09.021Z","eventType":"node.succeeded","id":39,"payload":{"events":[{"payload":{"agentDid":"did:dump:worker","attempt":1,"inputHash":"sha256:2bfd14f43d17fc7cea24e0917a8879b4b2f880b8baeec1b9d90fbaad655e71bd","nodeId":"b","outputHash":"sha256:219e06202d427cee4403e727815631f0c44fb9555d83942a80e78c657c6cdc29"},"targetId":"01a2047d-95b4-7238-93e1-412c1fa259d2","targetType":"workflow","type":"node.succeeded"},{"payload":{"agentCredits":"0.19","agentDid":"did:dump:worker","entryIds":[16,17],"feeCredits":"0.01","nodeId":"b"},"targetId":"01a2047d-95b4-7238-93e1-412c1fa259d2","targetType":"workflow","type":"payment.settled"},{"payload":{"spentCredits":"0.4","status":"success"},"targetId":"01a2047d-95b4-7238-93e1-412c1fa259d2","targetType":"workflow","type":"workflow.finished"},{"payload":{"entryIds":[],"refundedCredits":"0"},"targetId":"01a2047d-95b4-7238-93e1-412c1fa259d2","targetType":"workflow","type":"escrow.released"},{"payload":{"amountCredits":"0.02","attempt":1,"entryIds":[18],"nodeId":"b","workflowId":"01a2047d-95b4-7238-93e1-412c1fa259d2"},"targetId":"did:dump:worker","targetType":"stake","type":"stake.unlocked"}]},"prevHash":"sha256:7054ce2bd1695da73bbdd4d15b4dabbb7ac83c4f1f8f72f099a61801bc308a7b","targetId":"01a2047d-95b4-7238-93e1-412c1fa259d2","targetType":"workflow"}	\\x6daa14cbc544d607eaca13af042fcb4fd82fcbe148f4552d3c5835c5166424fa
40	{workflow.published,escrow.held,stake.locked}	did:dump:payer	01a2047d-964b-7bef-bb14-ec456854d5ce	1795371669097	{"action":"published","actorDid":"did:dump:payer","createdAt":"2026-11-22T18:21:09.097Z","eventType":"workflow.published","id":40,"payload":{"events":[{"payload":{"estimateCredits":"0.4","payerDid":"did:dump:payer","taskId":"01a2047d-964b-7968-83a0-3c67de52f6a7"},"targetId":"01a2047d-964b-7bef-bb14-ec456854d5ce","targetType":"workflow","type":"workflow.published"},{"payload":{"amountCredits":"0.4","entryIds":[19],"feeBps":500},"targetId":"01a2047d-964b-7bef-bb14-ec456854d5ce","targetType":"workflow","type":"escrow.held"},{"payload":{"amountCredits":"0.02","attempt":1,"entryIds":[20],"nodeId":"a","workflowId":"01a2047d-964b-7bef-bb14-ec456854d5ce"},"targetId":"did:dump:worker","targetType":"stake","type":"stake.locked"}]},"prevHash":"sha256:6daa14cbc544d607eaca13af042fcb4fd82fcbe148f4552d3c5835c5166424fa","targetId":"01a2047d-964b-7bef-bb14-ec456854d5ce","targetType":"workflow"}	\\x5e2a19535c03b830a5aafe4414995537aff3092dfa1606ebe287cd76f6890ae7
41	{node.succeeded,payment.settled,stake.unlocked,stake.locked}	workflow@c2be5b3587c08fa3dc2c4a386e4dc0296478a19fbfb518b0d98385a0#0	01a2047d-964b-7bef-bb14-ec456854d5ce	1795371669114	{"action":"succeeded","actorDid":"workflow@c2be5b3587c08fa3dc2c4a386e4dc0296478a19fbfb518b0d98385a0#0","createdAt":"2026-11-22T18:21:09.114Z","eventType":"node.succeeded","id":41,"payload":{"events":[{"payload":{"agentDid":"did:dump:worker","attempt":1,"inputHash":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","nodeId":"a","outputHash":"sha256:219e06202d427cee4403e727815631f0c44fb9555d83942a80e78c657c6cdc29"},"targetId":"01a2047d-964b-7bef-bb14-ec456854d5ce","targetType":"workflow","type":"node.succeeded"},{"payload":{"agentCredits":"0.19","agentDid":"did:dump:worker","entryIds":[21,22],"feeCredits":"0.01","nodeId":"a"},"targetId":"01a2047d-964b-7bef-bb14-ec456854d5ce","targetType":"workflow","type":"payment.settled"},{"payload":{"amountCredits":"0.02","attempt":1,"entryIds":[23],"nodeId":"a","workflowId":"01a2047d-964b-7bef-bb14-ec456854d5ce"},"targetId":"did:dump:worker","targetType":"stake","type":"stake.unlocked"},{"payload":{"amountCredits":"0.010002","attempt":1,"entryIds":[24],"nodeId":"b","workflowId":"01a2047d-964b-7bef-bb14-ec456854d5ce"},"targetId":"did:dump:worker","targetType":"stake","type":"stake.locked"}]},"prevHash":"sha256:5e2a19535c03b830a5aafe4414995537aff3092dfa1606ebe287cd76f6890ae7","targetId":"01a2047d-964b-7bef-bb14-ec456854d5ce","targetType":"workflow"}	\\xab43e9f0259dc7879469e8b5710721dc8a7264ce739d19cdf8fd797ab9585560
42	{workflow.published,escrow.held,stake.locked}	did:dump:payer	01a2047d-969e-76a2-be04-6306f6763b59	1795371669159	{"action":"published","actorDid":"did:dump:payer","createdAt":"2026-11-22T18:21:09.159Z","eventType":"workflow.published","id":42,"payload":{"events":[{"payload":{"estimateCredits":"0.4","payerDid":"did:dump:payer","taskId":"01a2047d-969e-7ee6-ae56-96dd552692a8"},"targetId":"01a2047d-969e-76a2-be04-6306f6763b59","targetType":"workflow","type":"workflow.published"},{"payload":{"amountCredits":"0.4","entryIds":[25],"feeBps":500},"targetId":"01a2047d-969e-76a2-be04-6306f6763b59","targetType":"workflow","type":"escrow.held"},{"payload":{"amountCredits":"0.010002","attempt":1,"entryIds":[26],"nodeId":"a","workflowId":"01a2047d-969e-76a2-be04-6306f6763b59"},"targetId":"did:dump:worker","targetType":"stake","type":"stake.locked"}]},"prevHash":"sha256:ab43e9f0259dc7879469e8b5710721dc8a7264ce739d19cdf8fd797ab9585560","targetId":"01a2047d-969e-76a2-be04-6306f6763b59","targetType":"workflow"}	\\xff8b6052461ff61e1b45b0d962c0b0f13d0cd0d2b7159c4fc5259309aa3a00ed
43	{workflow.published,escrow.held,stake.locked}	did:dump:payer	01a2047d-96c8-7b26-84cb-1b00adc2d0a8	1795371669214	{"action":"published","actorDid":"did:dump:payer","createdAt":"2026-11-22T18:21:09.214Z","eventType":"workflow.published","id":43,"payload":{"events":[{"payload":{"estimateCredits":"0.4","payerDid":"did:dump:payer","taskId":"01a2047d-96c8-7bea-8b2b-1fc062eb4b04"},"targetId":"01a2047d-96c8-7b26-84cb-1b00adc2d0a8","targetType":"workflow","type":"workflow.published"},{"payload":{"amountCredits":"0.4","entryIds":[27],"feeBps":500},"targetId":"01a2047d-96c8-7b26-84cb-1b00adc2d0a8","targetType":"workflow","type":"escrow.held"},{"payload":{"amountCredits":"0.010002","attempt":1,"entryIds":[28],"nodeId":"a","workflowId":"01a2047d-96c8-7b26-84cb-1b00adc2d0a8"},"targetId":"did:dump:worker","targetType":"stake","type":"stake.locked"}]},"prevHash":"sha256:ff8b6052461ff61e1b45b0d962c0b0f13d0cd0d2b7159c4fc5259309aa3a00ed","targetId":"01a2047d-96c8-7b26-84cb-1b00adc2d0a8","targetType":"workflow"}	\\x6155aaf4005be05ac3d4e1833daa603222834767fee1614831f1fc2740699ace
44	{stake.unlocked}	workflow@c2be5b3587c08fa3dc2c4a386e4dc0296478a19fbfb518b0d98385a0#0	\N	1795371669234	{"action":"unlocked","actorDid":"workflow@c2be5b3587c08fa3dc2c4a386e4dc0296478a19fbfb518b0d98385a0#0","createdAt":"2026-11-22T18:21:09.234Z","eventType":"stake.unlocked","id":44,"payload":{"events":[{"payload":{"amountCredits":"0.010002","attempt":1,"entryIds":[29],"nodeId":"a","workflowId":"01a2047d-96c8-7b26-84cb-1b00adc2d0a8"},"targetId":"did:dump:worker","targetType":"stake","type":"stake.unlocked"}]},"prevHash":"sha256:6155aaf4005be05ac3d4e1833daa603222834767fee1614831f1fc2740699ace","targetId":"did:dump:worker","targetType":"stake"}	\\x66861aa93a983b298985aeb50761ed9fa1c995eec8471d1f633fbc5ef33f7b4c
45	{workflow.published,escrow.held,stake.locked}	did:dump:payer	01a2047d-9b49-7f74-9b6e-07425d106e9a	1795371670346	{"action":"published","actorDid":"did:dump:payer","createdAt":"2026-11-22T18:21:10.346Z","eventType":"workflow.published","id":45,"payload":{"events":[{"payload":{"estimateCredits":"0.4","payerDid":"did:dump:payer","taskId":"01a2047d-9b49-702d-98b9-a63719dbb1e1"},"targetId":"01a2047d-9b49-7f74-9b6e-07425d106e9a","targetType":"workflow","type":"workflow.published"},{"payload":{"amountCredits":"0.4","entryIds":[30],"feeBps":500},"targetId":"01a2047d-9b49-7f74-9b6e-07425d106e9a","targetType":"workflow","type":"escrow.held"},{"payload":{"amountCredits":"0.010002","attempt":1,"entryIds":[31],"nodeId":"a","workflowId":"01a2047d-9b49-7f74-9b6e-07425d106e9a"},"targetId":"did:dump:worker","targetType":"stake","type":"stake.locked"}]},"prevHash":"sha256:66861aa93a983b298985aeb50761ed9fa1c995eec8471d1f633fbc5ef33f7b4c","targetId":"01a2047d-9b49-7f74-9b6e-07425d106e9a","targetType":"workflow"}	\\x011a445bdfe5b6d65720fbabc4dd886dbbf5bbb1ee0180dfcf09d88159a3e20a
46	{workflow.published,escrow.held,stake.locked}	did:dump:payer	01a2047d-9b5e-7309-aad5-e6290f56ceca	1795371670368	{"action":"published","actorDid":"did:dump:payer","createdAt":"2026-11-22T18:21:10.368Z","eventType":"workflow.published","id":46,"payload":{"events":[{"payload":{"estimateCredits":"0.25","payerDid":"did:dump:payer","taskId":"01a2047d-9b5e-7b3b-8abf-5b26817fee59"},"targetId":"01a2047d-9b5e-7309-aad5-e6290f56ceca","targetType":"workflow","type":"workflow.published"},{"payload":{"amountCredits":"0.25","entryIds":[32],"feeBps":500},"targetId":"01a2047d-9b5e-7309-aad5-e6290f56ceca","targetType":"workflow","type":"escrow.held"},{"payload":{"amountCredits":"0.010002","attempt":1,"entryIds":[33],"nodeId":"a","workflowId":"01a2047d-9b5e-7309-aad5-e6290f56ceca"},"targetId":"did:dump:worker","targetType":"stake","type":"stake.locked"}]},"prevHash":"sha256:011a445bdfe5b6d65720fbabc4dd886dbbf5bbb1ee0180dfcf09d88159a3e20a","targetId":"01a2047d-9b5e-7309-aad5-e6290f56ceca","targetType":"workflow"}	\\xb7693aa24fe1fbae1740e6185a9a4e01e70d16bc9b69ccae2ebe1e073c207be2
47	{workflow.published,escrow.held,stake.locked}	did:dump:payer	01a2047d-9b8d-7b4f-99e4-0d741bf507c0	1795371670429	{"action":"published","actorDid":"did:dump:payer","createdAt":"2026-11-22T18:21:10.429Z","eventType":"workflow.published","id":47,"payload":{"events":[{"payload":{"estimateCredits":"1","payerDid":"did:dump:payer","taskId":"01a2047d-9b8d-731e-ab1f-dce51b0b4ed5"},"targetId":"01a2047d-9b8d-7b4f-99e4-0d741bf507c0","targetType":"workflow","type":"workflow.published"},{"payload":{"amountCredits":"1","entryIds":[34],"feeBps":500},"targetId":"01a2047d-9b8d-7b4f-99e4-0d741bf507c0","targetType":"workflow","type":"escrow.held"},{"payload":{"amountCredits":"0.1","attempt":1,"entryIds":[35],"nodeId":"a","workflowId":"01a2047d-9b8d-7b4f-99e4-0d741bf507c0"},"targetId":"did:dump:metered","targetType":"stake","type":"stake.locked"}]},"prevHash":"sha256:b7693aa24fe1fbae1740e6185a9a4e01e70d16bc9b69ccae2ebe1e073c207be2","targetId":"01a2047d-9b8d-7b4f-99e4-0d741bf507c0","targetType":"workflow"}	\\x506dd45edcdddca814a0b27865422ae7446c09f0b05cb6b8a6ab450a8dedc2a3
48	{node.succeeded,payment.settled,stake.unlocked,stake.locked}	workflow@c2be5b3587c08fa3dc2c4a386e4dc0296478a19fbfb518b0d98385a0#0	01a2047d-9b49-7f74-9b6e-07425d106e9a	1795371670470	{"action":"succeeded","actorDid":"workflow@c2be5b3587c08fa3dc2c4a386e4dc0296478a19fbfb518b0d98385a0#0","createdAt":"2026-11-22T18:21:10.470Z","eventType":"node.succeeded","id":48,"payload":{"events":[{"payload":{"agentDid":"did:dump:worker","attempt":1,"inputHash":"sha256:1c586d0065cab872cf3cf00196696302e10d59afe60825d6176699384640aa04","nodeId":"a","outputHash":"sha256:a75eacf99010a0ba28689529854f9fc49a14d02889e7e60adcc567b531740c20"},"targetId":"01a2047d-9b49-7f74-9b6e-07425d106e9a","targetType":"workflow","type":"node.succeeded"},{"payload":{"agentCredits":"0.19","agentDid":"did:dump:worker","entryIds":[36,37],"feeCredits":"0.01","nodeId":"a"},"targetId":"01a2047d-9b49-7f74-9b6e-07425d106e9a","targetType":"workflow","type":"payment.settled"},{"payload":{"amountCredits":"0.010002","attempt":1,"entryIds":[38],"nodeId":"a","workflowId":"01a2047d-9b49-7f74-9b6e-07425d106e9a"},"targetId":"did:dump:worker","targetType":"stake","type":"stake.unlocked"},{"payload":{"amountCredits":"0.010002","attempt":1,"entryIds":[39],"nodeId":"b","workflowId":"01a2047d-9b49-7f74-9b6e-07425d106e9a"},"targetId":"did:dump:worker","targetType":"stake","type":"stake.locked"}]},"prevHash":"sha256:506dd45edcdddca814a0b27865422ae7446c09f0b05cb6b8a6ab450a8dedc2a3","targetId":"01a2047d-9b49-7f74-9b6e-07425d106e9a","targetType":"workflow"}	\\xcd937f0a7fde78c6174b8235b1f71cf3534c86a03864c2c3ebe562dabad416a2
49	{workflow.published,escrow.held,stake.locked}	did:dump:payer	01a2047d-9bcb-7a0f-a799-74a2fa722969	1795371670499	{"action":"published","actorDid":"did:dump:payer","createdAt":"2026-11-22T18:21:10.499Z","eventType":"workflow.published","id":49,"payload":{"events":[{"payload":{"estimateCredits":"0.1","payerDid":"did:dump:payer","taskId":"01a2047d-9bcb-70fa-ae31-e484efc55149"},"targetId":"01a2047d-9bcb-7a0f-a799-74a2fa722969","targetType":"workflow","type":"workflow.published"},{"payload":{"amountCredits":"0.1","entryIds":[40],"feeBps":500},"targetId":"01a2047d-9bcb-7a0f-a799-74a2fa722969","targetType":"workflow","type":"escrow.held"},{"payload":{"amountCredits":"0.01","attempt":1,"entryIds":[41],"nodeId":"a","workflowId":"01a2047d-9bcb-7a0f-a799-74a2fa722969"},"targetId":"did:dump:signed","targetType":"stake","type":"stake.locked"}]},"prevHash":"sha256:cd937f0a7fde78c6174b8235b1f71cf3534c86a03864c2c3ebe562dabad416a2","targetId":"01a2047d-9bcb-7a0f-a799-74a2fa722969","targetType":"workflow"}	\\x3f20a5d5d0e37e923ece0ae46b9d62b20776a48aee8ecb80778e90c53e21c007
50	{workflow.published,escrow.held,stake.locked}	did:dump:payer	01a2047d-9c1a-7b57-b9b9-b058a032c442	1795371670584	{"action":"published","actorDid":"did:dump:payer","createdAt":"2026-11-22T18:21:10.584Z","eventType":"workflow.published","id":50,"payload":{"events":[{"payload":{"estimateCredits":"0.4","payerDid":"did:dump:payer","taskId":"01a2047d-9c1a-789c-90b2-ce2851f30615"},"targetId":"01a2047d-9c1a-7b57-b9b9-b058a032c442","targetType":"workflow","type":"workflow.published"},{"payload":{"amountCredits":"0.4","entryIds":[42],"feeBps":500},"targetId":"01a2047d-9c1a-7b57-b9b9-b058a032c442","targetType":"workflow","type":"escrow.held"},{"payload":{"amountCredits":"0.010002","attempt":1,"entryIds":[43],"nodeId":"a","workflowId":"01a2047d-9c1a-7b57-b9b9-b058a032c442"},"targetId":"did:dump:worker","targetType":"stake","type":"stake.locked"}]},"prevHash":"sha256:3f20a5d5d0e37e923ece0ae46b9d62b20776a48aee8ecb80778e90c53e21c007","targetId":"01a2047d-9c1a-7b57-b9b9-b058a032c442","targetType":"workflow"}	\\x88c29b68a150be0d484131852e30ca7b3b955fbfc77d56d09a0cb9d976fba511
51	{node.succeeded,payment.settled,stake.unlocked,stake.locked}	workflow@c2be5b3587c08fa3dc2c4a386e4dc0296478a19fbfb518b0d98385a0#0	01a2047d-9c1a-7b57-b9b9-b058a032c442	1795371670600	{"action":"succeeded","actorDid":"workflow@c2be5b3587c08fa3dc2c4a386e4dc0296478a19fbfb518b0d98385a0#0","createdAt":"2026-11-22T18:21:10.600Z","eventType":"node.succeeded","id":51,"payload":{"events":[{"payload":{"agentDid":"did:dump:worker","attempt":1,"inputHash":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","nodeId":"a","outputHash":"sha256:219e06202d427cee4403e727815631f0c44fb9555d83942a80e78c657c6cdc29"},"targetId":"01a2047d-9c1a-7b57-b9b9-b058a032c442","targetType":"workflow","type":"node.succeeded"},{"payload":{"agentCredits":"0.19","agentDid":"did:dump:worker","entryIds":[44,45],"feeCredits":"0.01","nodeId":"a"},"targetId":"01a2047d-9c1a-7b57-b9b9-b058a032c442","targetType":"workflow","type":"payment.settled"},{"payload":{"amountCredits":"0.010002","attempt":1,"entryIds":[46],"nodeId":"a","workflowId":"01a2047d-9c1a-7b57-b9b9-b058a032c442"},"targetId":"did:dump:worker","targetType":"stake","type":"stake.unlocked"},{"payload":{"amountCredits":"0.010002","attempt":1,"entryIds":[47],"nodeId":"b","workflowId":"01a2047d-9c1a-7b57-b9b9-b058a032c442"},"targetId":"did:dump:worker","targetType":"stake","type":"stake.locked"}]},"prevHash":"sha256:88c29b68a150be0d484131852e30ca7b3b955fbfc77d56d09a0cb9d976fba511","targetId":"01a2047d-9c1a-7b57-b9b9-b058a032c442","targetType":"workflow"}	\\xe05426b129d6c16354b1ec588c1a67d0b7637657baf3aa1c134bf674c6003e6e
52	{dispute.opened}	did:dump:payer	\N	1795371670748	{"action":"opened","actorDid":"did:dump:payer","createdAt":"2026-11-22T18:21:10.748Z","eventType":"dispute.opened","id":52,"payload":{"events":[{"payload":{"complainantDid":"did:dump:payer","disputeType":"quality","evidenceHash":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","nodeId":"a","respondentDid":"did:dump:worker","workflowId":"01a2047d-95b4-7238-93e1-412c1fa259d2"},"targetId":"01a2047d-9cdc-7ef9-8ff3-710cc7cad55b","targetType":"dispute","type":"dispute.opened"}]},"prevHash":"sha256:e05426b129d6c16354b1ec588c1a67d0b7637657baf3aa1c134bf674c6003e6e","targetId":"01a2047d-9cdc-7ef9-8ff3-710cc7cad55b","targetType":"dispute"}	\\xc83bac3e3682a68780e05d3f032032725a8773d0eccc3b387677fb9103243867
53	{workflow.published,escrow.held,auction.opened}	did:dump:payer	01a2047d-9ded-70b5-af9d-9b08630712ae	1795371671023	{"action":"published","actorDid":"did:dump:payer","createdAt":"2026-11-22T18:21:11.023Z","eventType":"workflow.published","id":53,"payload":{"events":[{"payload":{"estimateCredits":"1","payerDid":"did:dump:payer","taskId":"01a2047d-9ded-725b-a08f-214fbbc8fbff"},"targetId":"01a2047d-9ded-70b5-af9d-9b08630712ae","targetType":"workflow","type":"workflow.published"},{"payload":{"amountCredits":"1","entryIds":[48],"feeBps":500},"targetId":"01a2047d-9ded-70b5-af9d-9b08630712ae","targetType":"workflow","type":"escrow.held"},{"payload":{"capabilityId":"cap.dump.auction.v1","closesAtMs":1795371731022,"nodeId":"a","reserveCredits":"1","round":1,"stakeBps":1000},"targetId":"01a2047d-9ded-70b5-af9d-9b08630712ae","targetType":"workflow","type":"auction.opened"}]},"prevHash":"sha256:c83bac3e3682a68780e05d3f032032725a8773d0eccc3b387677fb9103243867","targetId":"01a2047d-9ded-70b5-af9d-9b08630712ae","targetType":"workflow"}	\\x615f5f451bbb7dc56da3a50545828406c13e632f0674869434306b21cdcda926
54	{bid.placed}	did:dump:owner	01a2047d-9ded-70b5-af9d-9b08630712ae	1795371671087	{"action":"placed","actorDid":"did:dump:owner","createdAt":"2026-11-22T18:21:11.087Z","eventType":"bid.placed","id":54,"payload":{"events":[{"payload":{"agentDid":"did:dump:cheap-bidder","nodeId":"a","round":1},"targetId":"01a2047d-9ded-70b5-af9d-9b08630712ae","targetType":"workflow","type":"bid.placed"}]},"prevHash":"sha256:615f5f451bbb7dc56da3a50545828406c13e632f0674869434306b21cdcda926","targetId":"01a2047d-9ded-70b5-af9d-9b08630712ae","targetType":"workflow"}	\\xee8fc3b685c0ca5557633e425f96e58a22f712d83a8b2bf1e31ba1674f648b17
\.


--
-- Data for Name: audit_event; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.audit_event (audit_id, number, event_type, target_type, target_id) FROM stdin;
1	0	ledger.created	ledger	test
2	0	owner.registered	owner	owner-1
3	0	ledger.deposited	account	did:test:payer
4	0	agent.registered	agent	did:test:agent
5	0	key.created	key	k
16	0	owner.registered	owner	workflow@c2be5b3587c08fa3dc2c4a386e4dc0296478a19fbfb518b0d98385a0#0
17	0	key.created	key	admin-40344bf6f50541d8
18	0	key.created	key	01a2047d-8a89-7dcc-b985-5a7da4467737
19	0	key.created	key	01a2047d-8db6-765c-80d7-3c7a90e3ea41
20	0	key.created	key	01a2047d-8dd3-7cc1-b351-cf0e715c390d
21	0	ledger.deposited	account	did:dump:payer
22	0	ledger.deposited	account	did:dump:owner
23	0	agent.registered	agent	did:dump:worker
24	0	agent.registered	agent	did:dump:signed
25	0	agent.registered	agent	did:dump:metered
26	0	agent.registered	agent	did:dump:cheap-bidder
27	0	agent.registered	agent	did:dump:dear-bidder
28	0	agent.registered	agent	did:dump:judge
29	0	agent.registered	agent	did:dump:revoked
30	0	stake.deposited	stake	did:dump:worker
31	0	stake.deposited	stake	did:dump:signed
32	0	stake.deposited	stake	did:dump:metered
33	0	stake.deposited	stake	did:dump:cheap-bidder
34	0	stake.deposited	stake	did:dump:dear-bidder
35	0	agent.revoked	agent	did:dump:revoked
36	2	stake.locked	stake	did:dump:worker
37	2	stake.unlocked	stake	did:dump:worker
37	3	stake.locked	stake	did:dump:worker
38	2	stake.locked	stake	did:dump:worker
39	4	stake.unlocked	stake	did:dump:worker
40	2	stake.locked	stake	did:dump:worker
41	2	stake.unlocked	stake	did:dump:worker
41	3	stake.locked	stake	did:dump:worker
42	2	stake.locked	stake	did:dump:worker
43	2	stake.locked	stake	did:dump:worker
44	0	stake.unlocked	stake	did:dump:worker
45	2	stake.locked	stake	did:dump:worker
46	2	stake.locked	stake	did:dump:worker
47	2	stake.locked	stake	did:dump:metered
48	2	stake.unlocked	stake	did:dump:worker
48	3	stake.locked	stake	did:dump:worker
49	2	stake.locked	stake	did:dump:signed
50	2	stake.locked	stake	did:dump:worker
51	2	stake.unlocked	stake	did:dump:worker
51	3	stake.locked	stake	did:dump:worker
52	0	dispute.opened	dispute	01a2047d-9cdc-7ef9-8ff3-710cc7cad55b
53	2	auction.opened	workflow	01a2047d-9ded-70b5-af9d-9b08630712ae
54	0	bid.placed	workflow	01a2047d-9ded-70b5-af9d-9b08630712ae
\.


--
-- Data for Name: bid; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.bid (workflow_id, node, round, agent_did, amount_micro, eta_ms, stake_offered_micro, is_standing, received_ms) FROM stdin;
01a2047d-9ded-70b5-af9d-9b08630712ae	a	1	did:dump:cheap-bidder	200000	\N	\N	f	1795371671087
\.


--
-- Data for Name: blob; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.blob (hash, bytes, created_ms) FROM stdin;
\\xa75eacf99010a0ba28689529854f9fc49a14d02889e7e60adcc567b531740c20	\\x7b22617070726f766564223a747275652c226e223a312c2274657874223a227878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878227d	1795371670430
\.


--
-- Data for Name: capability_price; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.capability_price (capability_id, price_cents, input_rate, output_rate, set_by_did, updated_ms) FROM stdin;
\.


--
-- Data for Name: command; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.command (id, request_hash, result, error, detail, audit_id, created_ms) FROM stdin;
key:admin-40344bf6f50541d8	\N	{"id":"admin-40344bf6f50541d8"}	\N	\N	17	1795371661086
key:01a2047d-8a89-7dcc-b985-5a7da4467737	\N	{"id":"01a2047d-8a89-7dcc-b985-5a7da4467737"}	\N	\N	18	1795371666058
key:01a2047d-8db6-765c-80d7-3c7a90e3ea41	\N	{"id":"01a2047d-8db6-765c-80d7-3c7a90e3ea41"}	\N	\N	19	1795371666871
key:01a2047d-8dd3-7cc1-b351-cf0e715c390d	\N	{"id":"01a2047d-8dd3-7cc1-b351-cf0e715c390d"}	\N	\N	20	1795371666900
deposit:01a2047d-90be-7922-b648-b822c3f02af6	\\x	{"entry":{"id":1,"debit_account_id":1,"credit_account_id":3,"amount":100000000,"kind":"deposit","description":"deposit","workflow_id":null,"node_id":null,"created_ms":1795371667647},"balanceMicro":100000000}	\N	\N	21	1795371667647
deposit:01a2047d-90f3-7f21-98c2-3da6554d389e	\\x	{"entry":{"id":2,"debit_account_id":1,"credit_account_id":4,"amount":100000000,"kind":"deposit","description":"deposit","workflow_id":null,"node_id":null,"created_ms":1795371667699},"balanceMicro":100000000}	\N	\N	22	1795371667699
register:01a2047d-913e-77cd-bdf4-0436e29c98d4	\N	{"did":"did:dump:worker","ownerDid":"did:dump:owner","registered":1,"isNew":true,"tokenRevision":1}	\N	\N	23	1795371667778
register:01a2047d-921c-7309-a6d8-63b32b9677de	\N	{"did":"did:dump:signed","ownerDid":"did:dump:owner","registered":1,"isNew":true,"tokenRevision":1}	\N	\N	24	1795371667997
register:01a2047d-92d3-76e8-a50a-975af79adb98	\N	{"did":"did:dump:metered","ownerDid":"did:dump:owner","registered":1,"isNew":true,"tokenRevision":1}	\N	\N	25	1795371668180
register:01a2047d-930b-7fef-a8b4-de313d5a0e66	\N	{"did":"did:dump:cheap-bidder","ownerDid":"did:dump:owner","registered":1,"isNew":true,"tokenRevision":1}	\N	\N	26	1795371668236
register:01a2047d-9378-7c73-8ba7-ecd4d59a94eb	\N	{"did":"did:dump:dear-bidder","ownerDid":"did:dump:owner","registered":1,"isNew":true,"tokenRevision":1}	\N	\N	27	1795371668344
register:01a2047d-93c7-76bd-b3b6-50c52b9b09ed	\N	{"did":"did:dump:judge","ownerDid":"did:dump:judge-owner","registered":1,"isNew":true,"tokenRevision":1}	\N	\N	28	1795371668424
register:01a2047d-9429-75a4-b1d9-ab738072ae6d	\N	{"did":"did:dump:revoked","ownerDid":"did:dump:owner","registered":1,"isNew":true,"tokenRevision":1}	\N	\N	29	1795371668523
stake:01a2047d-948c-7cad-8d4d-c2ecb96bbf4b	\\x	{"walletDid":"did:dump:owner","balanceMicro":95000000,"freeMicro":5000000,"lockedMicro":0,"updatedMs":1795371668622}	\N	\N	30	1795371668622
stake:01a2047d-94e0-7578-bb66-19710286f690	\\x	{"walletDid":"did:dump:owner","balanceMicro":90000000,"freeMicro":5000000,"lockedMicro":0,"updatedMs":1795371668705}	\N	\N	31	1795371668705
stake:01a2047d-94f7-7425-bbaa-8c413da71d7c	\\x	{"walletDid":"did:dump:owner","balanceMicro":85000000,"freeMicro":5000000,"lockedMicro":0,"updatedMs":1795371668727}	\N	\N	32	1795371668727
stake:01a2047d-951c-72d8-a18a-d566893b3db7	\\x	{"walletDid":"did:dump:owner","balanceMicro":80000000,"freeMicro":5000000,"lockedMicro":0,"updatedMs":1795371668764}	\N	\N	33	1795371668764
stake:01a2047d-953d-76e6-825c-b22c0a08fd94	\\x	{"walletDid":"did:dump:owner","balanceMicro":75000000,"freeMicro":5000000,"lockedMicro":0,"updatedMs":1795371668798}	\N	\N	34	1795371668798
revoke:01a2047d-9556-7bb1-967f-26f4ce4fe06b	\\x	{"revokedMs":1795371668822}	\N	\N	35	1795371668822
publish:01a2047d-95b4-7238-93e1-412c1fa259d2	\\x	{"workflowId":"01a2047d-95b4-7238-93e1-412c1fa259d2","taskId":"01a2047d-95b4-71cb-a5b6-b12eb34efef7","status":"pending"}	\N	\N	36	1795371668919
AttemptSucceeded:01a2047d-95b4-7238-93e1-412c1fa259d2:a:1:0	\N	\N	\N	\N	37	1795371668968
publish:01a2047d-9610-722b-b54b-48c1f898a2dd	\\x	{"workflowId":"01a2047d-9610-722b-b54b-48c1f898a2dd","taskId":"01a2047d-9610-7792-89c6-58e5ef48a3da","status":"pending"}	\N	\N	38	1795371669010
AttemptSucceeded:01a2047d-95b4-7238-93e1-412c1fa259d2:b:1:0	\N	{"releasedMicro":0}	\N	\N	39	1795371669021
publish:01a2047d-964b-7bef-bb14-ec456854d5ce	\\x	{"workflowId":"01a2047d-964b-7bef-bb14-ec456854d5ce","taskId":"01a2047d-964b-7968-83a0-3c67de52f6a7","status":"pending"}	\N	\N	40	1795371669097
AttemptSucceeded:01a2047d-964b-7bef-bb14-ec456854d5ce:a:1:0	\N	\N	\N	\N	41	1795371669114
publish:01a2047d-969e-76a2-be04-6306f6763b59	\\x	{"workflowId":"01a2047d-969e-76a2-be04-6306f6763b59","taskId":"01a2047d-969e-7ee6-ae56-96dd552692a8","status":"pending"}	\N	\N	42	1795371669159
AttemptAccepted:01a2047d-969e-76a2-be04-6306f6763b59:a:1:0	\N	\N	\N	\N	\N	1795371669184
publish:01a2047d-96c8-7b26-84cb-1b00adc2d0a8	\\x	{"workflowId":"01a2047d-96c8-7b26-84cb-1b00adc2d0a8","taskId":"01a2047d-96c8-7bea-8b2b-1fc062eb4b04","status":"pending"}	\N	\N	43	1795371669214
AttemptFailed:01a2047d-96c8-7b26-84cb-1b00adc2d0a8:a:1:0	\N	\N	\N	\N	44	1795371669234
publish:01a2047d-9b49-7f74-9b6e-07425d106e9a	\\x	{"workflowId":"01a2047d-9b49-7f74-9b6e-07425d106e9a","taskId":"01a2047d-9b49-702d-98b9-a63719dbb1e1","status":"pending"}	\N	\N	45	1795371670346
publish:01a2047d-9b5e-7309-aad5-e6290f56ceca	\\x	{"workflowId":"01a2047d-9b5e-7309-aad5-e6290f56ceca","taskId":"01a2047d-9b5e-7b3b-8abf-5b26817fee59","status":"pending"}	\N	\N	46	1795371670368
AttemptSucceeded:01a2047d-9b5e-7309-aad5-e6290f56ceca:a:1:0	\N	\N	\N	\N	\N	1795371670406
publish:01a2047d-9b8d-7b4f-99e4-0d741bf507c0	\\x	{"workflowId":"01a2047d-9b8d-7b4f-99e4-0d741bf507c0","taskId":"01a2047d-9b8d-731e-ab1f-dce51b0b4ed5","status":"pending"}	\N	\N	47	1795371670429
AttemptSucceeded:01a2047d-9b49-7f74-9b6e-07425d106e9a:a:1:0	\N	\N	\N	\N	48	1795371670470
publish:01a2047d-9bcb-7a0f-a799-74a2fa722969	\\x	{"workflowId":"01a2047d-9bcb-7a0f-a799-74a2fa722969","taskId":"01a2047d-9bcb-70fa-ae31-e484efc55149","status":"pending"}	\N	\N	49	1795371670499
publish:01a2047d-9c1a-7b57-b9b9-b058a032c442	\\x	{"workflowId":"01a2047d-9c1a-7b57-b9b9-b058a032c442","taskId":"01a2047d-9c1a-789c-90b2-ce2851f30615","status":"pending"}	\N	\N	50	1795371670584
AttemptSucceeded:01a2047d-9c1a-7b57-b9b9-b058a032c442:a:1:0	\N	\N	\N	\N	51	1795371670600
dispute:01a2047d-9cdc-7ef9-8ff3-710cc7cad55b	\N	{"disputeId":"01a2047d-9cdc-7ef9-8ff3-710cc7cad55b"}	\N	\N	52	1795371670748
publish:01a2047d-9ded-70b5-af9d-9b08630712ae	\\x	{"workflowId":"01a2047d-9ded-70b5-af9d-9b08630712ae","taskId":"01a2047d-9ded-725b-a08f-214fbbc8fbff","status":"pending"}	\N	\N	53	1795371671023
bid:36:01a2047d-9ded-70b5-af9d-9b08630712ae1:a1:121:did:dump:cheap-bidder	\\x691f97d6dbaafaa1bef0d78b2cf3c4ad6179e11dabb083fdb0eaa5618a729871	{"receivedMs":1795371671087}	\N	\N	54	1795371671087
\.


--
-- Data for Name: compatibility; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.compatibility (one, min_code_version) FROM stdin;
t	1
\.


--
-- Data for Name: dispute; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.dispute (id, workflow_id, complainant_did, respondent_did, node_id, dispute_type, description, evidence, status, resolution, refund_asked_micro, refunded_micro, short_micro, created_ms, resolved_ms, resolved_by_did) FROM stdin;
01a2047d-9cdc-7ef9-8ff3-710cc7cad55b	01a2047d-95b4-7238-93e1-412c1fa259d2	did:dump:payer	did:dump:worker	a	quality	It is not what was asked for.	{}	open	\N	\N	0	0	1795371670748	\N	\N
\.


--
-- Data for Name: entry; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.entry (id, debit_account_id, credit_account_id, amount, kind, description, workflow_id, node_id, audit_id, created_ms) FROM stdin;
1	1	3	100000000	deposit	deposit	\N	\N	21	1795371667647
2	1	4	100000000	deposit	deposit	\N	\N	22	1795371667699
3	4	5	5000000	stake_deposit	stake of an agent	\N	\N	30	1795371668622
4	4	7	5000000	stake_deposit	stake of an agent	\N	\N	31	1795371668705
5	4	9	5000000	stake_deposit	stake of an agent	\N	\N	32	1795371668727
6	4	11	5000000	stake_deposit	stake of an agent	\N	\N	33	1795371668764
7	4	13	5000000	stake_deposit	stake of an agent	\N	\N	34	1795371668798
8	3	15	400000	escrow_hold	budget held for a workflow	01a2047d-95b4-7238-93e1-412c1fa259d2	\N	36	1795371668919
9	5	6	20000	stake_lock	stake at risk with a node	01a2047d-95b4-7238-93e1-412c1fa259d2	a	36	1795371668919
10	15	16	190000	node_payment	payment for a node	01a2047d-95b4-7238-93e1-412c1fa259d2	a	37	1795371668968
11	15	2	10000	protocol_fee	protocol fee on a node payment	01a2047d-95b4-7238-93e1-412c1fa259d2	a	37	1795371668968
12	6	5	20000	stake_unlock	stake free again	01a2047d-95b4-7238-93e1-412c1fa259d2	a	37	1795371668968
13	5	6	20000	stake_lock	stake at risk with a node	01a2047d-95b4-7238-93e1-412c1fa259d2	b	37	1795371668968
14	3	17	400000	escrow_hold	budget held for a workflow	01a2047d-9610-722b-b54b-48c1f898a2dd	\N	38	1795371669010
15	5	6	20000	stake_lock	stake at risk with a node	01a2047d-9610-722b-b54b-48c1f898a2dd	a	38	1795371669010
16	15	16	190000	node_payment	payment for a node	01a2047d-95b4-7238-93e1-412c1fa259d2	b	39	1795371669021
17	15	2	10000	protocol_fee	protocol fee on a node payment	01a2047d-95b4-7238-93e1-412c1fa259d2	b	39	1795371669021
18	6	5	20000	stake_unlock	stake free again	01a2047d-95b4-7238-93e1-412c1fa259d2	b	39	1795371669021
19	3	18	400000	escrow_hold	budget held for a workflow	01a2047d-964b-7bef-bb14-ec456854d5ce	\N	40	1795371669097
20	5	6	20000	stake_lock	stake at risk with a node	01a2047d-964b-7bef-bb14-ec456854d5ce	a	40	1795371669097
21	18	16	190000	node_payment	payment for a node	01a2047d-964b-7bef-bb14-ec456854d5ce	a	41	1795371669114
22	18	2	10000	protocol_fee	protocol fee on a node payment	01a2047d-964b-7bef-bb14-ec456854d5ce	a	41	1795371669114
23	6	5	20000	stake_unlock	stake free again	01a2047d-964b-7bef-bb14-ec456854d5ce	a	41	1795371669114
24	5	6	10002	stake_lock	stake at risk with a node	01a2047d-964b-7bef-bb14-ec456854d5ce	b	41	1795371669114
25	3	19	400000	escrow_hold	budget held for a workflow	01a2047d-969e-76a2-be04-6306f6763b59	\N	42	1795371669159
26	5	6	10002	stake_lock	stake at risk with a node	01a2047d-969e-76a2-be04-6306f6763b59	a	42	1795371669159
27	3	20	400000	escrow_hold	budget held for a workflow	01a2047d-96c8-7b26-84cb-1b00adc2d0a8	\N	43	1795371669214
28	5	6	10002	stake_lock	stake at risk with a node	01a2047d-96c8-7b26-84cb-1b00adc2d0a8	a	43	1795371669214
29	6	5	10002	stake_unlock	stake free again	01a2047d-96c8-7b26-84cb-1b00adc2d0a8	a	44	1795371669234
30	3	21	400000	escrow_hold	budget held for a workflow	01a2047d-9b49-7f74-9b6e-07425d106e9a	\N	45	1795371670346
31	5	6	10002	stake_lock	stake at risk with a node	01a2047d-9b49-7f74-9b6e-07425d106e9a	a	45	1795371670346
32	3	22	250000	escrow_hold	budget held for a workflow	01a2047d-9b5e-7309-aad5-e6290f56ceca	\N	46	1795371670368
33	5	6	10002	stake_lock	stake at risk with a node	01a2047d-9b5e-7309-aad5-e6290f56ceca	a	46	1795371670368
34	3	23	1000000	escrow_hold	budget held for a workflow	01a2047d-9b8d-7b4f-99e4-0d741bf507c0	\N	47	1795371670429
35	9	10	100000	stake_lock	stake at risk with a node	01a2047d-9b8d-7b4f-99e4-0d741bf507c0	a	47	1795371670429
36	21	16	190000	node_payment	payment for a node	01a2047d-9b49-7f74-9b6e-07425d106e9a	a	48	1795371670470
37	21	2	10000	protocol_fee	protocol fee on a node payment	01a2047d-9b49-7f74-9b6e-07425d106e9a	a	48	1795371670470
38	6	5	10002	stake_unlock	stake free again	01a2047d-9b49-7f74-9b6e-07425d106e9a	a	48	1795371670470
39	5	6	10002	stake_lock	stake at risk with a node	01a2047d-9b49-7f74-9b6e-07425d106e9a	b	48	1795371670470
40	3	24	100000	escrow_hold	budget held for a workflow	01a2047d-9bcb-7a0f-a799-74a2fa722969	\N	49	1795371670499
41	7	8	10000	stake_lock	stake at risk with a node	01a2047d-9bcb-7a0f-a799-74a2fa722969	a	49	1795371670499
42	3	25	400000	escrow_hold	budget held for a workflow	01a2047d-9c1a-7b57-b9b9-b058a032c442	\N	50	1795371670584
43	5	6	10002	stake_lock	stake at risk with a node	01a2047d-9c1a-7b57-b9b9-b058a032c442	a	50	1795371670584
44	25	16	190000	node_payment	payment for a node	01a2047d-9c1a-7b57-b9b9-b058a032c442	a	51	1795371670600
45	25	2	10000	protocol_fee	protocol fee on a node payment	01a2047d-9c1a-7b57-b9b9-b058a032c442	a	51	1795371670600
46	6	5	10002	stake_unlock	stake free again	01a2047d-9c1a-7b57-b9b9-b058a032c442	a	51	1795371670600
47	5	6	10002	stake_lock	stake at risk with a node	01a2047d-9c1a-7b57-b9b9-b058a032c442	b	51	1795371670600
48	3	26	1000000	escrow_hold	budget held for a workflow	01a2047d-9ded-70b5-af9d-9b08630712ae	\N	53	1795371671023
\.


--
-- Data for Name: escrow; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.escrow (workflow_id, payer_did, account_id, amount, fee_bps, status, created_ms, released_ms) FROM stdin;
01a2047d-9610-722b-b54b-48c1f898a2dd	did:dump:payer	17	400000	500	held	1795371669010	\N
01a2047d-95b4-7238-93e1-412c1fa259d2	did:dump:payer	15	400000	500	released	1795371668919	1795371669021
01a2047d-964b-7bef-bb14-ec456854d5ce	did:dump:payer	18	400000	500	held	1795371669097	\N
01a2047d-969e-76a2-be04-6306f6763b59	did:dump:payer	19	400000	500	held	1795371669159	\N
01a2047d-96c8-7b26-84cb-1b00adc2d0a8	did:dump:payer	20	400000	500	held	1795371669214	\N
01a2047d-9b49-7f74-9b6e-07425d106e9a	did:dump:payer	21	400000	500	held	1795371670346	\N
01a2047d-9b5e-7309-aad5-e6290f56ceca	did:dump:payer	22	250000	500	held	1795371670368	\N
01a2047d-9b8d-7b4f-99e4-0d741bf507c0	did:dump:payer	23	1000000	500	held	1795371670429	\N
01a2047d-9bcb-7a0f-a799-74a2fa722969	did:dump:payer	24	100000	500	held	1795371670499	\N
01a2047d-9c1a-7b57-b9b9-b058a032c442	did:dump:payer	25	400000	500	held	1795371670584	\N
01a2047d-9ded-70b5-af9d-9b08630712ae	did:dump:payer	26	1000000	500	held	1795371671023	\N
\.


--
-- Data for Name: feedback; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.feedback (workflow_id, agent_did, payer_did, rating, comment, created_ms) FROM stdin;
\.


--
-- Data for Name: head; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.head (one, epoch, entry_seq, audit_seq, hash) FROM stdin;
t	1	48	54	\\xee8fc3b685c0ca5557633e425f96e58a22f712d83a8b2bf1e31ba1674f648b17
\.


--
-- Data for Name: http_reply; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.http_reply (principal, key, request_hash, reply, expires_ms) FROM stdin;
\.


--
-- Data for Name: invoice; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.invoice (id, payer_did, period_start_ms, period_end_ms, workflow_id, subtotal_cents, protocol_fee_cents, total_cents, subtotal_micro, status, created_ms, settled_ms, settled_by_did) FROM stdin;
\.


--
-- Data for Name: invoice_line; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.invoice_line (invoice_id, entry_id, amount_micro, is_void) FROM stdin;
\.


--
-- Data for Name: node; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.node (workflow_id, name, status, attempt, agent_did, price_micro, dispatched_ms, deadline_ms, retry_at_ms, retries_used, agents_tried, verifier_did, verify_attempt, verifier_price_micro, verify_retries_used, verifiers_tried, result_json, result_ref, error, started_ms, completed_ms, cost_micro, metrics, input_hash, selection_json, price_json, stake_micro, auction_round, auction_closes_ms, key_version) FROM stdin;
01a2047d-95b4-7238-93e1-412c1fa259d2	a	success	1	did:dump:worker	200000	1795371668917	1795371728917	\N	0	\N	\N	0	0	0	\N	{"approved":true,"n":1}	\N	\N	1795371668929	1795371668938	200000	{"input_tokens":700,"output_tokens":301,"latency_ms":9}	\N	{"agentDid":"did:dump:worker","isTrial":false,"candidates":[{"agentDid":"did:dump:worker","priceCredits":0.2,"score":0.775,"parts":{"reputation":0.5,"availability":1.0,"price":1.0,"latency":0.5,"success":0.5}},{"agentDid":"did:dump:revoked","priceCredits":0,"excluded":"agent_revoked"}],"unshown":0}	\N	0	0	\N	1
01a2047d-9610-722b-b54b-48c1f898a2dd	a	dispatched	1	did:dump:worker	200000	1795371669009	1795371729009	\N	0	\N	\N	0	0	0	\N	\N	\N	\N	\N	\N	0	\N	\N	{"agentDid":"did:dump:worker","isTrial":false,"candidates":[{"agentDid":"did:dump:worker","priceCredits":0.2,"score":0.7625,"parts":{"reputation":0.5,"availability":0.9688,"price":1.0,"latency":0.5,"success":0.5}},{"agentDid":"did:dump:revoked","priceCredits":0,"excluded":"agent_revoked"}],"unshown":0}	\N	20000	0	\N	1
01a2047d-95b4-7238-93e1-412c1fa259d2	b	success	1	did:dump:worker	200000	1795371668948	1795371728948	\N	0	\N	\N	0	0	0	\N	{"approved":true,"n":1}	\N	\N	1795371668989	1795371669014	200000	{"input_tokens":700,"output_tokens":301,"latency_ms":25}	\N	{"agentDid":"did:dump:worker","isTrial":false,"candidates":[{"agentDid":"did:dump:worker","priceCredits":0.2,"score":0.775,"parts":{"reputation":0.5,"availability":1.0,"price":1.0,"latency":0.5,"success":0.5}},{"agentDid":"did:dump:revoked","priceCredits":0,"excluded":"agent_revoked"}],"unshown":0}	\N	0	0	\N	1
01a2047d-964b-7bef-bb14-ec456854d5ce	a	success	1	did:dump:worker	200000	1795371669068	1795371729068	\N	0	\N	\N	0	0	0	\N	{"approved":true,"n":1}	\N	\N	1795371669106	1795371669112	200000	{"input_tokens":700,"output_tokens":301,"latency_ms":6}	\N	{"agentDid":"did:dump:worker","isTrial":false,"candidates":[{"agentDid":"did:dump:worker","priceCredits":0.2,"score":0.7625,"parts":{"reputation":0.5,"availability":0.9688,"price":1.0,"latency":0.5,"success":0.5}},{"agentDid":"did:dump:revoked","priceCredits":0,"excluded":"agent_revoked"}],"unshown":0}	\N	0	0	\N	1
01a2047d-964b-7bef-bb14-ec456854d5ce	b	dispatched	1	did:dump:worker	200000	1795371669112	1795371729112	\N	0	\N	\N	0	0	0	\N	\N	\N	\N	\N	\N	0	\N	\N	{"agentDid":"did:dump:worker","isTrial":false,"candidates":[{"agentDid":"did:dump:worker","priceCredits":0.2,"score":0.9875,"parts":{"reputation":0.9999,"availability":0.9688,"price":1.0,"latency":0.9997,"success":1.0}},{"agentDid":"did:dump:revoked","priceCredits":0,"excluded":"agent_revoked"}],"unshown":0}	\N	10002	0	\N	1
01a2047d-96c8-7b26-84cb-1b00adc2d0a8	a	ready	1	did:dump:worker	200000	1795371669192	\N	1795371699231	1	\N	\N	0	0	0	\N	\N	\N	{"code":"AGENT_ERROR","message":"HTTP 503"}	1795371669228	\N	0	\N	\N	{"agentDid":"did:dump:worker","isTrial":false,"candidates":[{"agentDid":"did:dump:worker","priceCredits":0.2,"score":0.9625,"parts":{"reputation":0.9999,"availability":0.9062,"price":1.0,"latency":0.9997,"success":1.0}},{"agentDid":"did:dump:revoked","priceCredits":0,"excluded":"agent_revoked"}],"unshown":0}	\N	0	0	\N	1
01a2047d-969e-76a2-be04-6306f6763b59	a	running	1	did:dump:worker	200000	1795371669151	4102444800000	\N	0	\N	\N	0	0	0	\N	\N	\N	\N	1795371669178	\N	0	\N	sha256:44935ed167f4c64673ba9386a4f8d1113b8f3549ab0d49220d4d757356b81332	{"agentDid":"did:dump:worker","isTrial":false,"candidates":[{"agentDid":"did:dump:worker","priceCredits":0.2,"score":0.9875,"parts":{"reputation":0.9999,"availability":0.9688,"price":1.0,"latency":0.9997,"success":1.0}},{"agentDid":"did:dump:revoked","priceCredits":0,"excluded":"agent_revoked"}],"unshown":0}	\N	10002	0	\N	1
01a2047d-9b8d-7b4f-99e4-0d741bf507c0	a	dispatched	1	did:dump:metered	1000000	1795371670427	1795371730427	\N	0	\N	\N	0	0	0	\N	\N	\N	\N	\N	\N	0	\N	\N	\N	{"model":"per-token","inputRate":"0.00001","outputRate":"0.00002"}	100000	0	\N	1
01a2047d-9b49-7f74-9b6e-07425d106e9a	a	success	1	did:dump:worker	200000	1795371670345	1795371730345	\N	0	\N	\N	0	0	0	\N	\N	{"$blob":"sha256:a75eacf99010a0ba28689529854f9fc49a14d02889e7e60adcc567b531740c20","size":2081}	\N	1795371670359	1795371670361	200000	{"input_tokens":700,"output_tokens":301,"latency_ms":2}	\N	{"agentDid":"did:dump:worker","isTrial":false,"candidates":[{"agentDid":"did:dump:worker","priceCredits":0.2,"score":0.9625,"parts":{"reputation":0.9999,"availability":0.9062,"price":1.0,"latency":0.9998,"success":1.0}},{"agentDid":"did:dump:revoked","priceCredits":0,"excluded":"agent_revoked"}],"unshown":0}	\N	0	0	\N	1
01a2047d-9b49-7f74-9b6e-07425d106e9a	b	dispatched	1	did:dump:worker	200000	1795371670461	1795371730461	\N	0	\N	\N	0	0	0	\N	\N	\N	\N	\N	\N	0	\N	\N	{"agentDid":"did:dump:worker","isTrial":false,"candidates":[{"agentDid":"did:dump:worker","priceCredits":0.2,"score":0.9625,"parts":{"reputation":0.9999,"availability":0.9062,"price":1.0,"latency":0.9998,"success":1.0}},{"agentDid":"did:dump:revoked","priceCredits":0,"excluded":"agent_revoked"}],"unshown":0}	\N	10002	0	\N	1
01a2047d-9bcb-7a0f-a799-74a2fa722969	a	dispatched	1	did:dump:signed	100000	1795371670476	1795371730476	\N	0	\N	\N	0	0	0	\N	\N	\N	\N	\N	\N	0	\N	\N	\N	\N	10000	0	\N	1
01a2047d-9c1a-7b57-b9b9-b058a032c442	a	success	1	did:dump:worker	200000	1795371670581	1795371730581	\N	0	\N	\N	0	0	0	\N	{"approved":true,"n":1}	\N	\N	1795371670590	1795371670598	200000	{"input_tokens":700,"output_tokens":301,"latency_ms":8}	\N	{"agentDid":"did:dump:worker","isTrial":false,"candidates":[{"agentDid":"did:dump:worker","priceCredits":0.2,"score":0.95,"parts":{"reputation":0.9999,"availability":0.875,"price":1.0,"latency":0.9998,"success":1.0}},{"agentDid":"did:dump:revoked","priceCredits":0,"excluded":"agent_revoked"}],"unshown":0}	\N	0	0	\N	1
01a2047d-9c1a-7b57-b9b9-b058a032c442	b	dispatched	1	did:dump:worker	200000	1795371670598	1795371730581	\N	0	\N	\N	0	0	0	\N	\N	\N	\N	\N	\N	0	\N	\N	{"agentDid":"did:dump:worker","isTrial":false,"candidates":[{"agentDid":"did:dump:worker","priceCredits":0.2,"score":0.95,"parts":{"reputation":0.9999,"availability":0.875,"price":1.0,"latency":0.9998,"success":1.0}},{"agentDid":"did:dump:revoked","priceCredits":0,"excluded":"agent_revoked"}],"unshown":0}	\N	10002	0	\N	1
01a2047d-9ded-70b5-af9d-9b08630712ae	a	ready	0	\N	0	\N	\N	\N	0	\N	\N	0	0	0	\N	\N	\N	\N	\N	\N	0	\N	\N	\N	\N	0	1	1795371731022	0
01a2047d-9b5e-7309-aad5-e6290f56ceca	a	running	1	did:dump:worker	200000	1795371670367	4102444800000	\N	0	\N	did:dump:judge	1	50000	0	\N	{"approved":true,"n":1}	\N	\N	1795371670388	\N	0	{"input_tokens":700,"output_tokens":301,"latency_ms":16}	\N	{"agentDid":"did:dump:worker","isTrial":false,"candidates":[{"agentDid":"did:dump:worker","priceCredits":0.2,"score":0.95,"parts":{"reputation":0.9999,"availability":0.875,"price":1.0,"latency":0.9998,"success":1.0}},{"agentDid":"did:dump:revoked","priceCredits":0,"excluded":"agent_revoked"}],"unshown":0}	\N	10002	0	\N	1
\.


--
-- Data for Name: owner; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.owner (name, epoch, address, registered_ms) FROM stdin;
workflow@c2be5b3587c08fa3dc2c4a386e4dc0296478a19fbfb518b0d98385a0#0	1	workflow@c2be5b3587c08fa3dc2c4a386e4dc0296478a19fbfb518b0d98385a0#0	1795371656332
\.


--
-- Data for Name: quota; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.quota (did, max_workflows_per_day, max_concurrent_workflows, max_spend_per_day_cents, set_by_did, updated_ms) FROM stdin;
\.


--
-- Data for Name: rate_lease; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.rate_lease (principal, class, window_ms, used, granted) FROM stdin;
\.


--
-- Data for Name: reputation; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.reputation (agent_did, total, successful, failed, cancelled, latency_ms_sum, updated_ms) FROM stdin;
did:dump:worker	5	5	0	0	50	1795371670600
\.


--
-- Data for Name: revocation; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.revocation (did, reason, evidence, revoked_ms, expires_ms, revoked_by_did, ended_ms, ended_by_did) FROM stdin;
did:dump:revoked	It lies.	{"seen":1}	1795371668822	\N	did:callboard:admin	\N	\N
\.


--
-- Data for Name: stake; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.stake (agent_did, free_account_id, locked_account_id, updated_ms) FROM stdin;
did:dump:cheap-bidder	11	12	1795371668764
did:dump:dear-bidder	13	14	1795371668798
did:dump:metered	9	10	1795371670429
did:dump:signed	7	8	1795371670499
did:dump:worker	5	6	1795371670600
\.


--
-- Data for Name: stake_share; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.stake_share (agent_did, depositor_did, micro) FROM stdin;
did:dump:worker	did:dump:owner	5000000
did:dump:signed	did:dump:owner	5000000
did:dump:metered	did:dump:owner	5000000
did:dump:cheap-bidder	did:dump:owner	5000000
did:dump:dear-bidder	did:dump:owner	5000000
\.


--
-- Data for Name: workflow; Type: TABLE DATA; Schema: callboard; Owner: callboard_owner
--

COPY callboard.workflow (id, task_id, payer_did, status, intent, manifest, owner, created_ms, started_ms, completed_ms, deadline_ms, estimate_micro, hold_micro, reserved, fee_bps, spent_micro, error, end_reason, end_details, ended_by_did, is_halted, quarantined_ms, quarantine_code) FROM stdin;
01a2047d-95b4-7238-93e1-412c1fa259d2	01a2047d-95b4-71cb-a5b6-b12eb34efef7	did:dump:payer	success	the work of a dump	{"intent":"the work of a dump","nodes":{"a":{"capabilityId":"cap.dump.work.v1","payload":{}},"b":{"capabilityId":"cap.dump.work.v1","payload":{},"dependsOn":["a"],"inputMappings":{"n":"$.a.result.n"}}},"settings":{}}	workflow@c2be5b3587c08fa3dc2c4a386e4dc0296478a19fbfb518b0d98385a0#0	1795371668917	1795371668917	1795371669014	1795371968917	400000	400000	{"a":200000,"b":200000}	500	400000	\N	\N	\N	\N	f	\N	\N
01a2047d-9c1a-7b57-b9b9-b058a032c442	01a2047d-9c1a-789c-90b2-ce2851f30615	did:dump:payer	running	the work of a dump	{"intent":"the work of a dump","nodes":{"a":{"capabilityId":"cap.dump.work.v1","payload":{}},"b":{"capabilityId":"cap.dump.work.v1","payload":{"manner":"hold"},"dependsOn":["a"],"inputMappings":{"n":"$.a.result.n"}}},"settings":{"maxRuntimeMs":60000}}	workflow@c2be5b3587c08fa3dc2c4a386e4dc0296478a19fbfb518b0d98385a0#0	1795371670581	1795371670581	\N	1795371730581	400000	400000	{"a":200000,"b":200000}	500	\N	\N	\N	\N	\N	f	\N	\N
01a2047d-9610-722b-b54b-48c1f898a2dd	01a2047d-9610-7792-89c6-58e5ef48a3da	did:dump:payer	running	the work of a dump	{"intent":"the work of a dump","nodes":{"a":{"capabilityId":"cap.dump.work.v1","payload":{"manner":"hold"}},"b":{"capabilityId":"cap.dump.work.v1","payload":{},"dependsOn":["a"],"inputMappings":{"n":"$.a.result.n"}}},"settings":{}}	workflow@c2be5b3587c08fa3dc2c4a386e4dc0296478a19fbfb518b0d98385a0#0	1795371669009	1795371669009	\N	4102444800000	400000	400000	{"a":200000,"b":200000}	500	\N	\N	\N	\N	\N	f	\N	\N
01a2047d-964b-7bef-bb14-ec456854d5ce	01a2047d-964b-7968-83a0-3c67de52f6a7	did:dump:payer	running	the work of a dump	{"intent":"the work of a dump","nodes":{"a":{"capabilityId":"cap.dump.work.v1","payload":{}},"b":{"capabilityId":"cap.dump.work.v1","payload":{"manner":"hold"},"dependsOn":["a"],"inputMappings":{"n":"$.a.result.n"}}},"settings":{}}	workflow@c2be5b3587c08fa3dc2c4a386e4dc0296478a19fbfb518b0d98385a0#0	1795371669068	1795371669068	\N	4102444800000	400000	400000	{"a":200000,"b":200000}	500	\N	\N	\N	\N	\N	f	\N	\N
01a2047d-969e-76a2-be04-6306f6763b59	01a2047d-969e-7ee6-ae56-96dd552692a8	did:dump:payer	running	the work of a dump	{"intent":"the work of a dump","nodes":{"a":{"capabilityId":"cap.dump.work.v1","payload":{"manner":"later"},"timeoutMs":86400000},"b":{"capabilityId":"cap.dump.work.v1","payload":{},"dependsOn":["a"],"inputMappings":{"n":"$.a.result.n"}}},"settings":{}}	workflow@c2be5b3587c08fa3dc2c4a386e4dc0296478a19fbfb518b0d98385a0#0	1795371669150	1795371669151	\N	4102444800000	400000	400000	{"a":200000,"b":200000}	500	\N	\N	\N	\N	\N	f	\N	\N
01a2047d-96c8-7b26-84cb-1b00adc2d0a8	01a2047d-96c8-7bea-8b2b-1fc062eb4b04	did:dump:payer	running	the work of a dump	{"intent":"the work of a dump","nodes":{"a":{"capabilityId":"cap.dump.work.v1","payload":{"manner":"busy"}},"b":{"capabilityId":"cap.dump.work.v1","payload":{},"dependsOn":["a"],"inputMappings":{"n":"$.a.result.n"}}},"settings":{}}	workflow@c2be5b3587c08fa3dc2c4a386e4dc0296478a19fbfb518b0d98385a0#0	1795371669192	1795371669192	\N	4102444800000	400000	400000	{"a":200000,"b":200000}	500	\N	\N	\N	\N	\N	f	\N	\N
01a2047d-9b49-7f74-9b6e-07425d106e9a	01a2047d-9b49-702d-98b9-a63719dbb1e1	did:dump:payer	running	the work of a dump	{"intent":"the work of a dump","nodes":{"a":{"capabilityId":"cap.dump.work.v1","payload":{"manner":"large"}},"b":{"capabilityId":"cap.dump.work.v1","payload":{"manner":"hold"},"dependsOn":["a"],"inputMappings":{"text":"$.a.result.text"}}},"settings":{}}	workflow@c2be5b3587c08fa3dc2c4a386e4dc0296478a19fbfb518b0d98385a0#0	1795371670345	1795371670345	\N	4102444800000	400000	400000	{"a":200000,"b":200000}	500	\N	\N	\N	\N	\N	f	\N	\N
01a2047d-9b5e-7309-aad5-e6290f56ceca	01a2047d-9b5e-7b3b-8abf-5b26817fee59	did:dump:payer	running		{"nodes":{"a":{"capabilityId":"cap.dump.work.v1","payload":{},"requiresVerification":true}}}	workflow@c2be5b3587c08fa3dc2c4a386e4dc0296478a19fbfb518b0d98385a0#0	1795371670367	1795371670367	\N	4102444800000	250000	250000	{"a":250000}	500	\N	\N	\N	\N	\N	f	\N	\N
01a2047d-9b8d-7b4f-99e4-0d741bf507c0	01a2047d-9b8d-731e-ab1f-dce51b0b4ed5	did:dump:payer	running		{"nodes":{"a":{"capabilityId":"cap.dump.meter.v1","payload":{"manner":"hold"},"maxCostCredits":1}}}	workflow@c2be5b3587c08fa3dc2c4a386e4dc0296478a19fbfb518b0d98385a0#0	1795371670427	1795371670427	\N	4102444800000	1000000	1000000	{"a":{"micro":1000000,"price":null,"isByToken":true,"verifierMicro":0}}	500	\N	\N	\N	\N	\N	f	\N	\N
01a2047d-9bcb-7a0f-a799-74a2fa722969	01a2047d-9bcb-70fa-ae31-e484efc55149	did:dump:payer	running		{"nodes":{"a":{"capabilityId":"cap.dump.sign.v1","payload":{"manner":"hold"}}}}	workflow@c2be5b3587c08fa3dc2c4a386e4dc0296478a19fbfb518b0d98385a0#0	1795371670476	1795371670476	\N	4102444800000	100000	100000	{"a":100000}	500	\N	\N	\N	\N	\N	f	\N	\N
01a2047d-9ded-70b5-af9d-9b08630712ae	01a2047d-9ded-725b-a08f-214fbbc8fbff	did:dump:payer	pending		{"nodes":{"a":{"capabilityId":"cap.dump.auction.v1","payload":{},"selection":"auction","auctionWindowMs":60000,"maxCostCredits":1}}}	workflow@c2be5b3587c08fa3dc2c4a386e4dc0296478a19fbfb518b0d98385a0#0	1795371671022	\N	\N	4102444800000	1000000	1000000	{"a":{"micro":1000000,"price":null,"isByToken":false,"verifierMicro":0,"reserveMicro":1000000,"stakeBps":1000}}	500	\N	\N	\N	\N	\N	f	\N	\N
\.


--
-- Name: attempt_id_seq; Type: SEQUENCE SET; Schema: callboard; Owner: callboard_owner
--

SELECT pg_catalog.setval('callboard.attempt_id_seq', 7, true);


--
-- Name: account account_address_key; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.account
    ADD CONSTRAINT account_address_key UNIQUE (address);


--
-- Name: account account_pkey; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.account
    ADD CONSTRAINT account_pkey PRIMARY KEY (id);


--
-- Name: agent_live agent_live_pkey; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.agent_live
    ADD CONSTRAINT agent_live_pkey PRIMARY KEY (did);


--
-- Name: agent agent_pkey; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.agent
    ADD CONSTRAINT agent_pkey PRIMARY KEY (did);


--
-- Name: alembic_version alembic_version_pkc; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);


--
-- Name: api_key api_key_hash_key; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.api_key
    ADD CONSTRAINT api_key_hash_key UNIQUE (hash);


--
-- Name: api_key api_key_pkey; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.api_key
    ADD CONSTRAINT api_key_pkey PRIMARY KEY (id);


--
-- Name: attempt attempt_pkey; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.attempt
    ADD CONSTRAINT attempt_pkey PRIMARY KEY (workflow_id, id);


--
-- Name: auction auction_pkey; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.auction
    ADD CONSTRAINT auction_pkey PRIMARY KEY (workflow_id, node, round);


--
-- Name: audit_event audit_event_pkey; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.audit_event
    ADD CONSTRAINT audit_event_pkey PRIMARY KEY (audit_id, number);


--
-- Name: audit audit_pkey; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (id);


--
-- Name: bid bid_pkey; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.bid
    ADD CONSTRAINT bid_pkey PRIMARY KEY (workflow_id, node, round, agent_did);


--
-- Name: blob blob_pkey; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.blob
    ADD CONSTRAINT blob_pkey PRIMARY KEY (hash);


--
-- Name: capability_price capability_price_pkey; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.capability_price
    ADD CONSTRAINT capability_price_pkey PRIMARY KEY (capability_id);


--
-- Name: command command_pkey; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.command
    ADD CONSTRAINT command_pkey PRIMARY KEY (id);


--
-- Name: compatibility compatibility_pkey; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.compatibility
    ADD CONSTRAINT compatibility_pkey PRIMARY KEY (one);


--
-- Name: dispute dispute_pkey; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.dispute
    ADD CONSTRAINT dispute_pkey PRIMARY KEY (id);


--
-- Name: entry entry_pkey; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.entry
    ADD CONSTRAINT entry_pkey PRIMARY KEY (id);


--
-- Name: escrow escrow_account_id_key; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.escrow
    ADD CONSTRAINT escrow_account_id_key UNIQUE (account_id);


--
-- Name: escrow escrow_pkey; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.escrow
    ADD CONSTRAINT escrow_pkey PRIMARY KEY (workflow_id);


--
-- Name: feedback feedback_pkey; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.feedback
    ADD CONSTRAINT feedback_pkey PRIMARY KEY (workflow_id, agent_did);


--
-- Name: head head_pkey; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.head
    ADD CONSTRAINT head_pkey PRIMARY KEY (one);


--
-- Name: http_reply http_reply_pkey; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.http_reply
    ADD CONSTRAINT http_reply_pkey PRIMARY KEY (principal, key);


--
-- Name: invoice_line invoice_line_pkey; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.invoice_line
    ADD CONSTRAINT invoice_line_pkey PRIMARY KEY (invoice_id, entry_id);


--
-- Name: invoice invoice_pkey; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.invoice
    ADD CONSTRAINT invoice_pkey PRIMARY KEY (id);


--
-- Name: node node_pkey; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.node
    ADD CONSTRAINT node_pkey PRIMARY KEY (workflow_id, name);


--
-- Name: owner owner_pkey; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.owner
    ADD CONSTRAINT owner_pkey PRIMARY KEY (name);


--
-- Name: quota quota_pkey; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.quota
    ADD CONSTRAINT quota_pkey PRIMARY KEY (did);


--
-- Name: rate_lease rate_lease_pkey; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.rate_lease
    ADD CONSTRAINT rate_lease_pkey PRIMARY KEY (principal, class);


--
-- Name: reputation reputation_pkey; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.reputation
    ADD CONSTRAINT reputation_pkey PRIMARY KEY (agent_did);


--
-- Name: revocation revocation_pkey; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.revocation
    ADD CONSTRAINT revocation_pkey PRIMARY KEY (did);


--
-- Name: stake stake_free_account_id_key; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.stake
    ADD CONSTRAINT stake_free_account_id_key UNIQUE (free_account_id);


--
-- Name: stake stake_locked_account_id_key; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.stake
    ADD CONSTRAINT stake_locked_account_id_key UNIQUE (locked_account_id);


--
-- Name: stake stake_pkey; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.stake
    ADD CONSTRAINT stake_pkey PRIMARY KEY (agent_did);


--
-- Name: stake_share stake_share_pkey; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.stake_share
    ADD CONSTRAINT stake_share_pkey PRIMARY KEY (agent_did, depositor_did);


--
-- Name: workflow workflow_pkey; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.workflow
    ADD CONSTRAINT workflow_pkey PRIMARY KEY (id);


--
-- Name: workflow workflow_task_id_key; Type: CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.workflow
    ADD CONSTRAINT workflow_task_id_key UNIQUE (task_id);


--
-- Name: agent_capability; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE INDEX agent_capability ON callboard.agent USING gin (capability_ids);


--
-- Name: agent_live_updated; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE INDEX agent_live_updated ON callboard.agent_live USING brin (updated_ms) WITH (pages_per_range='4', autosummarize='on');


--
-- Name: agent_owner; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE INDEX agent_owner ON callboard.agent USING btree (owner_did, did);


--
-- Name: agent_registered; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE INDEX agent_registered ON callboard.agent USING btree (registered_ms, did);


--
-- Name: api_key_owner; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE INDEX api_key_owner ON callboard.api_key USING btree (owner_did, id);


--
-- Name: api_key_parent; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE INDEX api_key_parent ON callboard.api_key USING btree (parent_id) WHERE (parent_id IS NOT NULL);


--
-- Name: audit_actor; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE INDEX audit_actor ON callboard.audit USING btree (actor_did, id);


--
-- Name: audit_created; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE INDEX audit_created ON callboard.audit USING brin (created_ms) WITH (autosummarize='on');


--
-- Name: audit_event_target; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE INDEX audit_event_target ON callboard.audit_event USING btree (target_id, audit_id);


--
-- Name: audit_event_type; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE INDEX audit_event_type ON callboard.audit_event USING btree (event_type, audit_id);


--
-- Name: audit_workflow; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE INDEX audit_workflow ON callboard.audit USING brin (workflow_id uuid_minmax_multi_ops) WITH (autosummarize='on');


--
-- Name: dispute_complainant; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE INDEX dispute_complainant ON callboard.dispute USING btree (complainant_did, id);


--
-- Name: dispute_respondent; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE INDEX dispute_respondent ON callboard.dispute USING btree (respondent_did, id);


--
-- Name: dispute_workflow; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE INDEX dispute_workflow ON callboard.dispute USING btree (workflow_id);


--
-- Name: entry_credit; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE INDEX entry_credit ON callboard.entry USING btree (credit_account_id, id) WHERE (kind <> 'protocol_fee'::text);


--
-- Name: entry_debit; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE INDEX entry_debit ON callboard.entry USING btree (debit_account_id, id);


--
-- Name: entry_node_payment; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE UNIQUE INDEX entry_node_payment ON callboard.entry USING btree (workflow_id, node_id) WHERE (kind = 'node_payment'::text);


--
-- Name: entry_refund_credit; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE INDEX entry_refund_credit ON callboard.entry USING btree (credit_account_id, created_ms) WHERE (kind = ANY (ARRAY['refund'::text, 'fee_refund'::text, 'stake_refund'::text]));


--
-- Name: entry_refund_workflow; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE INDEX entry_refund_workflow ON callboard.entry USING btree (workflow_id) WHERE (kind = ANY (ARRAY['refund'::text, 'fee_refund'::text, 'stake_refund'::text]));


--
-- Name: escrow_held; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE INDEX escrow_held ON callboard.escrow USING btree (payer_did) WHERE (status = 'held'::text);


--
-- Name: feedback_agent; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE INDEX feedback_agent ON callboard.feedback USING btree (agent_did, created_ms);


--
-- Name: http_reply_expires; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE INDEX http_reply_expires ON callboard.http_reply USING btree (expires_ms);


--
-- Name: invoice_line_once; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE UNIQUE INDEX invoice_line_once ON callboard.invoice_line USING btree (entry_id) WHERE (NOT is_void);


--
-- Name: invoice_payer; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE INDEX invoice_payer ON callboard.invoice USING btree (payer_did, id);


--
-- Name: reputation_updated; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE INDEX reputation_updated ON callboard.reputation USING brin (updated_ms) WITH (pages_per_range='4', autosummarize='on');


--
-- Name: stake_share_depositor; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE INDEX stake_share_depositor ON callboard.stake_share USING btree (depositor_did) WHERE (micro > 0);


--
-- Name: stake_updated; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE INDEX stake_updated ON callboard.stake USING brin (updated_ms) WITH (pages_per_range='4', autosummarize='on');


--
-- Name: workflow_payer; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE INDEX workflow_payer ON callboard.workflow USING btree (payer_did, id);


--
-- Name: workflow_payer_created; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE INDEX workflow_payer_created ON callboard.workflow USING btree (payer_did, created_ms);


--
-- Name: workflow_quarantined; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE INDEX workflow_quarantined ON callboard.workflow USING btree (id) WHERE ((quarantined_ms IS NOT NULL) AND (completed_ms IS NULL));


--
-- Name: workflow_shard; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE INDEX workflow_shard ON callboard.workflow USING btree (get_byte(uuid_send(id), 7)) WHERE (completed_ms IS NULL);


--
-- Name: workflow_unfinished; Type: INDEX; Schema: callboard; Owner: callboard_owner
--

CREATE INDEX workflow_unfinished ON callboard.workflow USING btree (owner, deadline_ms, id) WHERE (completed_ms IS NULL);


--
-- Name: attempt append_only; Type: TRIGGER; Schema: callboard; Owner: callboard_owner
--

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON callboard.attempt FOR EACH STATEMENT EXECUTE FUNCTION callboard.refuse_change();

ALTER TABLE callboard.attempt ENABLE ALWAYS TRIGGER append_only;


--
-- Name: audit append_only; Type: TRIGGER; Schema: callboard; Owner: callboard_owner
--

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON callboard.audit FOR EACH STATEMENT EXECUTE FUNCTION callboard.refuse_change();

ALTER TABLE callboard.audit ENABLE ALWAYS TRIGGER append_only;


--
-- Name: audit_event append_only; Type: TRIGGER; Schema: callboard; Owner: callboard_owner
--

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON callboard.audit_event FOR EACH STATEMENT EXECUTE FUNCTION callboard.refuse_change();

ALTER TABLE callboard.audit_event ENABLE ALWAYS TRIGGER append_only;


--
-- Name: bid append_only; Type: TRIGGER; Schema: callboard; Owner: callboard_owner
--

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON callboard.bid FOR EACH STATEMENT EXECUTE FUNCTION callboard.refuse_change();

ALTER TABLE callboard.bid ENABLE ALWAYS TRIGGER append_only;


--
-- Name: command append_only; Type: TRIGGER; Schema: callboard; Owner: callboard_owner
--

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON callboard.command FOR EACH STATEMENT EXECUTE FUNCTION callboard.refuse_change();

ALTER TABLE callboard.command ENABLE ALWAYS TRIGGER append_only;


--
-- Name: entry append_only; Type: TRIGGER; Schema: callboard; Owner: callboard_owner
--

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON callboard.entry FOR EACH STATEMENT EXECUTE FUNCTION callboard.refuse_change();

ALTER TABLE callboard.entry ENABLE ALWAYS TRIGGER append_only;


--
-- Name: feedback append_only; Type: TRIGGER; Schema: callboard; Owner: callboard_owner
--

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON callboard.feedback FOR EACH STATEMENT EXECUTE FUNCTION callboard.refuse_change();

ALTER TABLE callboard.feedback ENABLE ALWAYS TRIGGER append_only;


--
-- Name: entry apply_entries; Type: TRIGGER; Schema: callboard; Owner: callboard_owner
--

CREATE TRIGGER apply_entries AFTER INSERT ON callboard.entry REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION callboard.apply_entries();

ALTER TABLE callboard.entry ENABLE ALWAYS TRIGGER apply_entries;


--
-- Name: escrow check_escrow; Type: TRIGGER; Schema: callboard; Owner: callboard_owner
--

CREATE TRIGGER check_escrow AFTER UPDATE ON callboard.escrow REFERENCING OLD TABLE AS past NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION callboard.check_escrow();

ALTER TABLE callboard.escrow ENABLE ALWAYS TRIGGER check_escrow;


--
-- Name: escrow check_new_escrow; Type: TRIGGER; Schema: callboard; Owner: callboard_owner
--

CREATE TRIGGER check_new_escrow AFTER INSERT ON callboard.escrow REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION callboard.check_new_escrow();

ALTER TABLE callboard.escrow ENABLE ALWAYS TRIGGER check_new_escrow;


--
-- Name: audit link_audit; Type: TRIGGER; Schema: callboard; Owner: callboard_owner
--

CREATE TRIGGER link_audit AFTER INSERT ON callboard.audit REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION callboard.link_audit();

ALTER TABLE callboard.audit ENABLE ALWAYS TRIGGER link_audit;


--
-- Name: account no_removal; Type: TRIGGER; Schema: callboard; Owner: callboard_owner
--

CREATE TRIGGER no_removal BEFORE DELETE OR TRUNCATE ON callboard.account FOR EACH STATEMENT EXECUTE FUNCTION callboard.refuse_change();

ALTER TABLE callboard.account ENABLE ALWAYS TRIGGER no_removal;


--
-- Name: auction no_removal; Type: TRIGGER; Schema: callboard; Owner: callboard_owner
--

CREATE TRIGGER no_removal BEFORE DELETE OR TRUNCATE ON callboard.auction FOR EACH STATEMENT EXECUTE FUNCTION callboard.refuse_change();

ALTER TABLE callboard.auction ENABLE ALWAYS TRIGGER no_removal;


--
-- Name: dispute no_removal; Type: TRIGGER; Schema: callboard; Owner: callboard_owner
--

CREATE TRIGGER no_removal BEFORE DELETE OR TRUNCATE ON callboard.dispute FOR EACH STATEMENT EXECUTE FUNCTION callboard.refuse_change();

ALTER TABLE callboard.dispute ENABLE ALWAYS TRIGGER no_removal;


--
-- Name: escrow no_removal; Type: TRIGGER; Schema: callboard; Owner: callboard_owner
--

CREATE TRIGGER no_removal BEFORE DELETE OR TRUNCATE ON callboard.escrow FOR EACH STATEMENT EXECUTE FUNCTION callboard.refuse_change();

ALTER TABLE callboard.escrow ENABLE ALWAYS TRIGGER no_removal;


--
-- Name: head no_removal; Type: TRIGGER; Schema: callboard; Owner: callboard_owner
--

CREATE TRIGGER no_removal BEFORE DELETE OR TRUNCATE ON callboard.head FOR EACH STATEMENT EXECUTE FUNCTION callboard.refuse_change();

ALTER TABLE callboard.head ENABLE ALWAYS TRIGGER no_removal;


--
-- Name: invoice no_removal; Type: TRIGGER; Schema: callboard; Owner: callboard_owner
--

CREATE TRIGGER no_removal BEFORE DELETE OR TRUNCATE ON callboard.invoice FOR EACH STATEMENT EXECUTE FUNCTION callboard.refuse_change();

ALTER TABLE callboard.invoice ENABLE ALWAYS TRIGGER no_removal;


--
-- Name: invoice_line no_removal; Type: TRIGGER; Schema: callboard; Owner: callboard_owner
--

CREATE TRIGGER no_removal BEFORE DELETE OR TRUNCATE ON callboard.invoice_line FOR EACH STATEMENT EXECUTE FUNCTION callboard.refuse_change();

ALTER TABLE callboard.invoice_line ENABLE ALWAYS TRIGGER no_removal;


--
-- Name: stake no_removal; Type: TRIGGER; Schema: callboard; Owner: callboard_owner
--

CREATE TRIGGER no_removal BEFORE DELETE OR TRUNCATE ON callboard.stake FOR EACH STATEMENT EXECUTE FUNCTION callboard.refuse_change();

ALTER TABLE callboard.stake ENABLE ALWAYS TRIGGER no_removal;


--
-- Name: api_key api_key_parent_id_fkey; Type: FK CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.api_key
    ADD CONSTRAINT api_key_parent_id_fkey FOREIGN KEY (parent_id) REFERENCES callboard.api_key(id);


--
-- Name: invoice_line invoice_line_invoice_id_fkey; Type: FK CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.invoice_line
    ADD CONSTRAINT invoice_line_invoice_id_fkey FOREIGN KEY (invoice_id) REFERENCES callboard.invoice(id);


--
-- Name: stake stake_free_account_id_fkey; Type: FK CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.stake
    ADD CONSTRAINT stake_free_account_id_fkey FOREIGN KEY (free_account_id) REFERENCES callboard.account(id);


--
-- Name: stake stake_locked_account_id_fkey; Type: FK CONSTRAINT; Schema: callboard; Owner: callboard_owner
--

ALTER TABLE ONLY callboard.stake
    ADD CONSTRAINT stake_locked_account_id_fkey FOREIGN KEY (locked_account_id) REFERENCES callboard.account(id);


--
-- Name: SCHEMA callboard; Type: ACL; Schema: -; Owner: callboard_owner
--

GRANT USAGE ON SCHEMA callboard TO ledger_writer;
GRANT USAGE ON SCHEMA callboard TO ledger_reader;
GRANT USAGE ON SCHEMA callboard TO ops_writer;


--
-- Name: FUNCTION apply_entries(); Type: ACL; Schema: callboard; Owner: callboard_owner
--

REVOKE ALL ON FUNCTION callboard.apply_entries() FROM PUBLIC;


--
-- Name: FUNCTION check_escrow(); Type: ACL; Schema: callboard; Owner: callboard_owner
--

REVOKE ALL ON FUNCTION callboard.check_escrow() FROM PUBLIC;


--
-- Name: FUNCTION check_new_escrow(); Type: ACL; Schema: callboard; Owner: callboard_owner
--

REVOKE ALL ON FUNCTION callboard.check_new_escrow() FROM PUBLIC;


--
-- Name: FUNCTION commit_batch(p_epoch bigint, p_accounts json, p_commands json, p_workflows json, p_changes json, p_nodes json, p_attempts json, p_escrows json, p_entries json, p_audit text, p_audit_events json, p_releases uuid[], p_registry json, p_market json, p_reputation json, p_now_ms bigint); Type: ACL; Schema: callboard; Owner: callboard_owner
--

REVOKE ALL ON FUNCTION callboard.commit_batch(p_epoch bigint, p_accounts json, p_commands json, p_workflows json, p_changes json, p_nodes json, p_attempts json, p_escrows json, p_entries json, p_audit text, p_audit_events json, p_releases uuid[], p_registry json, p_market json, p_reputation json, p_now_ms bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION callboard.commit_batch(p_epoch bigint, p_accounts json, p_commands json, p_workflows json, p_changes json, p_nodes json, p_attempts json, p_escrows json, p_entries json, p_audit text, p_audit_events json, p_releases uuid[], p_registry json, p_market json, p_reputation json, p_now_ms bigint) TO ledger_writer;


--
-- Name: FUNCTION commit_market(p_market json, p_now_ms bigint); Type: ACL; Schema: callboard; Owner: callboard_owner
--

REVOKE ALL ON FUNCTION callboard.commit_market(p_market json, p_now_ms bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION callboard.commit_market(p_market json, p_now_ms bigint) TO ledger_writer;


--
-- Name: FUNCTION commit_registry(p_registry json, p_now_ms bigint); Type: ACL; Schema: callboard; Owner: callboard_owner
--

REVOKE ALL ON FUNCTION callboard.commit_registry(p_registry json, p_now_ms bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION callboard.commit_registry(p_registry json, p_now_ms bigint) TO ledger_writer;


--
-- Name: FUNCTION commit_reputation(p_reputation json, p_now_ms bigint); Type: ACL; Schema: callboard; Owner: callboard_owner
--

REVOKE ALL ON FUNCTION callboard.commit_reputation(p_reputation json, p_now_ms bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION callboard.commit_reputation(p_reputation json, p_now_ms bigint) TO ledger_writer;


--
-- Name: FUNCTION link_audit(); Type: ACL; Schema: callboard; Owner: callboard_owner
--

REVOKE ALL ON FUNCTION callboard.link_audit() FROM PUBLIC;


--
-- Name: FUNCTION offered_words(card text); Type: ACL; Schema: callboard; Owner: callboard_owner
--

REVOKE ALL ON FUNCTION callboard.offered_words(card text) FROM PUBLIC;
GRANT ALL ON FUNCTION callboard.offered_words(card text) TO ledger_reader;


--
-- Name: FUNCTION raise_fenced(); Type: ACL; Schema: callboard; Owner: callboard_owner
--

REVOKE ALL ON FUNCTION callboard.raise_fenced() FROM PUBLIC;


--
-- Name: FUNCTION refuse_change(); Type: ACL; Schema: callboard; Owner: callboard_owner
--

REVOKE ALL ON FUNCTION callboard.refuse_change() FROM PUBLIC;


--
-- Name: TABLE account; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT ON TABLE callboard.account TO ledger_reader;
GRANT SELECT ON TABLE callboard.account TO ledger_writer;


--
-- Name: COLUMN account.id; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT INSERT(id) ON TABLE callboard.account TO ledger_writer;


--
-- Name: COLUMN account.address; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT INSERT(address) ON TABLE callboard.account TO ledger_writer;


--
-- Name: COLUMN account.owner_did; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT INSERT(owner_did) ON TABLE callboard.account TO ledger_writer;


--
-- Name: COLUMN account.kind; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT INSERT(kind) ON TABLE callboard.account TO ledger_writer;


--
-- Name: COLUMN account.created_ms; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT INSERT(created_ms) ON TABLE callboard.account TO ledger_writer;


--
-- Name: TABLE agent; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT ON TABLE callboard.agent TO ledger_reader;
GRANT SELECT,INSERT,UPDATE ON TABLE callboard.agent TO ledger_writer;


--
-- Name: TABLE agent_live; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT ON TABLE callboard.agent_live TO ledger_reader;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE callboard.agent_live TO ops_writer;


--
-- Name: TABLE alembic_version; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT ON TABLE callboard.alembic_version TO ledger_reader;


--
-- Name: TABLE api_key; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT ON TABLE callboard.api_key TO ledger_reader;
GRANT SELECT,INSERT ON TABLE callboard.api_key TO ledger_writer;


--
-- Name: COLUMN api_key.revoked_ms; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(revoked_ms) ON TABLE callboard.api_key TO ledger_writer;


--
-- Name: TABLE attempt; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT ON TABLE callboard.attempt TO ledger_reader;
GRANT SELECT,INSERT ON TABLE callboard.attempt TO ledger_writer;


--
-- Name: TABLE auction; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT ON TABLE callboard.auction TO ledger_reader;
GRANT SELECT,INSERT ON TABLE callboard.auction TO ledger_writer;


--
-- Name: COLUMN auction.status; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(status) ON TABLE callboard.auction TO ledger_writer;


--
-- Name: COLUMN auction.winner_did; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(winner_did) ON TABLE callboard.auction TO ledger_writer;


--
-- Name: COLUMN auction.price_micro; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(price_micro) ON TABLE callboard.auction TO ledger_writer;


--
-- Name: COLUMN auction.excluded; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(excluded) ON TABLE callboard.auction TO ledger_writer;


--
-- Name: COLUMN auction.closed_ms; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(closed_ms) ON TABLE callboard.auction TO ledger_writer;


--
-- Name: TABLE audit; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT ON TABLE callboard.audit TO ledger_reader;
GRANT SELECT,INSERT ON TABLE callboard.audit TO ledger_writer;


--
-- Name: TABLE audit_event; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT ON TABLE callboard.audit_event TO ledger_reader;
GRANT SELECT,INSERT ON TABLE callboard.audit_event TO ledger_writer;


--
-- Name: TABLE bid; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT ON TABLE callboard.bid TO ledger_reader;
GRANT SELECT,INSERT ON TABLE callboard.bid TO ledger_writer;


--
-- Name: TABLE blob; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT ON TABLE callboard.blob TO ledger_reader;


--
-- Name: COLUMN blob.hash; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT INSERT(hash) ON TABLE callboard.blob TO ops_writer;


--
-- Name: COLUMN blob.bytes; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT INSERT(bytes) ON TABLE callboard.blob TO ops_writer;


--
-- Name: TABLE capability_price; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT ON TABLE callboard.capability_price TO ledger_reader;
GRANT SELECT,INSERT,UPDATE ON TABLE callboard.capability_price TO ledger_writer;


--
-- Name: TABLE command; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT ON TABLE callboard.command TO ledger_reader;
GRANT SELECT,INSERT ON TABLE callboard.command TO ledger_writer;


--
-- Name: TABLE compatibility; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT ON TABLE callboard.compatibility TO ledger_reader;
GRANT SELECT ON TABLE callboard.compatibility TO ledger_writer;


--
-- Name: TABLE dispute; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT ON TABLE callboard.dispute TO ledger_reader;
GRANT SELECT,INSERT ON TABLE callboard.dispute TO ledger_writer;


--
-- Name: COLUMN dispute.status; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(status) ON TABLE callboard.dispute TO ledger_writer;


--
-- Name: COLUMN dispute.resolution; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(resolution) ON TABLE callboard.dispute TO ledger_writer;


--
-- Name: COLUMN dispute.refund_asked_micro; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(refund_asked_micro) ON TABLE callboard.dispute TO ledger_writer;


--
-- Name: COLUMN dispute.refunded_micro; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(refunded_micro) ON TABLE callboard.dispute TO ledger_writer;


--
-- Name: COLUMN dispute.short_micro; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(short_micro) ON TABLE callboard.dispute TO ledger_writer;


--
-- Name: COLUMN dispute.resolved_ms; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(resolved_ms) ON TABLE callboard.dispute TO ledger_writer;


--
-- Name: COLUMN dispute.resolved_by_did; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(resolved_by_did) ON TABLE callboard.dispute TO ledger_writer;


--
-- Name: TABLE entry; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT ON TABLE callboard.entry TO ledger_reader;
GRANT SELECT,INSERT ON TABLE callboard.entry TO ledger_writer;


--
-- Name: TABLE escrow; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT ON TABLE callboard.escrow TO ledger_reader;
GRANT SELECT,INSERT ON TABLE callboard.escrow TO ledger_writer;


--
-- Name: COLUMN escrow.status; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(status) ON TABLE callboard.escrow TO ledger_writer;


--
-- Name: COLUMN escrow.released_ms; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(released_ms) ON TABLE callboard.escrow TO ledger_writer;


--
-- Name: TABLE feedback; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT ON TABLE callboard.feedback TO ledger_reader;
GRANT SELECT,INSERT ON TABLE callboard.feedback TO ledger_writer;


--
-- Name: TABLE head; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT ON TABLE callboard.head TO ledger_reader;
GRANT SELECT ON TABLE callboard.head TO ledger_writer;


--
-- Name: COLUMN head.epoch; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(epoch) ON TABLE callboard.head TO ledger_writer;


--
-- Name: TABLE http_reply; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE callboard.http_reply TO ops_writer;


--
-- Name: TABLE invoice; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT ON TABLE callboard.invoice TO ledger_reader;
GRANT SELECT,INSERT ON TABLE callboard.invoice TO ledger_writer;


--
-- Name: COLUMN invoice.status; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(status) ON TABLE callboard.invoice TO ledger_writer;


--
-- Name: COLUMN invoice.settled_ms; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(settled_ms) ON TABLE callboard.invoice TO ledger_writer;


--
-- Name: COLUMN invoice.settled_by_did; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(settled_by_did) ON TABLE callboard.invoice TO ledger_writer;


--
-- Name: TABLE invoice_line; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT ON TABLE callboard.invoice_line TO ledger_reader;
GRANT SELECT,INSERT ON TABLE callboard.invoice_line TO ledger_writer;


--
-- Name: COLUMN invoice_line.is_void; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(is_void) ON TABLE callboard.invoice_line TO ledger_writer;


--
-- Name: TABLE node; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT ON TABLE callboard.node TO ledger_reader;
GRANT SELECT,INSERT,UPDATE ON TABLE callboard.node TO ledger_writer;


--
-- Name: TABLE owner; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT ON TABLE callboard.owner TO ledger_reader;
GRANT SELECT,INSERT,UPDATE ON TABLE callboard.owner TO ledger_writer;


--
-- Name: TABLE quota; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT ON TABLE callboard.quota TO ledger_reader;
GRANT SELECT,INSERT,UPDATE ON TABLE callboard.quota TO ledger_writer;


--
-- Name: TABLE rate_lease; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE callboard.rate_lease TO ops_writer;


--
-- Name: TABLE reputation; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT ON TABLE callboard.reputation TO ledger_reader;
GRANT SELECT,INSERT,UPDATE ON TABLE callboard.reputation TO ledger_writer;


--
-- Name: TABLE revocation; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT ON TABLE callboard.revocation TO ledger_reader;
GRANT SELECT,INSERT,UPDATE ON TABLE callboard.revocation TO ledger_writer;


--
-- Name: TABLE stake; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT ON TABLE callboard.stake TO ledger_reader;
GRANT SELECT,INSERT ON TABLE callboard.stake TO ledger_writer;


--
-- Name: COLUMN stake.updated_ms; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(updated_ms) ON TABLE callboard.stake TO ledger_writer;


--
-- Name: TABLE stake_share; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT ON TABLE callboard.stake_share TO ledger_reader;
GRANT SELECT,INSERT ON TABLE callboard.stake_share TO ledger_writer;


--
-- Name: COLUMN stake_share.micro; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(micro) ON TABLE callboard.stake_share TO ledger_writer;


--
-- Name: TABLE workflow; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT SELECT ON TABLE callboard.workflow TO ledger_reader;
GRANT SELECT,INSERT ON TABLE callboard.workflow TO ledger_writer;


--
-- Name: COLUMN workflow.status; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(status) ON TABLE callboard.workflow TO ledger_writer;


--
-- Name: COLUMN workflow.owner; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(owner) ON TABLE callboard.workflow TO ledger_writer;


--
-- Name: COLUMN workflow.started_ms; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(started_ms) ON TABLE callboard.workflow TO ledger_writer;


--
-- Name: COLUMN workflow.completed_ms; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(completed_ms) ON TABLE callboard.workflow TO ledger_writer;


--
-- Name: COLUMN workflow.spent_micro; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(spent_micro) ON TABLE callboard.workflow TO ledger_writer;


--
-- Name: COLUMN workflow.error; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(error) ON TABLE callboard.workflow TO ledger_writer;


--
-- Name: COLUMN workflow.end_reason; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(end_reason) ON TABLE callboard.workflow TO ledger_writer;


--
-- Name: COLUMN workflow.end_details; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(end_details) ON TABLE callboard.workflow TO ledger_writer;


--
-- Name: COLUMN workflow.ended_by_did; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(ended_by_did) ON TABLE callboard.workflow TO ledger_writer;


--
-- Name: COLUMN workflow.is_halted; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(is_halted) ON TABLE callboard.workflow TO ledger_writer;


--
-- Name: COLUMN workflow.quarantined_ms; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(quarantined_ms) ON TABLE callboard.workflow TO ledger_writer;


--
-- Name: COLUMN workflow.quarantine_code; Type: ACL; Schema: callboard; Owner: callboard_owner
--

GRANT UPDATE(quarantine_code) ON TABLE callboard.workflow TO ledger_writer;


--
-- PostgreSQL database dump complete
--

\unrestrict 9dsqsqUePg0eHm2I1xiosrzImYOON1N3HM91XdRFwFZyHr8ly4BdJbna9jOX277

