-- What active agents offer, as words that an index finds, and which agents have to be read again.
-- A trigger notes the changed agents in the writer's transaction; it reads nothing of a card. A
-- process that searches or registers reads their cards (due_offers), makes words of them, and stores
-- these (store_offers).

-- place: how many rows its owner had before. number: of rows with the same place, searches take the
-- oldest, so that identities that somebody makes today hide no older agent. version '': the card
-- says none.
CREATE TABLE callboard.offer (
    did text NOT NULL,
    capability_id text NOT NULL,
    owner_did text NOT NULL,
    place integer NOT NULL,
    number bigint GENERATED ALWAYS AS IDENTITY,
    words tsvector NOT NULL,
    version text NOT NULL,
    PRIMARY KEY (did, capability_id)
);
-- Without a pending list: a search would read all of that.
CREATE INDEX offer_words ON callboard.offer USING gin (words) WITH (fastupdate = off);
CREATE INDEX offer_place ON callboard.offer (place, number);
CREATE INDEX offer_capability ON callboard.offer (capability_id COLLATE "C", place, number);
CREATE INDEX offer_owner_place ON callboard.offer (owner_did, place);

-- How many offers have a word. Searches take the offers of the rarest words first.
CREATE TABLE callboard.offer_word (
    word text PRIMARY KEY,
    offers integer NOT NULL
) WITH (fillfactor = 70);

CREATE TABLE callboard.offer_due (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    did text NOT NULL
);
CREATE INDEX offer_due_did ON callboard.offer_due (did);

-- As the owner: the writer needs no right on the table, and rows of it never make it wait.
CREATE FUNCTION callboard.note_offers() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO callboard.offer_due (did) SELECT did FROM changed;
    RETURN NULL;
END $$;

CREATE TRIGGER agent_inserted_offers AFTER INSERT ON callboard.agent
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION callboard.note_offers();
CREATE TRIGGER agent_updated_offers AFTER UPDATE ON callboard.agent
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION callboard.note_offers();

-- The agents to read: of these DIDs, then those that changed first; with the newest change of each.
CREATE FUNCTION callboard.due_offers(p_dids text[], p_rows_max integer, p_bytes_max bigint)
RETURNS TABLE (did text, seq bigint, card text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off AS $$
    WITH due AS MATERIALIZED (
        SELECT d.did, 0 AS turn FROM callboard.offer_due d WHERE d.did = ANY (p_dids)
        UNION ALL
        SELECT o.did, 1 FROM (SELECT d.did FROM callboard.offer_due d ORDER BY d.seq
            LIMIT p_rows_max) o
    ), first AS MATERIALIZED (
        SELECT due.did, min(turn) AS turn FROM due GROUP BY due.did ORDER BY 2, 1 LIMIT p_rows_max
    ), sized AS (
        SELECT f.did, f.turn, octet_length(a.card)::bigint AS bytes,
            cardinality(a.capability_ids) AS offers
        FROM first f LEFT JOIN callboard.agent a ON a.did = f.did AND a.status = 'active'
    ), counted AS (
        SELECT s.*, sum(coalesce(bytes + 1024 * offers, 0))
            OVER (ORDER BY turn, s.did) AS bytes_until,
            row_number() OVER (ORDER BY turn, s.did) AS number
        FROM sized s
    )
    SELECT c.did, n.seq,
        (SELECT a.card FROM callboard.agent a WHERE a.did = c.did AND a.status = 'active')
    FROM counted c CROSS JOIN LATERAL (
        SELECT max(d.seq) AS seq FROM callboard.offer_due d WHERE d.did = c.did) n
    WHERE c.bytes_until <= p_bytes_max OR c.number = 1
$$;

-- Store the offers of the agents that were read up to these changes; an agent
-- that another process has read since then is left as it is. An owner's first
-- offers, up to p_owner_max, are kept; what an owner offers again keeps its place.
CREATE FUNCTION callboard.store_offers(
    p_dids text[], p_seqs bigint[], p_offer_dids text[], p_ids text[], p_versions text[],
    p_words text[], p_owner_max integer)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off AS $$
DECLARE
    v_dids text[];
    v_former text[];
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('callboard.index_offers'));
    WITH done AS (
        DELETE FROM callboard.offer_due d USING unnest(p_dids, p_seqs) r(did, seq)
        WHERE d.did = r.did AND d.seq <= r.seq RETURNING d.did, d.seq = r.seq AS is_read
    )
    SELECT array_agg(did) FILTER (WHERE is_read) INTO v_dids FROM done;
    v_former := ARRAY(SELECT w.word
        FROM callboard.offer o CROSS JOIN LATERAL unnest(tsvector_to_array(o.words)) w(word)
        WHERE o.did = ANY (v_dids));
    DELETE FROM callboard.offer o WHERE o.did = ANY (v_dids) AND NOT EXISTS (
        SELECT 1 FROM unnest(p_offer_dids, p_ids) n(did, id)
        WHERE n.did = o.did AND n.id = o.capability_id);
    WITH kept AS MATERIALIZED (
        SELECT owner_did, count(*) AS offers FROM callboard.offer
        WHERE owner_did IN (SELECT owner_did FROM callboard.agent WHERE did = ANY (v_dids))
        GROUP BY owner_did
    )
    INSERT INTO callboard.offer (did, capability_id, owner_did, place, version, words)
    SELECT * FROM (
        SELECT n.did, n.id, a.owner_did, coalesce(known.place, coalesce(kept.offers, 0) - 1
                + row_number() OVER (PARTITION BY a.owner_did, known.place IS NULL
                    ORDER BY a.registered_ms, n.did)) AS place,
            n.version, array_to_tsvector(string_to_array(n.words, ' '))
        FROM unnest(p_offer_dids, p_ids, p_versions, p_words) n(did, id, version, words)
            JOIN callboard.agent a ON a.did = n.did
            LEFT JOIN callboard.offer known ON known.did = n.did AND known.capability_id = n.id
            LEFT JOIN kept ON kept.owner_did = a.owner_did
        WHERE n.did = ANY (v_dids)
    ) placed WHERE place < p_owner_max
    ON CONFLICT (did, capability_id) DO UPDATE
        SET owner_did = excluded.owner_did, version = excluded.version, words = excluded.words;
    -- In the order of the words, as every call does.
    INSERT INTO callboard.offer_word AS known (word, offers)
    SELECT word, sum(change) FROM (
        SELECT word, -1 AS change FROM unnest(v_former) former(word)
        UNION ALL
        SELECT w.word, 1
        FROM callboard.offer o CROSS JOIN LATERAL unnest(tsvector_to_array(o.words)) w(word)
        WHERE o.did = ANY (v_dids)
    ) changes GROUP BY word HAVING sum(change) <> 0 ORDER BY word
    ON CONFLICT (word) DO UPDATE SET offers = known.offers + excluded.offers;
    DELETE FROM callboard.offer_word WHERE word = ANY (v_former) AND offers <= 0;
END $$;
