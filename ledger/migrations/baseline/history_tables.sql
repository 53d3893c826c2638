-- Money is BIGINT micro-credits, times are BIGINT milliseconds since 1970 (UTC); the unit is the
-- last part of a name.

-- One row: the least version of code (ledger/code_version.py) that may write to this schema.
CREATE TABLE callboard.compatibility (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    min_code_version integer NOT NULL CHECK (min_code_version > 0)
);
INSERT INTO callboard.compatibility (min_code_version) VALUES (2);

-- One row: the fence (epoch), the gap-free counters and the head of the audit chain.
-- address: the name of the writer's actor (ledger/shards/head_row.py), '' before the first writer.
CREATE TABLE callboard.head (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch bigint NOT NULL,
    entry_seq bigint NOT NULL,
    audit_seq bigint NOT NULL,
    hash bytea NOT NULL CHECK (octet_length(hash) = 32),
    address text NOT NULL DEFAULT ''
) WITH (fillfactor = 10);
INSERT INTO callboard.head (epoch, entry_seq, audit_seq, hash)
VALUES (0, 0, 0, decode(repeat('00', 32), 'hex'));

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

-- One entry per command. The columns beside body and hash serve searches: the types of its events,
-- the actor of the command, the workflow that one of its events is about.
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
-- By ranges: entries come in the order of time, and a workflow's id begins with its time.
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

-- Which member holds a shard, and under which epoch; no row of a workflow names a process.
-- member: '' where no member holds it. No foreign key: it would be checked at every hand-over.
CREATE TABLE callboard.shard (
    id smallint PRIMARY KEY CHECK (id BETWEEN 0 AND 255),
    member text NOT NULL DEFAULT '',
    epoch bigint NOT NULL CHECK (epoch >= 0)
) WITH (fillfactor = 50);
INSERT INTO callboard.shard (id, epoch) SELECT id, 0 FROM generate_series(0, 255) AS id;
