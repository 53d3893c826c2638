-- Made by ledger/tables/write_function.py from the descriptions of the tables: change those.
-- A batch of planned commands is one call, one round trip, one transaction. It runs with the
-- caller's rights. Rows of what most batches write are parameters of their own, all others come
-- together in p_rare, by name; NULL, or a name that is absent, stands for no rows.

CREATE FUNCTION callboard.commit_batch_v8(
    p_epoch bigint,
    p_now_ms bigint,
    p_commands json,
    p_accounts json,
    p_audit json,
    p_audit_body text,
    p_workflows json,
    p_workflow_changes json,
    p_workflow_changes_count integer,
    p_nodes json,
    p_nodes_count integer,
    p_attempts json,
    p_escrows json,
    p_entries json,
    p_releases json,
    p_releases_count integer,
    p_reputation json,
    p_rare json,
    p_notice text
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    written bigint;
    rare record;
BEGIN
    -- The fence. The row lock makes a take-over wait for this batch, and this batch for it.
    PERFORM 1 FROM callboard.head WHERE epoch = p_epoch FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'ledger writer fenced off' USING ERRCODE = 'CB001';
    END IF;

    IF p_commands IS NOT NULL THEN
        INSERT INTO callboard.command AS o (
            id, request_hash, result, error, detail, audit_id, created_ms)
        SELECT
            r.id, r.request_hash, r.result, r.error, r.detail, r.audit_id, p_now_ms
        FROM json_to_recordset(p_commands) AS r(
            id text, request_hash bytea, result json, error text, detail text,
            audit_id bigint);
    END IF;
    IF p_accounts IS NOT NULL THEN
        INSERT INTO callboard.account AS o (
            id, address, owner_did, kind, created_ms)
        SELECT
            r.id, r.address, r.owner_did, r.kind, p_now_ms
        FROM json_to_recordset(p_accounts) AS r(
            id bigint, address text, owner_did text, kind text);
    END IF;
    IF p_audit IS NOT NULL THEN
        INSERT INTO callboard.audit AS o (
            id, event_types, actor_did, workflow_id, created_ms, body, hash)
        SELECT
            r.id, r.event_types, r.actor_did, r.workflow_id, p_now_ms, r.body, r.hash
        FROM ROWS FROM (
            json_to_recordset(p_audit) AS (
                id bigint, event_types text[], actor_did text, workflow_id uuid, hash bytea),
            string_to_table(p_audit_body, E'\n')
        ) AS r(
            id, event_types, actor_did, workflow_id, hash, body);
    END IF;
    IF p_workflows IS NOT NULL THEN
        INSERT INTO callboard.workflow AS o (
            id, task_id, payer_did, status, intent, manifest, created_ms, started_ms,
            completed_ms, deadline_ms, estimate_micro, hold_micro, reserved, fee_bps,
            spent_micro, error, end_reason, end_details, ended_by_did)
        SELECT
            r.id, r.task_id, r.payer_did, r.status, r.intent, r.manifest, r.created_ms,
            r.started_ms, r.completed_ms, r.deadline_ms, r.estimate_micro, r.hold_micro,
            r.reserved, r.fee_bps, r.spent_micro, r.error, r.end_reason, r.end_details,
            r.ended_by_did
        FROM json_to_recordset(p_workflows) AS r(
            id uuid, task_id uuid, payer_did text, status text, intent text, manifest text,
            created_ms bigint, started_ms bigint, completed_ms bigint, deadline_ms bigint,
            estimate_micro bigint, hold_micro bigint, reserved text, fee_bps integer,
            spent_micro bigint, error json, end_reason text, end_details text,
            ended_by_did text);
    END IF;
    IF p_workflow_changes IS NOT NULL THEN
        UPDATE callboard.workflow AS o SET
            status = r.status, completed_ms = r.completed_ms, spent_micro = r.spent_micro,
            error = r.error, end_reason = r.end_reason, end_details = r.end_details,
            ended_by_did = r.ended_by_did,
            started_ms = coalesce(o.started_ms, r.started_ms)
        FROM json_to_recordset(p_workflow_changes) AS r(
            id uuid, status text, started_ms bigint, completed_ms bigint,
            spent_micro bigint, error json, end_reason text, end_details text,
            ended_by_did text)
        WHERE o.id = r.id
            AND o.completed_ms IS NULL;
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written <> p_workflow_changes_count THEN
            RAISE EXCEPTION 'a finished or unknown workflow would change' USING ERRCODE = 'CB003';
        END IF;
    END IF;
    IF p_nodes IS NOT NULL THEN
        INSERT INTO callboard.node AS o (
            workflow_id, name, status, attempt, agent_did, price_micro, dispatched_ms,
            deadline_ms, retry_at_ms, retries_used, agents_tried, verifier_did,
            verify_attempt, verifier_price_micro, verify_retries_used, verifiers_tried,
            result_json, result_ref, error, started_ms, completed_ms, cost_micro, metrics,
            input_hash, selection_json, price_json, stake_micro, promised_ms, is_own,
            counts_as, auction_round, auction_closes_ms, key_version)
        SELECT
            r.workflow_id, r.name, r.status, coalesce(r.attempt, 0), r.agent_did,
            coalesce(r.price_micro, 0), r.dispatched_ms, r.deadline_ms, r.retry_at_ms,
            coalesce(r.retries_used, 0), r.agents_tried, r.verifier_did,
            coalesce(r.verify_attempt, 0), coalesce(r.verifier_price_micro, 0),
            coalesce(r.verify_retries_used, 0), r.verifiers_tried, r.result_json,
            r.result_ref, r.error, r.started_ms, r.completed_ms, coalesce(r.cost_micro, 0),
            r.metrics, r.input_hash, r.selection_json, r.price_json,
            coalesce(r.stake_micro, 0), coalesce(r.promised_ms, 10000),
            coalesce(r.is_own, false), r.counts_as, coalesce(r.auction_round, 0),
            r.auction_closes_ms, coalesce(r.key_version, 0)
        FROM json_to_recordset(p_nodes) AS r(
            workflow_id uuid, name text, status text, attempt integer, agent_did text,
            price_micro bigint, dispatched_ms bigint, deadline_ms bigint,
            retry_at_ms bigint, retries_used integer, agents_tried json, verifier_did text,
            verify_attempt integer, verifier_price_micro bigint,
            verify_retries_used integer, verifiers_tried json, result_json text,
            result_ref json, error json, started_ms bigint, completed_ms bigint,
            cost_micro bigint, metrics json, input_hash text, selection_json text,
            price_json text, stake_micro bigint, promised_ms bigint, is_own boolean,
            counts_as text, auction_round integer, auction_closes_ms bigint,
            key_version smallint)
        ON CONFLICT (workflow_id, name) DO UPDATE SET
            status = excluded.status, attempt = excluded.attempt,
            agent_did = excluded.agent_did, price_micro = excluded.price_micro,
            dispatched_ms = excluded.dispatched_ms, deadline_ms = excluded.deadline_ms,
            retry_at_ms = excluded.retry_at_ms, retries_used = excluded.retries_used,
            agents_tried = excluded.agents_tried, verifier_did = excluded.verifier_did,
            verify_attempt = excluded.verify_attempt,
            verifier_price_micro = excluded.verifier_price_micro,
            verify_retries_used = excluded.verify_retries_used,
            verifiers_tried = excluded.verifiers_tried, result_json = excluded.result_json,
            result_ref = excluded.result_ref, error = excluded.error,
            started_ms = excluded.started_ms, completed_ms = excluded.completed_ms,
            cost_micro = excluded.cost_micro, metrics = excluded.metrics,
            input_hash = excluded.input_hash, selection_json = excluded.selection_json,
            price_json = excluded.price_json, stake_micro = excluded.stake_micro,
            promised_ms = excluded.promised_ms, is_own = excluded.is_own,
            counts_as = excluded.counts_as, auction_round = excluded.auction_round,
            auction_closes_ms = excluded.auction_closes_ms,
            key_version = excluded.key_version
        WHERE o.status <> 'success';
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written <> p_nodes_count THEN
            RAISE EXCEPTION 'a node that succeeded would change' USING ERRCODE = 'CB004';
        END IF;
    END IF;
    IF p_attempts IS NOT NULL THEN
        INSERT INTO callboard.attempt AS o (
            workflow_id, node, attempt, kind, agent_did, outcome, started_ms, completed_ms,
            input_hash, output_hash, error_code, error_message)
        SELECT
            r.workflow_id, r.node, r.attempt, r.kind, r.agent_did, r.outcome, r.started_ms,
            r.completed_ms, r.input_hash, r.output_hash, r.error_code, r.error_message
        FROM json_to_recordset(p_attempts) AS r(
            workflow_id uuid, node text, attempt integer, kind text, agent_did text,
            outcome text, started_ms bigint, completed_ms bigint, input_hash text,
            output_hash text, error_code text, error_message text);
    END IF;
    IF p_escrows IS NOT NULL THEN
        INSERT INTO callboard.escrow AS o (
            workflow_id, payer_did, account_id, amount, fee_bps, status, created_ms)
        SELECT
            r.workflow_id, r.payer_did, r.account_id, r.amount, r.fee_bps, 'held', p_now_ms
        FROM json_to_recordset(p_escrows) AS r(
            workflow_id uuid, payer_did text, account_id bigint, amount bigint,
            fee_bps integer);
    END IF;
    IF p_entries IS NOT NULL THEN
        INSERT INTO callboard.entry AS o (
            id, debit_account_id, credit_account_id, amount, kind, description, workflow_id,
            node_id, audit_id, created_ms)
        SELECT
            r.id, r.debit_account_id, r.credit_account_id, r.amount, r.kind, r.description,
            r.workflow_id, r.node_id, r.audit_id, p_now_ms
        FROM json_to_recordset(p_entries) AS r(
            id bigint, debit_account_id bigint, credit_account_id bigint, amount bigint,
            kind text, description text, workflow_id uuid, node_id text, audit_id bigint);
    END IF;
    IF p_releases IS NOT NULL THEN
        UPDATE callboard.escrow AS o SET
            status = 'released', released_ms = p_now_ms
        FROM json_to_recordset(p_releases) AS r(
            workflow_id uuid)
        WHERE o.workflow_id = r.workflow_id
            AND o.status = 'held';
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written <> p_releases_count THEN
            RAISE EXCEPTION 'an escrow would be released twice' USING ERRCODE = 'CB003';
        END IF;
    END IF;
    IF p_reputation IS NOT NULL THEN
        INSERT INTO callboard.reputation AS o (
            agent_did, total, successful, failed, cancelled, latency_ms_sum,
            paid_successful, paid_failed, paid_cancelled, paid_latency_ms_sum, updated_ms)
        SELECT
            r.agent_did, r.total, r.successful, r.failed, r.cancelled, r.latency_ms_sum,
            coalesce(r.paid_successful, 0), coalesce(r.paid_failed, 0),
            coalesce(r.paid_cancelled, 0), coalesce(r.paid_latency_ms_sum, 0), p_now_ms
        FROM json_to_recordset(p_reputation) AS r(
            agent_did text, total bigint, successful bigint, failed bigint,
            cancelled bigint, latency_ms_sum bigint, paid_successful bigint,
            paid_failed bigint, paid_cancelled bigint, paid_latency_ms_sum bigint)
        ON CONFLICT (agent_did) DO UPDATE SET
            total = o.total + excluded.total,
            successful = o.successful + excluded.successful,
            failed = o.failed + excluded.failed,
            cancelled = o.cancelled + excluded.cancelled,
            latency_ms_sum = o.latency_ms_sum + excluded.latency_ms_sum,
            paid_successful = o.paid_successful + excluded.paid_successful,
            paid_failed = o.paid_failed + excluded.paid_failed,
            paid_cancelled = o.paid_cancelled + excluded.paid_cancelled,
            paid_latency_ms_sum = o.paid_latency_ms_sum + excluded.paid_latency_ms_sum,
            updated_ms = excluded.updated_ms;
    END IF;

    IF p_rare IS NOT NULL THEN
        SELECT * INTO rare FROM json_to_record(p_rare) AS r(
            audit_events json, members json, shards json, halts json, agents json,
            agent_cards json, agent_identities json, yielded json, ended_overlaps json,
            former_keys json, agent_names json, released_names json, inherited_names json,
            inheritances json, ended_inheritances json, guardians json, recoveries json,
            deregistered json, revocations json, unrevocations json, keys json,
            rotated_keys json, revoked_keys json, ended_api_keys json, prices json,
            capability_lines json, capability_versions json, deprecated_versions json,
            quotas json, stakes json, stake_shares json, auctions json,
            closed_auctions json, bids json, ended_locks json, invoices json,
            invoice_lines json, settled_invoices json, voided_lines json, disputes json,
            resolved_disputes json, feedback json, corrections json);
        IF rare.audit_events IS NOT NULL THEN
            INSERT INTO callboard.audit_event AS o (
                audit_id, number, event_type, target_type, target_id)
            SELECT
                r.audit_id, r.number, r.event_type, r.target_type, r.target_id
            FROM json_to_recordset(rare.audit_events) AS r(
                audit_id bigint, number integer, event_type text, target_type text,
                target_id text);
        END IF;
        IF rare.members IS NOT NULL THEN
            INSERT INTO callboard.member AS o (
                id, machine, address, version, state, joined_ms)
            SELECT
                r.id, r.machine, r.address, r.version, r.state, r.joined_ms
            FROM json_to_recordset(rare.members) AS r(
                id text, machine text, address text, version text, state text, joined_ms bigint)
            ON CONFLICT (id) DO UPDATE SET
                machine = excluded.machine, address = excluded.address,
                version = excluded.version, state = excluded.state,
                joined_ms = excluded.joined_ms
            WHERE o.state <> 'gone';
            GET DIAGNOSTICS written = ROW_COUNT;
            IF written <> json_array_length(rare.members) THEN
                RAISE EXCEPTION 'a member that is gone would come back' USING ERRCODE = 'CB005';
            END IF;
        END IF;
        IF rare.shards IS NOT NULL THEN
            UPDATE callboard.shard AS o SET
                member = r.member, epoch = r.epoch
            FROM json_to_recordset(rare.shards) AS r(
                id smallint, member text, epoch bigint)
            WHERE o.id = r.id
                AND o.epoch < r.epoch;
            GET DIAGNOSTICS written = ROW_COUNT;
            IF written <> json_array_length(rare.shards) THEN
                RAISE EXCEPTION 'the epoch of a shard would not grow' USING ERRCODE = 'CB005';
            END IF;
        END IF;
        IF rare.halts IS NOT NULL THEN
            UPDATE callboard.workflow AS o SET
                is_halted = r.is_halted, quarantine_code = r.quarantine_code,
                quarantined_ms = CASE WHEN r.quarantine_code IS NOT NULL
                    THEN coalesce(o.quarantined_ms, p_now_ms) END
            FROM json_to_recordset(rare.halts) AS r(
                id uuid, is_halted boolean, quarantine_code text)
            WHERE o.id = r.id;
        END IF;
        IF rare.agents IS NOT NULL THEN
            INSERT INTO callboard.agent AS o (
                did, owner_did, card, endpoint, capability_ids, public_key, signing_secret,
                status, revision, token_revision, key_number, key_from_ms, inherited_from_did,
                registered_ms, updated_ms, proven_by, card_counter, card_number, card_hash,
                lineage_hash, meta_name, meta_author, meta_model, is_trusted, offered_since_ms)
            SELECT
                r.did, r.owner_did, r.card, r.endpoint, r.capability_ids, r.public_key,
                r.signing_secret, 'active', r.revision, r.token_revision,
                coalesce(r.key_number, 1), r.key_from_ms, r.inherited_from_did, p_now_ms,
                p_now_ms, r.proven_by, r.card_counter, coalesce(r.card_number, 0), r.card_hash,
                r.lineage_hash, r.meta_name, r.meta_author, r.meta_model,
                coalesce(r.is_trusted, false), NULL
            FROM json_to_recordset(rare.agents) AS r(
                did text, owner_did text, card text, endpoint text, capability_ids text[],
                public_key text, signing_secret bytea, revision integer, token_revision integer,
                key_number integer, key_from_ms bigint, inherited_from_did text, proven_by text,
                card_counter bigint, card_number integer, card_hash text, lineage_hash text,
                meta_name text, meta_author text, meta_model text, is_trusted boolean)
            ON CONFLICT (did) DO UPDATE SET
                card = excluded.card, endpoint = excluded.endpoint,
                capability_ids = excluded.capability_ids,
                public_key = coalesce(excluded.public_key, o.public_key),
                signing_secret = coalesce(excluded.signing_secret, o.signing_secret),
                status = excluded.status, revision = excluded.revision,
                token_revision = excluded.token_revision, key_number = excluded.key_number,
                key_from_ms = coalesce(excluded.key_from_ms, o.key_from_ms),
                updated_ms = excluded.updated_ms, proven_by = excluded.proven_by,
                card_counter = excluded.card_counter, card_number = excluded.card_number,
                card_hash = excluded.card_hash, lineage_hash = excluded.lineage_hash,
                meta_name = excluded.meta_name, meta_author = excluded.meta_author,
                meta_model = excluded.meta_model, is_trusted = excluded.is_trusted;
        END IF;
        IF rare.agent_cards IS NOT NULL THEN
            INSERT INTO callboard.agent_card AS o (
                did, number, card_version, card_hash, previous_hash, hash, registered_by_did,
                registered_ms)
            SELECT
                r.did, r.number, r.card_version, r.card_hash, r.previous_hash, r.hash,
                r.registered_by_did, p_now_ms
            FROM json_to_recordset(rare.agent_cards) AS r(
                did text, number integer, card_version bigint, card_hash text,
                previous_hash text, hash text, registered_by_did text);
        END IF;
        IF rare.agent_identities IS NOT NULL THEN
            UPDATE callboard.agent AS o SET
                owner_did = coalesce(r.owner_did, o.owner_did),
                public_key = coalesce(r.public_key, o.public_key),
                key_number = coalesce(r.key_number, o.key_number),
                key_from_ms = coalesce(r.key_from_ms, o.key_from_ms),
                token_revision = coalesce(r.token_revision, o.token_revision),
                inherited_from_did = coalesce(r.inherited_from_did, o.inherited_from_did),
                revision = greatest(o.revision, r.revision)
            FROM json_to_recordset(rare.agent_identities) AS r(
                did text, owner_did text, public_key text, key_number integer,
                key_from_ms bigint, revision integer, token_revision integer,
                inherited_from_did text)
            WHERE o.did = r.did;
        END IF;
        IF rare.yielded IS NOT NULL THEN
            UPDATE callboard.agent AS o SET
                owner_did = r.owner_did, public_key = r.public_key, key_from_ms = r.key_from_ms,
                signing_secret = r.signing_secret, inherited_from_did = r.inherited_from_did
            FROM json_to_recordset(rare.yielded) AS r(
                did text, owner_did text, public_key text, key_from_ms bigint,
                signing_secret bytea, inherited_from_did text)
            WHERE o.did = r.did;
        END IF;
        IF rare.ended_overlaps IS NOT NULL THEN
            UPDATE callboard.former_key AS o SET
                valid_until_ms = p_now_ms
            FROM json_to_recordset(rare.ended_overlaps) AS r(
                agent_did text)
            WHERE o.agent_did = r.agent_did
                AND o.valid_until_ms > p_now_ms;
        END IF;
        IF rare.former_keys IS NOT NULL THEN
            INSERT INTO callboard.former_key AS o (
                agent_did, number, public_key, valid_from_ms, valid_until_ms)
            SELECT
                r.agent_did, r.number, r.public_key, r.valid_from_ms, r.valid_until_ms
            FROM json_to_recordset(rare.former_keys) AS r(
                agent_did text, number integer, public_key text, valid_from_ms bigint,
                valid_until_ms bigint);
        END IF;
        IF rare.agent_names IS NOT NULL THEN
            INSERT INTO callboard.agent_name AS o (
                name, agent_did, owner_did, counted_did, offered_did, registered_ms, expires_ms)
            SELECT
                r.name, r.agent_did, r.owner_did, r.counted_did, r.offered_did, r.registered_ms,
                r.expires_ms
            FROM json_to_recordset(rare.agent_names) AS r(
                name text, agent_did text, owner_did text, counted_did text, offered_did text,
                registered_ms bigint, expires_ms bigint)
            ON CONFLICT (name) DO UPDATE SET
                agent_did = excluded.agent_did, owner_did = excluded.owner_did,
                counted_did = excluded.counted_did, offered_did = excluded.offered_did,
                registered_ms = excluded.registered_ms, expires_ms = excluded.expires_ms,
                released_ms = NULL;
        END IF;
        IF rare.released_names IS NOT NULL THEN
            UPDATE callboard.agent_name AS o SET
                released_ms = p_now_ms
            FROM json_to_recordset(rare.released_names) AS r(
                name text)
            WHERE o.name = r.name
                AND o.released_ms IS NULL;
            GET DIAGNOSTICS written = ROW_COUNT;
            IF written <> json_array_length(rare.released_names) THEN
                RAISE EXCEPTION 'a name would be released twice' USING ERRCODE = 'CB003';
            END IF;
        END IF;
        IF rare.inherited_names IS NOT NULL THEN
            UPDATE callboard.agent_name AS o SET
                owner_did = r.heir_did, offered_did = NULL
            FROM json_to_recordset(rare.inherited_names) AS r(
                agent_did text, owner_did text, heir_did text)
            WHERE o.agent_did = r.agent_did
                AND o.owner_did = r.owner_did;
        END IF;
        IF rare.inheritances IS NOT NULL THEN
            INSERT INTO callboard.inheritance AS o (
                agent_did, owner_did, heir_did, days, requires_inactivity, revision, status,
                set_ms)
            SELECT
                r.agent_did, r.owner_did, r.heir_did, r.days, r.requires_inactivity, r.revision,
                'armed', p_now_ms
            FROM json_to_recordset(rare.inheritances) AS r(
                agent_did text, owner_did text, heir_did text, days integer,
                requires_inactivity boolean, revision integer)
            ON CONFLICT (agent_did) DO UPDATE SET
                owner_did = excluded.owner_did, heir_did = excluded.heir_did,
                days = excluded.days, requires_inactivity = excluded.requires_inactivity,
                revision = excluded.revision, status = excluded.status,
                set_ms = excluded.set_ms, ended_ms = NULL;
        END IF;
        IF rare.ended_inheritances IS NOT NULL THEN
            UPDATE callboard.inheritance AS o SET
                status = r.status, ended_ms = p_now_ms
            FROM json_to_recordset(rare.ended_inheritances) AS r(
                agent_did text, status text)
            WHERE o.agent_did = r.agent_did
                AND o.status = 'armed';
            GET DIAGNOSTICS written = ROW_COUNT;
            IF written <> json_array_length(rare.ended_inheritances) THEN
                RAISE EXCEPTION 'a switch would end twice' USING ERRCODE = 'CB003';
            END IF;
        END IF;
        IF rare.guardians IS NOT NULL THEN
            INSERT INTO callboard.guardian_set AS o (
                agent_did, owner_did, guardians, threshold, custodian_did, delay_hours, set_ms,
                number, replaced, struck_number)
            SELECT
                r.agent_did, r.owner_did, r.guardians, r.threshold, r.custodian_did,
                r.delay_hours, p_now_ms, r.number, r.replaced, r.struck_number
            FROM json_to_recordset(rare.guardians) AS r(
                agent_did text, owner_did text, guardians text[], threshold integer,
                custodian_did text, delay_hours integer, number integer, replaced json,
                struck_number integer)
            ON CONFLICT (agent_did) DO UPDATE SET
                owner_did = excluded.owner_did, guardians = excluded.guardians,
                threshold = excluded.threshold, custodian_did = excluded.custodian_did,
                delay_hours = excluded.delay_hours, set_ms = excluded.set_ms,
                number = excluded.number, replaced = excluded.replaced,
                struck_number = excluded.struck_number;
        END IF;
        IF rare.recoveries IS NOT NULL THEN
            INSERT INTO callboard.recovery AS o (
                id, agent_did, recovery_type, new_key, recovery_address, requested_by_did,
                signers, status, created_ms, waiting_ms, delay_ms, ended_ms, signer_keys,
                agreed)
            SELECT
                r.id, r.agent_did, r.recovery_type, r.new_key, r.recovery_address,
                r.requested_by_did, r.signers, r.status, r.created_ms, r.waiting_ms, r.delay_ms,
                r.ended_ms, r.signer_keys, r.agreed
            FROM json_to_recordset(rare.recoveries) AS r(
                id uuid, agent_did text, recovery_type text, new_key text,
                recovery_address text, requested_by_did text, signers text[], status text,
                created_ms bigint, waiting_ms bigint, delay_ms bigint, ended_ms bigint,
                signer_keys text[], agreed json)
            ON CONFLICT (id) DO UPDATE SET
                agent_did = excluded.agent_did, recovery_type = excluded.recovery_type,
                new_key = excluded.new_key, recovery_address = excluded.recovery_address,
                requested_by_did = excluded.requested_by_did, signers = excluded.signers,
                status = excluded.status, created_ms = excluded.created_ms,
                waiting_ms = excluded.waiting_ms, delay_ms = excluded.delay_ms,
                ended_ms = excluded.ended_ms, signer_keys = excluded.signer_keys,
                agreed = excluded.agreed
            WHERE o.status IN ('pending', 'waiting');
            GET DIAGNOSTICS written = ROW_COUNT;
            IF written <> json_array_length(rare.recoveries) THEN
                RAISE EXCEPTION 'a recovery would end twice' USING ERRCODE = 'CB003';
            END IF;
        END IF;
        IF rare.deregistered IS NOT NULL THEN
            UPDATE callboard.agent AS o SET
                status = 'inactive', updated_ms = p_now_ms,
                revision = greatest(o.revision, r.revision)
            FROM json_to_recordset(rare.deregistered) AS r(
                did text, revision integer)
            WHERE o.did = r.did
                AND o.status = 'active';
        END IF;
        IF rare.revocations IS NOT NULL THEN
            INSERT INTO callboard.revocation AS o (
                did, reason, evidence, revoked_ms, expires_ms, revoked_by_did)
            SELECT
                r.did, r.reason, r.evidence, p_now_ms, r.expires_ms, r.revoked_by_did
            FROM json_to_recordset(rare.revocations) AS r(
                did text, reason text, evidence json, expires_ms bigint, revoked_by_did text)
            ON CONFLICT (did) DO UPDATE SET
                reason = excluded.reason, evidence = excluded.evidence,
                revoked_ms = excluded.revoked_ms, expires_ms = excluded.expires_ms,
                revoked_by_did = excluded.revoked_by_did, ended_ms = NULL, ended_by_did = NULL;
        END IF;
        IF rare.unrevocations IS NOT NULL THEN
            UPDATE callboard.revocation AS o SET
                ended_by_did = r.ended_by_did, ended_ms = p_now_ms
            FROM json_to_recordset(rare.unrevocations) AS r(
                did text, ended_by_did text)
            WHERE o.did = r.did;
        END IF;
        IF rare.keys IS NOT NULL THEN
            INSERT INTO callboard.api_key AS o (
                id, hash, owner_did, name, scopes, rate_class, rate_limits, created_ms,
                expires_ms, parent_id, depth)
            SELECT
                r.id, r.hash, r.owner_did, r.name, r.scopes, r.rate_class, r.rate_limits,
                p_now_ms, r.expires_ms, r.parent_id, r.depth
            FROM json_to_recordset(rare.keys) AS r(
                id text, hash bytea, owner_did text, name text, scopes text[], rate_class text,
                rate_limits json, expires_ms bigint, parent_id text, depth integer);
        END IF;
        IF rare.rotated_keys IS NOT NULL THEN
            UPDATE callboard.api_key AS o SET
                hash = r.hash, previous_hash = r.previous_hash,
                previous_ends_ms = r.previous_ends_ms
            FROM json_to_recordset(rare.rotated_keys) AS r(
                id text, hash bytea, previous_hash bytea, previous_ends_ms bigint)
            WHERE o.id = r.id
                AND o.revoked_ms IS NULL;
            GET DIAGNOSTICS written = ROW_COUNT;
            IF written <> json_array_length(rare.rotated_keys) THEN
                RAISE EXCEPTION 'a key that has ended would be rotated' USING ERRCODE = 'CB003';
            END IF;
        END IF;
        IF rare.revoked_keys IS NOT NULL THEN
            UPDATE callboard.api_key AS o SET
                revoked_ms = p_now_ms
            FROM json_to_recordset(rare.revoked_keys) AS r(
                id text)
            WHERE o.id = r.id
                AND o.revoked_ms IS NULL;
        END IF;
        IF rare.ended_api_keys IS NOT NULL THEN
            UPDATE callboard.api_key AS o SET
                revoked_ms = p_now_ms
            FROM json_to_recordset(rare.ended_api_keys) AS r(
                owner_did text)
            WHERE o.owner_did = r.owner_did
                AND o.revoked_ms IS NULL
                AND coalesce(o.expires_ms, 253402300799999) > p_now_ms;
        END IF;
        IF rare.prices IS NOT NULL THEN
            INSERT INTO callboard.capability_price AS o (
                capability_id, price_cents, input_rate, output_rate, set_by_did, updated_ms)
            SELECT
                r.capability_id, r.price_cents, r.input_rate, r.output_rate, r.set_by_did,
                p_now_ms
            FROM json_to_recordset(rare.prices) AS r(
                capability_id text, price_cents bigint, input_rate text, output_rate text,
                set_by_did text)
            ON CONFLICT (capability_id) DO UPDATE SET
                price_cents = excluded.price_cents, input_rate = excluded.input_rate,
                output_rate = excluded.output_rate, set_by_did = excluded.set_by_did,
                updated_ms = excluded.updated_ms;
        END IF;
        IF rare.capability_lines IS NOT NULL THEN
            INSERT INTO callboard.capability_line AS o (
                capability_id, owner_did, versions, is_assigned)
            SELECT
                r.capability_id, r.owner_did, r.versions, coalesce(r.is_assigned, false)
            FROM json_to_recordset(rare.capability_lines) AS r(
                capability_id text, owner_did text, versions integer, is_assigned boolean)
            ON CONFLICT (capability_id) DO UPDATE SET
                owner_did = excluded.owner_did, versions = excluded.versions,
                is_assigned = excluded.is_assigned;
        END IF;
        IF rare.capability_versions IS NOT NULL THEN
            INSERT INTO callboard.capability_version AS o (
                id, capability_id, version, input_schema, output_schema, schema_hash, changelog,
                published_by_did, published_ms, status)
            SELECT
                r.id, r.capability_id, r.version, r.input_schema, r.output_schema,
                r.schema_hash, r.changelog, r.published_by_did, p_now_ms, 'active'
            FROM json_to_recordset(rare.capability_versions) AS r(
                id text, capability_id text, version text, input_schema text,
                output_schema text, schema_hash text, changelog text, published_by_did text);
        END IF;
        IF rare.deprecated_versions IS NOT NULL THEN
            UPDATE callboard.capability_version AS o SET
                successor = r.successor, status = 'deprecated', deprecated_ms = p_now_ms
            FROM json_to_recordset(rare.deprecated_versions) AS r(
                id text, successor text)
            WHERE o.id = r.id
                AND o.status = 'active';
            GET DIAGNOSTICS written = ROW_COUNT;
            IF written <> json_array_length(rare.deprecated_versions) THEN
                RAISE EXCEPTION 'a version would be deprecated twice' USING ERRCODE = 'CB003';
            END IF;
        END IF;
        IF rare.quotas IS NOT NULL THEN
            INSERT INTO callboard.quota AS o (
                did, max_workflows_per_day, max_concurrent_workflows, max_spend_per_day_cents,
                set_by_did, updated_ms)
            SELECT
                r.did, r.max_workflows_per_day, r.max_concurrent_workflows,
                r.max_spend_per_day_cents, r.set_by_did, p_now_ms
            FROM json_to_recordset(rare.quotas) AS r(
                did text, max_workflows_per_day bigint, max_concurrent_workflows bigint,
                max_spend_per_day_cents bigint, set_by_did text)
            ON CONFLICT (did) DO UPDATE SET
                max_workflows_per_day = excluded.max_workflows_per_day,
                max_concurrent_workflows = excluded.max_concurrent_workflows,
                max_spend_per_day_cents = excluded.max_spend_per_day_cents,
                set_by_did = excluded.set_by_did, updated_ms = excluded.updated_ms;
        END IF;
        IF rare.stakes IS NOT NULL THEN
            INSERT INTO callboard.stake AS o (
                agent_did, free_account_id, locked_account_id, updated_ms)
            SELECT
                r.agent_did, r.free_account_id, r.locked_account_id, p_now_ms
            FROM json_to_recordset(rare.stakes) AS r(
                agent_did text, free_account_id bigint, locked_account_id bigint)
            ON CONFLICT (agent_did) DO UPDATE SET
                updated_ms = excluded.updated_ms;
        END IF;
        IF rare.stake_shares IS NOT NULL THEN
            INSERT INTO callboard.stake_share AS o (
                agent_did, depositor_did, micro)
            SELECT
                r.agent_did, r.depositor_did, r.micro
            FROM json_to_recordset(rare.stake_shares) AS r(
                agent_did text, depositor_did text, micro bigint)
            ON CONFLICT (agent_did, depositor_did) DO UPDATE SET
                micro = excluded.micro;
        END IF;
        IF rare.auctions IS NOT NULL THEN
            INSERT INTO callboard.auction AS o (
                workflow_id, node, round, capability_id, reserve_micro, stake_bps, opened_ms,
                closes_ms, status)
            SELECT
                r.workflow_id, r.node, r.round, r.capability_id, r.reserve_micro, r.stake_bps,
                r.opened_ms, r.closes_ms, 'open'
            FROM json_to_recordset(rare.auctions) AS r(
                workflow_id uuid, node text, round integer, capability_id text,
                reserve_micro bigint, stake_bps integer, opened_ms bigint, closes_ms bigint);
        END IF;
        IF rare.closed_auctions IS NOT NULL THEN
            UPDATE callboard.auction AS o SET
                status = r.status, winner_did = r.winner_did, price_micro = r.price_micro,
                excluded = r.excluded, closed_ms = p_now_ms
            FROM json_to_recordset(rare.closed_auctions) AS r(
                workflow_id uuid, node text, round integer, status text, winner_did text,
                price_micro bigint, excluded json)
            WHERE o.workflow_id = r.workflow_id
                AND o.node = r.node
                AND o.round = r.round
                AND o.status = 'open';
            GET DIAGNOSTICS written = ROW_COUNT;
            IF written <> json_array_length(rare.closed_auctions) THEN
                RAISE EXCEPTION 'an auction would close twice' USING ERRCODE = 'CB003';
            END IF;
        END IF;
        IF rare.bids IS NOT NULL THEN
            INSERT INTO callboard.bid AS o (
                workflow_id, node, round, agent_did, amount_micro, eta_ms, stake_offered_micro,
                is_standing, received_ms, stake_locked_micro)
            SELECT
                r.workflow_id, r.node, r.round, r.agent_did, r.amount_micro, r.eta_ms,
                r.stake_offered_micro, r.is_standing, r.received_ms,
                coalesce(r.stake_locked_micro, 0)
            FROM json_to_recordset(rare.bids) AS r(
                workflow_id uuid, node text, round integer, agent_did text, amount_micro bigint,
                eta_ms bigint, stake_offered_micro bigint, is_standing boolean,
                received_ms bigint, stake_locked_micro bigint);
        END IF;
        IF rare.ended_locks IS NOT NULL THEN
            UPDATE callboard.node AS o SET
                stake_micro = 0
            FROM json_to_recordset(rare.ended_locks) AS r(
                workflow_id uuid, name text)
            WHERE o.workflow_id = r.workflow_id
                AND o.name = r.name;
        END IF;
        IF rare.invoices IS NOT NULL THEN
            INSERT INTO callboard.invoice AS o (
                id, payer_did, period_start_ms, period_end_ms, workflow_id, subtotal_cents,
                protocol_fee_cents, total_cents, subtotal_micro, status, created_ms)
            SELECT
                r.id, r.payer_did, r.period_start_ms, r.period_end_ms, r.workflow_id,
                r.subtotal_cents, r.protocol_fee_cents, r.total_cents, r.subtotal_micro,
                'pending', p_now_ms
            FROM json_to_recordset(rare.invoices) AS r(
                id uuid, payer_did text, period_start_ms bigint, period_end_ms bigint,
                workflow_id uuid, subtotal_cents bigint, protocol_fee_cents bigint,
                total_cents bigint, subtotal_micro bigint);
        END IF;
        IF rare.invoice_lines IS NOT NULL THEN
            INSERT INTO callboard.invoice_line AS o (
                invoice_id, entry_id, amount_micro)
            SELECT
                r.invoice_id, r.entry_id, r.amount_micro
            FROM json_to_recordset(rare.invoice_lines) AS r(
                invoice_id uuid, entry_id bigint, amount_micro bigint);
        END IF;
        IF rare.settled_invoices IS NOT NULL THEN
            UPDATE callboard.invoice AS o SET
                status = r.status, settled_by_did = r.settled_by_did, settled_ms = p_now_ms
            FROM json_to_recordset(rare.settled_invoices) AS r(
                id uuid, status text, settled_by_did text)
            WHERE o.id = r.id
                AND o.status = 'pending';
            GET DIAGNOSTICS written = ROW_COUNT;
            IF written <> json_array_length(rare.settled_invoices) THEN
                RAISE EXCEPTION 'an invoice would be settled twice' USING ERRCODE = 'CB003';
            END IF;
        END IF;
        IF rare.voided_lines IS NOT NULL THEN
            UPDATE callboard.invoice_line AS o SET
                is_void = true
            FROM json_to_recordset(rare.voided_lines) AS r(
                invoice_id uuid)
            WHERE o.invoice_id = r.invoice_id
                AND NOT o.is_void;
        END IF;
        IF rare.disputes IS NOT NULL THEN
            INSERT INTO callboard.dispute AS o (
                id, workflow_id, complainant_did, respondent_did, node_id, dispute_type,
                description, evidence, status, created_ms)
            SELECT
                r.id, r.workflow_id, r.complainant_did, r.respondent_did, r.node_id,
                r.dispute_type, r.description, r.evidence, 'open', p_now_ms
            FROM json_to_recordset(rare.disputes) AS r(
                id uuid, workflow_id uuid, complainant_did text, respondent_did text,
                node_id text, dispute_type text, description text, evidence json);
        END IF;
        IF rare.resolved_disputes IS NOT NULL THEN
            UPDATE callboard.dispute AS o SET
                status = r.status, resolution = r.resolution,
                refund_asked_micro = r.refund_asked_micro, refunded_micro = r.refunded_micro,
                short_micro = r.short_micro, resolved_by_did = r.resolved_by_did,
                resolved_ms = p_now_ms
            FROM json_to_recordset(rare.resolved_disputes) AS r(
                id uuid, status text, resolution text, refund_asked_micro bigint,
                refunded_micro bigint, short_micro bigint, resolved_by_did text)
            WHERE o.id = r.id
                AND o.status = 'open';
            GET DIAGNOSTICS written = ROW_COUNT;
            IF written <> json_array_length(rare.resolved_disputes) THEN
                RAISE EXCEPTION 'a dispute would be resolved twice' USING ERRCODE = 'CB003';
            END IF;
        END IF;
        IF rare.feedback IS NOT NULL THEN
            INSERT INTO callboard.feedback AS o (
                workflow_id, agent_did, payer_did, rating, comment, created_ms)
            SELECT
                r.workflow_id, r.agent_did, r.payer_did, r.rating, r.comment, p_now_ms
            FROM json_to_recordset(rare.feedback) AS r(
                workflow_id uuid, agent_did text, payer_did text, rating numeric(4,3),
                comment text);
        END IF;
        IF rare.corrections IS NOT NULL THEN
            UPDATE callboard.reputation AS o SET
                total = o.total + r.total, successful = o.successful + r.successful,
                failed = o.failed + r.failed, cancelled = o.cancelled + r.cancelled,
                latency_ms_sum = o.latency_ms_sum + r.latency_ms_sum,
                paid_successful = o.paid_successful + r.paid_successful,
                paid_failed = o.paid_failed + r.paid_failed,
                paid_cancelled = o.paid_cancelled + r.paid_cancelled,
                paid_latency_ms_sum = o.paid_latency_ms_sum + r.paid_latency_ms_sum,
                updated_ms = p_now_ms
            FROM json_to_recordset(rare.corrections) AS r(
                agent_did text, total bigint, successful bigint, failed bigint,
                cancelled bigint, latency_ms_sum bigint, paid_successful bigint,
                paid_failed bigint, paid_cancelled bigint, paid_latency_ms_sum bigint)
            WHERE o.agent_did = r.agent_did;
            GET DIAGNOSTICS written = ROW_COUNT;
            IF written <> json_array_length(rare.corrections) THEN
                RAISE EXCEPTION 'counts that do not exist would be corrected' USING ERRCODE = 'CB003';
            END IF;
        END IF;
    END IF;
    IF p_notice IS NOT NULL THEN
        PERFORM pg_notify('callboard_directory', p_notice);
    END IF;
END $$;

REVOKE ALL ON FUNCTION callboard.commit_batch_v8(
    bigint, bigint, json, json, json, text, json, json, integer, json, integer,
    json, json, json, json, integer, json, json, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION callboard.commit_batch_v8(
    bigint, bigint, json, json, json, text, json, json, integer, json, integer,
    json, json, json, json, integer, json, json, text) TO ledger_writer;
