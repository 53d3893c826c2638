-- The least version of code that may write to this schema, and rows that no batch inserts.

-- One row: the least version of code (ledger/code_version.py) that may write to this schema.
CREATE TABLE callboard.compatibility (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    min_code_version integer NOT NULL CHECK (min_code_version > 0)
);
INSERT INTO callboard.compatibility (min_code_version) VALUES (2);

INSERT INTO callboard.head (epoch, entry_seq, audit_seq, hash)
VALUES (0, 0, 0, decode(repeat('00', 32), 'hex'));
INSERT INTO callboard.account (id, address, kind, created_ms)
VALUES (1, 'world', 'external', 0), (2, 'fee', 'fee', 0);
INSERT INTO callboard.shard (id, epoch) SELECT id, 0 FROM generate_series(0, 255) AS id;
