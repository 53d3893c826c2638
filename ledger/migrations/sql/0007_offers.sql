-- As in 0006, except for what a card counts: each offer that is written 1 KiB, however short its id is
-- when compressed, and each that is taken away 256 bytes. A thousand cards of 100 ids counted half of
-- one step, which took 10 s: it was undone at its timeout, and begun again by every search. And a session keeps its plans: one that was made while the tables were
-- empty read them whole for each agent, so none may.
--
-- Read again what agents offer that have changed, owner beside owner among the 20,000 oldest changes,
-- at most so many rows, and until so many bytes are counted; return how many rows of offer_due are
-- done. An owner's first offers, up to p_owner_max, are kept; of one that has as many no card is read.
CREATE OR REPLACE FUNCTION callboard.index_offers(
    p_rows_max integer, p_bytes_max bigint, p_owner_max integer)
RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off AS $$
DECLARE
    v_seqs bigint[];
    v_dids text[];
BEGIN
    -- One at a time: of two, the one with the older cards might write last.
    PERFORM pg_advisory_xact_lock(hashtext('callboard.index_offers'));
    WITH turned AS (
        SELECT seq, did, row_number() OVER (PARTITION BY owner_did ORDER BY seq) AS turn
        FROM (SELECT * FROM callboard.offer_due ORDER BY seq LIMIT 20000) oldest
    ), first AS (
        SELECT seq, did, turn FROM turned ORDER BY turn, seq LIMIT p_rows_max
    ), sized AS (
        SELECT f.seq, f.did, f.turn, CASE WHEN a.status = 'active' THEN coalesce(
            callboard.words_bytes(a.card, a.capability_ids), 0
        ) + 1024 * greatest(cardinality(a.capability_ids), 1) ELSE 0 END
            + 256 * (SELECT count(*) FROM callboard.offer o WHERE o.did = f.did) AS bytes
        FROM first f LEFT JOIN callboard.agent a USING (did)
    ), counted AS (
        SELECT seq, did, sum(bytes) OVER (ORDER BY turn, seq) - bytes AS bytes_before FROM sized
    )
    SELECT array_agg(seq), array_agg(DISTINCT did) INTO v_seqs, v_dids
    FROM counted WHERE bytes_before < p_bytes_max;
    IF v_seqs IS NULL THEN
        RETURN 0;
    END IF;
    DELETE FROM callboard.offer WHERE did = ANY (v_dids);
    WITH kept AS MATERIALIZED (
        SELECT owner_did, count(*) AS offers FROM callboard.offer
        WHERE owner_did IN (SELECT owner_did FROM callboard.agent WHERE did = ANY (v_dids))
        GROUP BY owner_did
    ), changed AS MATERIALIZED (
        SELECT a.did, a.owner_did, a.registered_ms, a.card, a.capability_ids,
            coalesce(k.offers, 0) AS offers,
            callboard.words_bytes(a.card, a.capability_ids) IS NULL AS is_large
        FROM callboard.agent a LEFT JOIN kept k USING (owner_did)
        WHERE a.did = ANY (v_dids) AND a.status = 'active' AND coalesce(k.offers, 0) < p_owner_max
    ), offered AS (
        SELECT c.did, c.owner_did, c.registered_ms, c.offers, w.capability_id, w.words
        FROM changed c CROSS JOIN LATERAL callboard.offered_words(c.card) w
        WHERE NOT c.is_large AND w.capability_id IS NOT NULL AND w.words IS NOT NULL
        UNION ALL
        SELECT c.did, c.owner_did, c.registered_ms, c.offers, i.id,
            setweight(to_tsvector('english', translate(i.id, '._-', '   ')), 'A')
        FROM changed c CROSS JOIN LATERAL unnest(c.capability_ids) i(id)
        WHERE c.is_large
    ), placed AS (
        SELECT did, capability_id, owner_did, words, offers - 1
            + row_number() OVER (PARTITION BY owner_did ORDER BY registered_ms, did) AS place
        FROM offered
    )
    INSERT INTO callboard.offer (did, capability_id, owner_did, place, words)
    SELECT did, capability_id, owner_did, place, words FROM placed WHERE place < p_owner_max
    ON CONFLICT (did, capability_id) DO NOTHING;
    DELETE FROM callboard.offer_due WHERE seq = ANY (v_seqs);
    RETURN cardinality(v_seqs);
END $$;
