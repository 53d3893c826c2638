-- Tables of the audited write path and of the operational one.
-- Money is BIGINT micro-credits, times are BIGINT milliseconds since 1970 (UTC); unit last in a name.

CREATE SCHEMA IF NOT EXISTS callboard;

-- One row: the least version of code (ledger/code_version.py) that may write to this schema.
CREATE TABLE callboard.compatibility (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    min_code_version integer NOT NULL CHECK (min_code_version > 0)
);
INSERT INTO callboard.compatibility (min_code_version) VALUES (1);

-- One row: the fence (epoch), the gap-free counters and the head of the audit chain.
CREATE TABLE callboard.head (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch bigint NOT NULL,
    entry_seq bigint NOT NULL,
    audit_seq bigint NOT NULL,
    hash bytea NOT NULL CHECK (octet_length(hash) = 32)
) WITH (fillfactor = 10);
INSERT INTO callboard.head (epoch, entry_seq, audit_seq, hash)
VALUES (0, 0, 0, decode(repeat('00', 32), 'hex'));

-- Everything that holds money. Moved by the trigger on entry alone; the writer has no UPDATE here.
CREATE TABLE callboard.account (
    id bigint PRIMARY KEY,
    address text NOT NULL UNIQUE,
    owner_did text,
    kind text NOT NULL
        CHECK (kind IN ('external', 'wallet', 'escrow', 'stake', 'stake_locked', 'fee')),
    balance bigint NOT NULL DEFAULT 0,
    currency text NOT NULL DEFAULT 'CREDITS' CHECK (currency = 'CREDITS'),
    created_ms bigint NOT NULL,
    -- All that is issued is at most 9 * 10^18, so what one account receives cannot overflow it.
    CONSTRAINT account_balance_bounds CHECK (
        balance <= 9000000000000000000
        AND balance >= CASE WHEN kind = 'external' THEN -9000000000000000000 ELSE 0 END)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
INSERT INTO callboard.account (id, address, kind, created_ms)
VALUES (1, 'world', 'external', 0), (2, 'fee', 'fee', 0);

-- Idempotency: the key of every command that was decided, with the stored answer.
CREATE TABLE callboard.command (
    id text PRIMARY KEY,
    request_hash bytea,
    result json,
    error text,
    detail text,
    audit_id bigint,
    created_ms bigint NOT NULL
);

-- audit_id: the audit entry of the command that moved it.
CREATE TABLE callboard.entry (
    id bigint PRIMARY KEY,
    debit_account_id bigint NOT NULL,
    credit_account_id bigint NOT NULL,
    amount bigint NOT NULL CHECK (amount BETWEEN 1 AND 1000000000000000),
    kind text NOT NULL CHECK (kind IN (
        'deposit', 'escrow_hold', 'node_payment', 'protocol_fee', 'escrow_release',
        'stake_deposit', 'stake_withdrawal', 'stake_lock', 'stake_unlock', 'stake_slash',
        'refund', 'fee_refund', 'stake_refund')),
    description text NOT NULL,
    workflow_id uuid,
    node_id text,
    audit_id bigint NOT NULL,
    created_ms bigint NOT NULL,
    CHECK (debit_account_id <> credit_account_id)
);
-- A node is paid once, even under a wrong key.
CREATE UNIQUE INDEX entry_node_payment ON callboard.entry (workflow_id, node_id)
    WHERE kind = 'node_payment';
CREATE INDEX entry_debit ON callboard.entry (debit_account_id, id);
-- Nobody asks for what came into the fee account: every payment has such an entry.
CREATE INDEX entry_credit ON callboard.entry (credit_account_id, id)
    WHERE kind <> 'protocol_fee';

CREATE TABLE callboard.escrow (
    workflow_id uuid PRIMARY KEY,
    payer_did text NOT NULL,
    account_id bigint NOT NULL UNIQUE,
    amount bigint NOT NULL CHECK (amount BETWEEN 0 AND 1000000000000000),
    fee_bps integer NOT NULL CHECK (fee_bps BETWEEN 0 AND 10000),
    status text NOT NULL CHECK (status IN ('held', 'released')),
    created_ms bigint NOT NULL,
    released_ms bigint
) WITH (fillfactor = 80);
CREATE INDEX escrow_held ON callboard.escrow (payer_did) WHERE status = 'held';

-- One entry per command. What stands beside body and hash is there to find it by: the types of its
-- events, who gave the command, the workflow that one of its events is about.
CREATE TABLE callboard.audit (
    id bigint PRIMARY KEY,
    event_types text[] NOT NULL CHECK (cardinality(event_types) > 0),
    actor_did text NOT NULL,
    workflow_id uuid,
    created_ms bigint NOT NULL,
    body text NOT NULL,
    hash bytea NOT NULL CHECK (hash = sha256(convert_to(body, 'UTF8')))
);
CREATE INDEX audit_actor ON callboard.audit (actor_did, id);
-- By ranges: entries come in the order of time, and ids of workflows begin with the time of theirs.
CREATE INDEX audit_created ON callboard.audit USING brin (created_ms) WITH (autosummarize = on);
CREATE INDEX audit_workflow ON callboard.audit USING brin (workflow_id uuid_minmax_multi_ops)
    WITH (autosummarize = on);

-- The events that are found by their type and their target: all but those that every workflow goes
-- through. number: the event's place in its entry.
CREATE TABLE callboard.audit_event (
    audit_id bigint NOT NULL,
    number integer NOT NULL CHECK (number >= 0),
    event_type text NOT NULL,
    target_type text NOT NULL,
    target_id text NOT NULL,
    PRIMARY KEY (audit_id, number)
);
CREATE INDEX audit_event_type ON callboard.audit_event (event_type, audit_id);
CREATE INDEX audit_event_target ON callboard.audit_event (target_id, audit_id);

-- spent_micro is written when the workflow ends; before that it is escrow.amount - balance.
-- is_halted: a step was refused, none is taken until an owner has read the rows again.
-- quarantined_ms, quarantine_code: a step was refused for an unforeseen reason; set together, kept
-- when the workflow ends, cleared when it is resumed.
CREATE TABLE callboard.workflow (
    id uuid PRIMARY KEY,
    task_id uuid NOT NULL UNIQUE,
    payer_did text NOT NULL,
    status text NOT NULL CHECK (status IN (
        'pending', 'running', 'success', 'failed', 'cancelled', 'timeout')),
    intent text NOT NULL,
    manifest text NOT NULL,
    owner text NOT NULL,
    created_ms bigint NOT NULL,
    started_ms bigint,
    completed_ms bigint,
    deadline_ms bigint NOT NULL,
    estimate_micro bigint NOT NULL CHECK (estimate_micro >= 0),
    hold_micro bigint NOT NULL CHECK (hold_micro >= 0),
    reserved text NOT NULL,
    fee_bps integer NOT NULL,
    spent_micro bigint,
    error json,
    end_reason text,
    end_details text,
    ended_by_did text,
    is_halted boolean NOT NULL DEFAULT false,
    quarantined_ms bigint,
    quarantine_code text,
    CHECK ((quarantined_ms IS NULL) = (quarantine_code IS NULL)),
    CHECK ((completed_ms IS NULL) = (status IN ('pending', 'running')))
) WITH (fillfactor = 85);
CREATE INDEX workflow_payer ON callboard.workflow (payer_did, id);
-- Unfinished is said by completed_ms: no index has the status, so that a start stays in its page.
CREATE INDEX workflow_unfinished ON callboard.workflow (owner, deadline_ms, id)
    WHERE completed_ms IS NULL;
CREATE INDEX workflow_quarantined ON callboard.workflow (id)
    WHERE quarantined_ms IS NOT NULL AND completed_ms IS NULL;

-- A row appears when its node first leaves `pending`; readers add the others from the manifest.
-- result_ref is {"$blob": "sha256:…", "size": n}; such a node has no result_json. input_hash is that
-- of an attempt that was accepted, until its result is there. selection_json says why its
-- agent was chosen, price_json at which rates it is paid by tokens, stake_micro what is locked of
-- its agent's stake with the open attempt, auction_closes_ms until when its round takes bids,
-- key_version by which keys the attempt's tokens are derived (0: never dispatched).
CREATE TABLE callboard.node (
    workflow_id uuid NOT NULL,
    name text NOT NULL,
    status text NOT NULL CHECK (status IN (
        'pending', 'ready', 'dispatched', 'running', 'success', 'failed', 'skipped', 'timeout')),
    attempt integer NOT NULL DEFAULT 0,
    agent_did text,
    price_micro bigint NOT NULL DEFAULT 0,
    dispatched_ms bigint,
    deadline_ms bigint,
    retry_at_ms bigint,
    retries_used integer NOT NULL DEFAULT 0,
    agents_tried json,
    verifier_did text,
    verify_attempt integer NOT NULL DEFAULT 0,
    verifier_price_micro bigint NOT NULL DEFAULT 0,
    verify_retries_used integer NOT NULL DEFAULT 0,
    verifiers_tried json,
    result_json text,
    result_ref json,
    error json,
    started_ms bigint,
    completed_ms bigint,
    cost_micro bigint NOT NULL DEFAULT 0 CHECK (cost_micro >= 0),
    metrics json,
    input_hash text,
    selection_json text,
    price_json text,
    stake_micro bigint NOT NULL DEFAULT 0 CHECK (stake_micro >= 0),
    auction_round integer NOT NULL DEFAULT 0,
    auction_closes_ms bigint,
    key_version smallint NOT NULL DEFAULT 0 CHECK (key_version >= 0),
    PRIMARY KEY (workflow_id, name),
    CONSTRAINT node_result_once CHECK (result_json IS NULL OR result_ref IS NULL)
) WITH (fillfactor = 70);

-- Large results: stored once by hash, referred to by the rows of nodes. Whoever received a result
-- writes its bytes before anything audited refers to them; nobody can change or remove them.
CREATE TABLE callboard.blob (
    hash bytea PRIMARY KEY,
    bytes bytea NOT NULL,
    created_ms bigint NOT NULL
        DEFAULT (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    CONSTRAINT blob_is_its_hash CHECK (hash = sha256(bytes))
);

CREATE TABLE callboard.attempt (
    workflow_id uuid NOT NULL,
    id bigint GENERATED ALWAYS AS IDENTITY,
    node text NOT NULL,
    attempt integer NOT NULL,
    kind text NOT NULL CHECK (kind IN ('primary', 'verify')),
    agent_did text NOT NULL,
    outcome text NOT NULL CHECK (outcome IN (
        'success', 'error', 'timeout', 'lost', 'discarded', 'rejected')),
    started_ms bigint NOT NULL,
    completed_ms bigint NOT NULL,
    input_hash text,
    output_hash text,
    error_code text,
    error_message text,
    PRIMARY KEY (workflow_id, id)
);

CREATE TABLE callboard.owner (
    name text PRIMARY KEY,
    epoch bigint NOT NULL CHECK (epoch > 0),
    address text NOT NULL,
    registered_ms bigint NOT NULL
);

-- signing_secret is encrypted by the registry before it comes here. Heartbeat tokens are good from
-- token_revision on, which moves when a deregistered agent comes back.
CREATE TABLE callboard.agent (
    did text PRIMARY KEY,
    owner_did text NOT NULL,
    card text NOT NULL,
    endpoint text NOT NULL,
    capability_ids text[] NOT NULL,
    public_key text,
    signing_secret bytea,
    status text NOT NULL CHECK (status IN ('active', 'inactive')),
    revision integer NOT NULL CHECK (revision > 0),
    token_revision integer NOT NULL DEFAULT 1 CHECK (token_revision > 0),
    registered_ms bigint NOT NULL,
    updated_ms bigint NOT NULL
);
CREATE INDEX agent_capability ON callboard.agent USING gin (capability_ids);
CREATE INDEX agent_owner ON callboard.agent (owner_did, did);
CREATE INDEX agent_registered ON callboard.agent (registered_ms, did);

-- parent_id: the key that it was made with, with which it ends; depth: on how many it stands.
CREATE TABLE callboard.api_key (
    id text PRIMARY KEY,
    hash bytea NOT NULL UNIQUE CHECK (octet_length(hash) = 32),
    owner_did text NOT NULL,
    name text NOT NULL,
    scopes text[] NOT NULL,
    rate_class text NOT NULL,
    rate_limits json,
    created_ms bigint NOT NULL,
    expires_ms bigint,
    revoked_ms bigint,
    parent_id text REFERENCES callboard.api_key (id),
    depth integer NOT NULL CHECK (depth >= 0),
    CHECK ((parent_id IS NULL) = (depth = 0))
);
CREATE INDEX api_key_owner ON callboard.api_key (owner_did, id);
CREATE INDEX api_key_parent ON callboard.api_key (parent_id) WHERE parent_id IS NOT NULL;

-- Who was revoked last, of each DID; the earlier ones are in the audit chain. expires_ms NULL: for
-- good. ended_ms: taken back.
CREATE TABLE callboard.revocation (
    did text PRIMARY KEY,
    reason text NOT NULL,
    evidence json NOT NULL,
    revoked_ms bigint NOT NULL,
    expires_ms bigint CHECK (expires_ms > 0),
    revoked_by_did text NOT NULL,
    ended_ms bigint,
    ended_by_did text,
    CHECK ((ended_ms IS NULL) = (ended_by_did IS NULL))
);

-- Operational: blocks of a fixed minute's rate limit, leased to replicas.
CREATE TABLE callboard.rate_lease (
    principal text NOT NULL,
    class text NOT NULL,
    window_ms bigint NOT NULL,
    used integer NOT NULL CHECK (used >= 0),
    granted integer NOT NULL CHECK (granted BETWEEN 0 AND used),
    PRIMARY KEY (principal, class)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

-- Operational: the newest heartbeat and the newest probe of each agent. Not audited; no foreign key,
-- because ops_writer may not look at audited tables. Times are of the database's clock.
CREATE TABLE callboard.agent_live (
    did text PRIMARY KEY,
    status text,
    load double precision CHECK (load BETWEEN 0 AND 1),
    queue_depth integer CHECK (queue_depth >= 0),
    version text,
    latency_ms double precision CHECK (latency_ms >= 0),
    heartbeat_ms bigint,
    probe_ms bigint,
    probe_ok boolean,
    probe_failures integer NOT NULL DEFAULT 0 CHECK (probe_failures >= 0),
    updated_ms bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
-- Owners ask twice a second what has changed since they last asked. By ranges, not by rows: an update
-- that touches no other index stays in its page.
CREATE INDEX agent_live_updated ON callboard.agent_live USING brin (updated_ms)
    WITH (pages_per_range = 4, autosummarize = on);
