-- Whose line of versions a capability has, with how many versions it has.
CREATE TABLE callboard.capability_line (
    capability_id text PRIMARY KEY,
    owner_did text NOT NULL,
    versions integer NOT NULL CHECK (versions BETWEEN 1 AND 1000)
);
CREATE INDEX capability_line_owner ON callboard.capability_line (owner_did) INCLUDE (versions);

-- Versions, which never change and never go; they can be deprecated once, in favour of another one.
-- Schemas are JSON texts in their canonical form, schema_hash is over both.
CREATE TABLE callboard.capability_version (
    id text PRIMARY KEY CHECK (id = capability_id || '@' || version),
    capability_id text NOT NULL REFERENCES callboard.capability_line,
    version text NOT NULL CHECK (
        octet_length(version) <= 64 AND version ~ '^[0-9]+[.][0-9]+[.][0-9]+(-[0-9A-Za-z.-]+)?$'),
    input_schema text NOT NULL,
    output_schema text NOT NULL,
    schema_hash text NOT NULL,
    changelog text NOT NULL,
    published_by_did text NOT NULL,
    published_ms bigint NOT NULL,
    status text NOT NULL CHECK (status IN ('active', 'deprecated')),
    successor text CHECK (successor IS NULL OR successor <> version AND status = 'deprecated'),
    deprecated_ms bigint CHECK ((deprecated_ms IS NULL) = (status = 'active'))
);
CREATE INDEX capability_version_capability ON callboard.capability_version (capability_id);

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['capability_line', 'capability_version'] LOOP
        EXECUTE format(
            'CREATE TRIGGER no_removal BEFORE DELETE OR TRUNCATE ON callboard.%I
             FOR EACH STATEMENT EXECUTE FUNCTION callboard.refuse_change()', name);
        EXECUTE format('ALTER TABLE callboard.%I ENABLE ALWAYS TRIGGER no_removal', name);
    END LOOP;
END $$;

GRANT SELECT ON callboard.capability_line, callboard.capability_version
    TO ledger_reader, ledger_writer;
GRANT INSERT ON callboard.capability_line, callboard.capability_version TO ledger_writer;
GRANT UPDATE ON callboard.capability_line TO ledger_writer;
GRANT UPDATE (status, successor, deprecated_ms) ON callboard.capability_version TO ledger_writer;
