-- Signing secrets are sealed anew when the deployment's key changes. Decision 0266.

-- As the owner: the operational role needs no right on agents, and changes nothing of one but how its
-- secret is sealed. What has changed since it was read is left alone, and so is what is locked: this never
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

REVOKE ALL ON FUNCTION callboard.reseal_secrets(text[], bytea[], bytea[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION callboard.reseal_secrets(text[], bytea[], bytea[]) TO ops_writer;
