-- key_number: how many keys the agent has had, the current one included; key_from_ms: since when it
-- has that one, NULL: since its registration. inherited_from_did: the owner before its first heir, for
-- whose bound of agents it still counts: an heir need not agree.
ALTER TABLE callboard.agent
    ADD COLUMN key_number integer NOT NULL DEFAULT 1 CHECK (key_number > 0),
    ADD COLUMN key_from_ms bigint,
    ADD COLUMN inherited_from_did text;
CREATE INDEX agent_inherited ON callboard.agent (inherited_from_did)
    WHERE inherited_from_did IS NOT NULL;

-- The keys of an agent before its current one, which the agent's own row has. None comes back: a
-- proof by one of them would be worth something again. valid_until_ms only ever becomes earlier.
CREATE TABLE callboard.former_key (
    agent_did text NOT NULL,
    number integer NOT NULL CHECK (number > 0),
    public_key text NOT NULL,
    valid_from_ms bigint NOT NULL,
    valid_until_ms bigint NOT NULL CHECK (valid_until_ms >= valid_from_ms),
    PRIMARY KEY (agent_did, number),
    UNIQUE (agent_did, public_key)
);

-- Names that were ever registered, each with its last registration. It is taken until expires_ms;
-- released_ms: that it is over is on the chain. offered_did: the agent of another owner that may
-- take it. counted_did: for whose bound it counts, who has registered or taken it: no heir.
CREATE TABLE callboard.agent_name (
    name text PRIMARY KEY CHECK (name ~ '^[a-z0-9][a-z0-9-]{1,30}[a-z0-9]$'),
    agent_did text NOT NULL,
    owner_did text NOT NULL,
    counted_did text NOT NULL,
    offered_did text,
    registered_ms bigint NOT NULL,
    expires_ms bigint NOT NULL CHECK (expires_ms > registered_ms),
    released_ms bigint
);
CREATE INDEX agent_name_agent ON callboard.agent_name (agent_did, name) WHERE released_ms IS NULL;
CREATE INDEX agent_name_counted ON callboard.agent_name (counted_did) WHERE released_ms IS NULL;
CREATE INDEX agent_name_expiry ON callboard.agent_name (expires_ms, name) WHERE released_ms IS NULL;

-- Who has an agent when it is silent for so many days, the last setting of each agent. owner_did: who
-- has set it; under another owner of the agent it is void.
CREATE TABLE callboard.inheritance (
    agent_did text PRIMARY KEY,
    owner_did text NOT NULL,
    heir_did text NOT NULL CHECK (heir_did NOT IN (agent_did, owner_did)),
    days integer NOT NULL CHECK (days BETWEEN 1 AND 3650),
    requires_inactivity boolean NOT NULL,
    revision integer NOT NULL CHECK (revision > 0),
    status text NOT NULL CHECK (status IN ('armed', 'cancelled', 'triggered')),
    set_ms bigint NOT NULL,
    ended_ms bigint CHECK ((ended_ms IS NULL) = (status = 'armed'))
);
CREATE INDEX inheritance_armed ON callboard.inheritance (set_ms) WHERE status = 'armed';

-- Who may replace an agent's key; owner_did as above.
CREATE TABLE callboard.guardian_set (
    agent_did text PRIMARY KEY,
    owner_did text NOT NULL,
    guardians text[] NOT NULL CHECK (cardinality(guardians) <= 20 AND NOT agent_did = ANY (guardians)),
    threshold integer NOT NULL CHECK (threshold BETWEEN 0 AND cardinality(guardians)),
    custodian_did text CHECK (custodian_did <> agent_did),
    delay_hours integer NOT NULL CHECK (delay_hours BETWEEN 1 AND 8760),
    set_ms bigint NOT NULL,
    CHECK ((threshold = 0) = (cardinality(guardians) = 0))
);

