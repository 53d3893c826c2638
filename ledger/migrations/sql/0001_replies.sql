-- Operational: replies kept under the callers' idempotency keys. Sealed, because some hold secrets;
-- NULL until the request has been answered. Swept by whoever writes new ones.

CREATE TABLE callboard.http_reply (
    principal text NOT NULL,
    key text NOT NULL,
    request_hash bytea NOT NULL CHECK (octet_length(request_hash) = 32),
    reply bytea,
    expires_ms bigint NOT NULL,
    PRIMARY KEY (principal, key)
);
CREATE INDEX http_reply_expires ON callboard.http_reply (expires_ms);

GRANT SELECT, INSERT, UPDATE, DELETE ON callboard.http_reply TO ops_writer;
