-- The rare rows of a batch, called by commit_batch.
-- p_registry: {owners, claims, agents, deregistered, revocations, unrevocations, keys, revoked, halts,
-- notice}, each absent when empty.

CREATE FUNCTION callboard.commit_registry(p_registry json, p_now_ms bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO callboard.owner AS o (name, epoch, address, registered_ms)
    SELECT name, epoch, address, p_now_ms FROM json_to_recordset(p_registry -> 'owners')
        AS r(name text, epoch bigint, address text)
    ON CONFLICT (name) DO UPDATE SET
        epoch = excluded.epoch, address = excluded.address, registered_ms = excluded.registered_ms;

    UPDATE callboard.workflow w SET owner = r.to_owner
    FROM json_to_recordset(p_registry -> 'claims') AS r(from_owner text, to_owner text)
    WHERE w.owner = r.from_owner AND w.completed_ms IS NULL;

    INSERT INTO callboard.agent AS a (
        did, owner_did, card, endpoint, capability_ids, public_key, signing_secret, status,
        revision, token_revision, registered_ms, updated_ms)
    SELECT
        did, owner_did, card, endpoint, capability_ids, public_key,
        decode(signing_secret, 'hex'), 'active', revision, token_revision, p_now_ms, p_now_ms
    FROM json_to_recordset(p_registry -> 'agents') AS r(
        did text, owner_did text, card text, endpoint text, capability_ids text[],
        public_key text, signing_secret text, revision integer, token_revision integer)
    ON CONFLICT (did) DO UPDATE SET
        card = excluded.card, endpoint = excluded.endpoint,
        capability_ids = excluded.capability_ids,
        public_key = coalesce(excluded.public_key, a.public_key),
        signing_secret = coalesce(excluded.signing_secret, a.signing_secret),
        status = 'active', revision = excluded.revision,
        token_revision = excluded.token_revision, updated_ms = excluded.updated_ms;

    UPDATE callboard.agent a SET
        status = 'inactive', revision = r.revision, updated_ms = p_now_ms
    FROM json_to_recordset(p_registry -> 'deregistered') AS r(did text, revision integer)
    WHERE a.did = r.did AND a.status = 'active';

    INSERT INTO callboard.revocation AS v (
        did, reason, evidence, revoked_ms, expires_ms, revoked_by_did)
    SELECT did, reason, evidence, p_now_ms, expires_ms, revoked_by_did
    FROM json_to_recordset(p_registry -> 'revocations') AS r(
        did text, reason text, evidence json, expires_ms bigint, revoked_by_did text)
    ON CONFLICT (did) DO UPDATE SET
        reason = excluded.reason, evidence = excluded.evidence, revoked_ms = excluded.revoked_ms,
        expires_ms = excluded.expires_ms, revoked_by_did = excluded.revoked_by_did,
        ended_ms = NULL, ended_by_did = NULL;

    UPDATE callboard.revocation v SET ended_ms = p_now_ms, ended_by_did = r.ended_by_did
    FROM json_to_recordset(p_registry -> 'unrevocations') AS r(did text, ended_by_did text)
    WHERE v.did = r.did;

    UPDATE callboard.workflow w SET
        is_halted = r.is_halted,
        quarantine_code = r.quarantine_code,
        quarantined_ms =
            CASE WHEN r.quarantine_code IS NOT NULL THEN coalesce(w.quarantined_ms, p_now_ms) END
    FROM json_to_recordset(p_registry -> 'halts')
        AS r(id uuid, is_halted boolean, quarantine_code text)
    WHERE w.id = r.id;

    INSERT INTO callboard.api_key (
        id, hash, owner_did, name, scopes, rate_class, rate_limits, created_ms, expires_ms,
        parent_id, depth)
    SELECT
        id, decode(hash, 'hex'), owner_did, name, scopes, rate_class, rate_limits, p_now_ms,
        expires_ms, parent_id, depth
    FROM json_to_recordset(p_registry -> 'keys') AS r(
        id text, hash text, owner_did text, name text, scopes text[], rate_class text,
        rate_limits json, expires_ms bigint, parent_id text, depth integer);

    UPDATE callboard.api_key k SET revoked_ms = p_now_ms
    FROM json_array_elements_text(p_registry -> 'revoked') AS r(id)
    WHERE k.id = r.id AND k.revoked_ms IS NULL;

    IF p_registry ->> 'notice' IS NOT NULL THEN
        PERFORM pg_notify('callboard_directory', p_registry ->> 'notice');
    END IF;
END $$;
