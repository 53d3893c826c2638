-- What a rotated key was known by before, and until when that still opens; NULL: it opens no more.
ALTER TABLE callboard.api_key
    ADD COLUMN previous_hash bytea,
    ADD COLUMN previous_ends_ms bigint,
    ADD CONSTRAINT api_key_previous CHECK (
        (previous_hash IS NULL) = (previous_ends_ms IS NULL)
        AND (previous_hash IS NULL OR octet_length(previous_hash) = 32 AND previous_hash <> hash));
CREATE UNIQUE INDEX api_key_previous_hash ON callboard.api_key (previous_hash)
    WHERE previous_hash IS NOT NULL;
GRANT UPDATE (hash, previous_hash, previous_ends_ms) ON callboard.api_key TO ledger_writer;

-- Operational: nonces of signed requests, by SHA-256 over the signer and the nonce. A row may go when
-- its signature is too old to be accepted. Swept by the processes that write new ones.
CREATE TABLE callboard.request_nonce (
    hash bytea PRIMARY KEY CHECK (octet_length(hash) = 32),
    expires_s bigint NOT NULL
);
CREATE INDEX request_nonce_expires ON callboard.request_nonce (expires_s);
GRANT SELECT, INSERT, UPDATE, DELETE ON callboard.request_nonce TO ops_writer;
