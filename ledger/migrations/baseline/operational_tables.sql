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

-- How long the service was ready since a time.
CREATE FUNCTION callboard.ready_ms_since(p_since_ms bigint) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT greatest(0, r.seen_ms - p_since_ms - coalesce((
        SELECT sum(o.end_ms - greatest(o.start_ms, p_since_ms)) FROM callboard.outage o
        WHERE o.end_ms > p_since_ms), 0))::bigint
    FROM callboard.readiness r
$$;

-- Signing secrets are sealed anew when the deployment's key changes. As the owner of the table: the
-- operational role needs no right on agents, and changes nothing of one but how its secret is
-- sealed. What has changed since it was read is left alone, and so is what is locked: this never
-- waits for the writer while it holds rows.
CREATE FUNCTION callboard.reseal_secrets(p_dids text[], p_before bytea[], p_after bytea[])
RETURNS integer LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH free AS MATERIALIZED (
        SELECT a.did, r.after
        FROM callboard.agent a
        JOIN unnest(p_dids, p_before, p_after) AS r (did, before, after)
            ON a.did = r.did AND a.signing_secret = r.before
        FOR UPDATE OF a SKIP LOCKED
    ), resealed AS (
        UPDATE callboard.agent a SET signing_secret = free.after
        FROM free WHERE a.did = free.did
        RETURNING 1
    )
    SELECT count(*)::integer FROM resealed
$$;
