-- The market's rare rows of a batch, called by commit_batch, and the frequent ones: reputation.
-- p_market: {prices, stakes, stake_shares, auctions, closed_auctions, bids, quotas, invoices,
-- invoice_lines, settled_invoices, disputes, resolved_disputes, ended_locks, corrections, feedback},
-- each absent when empty.

CREATE FUNCTION callboard.commit_market(p_market json, p_now_ms bigint) RETURNS void
LANGUAGE plpgsql AS $$
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

-- p_reputation: what a batch adds to each agent's counts.
CREATE FUNCTION callboard.commit_reputation(p_reputation json, p_now_ms bigint) RETURNS void
LANGUAGE sql AS $$
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
