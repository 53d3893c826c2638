-- Shards in the place of owners. A workflow's shard is eight bits of its id, for good; which member
-- holds a shard, and under which epoch, is said here alone, and no row of a workflow names a process.
-- Code of before cannot write to this schema: the service is stopped, and started again.

-- A member is one start of a process: its id is new each time, and no member comes back from 'gone'.
-- address: the same for each process that is started at its place.
CREATE TABLE callboard.member (
    id text PRIMARY KEY,
    machine text NOT NULL,
    address text NOT NULL,
    version text NOT NULL,
    state text NOT NULL CHECK (state IN ('ready', 'draining', 'gone')),
    joined_ms bigint NOT NULL
);
-- All that a writer reads of the table as it opens.
CREATE INDEX member_present ON callboard.member (id) WHERE state <> 'gone';

-- member: '' where no member holds it. No foreign key: it would be checked at every hand-over.
CREATE TABLE callboard.shard (
    id smallint PRIMARY KEY CHECK (id BETWEEN 0 AND 255),
    member text NOT NULL DEFAULT '',
    epoch bigint NOT NULL CHECK (epoch >= 0)
) WITH (fillfactor = 50);
INSERT INTO callboard.shard (id, epoch) SELECT id, 0 FROM generate_series(0, 255) AS id;

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['member', 'shard'] LOOP
        EXECUTE format(
            'CREATE TRIGGER no_removal BEFORE DELETE OR TRUNCATE ON callboard.%I
             FOR EACH STATEMENT EXECUTE FUNCTION callboard.refuse_change()', name);
        EXECUTE format('ALTER TABLE callboard.%I ENABLE ALWAYS TRIGGER no_removal', name);
    END LOOP;
END $$;

GRANT SELECT ON callboard.member, callboard.shard TO ledger_reader, ledger_writer;
GRANT INSERT, UPDATE ON callboard.member TO ledger_writer;
GRANT UPDATE (member, epoch) ON callboard.shard TO ledger_writer;

-- With the column goes the index of 0001 that begins with it.
ALTER TABLE callboard.workflow DROP COLUMN owner;
DROP TABLE callboard.owner;
DROP FUNCTION callboard.commit_batch_v2;
DROP FUNCTION callboard.commit_batch;
DROP FUNCTION callboard.commit_registry;
DROP FUNCTION callboard.commit_market;
DROP FUNCTION callboard.commit_reputation;
