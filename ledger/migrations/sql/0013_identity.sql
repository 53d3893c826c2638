-- key_number: how many keys the agent has had, the current one included; key_from_ms: since when it
-- has that one, NULL: since its registration.
ALTER TABLE callboard.agent
    ADD COLUMN key_number integer NOT NULL DEFAULT 1 CHECK (key_number > 0),
    ADD COLUMN key_from_ms bigint;

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
-- take it.
CREATE TABLE callboard.agent_name (
    name text PRIMARY KEY CHECK (name ~ '^[a-z0-9][a-z0-9-]{1,30}[a-z0-9]$'),
    agent_did text NOT NULL,
    owner_did text NOT NULL,
    offered_did text,
    registered_ms bigint NOT NULL,
    expires_ms bigint NOT NULL CHECK (expires_ms > registered_ms),
    released_ms bigint
);
CREATE INDEX agent_name_agent ON callboard.agent_name (agent_did, name) WHERE released_ms IS NULL;
CREATE INDEX agent_name_owner ON callboard.agent_name (owner_did) WHERE released_ms IS NULL;
CREATE INDEX agent_name_expiry ON callboard.agent_name (expires_ms, name) WHERE released_ms IS NULL;

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['former_key', 'agent_name'] LOOP
        EXECUTE format(
            'CREATE TRIGGER no_removal BEFORE DELETE OR TRUNCATE ON callboard.%I
             FOR EACH STATEMENT EXECUTE FUNCTION callboard.refuse_change()', name);
        EXECUTE format('ALTER TABLE callboard.%I ENABLE ALWAYS TRIGGER no_removal', name);
    END LOOP;
END $$;

GRANT SELECT ON callboard.former_key, callboard.agent_name TO ledger_reader, ledger_writer;
GRANT INSERT ON callboard.former_key, callboard.agent_name TO ledger_writer;
GRANT UPDATE (valid_until_ms) ON callboard.former_key TO ledger_writer;
GRANT UPDATE ON callboard.agent_name TO ledger_writer;
