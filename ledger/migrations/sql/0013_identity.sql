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

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['former_key'] LOOP
        EXECUTE format(
            'CREATE TRIGGER no_removal BEFORE DELETE OR TRUNCATE ON callboard.%I
             FOR EACH STATEMENT EXECUTE FUNCTION callboard.refuse_change()', name);
        EXECUTE format('ALTER TABLE callboard.%I ENABLE ALWAYS TRIGGER no_removal', name);
    END LOOP;
END $$;

GRANT SELECT ON callboard.former_key TO ledger_reader, ledger_writer;
GRANT INSERT ON callboard.former_key TO ledger_writer;
GRANT UPDATE (valid_until_ms) ON callboard.former_key TO ledger_writer;
