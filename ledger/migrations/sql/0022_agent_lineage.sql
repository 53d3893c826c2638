-- The lineage of agents' cards: each place has the hash of the one before. previous_hash NULL: it is
-- the first since this migration.
CREATE TABLE callboard.agent_card (
    did text NOT NULL,
    number integer NOT NULL CHECK (number > 0),
    card_version bigint NOT NULL,
    card_hash text NOT NULL,
    previous_hash text CHECK (previous_hash IS NOT NULL OR number = 1),
    hash text NOT NULL,
    registered_by_did text NOT NULL,
    registered_ms bigint NOT NULL,
    PRIMARY KEY (did, number)
);
CREATE TRIGGER no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON callboard.agent_card
    FOR EACH STATEMENT EXECUTE FUNCTION callboard.refuse_change();
ALTER TABLE callboard.agent_card ENABLE ALWAYS TRIGGER no_change;
GRANT SELECT ON callboard.agent_card TO ledger_reader, ledger_writer;
GRANT INSERT ON callboard.agent_card TO ledger_writer;

-- What an agent's card says for people, by which agents are listed; NULL until its card comes again
-- where it stands in a text with U+0000.
ALTER TABLE callboard.agent
    ADD COLUMN card_number integer NOT NULL DEFAULT 0,
    ADD COLUMN card_hash text,
    ADD COLUMN lineage_hash text CHECK ((lineage_hash IS NULL) = (card_number = 0)),
    ADD COLUMN meta_name text,
    ADD COLUMN meta_author text,
    ADD COLUMN meta_model text;
UPDATE callboard.agent SET
    meta_name = card::json -> 'metadata' ->> 'name',
    meta_author = card::json -> 'metadata' ->> 'author',
    meta_model = card::json -> 'metadata' ->> 'model'
WHERE card LIKE '%"metadata"%' AND position('\u0000' IN card) = 0;
CREATE INDEX agent_meta_name ON callboard.agent (meta_name, did) WHERE meta_name IS NOT NULL;
CREATE INDEX agent_meta_author ON callboard.agent (meta_author, did) WHERE meta_author IS NOT NULL;
CREATE INDEX agent_meta_model ON callboard.agent (meta_model, did) WHERE meta_model IS NOT NULL;
