-- Tables of the market: prices, stakes, reputation, bids, quotas, invoices, disputes, feedback.
-- Money is in accounts alone: a stake is two accounts, an invoice and a dispute hold no money.

-- What a capability costs where an agent's card names no price of its own: cents, or rates per token
-- in credits (as decimal text: they are multiplied exactly and rounded once per node).
CREATE TABLE callboard.capability_price (
    capability_id text PRIMARY KEY,
    price_cents bigint CHECK (price_cents BETWEEN 0 AND 100000000000),
    input_rate text,
    output_rate text,
    set_by_did text NOT NULL,
    updated_ms bigint NOT NULL,
    CHECK ((price_cents IS NULL) = (input_rate IS NOT NULL)),
    CHECK ((input_rate IS NULL) = (output_rate IS NULL))
);

CREATE TABLE callboard.stake (
    agent_did text PRIMARY KEY,
    free_account_id bigint NOT NULL UNIQUE REFERENCES callboard.account (id),
    locked_account_id bigint NOT NULL UNIQUE REFERENCES callboard.account (id),
    updated_ms bigint NOT NULL
);
-- By ranges, not by rows: an update that touches no other index stays in its page. A range knows its
-- newest row, which is what owners ask for.
CREATE INDEX stake_updated ON callboard.stake USING brin (updated_ms)
    WITH (pages_per_range = 4, autosummarize = on);

-- Whose credits a stake is: what each depositor has put in and not taken out, less what was lost of
-- it until one of the agent's shares last changed. Later losses are shared in proportion.
CREATE TABLE callboard.stake_share (
    agent_did text NOT NULL,
    depositor_did text NOT NULL,
    micro bigint NOT NULL CHECK (micro BETWEEN 0 AND 1000000000000000),
    PRIMARY KEY (agent_did, depositor_did)
);
CREATE INDEX stake_share_depositor ON callboard.stake_share (depositor_did) WHERE micro > 0;

