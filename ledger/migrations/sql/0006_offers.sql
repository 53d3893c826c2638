-- What active agents offer, as words that an index finds, and which agents have to be looked at again.
-- A trigger notes who has changed, in the writer's transaction; nothing of a card is read there. Who
-- searches calls index_offers first, and so does a replica after a registration. Decision 0172.

-- place: how many rows its owner had before.
CREATE TABLE callboard.offer (
    did text NOT NULL,
    capability_id text NOT NULL,
    owner_did text NOT NULL,
    place integer NOT NULL,
    words tsvector NOT NULL,
    PRIMARY KEY (did, capability_id)
);
-- Without a pending list: a search would read all of that.
CREATE INDEX offer_words ON callboard.offer USING gin (words) WITH (fastupdate = off);
CREATE INDEX offer_owner ON callboard.offer (owner_did);

CREATE TABLE callboard.offer_due (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    did text NOT NULL,
    owner_did text NOT NULL
);
CREATE INDEX offer_due_did ON callboard.offer_due (did);

-- As the owner: the writer needs no right on the table, and rows of it never make it wait.
CREATE FUNCTION callboard.note_offers() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO callboard.offer_due (did, owner_did) SELECT did, owner_did FROM changed;
    RETURN NULL;
END $$;

CREATE TRIGGER agent_inserted_offers AFTER INSERT ON callboard.agent
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION callboard.note_offers();
CREATE TRIGGER agent_updated_offers AFTER UPDATE ON callboard.agent
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION callboard.note_offers();

-- The bytes that reading the words of a card counts: once per capability, because that is how often
-- it is parsed. NULL: too many, only its ids are read.
CREATE FUNCTION callboard.words_bytes(card text, capability_ids text[]) RETURNS bigint
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN octet_length(card) <= 8192
        AND octet_length(card)::bigint * cardinality(capability_ids) <= 16 * 8192
        THEN octet_length(card)::bigint * greatest(cardinality(capability_ids), 1) END
$$;

-- Read again what agents offer that have changed, owner beside owner among the 20,000 oldest changes,
-- at most so many rows, and until so many bytes are counted; return how many rows of offer_due are
-- done. An owner's first offers, up to p_owner_max, are kept; of one that has as many no card is read.
CREATE FUNCTION callboard.index_offers(p_rows_max integer, p_bytes_max bigint, p_owner_max integer)
RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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
            callboard.words_bytes(a.card, a.capability_ids), pg_column_size(a.capability_ids)
        ) ELSE 0 END AS bytes
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
    WITH kept AS (
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

REVOKE ALL ON FUNCTION callboard.note_offers(), callboard.words_bytes(text, text[]),
    callboard.index_offers(integer, bigint, integer) FROM PUBLIC;
GRANT SELECT ON callboard.offer, callboard.offer_due TO ledger_reader;
GRANT EXECUTE ON FUNCTION callboard.index_offers(integer, bigint, integer) TO ops_writer;

INSERT INTO callboard.offer_due (did, owner_did)
SELECT did, owner_did FROM callboard.agent WHERE status = 'active' ORDER BY registered_ms, did;
