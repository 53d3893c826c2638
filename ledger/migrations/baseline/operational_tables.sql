-- Nothing here is audited, and no table has a foreign key: ops_writer may not read audited tables.

-- Large results: stored once by hash, referred to by the rows of nodes. The process that received a
-- result writes its bytes before anything audited refers to them; no role can change or remove them.
CREATE TABLE callboard.blob (
    hash bytea PRIMARY KEY,
    bytes bytea NOT NULL,
    created_ms bigint NOT NULL
        DEFAULT (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    CONSTRAINT blob_is_its_hash CHECK (hash = sha256(bytes))
);

-- Blocks of a fixed minute's rate limit, leased to replicas.
CREATE TABLE callboard.rate_lease (
    principal text NOT NULL,
    class text NOT NULL,
    window_ms bigint NOT NULL,
    used integer NOT NULL CHECK (used >= 0),
    granted integer NOT NULL CHECK (granted BETWEEN 0 AND used),
    PRIMARY KEY (principal, class)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

-- Replies kept under the callers' idempotency keys; NULL until the request has been answered.
-- Sealed, because some hold secrets. Expired rows are removed by the processes that write new ones.
CREATE TABLE callboard.http_reply (
    principal text NOT NULL,
    key text NOT NULL,
    request_hash bytea NOT NULL CHECK (octet_length(request_hash) = 32),
    reply bytea,
    expires_ms bigint NOT NULL,
    PRIMARY KEY (principal, key)
);
CREATE INDEX http_reply_expires ON callboard.http_reply (expires_ms);

-- Nonces of signed requests, by SHA-256 over the signer and the nonce. A row may go when its
-- signature is too old to be accepted; it is removed by the processes that write new ones.
CREATE TABLE callboard.request_nonce (
    hash bytea PRIMARY KEY CHECK (octet_length(hash) = 32),
    expires_s bigint NOT NULL
);
CREATE INDEX request_nonce_expires ON callboard.request_nonce (expires_s);

-- Until when the service was last seen ready, and when it was not before. Times are of the
-- database's clock.
CREATE TABLE callboard.readiness (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    seen_ms bigint NOT NULL
) WITH (fillfactor = 50);
INSERT INTO callboard.readiness (seen_ms)
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint;
CREATE TABLE callboard.outage (
    start_ms bigint PRIMARY KEY,
    end_ms bigint NOT NULL CHECK (end_ms > start_ms)
);
CREATE INDEX outage_end ON callboard.outage (end_ms);

-- The Merkle tree over the audit log (core/trust/merkle.py), and its signed checkpoints. Both follow
-- from the log: the timekeeper writes them, and commits do not wait for it.
CREATE TABLE callboard.audit_tile (
    level smallint,
    number bigint,
    hashes bytea NOT NULL CHECK (octet_length(hashes) BETWEEN 32 AND 8192),
    PRIMARY KEY (level, number)
);
CREATE TABLE callboard.checkpoint (
    size bigint PRIMARY KEY,
    root bytea NOT NULL,
    note text NOT NULL,
    created_ms bigint NOT NULL
);

-- How long the service was ready since a time.
CREATE FUNCTION callboard.ready_ms_since(p_since_ms bigint) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT greatest(0, r.seen_ms - p_since_ms - coalesce((
        SELECT sum(o.end_ms - greatest(o.start_ms, p_since_ms)) FROM callboard.outage o
        WHERE o.end_ms > p_since_ms), 0))::bigint
    FROM callboard.readiness r
$$;

-- The audit entry up to which each reader of the log has read (ledger/features/audit_log.py).
CREATE TABLE callboard.log_position (
    reader text PRIMARY KEY,
    audit_id bigint NOT NULL
) WITH (fillfactor = 50);
INSERT INTO callboard.log_position VALUES ('events', 0);

-- The tables of ledger/tables/webhook_tables.py.
CREATE INDEX webhook_owner ON callboard.webhook (owner_did, id);
CREATE INDEX event_delivery_due ON callboard.event_delivery (next_ms) WHERE status = 'pending';
CREATE INDEX event_delivery_line
    ON callboard.event_delivery (target_id, line, audit_id) WHERE status = 'pending';
CREATE INDEX event_delivery_list ON callboard.event_delivery (target_id, id);
CREATE INDEX event_delivery_status ON callboard.event_delivery (target_id, status, id);
CREATE INDEX event_delivery_ends ON callboard.event_delivery (ends_ms);

-- What a key of the deployment has sealed, and the purpose of the key derived for it.
CREATE VIEW callboard.sealed_secret AS
    SELECT did AS id, signing_secret AS secret, 'signing-secret' AS purpose FROM callboard.agent
    UNION ALL SELECT id::text, secret, 'signing-secret' FROM callboard.trigger
    UNION ALL SELECT id::text, secrets, 'signing-secret' FROM callboard.webhook
    UNION ALL SELECT key_id, sealed, 'signing-key' FROM callboard.signing_key;

-- It is sealed anew when the deployment's key changes. As the owner of the tables: the operational
-- role needs no right on agents, and changes nothing of one but how its secret is sealed. What has
-- changed since it was read is left alone, and so is what is locked: this never waits for the writer
-- while it holds rows.
CREATE FUNCTION callboard.reseal_secrets(p_ids text[], p_before bytea[], p_after bytea[])
RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH given AS (
        SELECT *, CASE WHEN length(id) = 36 AND id NOT LIKE 'did:%' THEN id::uuid END AS uuid
        FROM unnest(p_ids, p_before, p_after) AS r (id, before, after)
    ), free AS MATERIALIZED (
        SELECT a.did FROM callboard.agent a WHERE a.did = ANY (p_ids) FOR UPDATE SKIP LOCKED
    ), free_hooks AS MATERIALIZED (
        SELECT t.id FROM callboard.trigger t WHERE t.id IN (SELECT uuid FROM given)
        FOR UPDATE OF t SKIP LOCKED
    ), agents AS (
        UPDATE callboard.agent a SET signing_secret = r.after FROM given r JOIN free ON free.did = r.id
        WHERE a.did = r.id AND a.signing_secret = r.before RETURNING 1
    ), hooks AS (
        UPDATE callboard.trigger t SET secret = r.after FROM given r JOIN free_hooks f ON f.id = r.uuid
        WHERE t.id = r.uuid AND t.secret = r.before RETURNING 1
    ), webhooks AS (
        UPDATE callboard.webhook w SET secrets = r.after FROM given r
        WHERE w.id = r.uuid AND w.secrets = r.before RETURNING 1
    ), signing_keys AS (
        UPDATE callboard.signing_key k SET sealed = r.after FROM given r
        WHERE k.key_id = r.id AND k.sealed = r.before RETURNING 1
    )
    SELECT count(*) FROM (
        TABLE agents UNION ALL TABLE hooks UNION ALL TABLE webhooks UNION ALL TABLE signing_keys
    ) AS resealed
$$;

-- The deployment's receipts as they were first signed, by the ledger entry of the payment. body: the
-- signed form. No role can change or remove them.
CREATE TABLE callboard.receipt (
    entry_id bigint PRIMARY KEY,
    body text NOT NULL,
    signature text NOT NULL,
    jws text NOT NULL
);

-- Stores receipts that were not stored before, if their key is still in use, and returns what is
-- stored. The row lock makes a rotation wait for this function and this function wait for a
-- rotation, so no receipt is stored with a retired key.
CREATE FUNCTION callboard.store_receipts(p_key_id text, p_receipts json)
RETURNS SETOF callboard.receipt
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM 1 FROM callboard.signing_key WHERE key_id = p_key_id AND retired_ms IS NULL FOR SHARE;
    IF FOUND THEN
        INSERT INTO callboard.receipt
        SELECT * FROM json_populate_recordset(NULL::callboard.receipt, p_receipts) AS r
        ORDER BY r.entry_id ON CONFLICT DO NOTHING;
    END IF;
    RETURN QUERY SELECT s.* FROM callboard.receipt s
        JOIN json_populate_recordset(NULL::callboard.receipt, p_receipts) AS r USING (entry_id);
END $$;