-- Counts of final outcomes; scores are worked out from them. Rebuildable from nodes and attempts.
CREATE TABLE callboard.reputation (
    agent_did text PRIMARY KEY,
    total bigint NOT NULL CHECK (total = successful + failed + cancelled),
    successful bigint NOT NULL CHECK (successful >= 0),
    failed bigint NOT NULL CHECK (failed >= 0),
    cancelled bigint NOT NULL CHECK (cancelled >= 0),
    latency_ms_sum bigint NOT NULL CHECK (latency_ms_sum >= 0),
    updated_ms bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX reputation_updated ON callboard.reputation USING brin (updated_ms)
    WITH (pages_per_range = 4, autosummarize = on);

-- Terms never change while a round is open; it closes once. excluded: by agent, why its bid took no
-- part.
CREATE TABLE callboard.auction (
    workflow_id uuid NOT NULL,
    node text NOT NULL,
    round integer NOT NULL CHECK (round > 0),
    capability_id text NOT NULL,
    reserve_micro bigint NOT NULL CHECK (reserve_micro >= 0),
    stake_bps integer NOT NULL CHECK (stake_bps BETWEEN 0 AND 10000),
    opened_ms bigint NOT NULL,
    closes_ms bigint NOT NULL CHECK (closes_ms >= opened_ms),
    status text NOT NULL CHECK (status IN ('open', 'awarded', 'no_bids', 'cancelled')),
    winner_did text,
    price_micro bigint CHECK (price_micro BETWEEN 0 AND reserve_micro),
    excluded json,
    closed_ms bigint,
    PRIMARY KEY (workflow_id, node, round),
    CHECK ((status = 'open') = (closed_ms IS NULL)),
    CHECK ((status = 'awarded') = (winner_did IS NOT NULL AND price_micro IS NOT NULL))
) WITH (fillfactor = 70);

-- Live bids as they came, standing bids of cards as they were when the round closed. No
-- stake_offered_micro: as much as is asked.
CREATE TABLE callboard.bid (
    workflow_id uuid NOT NULL,
    node text NOT NULL,
    round integer NOT NULL,
    agent_did text NOT NULL,
    amount_micro bigint NOT NULL CHECK (amount_micro BETWEEN 0 AND 1000000000000000),
    eta_ms bigint CHECK (eta_ms >= 0),
    stake_offered_micro bigint CHECK (stake_offered_micro >= 0),
    is_standing boolean NOT NULL,
    received_ms bigint NOT NULL,
    PRIMARY KEY (workflow_id, node, round, agent_did)
);

CREATE TABLE callboard.quota (
    did text PRIMARY KEY,
    max_workflows_per_day bigint CHECK (max_workflows_per_day >= 0),
    max_concurrent_workflows bigint CHECK (max_concurrent_workflows >= 0),
    max_spend_per_day_cents bigint CHECK (max_spend_per_day_cents >= 0),
    set_by_did text NOT NULL,
    updated_ms bigint NOT NULL
);
-- What a quota counts: workflows by payer and day of publishing.
CREATE INDEX workflow_payer_created ON callboard.workflow (payer_did, created_ms);

CREATE TABLE callboard.invoice (
    id uuid PRIMARY KEY,
    payer_did text NOT NULL,
    period_start_ms bigint NOT NULL,
    period_end_ms bigint NOT NULL CHECK (period_end_ms > period_start_ms),
    workflow_id uuid,
    subtotal_cents bigint NOT NULL CHECK (subtotal_cents >= 0),
    protocol_fee_cents bigint NOT NULL CHECK (protocol_fee_cents >= 0),
    total_cents bigint NOT NULL,
    subtotal_micro bigint NOT NULL CHECK (subtotal_micro >= 0),
    status text NOT NULL CHECK (status IN ('pending', 'paid', 'void')),
    created_ms bigint NOT NULL,
    settled_ms bigint,
    settled_by_did text,
    CHECK (total_cents = subtotal_cents + protocol_fee_cents)
);
CREATE INDEX invoice_payer ON callboard.invoice (payer_did, id);

-- A payment is on at most one invoice that is not void.
CREATE TABLE callboard.invoice_line (
    invoice_id uuid NOT NULL REFERENCES callboard.invoice (id),
    entry_id bigint NOT NULL,
    amount_micro bigint NOT NULL CHECK (amount_micro > 0),
    is_void boolean NOT NULL DEFAULT false,
    PRIMARY KEY (invoice_id, entry_id)
);
CREATE UNIQUE INDEX invoice_line_once ON callboard.invoice_line (entry_id) WHERE NOT is_void;

-- What came back to payers, by workflow and by wallet: few of all entries.
CREATE INDEX entry_refund_workflow ON callboard.entry (workflow_id)
    WHERE kind IN ('refund', 'fee_refund', 'stake_refund');
CREATE INDEX entry_refund_credit ON callboard.entry (credit_account_id, created_ms)
    WHERE kind IN ('refund', 'fee_refund', 'stake_refund');

CREATE TABLE callboard.dispute (
    id uuid PRIMARY KEY,
    workflow_id uuid,
    complainant_did text NOT NULL,
    respondent_did text,
    node_id text,
    dispute_type text NOT NULL CHECK (dispute_type IN (
        'quality', 'timeout', 'incorrect_output', 'overcharge', 'fraud', 'other')),
    description text NOT NULL,
    evidence json NOT NULL,
    status text NOT NULL CHECK (status IN (
        'open', 'resolved_complainant', 'resolved_respondent', 'resolved_split', 'dismissed')),
    resolution text,
    refund_asked_micro bigint CHECK (refund_asked_micro >= 0),
    refunded_micro bigint NOT NULL DEFAULT 0 CHECK (refunded_micro >= 0),
    short_micro bigint NOT NULL DEFAULT 0 CHECK (short_micro >= 0),
    created_ms bigint NOT NULL,
    resolved_ms bigint,
    resolved_by_did text,
    CHECK ((status = 'open') = (resolved_ms IS NULL))
);
CREATE INDEX dispute_complainant ON callboard.dispute (complainant_did, id);
CREATE INDEX dispute_respondent ON callboard.dispute (respondent_did, id);
CREATE INDEX dispute_workflow ON callboard.dispute (workflow_id);

CREATE TABLE callboard.feedback (
    workflow_id uuid NOT NULL,
    agent_did text NOT NULL,
    payer_did text NOT NULL,
    rating numeric(4, 3) NOT NULL CHECK (rating BETWEEN 0 AND 1),
    comment text,
    created_ms bigint NOT NULL,
    PRIMARY KEY (workflow_id, agent_did)
);
CREATE INDEX feedback_agent ON callboard.feedback (agent_did, created_ms);

-- What an agent's card offers, as words to search: ids split into their parts, names, descriptions.
-- Cards are stored as agents wrote them; one that jsonb cannot hold is not found by words.
CREATE FUNCTION callboard.offered_words(card text) RETURNS TABLE (capability_id text, words tsvector)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
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