-- Requests to replace keys, one of each agent and key. pending: signatures are missing; waiting: its
-- delay runs since waiting_ms.
CREATE TABLE callboard.recovery (
    id uuid PRIMARY KEY,
    agent_did text NOT NULL,
    recovery_type text NOT NULL CHECK (recovery_type IN (
        'social_recovery', 'custodian_recovery', 'time_lock_recovery')),
    new_key text NOT NULL,
    recovery_address text,
    requested_by_did text NOT NULL,
    signers text[] NOT NULL,
    status text NOT NULL CHECK (status IN ('pending', 'waiting', 'completed', 'cancelled')),
    created_ms bigint NOT NULL,
    waiting_ms bigint,
    delay_ms bigint CHECK ((delay_ms IS NULL) = (waiting_ms IS NULL)),
    ended_ms bigint CHECK ((ended_ms IS NULL) = (status IN ('pending', 'waiting'))),
    UNIQUE (agent_did, new_key),
    CHECK (status <> 'waiting' OR waiting_ms IS NOT NULL)
);
CREATE INDEX recovery_open ON callboard.recovery (agent_did) WHERE status IN ('pending', 'waiting');
CREATE INDEX recovery_waiting ON callboard.recovery (waiting_ms) WHERE status = 'waiting';

-- Operational: until when the service was last seen ready, and when it was not before. Times are of
-- the database's clock.
CREATE TABLE callboard.readiness (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    seen_ms bigint NOT NULL
) WITH (fillfactor = 50);
INSERT INTO callboard.readiness (seen_ms)
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint;
CREATE TABLE callboard.outage (
    start_ms bigint PRIMARY KEY,
    end_ms bigint NOT NULL CHECK (end_ms > start_ms)
);
CREATE INDEX outage_end ON callboard.outage (end_ms);

-- How long the service was ready since a time.
CREATE FUNCTION callboard.ready_ms_since(p_since_ms bigint) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT greatest(0, r.seen_ms - p_since_ms - coalesce((
        SELECT sum(o.end_ms - greatest(o.start_ms, p_since_ms)) FROM callboard.outage o
        WHERE o.end_ms > p_since_ms), 0))::bigint
    FROM callboard.readiness r
$$;

-- A wallet goes to an heir. What is stored already was held against the narrower check.
ALTER TABLE callboard.entry DROP CONSTRAINT entry_kind_check;
ALTER TABLE callboard.entry ADD CONSTRAINT entry_kind_check CHECK (kind IN (
    'deposit', 'escrow_hold', 'node_payment', 'protocol_fee', 'escrow_release',
    'stake_deposit', 'stake_withdrawal', 'stake_lock', 'stake_unlock', 'stake_slash',
    'refund', 'fee_refund', 'stake_refund', 'inheritance')) NOT VALID;

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['former_key', 'agent_name', 'inheritance', 'guardian_set', 'recovery'] LOOP
        EXECUTE format(
            'CREATE TRIGGER no_removal BEFORE DELETE OR TRUNCATE ON callboard.%I
             FOR EACH STATEMENT EXECUTE FUNCTION callboard.refuse_change()', name);
        EXECUTE format('ALTER TABLE callboard.%I ENABLE ALWAYS TRIGGER no_removal', name);
    END LOOP;
END $$;

GRANT SELECT ON
    callboard.former_key, callboard.agent_name, callboard.inheritance, callboard.guardian_set,
    callboard.recovery TO ledger_reader, ledger_writer;
GRANT INSERT ON
    callboard.former_key, callboard.agent_name, callboard.inheritance, callboard.guardian_set,
    callboard.recovery TO ledger_writer;
GRANT UPDATE (valid_until_ms) ON callboard.former_key TO ledger_writer;
GRANT UPDATE ON
    callboard.agent_name, callboard.inheritance, callboard.guardian_set, callboard.recovery
    TO ledger_writer;
-- By which the writer judges whether a switch has run.
GRANT SELECT ON callboard.agent_live TO ledger_writer;
GRANT SELECT, UPDATE ON callboard.readiness TO ops_writer;
GRANT SELECT, INSERT ON callboard.outage TO ops_writer;
REVOKE ALL ON FUNCTION callboard.ready_ms_since(bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION callboard.ready_ms_since(bigint) TO ledger_reader, ledger_writer;
