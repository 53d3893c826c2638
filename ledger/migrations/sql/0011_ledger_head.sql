-- address: where the writer is reached (core/shards/ledger_head.py), "" before there was any.
-- beat: changed by a writer that has nothing to commit, so that a standby sees that it lives.
ALTER TABLE callboard.head
    ADD COLUMN address text NOT NULL DEFAULT '',
    ADD COLUMN beat bigint NOT NULL DEFAULT 0;
GRANT UPDATE (address, beat) ON callboard.head TO ledger_writer;
