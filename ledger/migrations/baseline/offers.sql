-- What active agents offer, as words that an index finds, and which agents have to be read again.
-- A trigger notes the changed agents in the writer's transaction; it reads nothing of a card. Each
-- search calls index_offers first, and so does a replica after a registration.

-- place: how many rows its owner had before. version NULL: not read, as of a card whose words are
-- not; '': the card says none.
CREATE TABLE callboard.offer (
    did text NOT NULL,
    capability_id text NOT NULL,
    owner_did text NOT NULL,
    place integer NOT NULL,
    words tsvector NOT NULL,
    version text,
    PRIMARY KEY (did, capability_id)
);
-- Without a pending list: a search would read all of that.
CREATE INDEX offer_words ON callboard.offer USING gin (words) WITH (fastupdate = off);
CREATE INDEX offer_place ON callboard.offer (place, did, capability_id);
CREATE INDEX offer_capability ON callboard.offer (capability_id COLLATE "C", place, did);
CREATE INDEX offer_owner_place ON callboard.offer (owner_did, place);

CREATE TABLE callboard.offer_due (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    did text NOT NULL,
    owner_did text NOT NULL
);
CREATE INDEX offer_due_did ON callboard.offer_due (did);
CREATE INDEX offer_due_owner ON callboard.offer_due (owner_did, seq);

-- The owner whose change was read last: the next step goes on with the owners behind it.
CREATE TABLE callboard.offer_turn (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    owner_did text NOT NULL
);
INSERT INTO callboard.offer_turn (owner_did) VALUES ('');

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

-- What a card offers: versions, and words to search: ids split into their parts (A), names (B),
-- descriptions (C), and the names of the fields of schemas (D), whole and split where a capital letter
-- begins a word. Cards are stored as agents wrote them; one that jsonb cannot hold is not found by
-- words. In place of offered_words.
CREATE FUNCTION callboard.offers_of_card(card text)
RETURNS TABLE (capability_id text, version text, words tsvector)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_card jsonb;
BEGIN
    v_card := card::jsonb;
    RETURN QUERY SELECT
        c ->> 'id',
        coalesce(c ->> 'version', ''),
        setweight(to_tsvector('english', translate(c ->> 'id', '._-', '   ')), 'A')
            || setweight(to_tsvector('english', concat_ws(
                ' ', c ->> 'name', v_card #>> '{metadata,name}')), 'B')
            || setweight(to_tsvector('english', coalesce(c ->> 'description', '')), 'C')
            || setweight(to_tsvector('english', coalesce(f.names, '')), 'D')
    FROM jsonb_array_elements(v_card -> 'capabilities') c CROSS JOIN LATERAL (
        SELECT string_agg(n.name || ' ' || regexp_replace(
            translate(n.name, '._-', '   '), '([a-z0-9])([A-Z])', '\1 \2', 'g'), ' ') AS names
        FROM jsonb_path_query(jsonb_build_array(c -> 'inputSchema', c -> 'outputSchema'),
            'lax $[*].**{0 to 32}.properties ? (@.type() == "object").keyvalue().key') p(key)
            CROSS JOIN LATERAL (SELECT p.key #>> '{}') n(name)
    ) f;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN;
END $$;

-- Read again what agents offer that have changed, owners in turn, at most so many agents, and until
-- so many bytes are counted; return how many rows of offer_due are done. The changes of an agent are
-- done with the first of them, as far as they are 20 times p_rows_max in one step, each agent its
-- share. An owner's first offers, up to p_owner_max, are kept; of one that has as many no card is
-- read. What an owner offers again keeps its place: with the last one each time, an owner that
-- registers all its agents again, one by one, would come behind the last offers of all others. What
-- is new comes behind all that is kept, and no place is above the number of the offers: so up to a
-- place an owner never has more offers than places. No plan reads a table whole or sorts what an
-- index has in order, whatever was there when it was made.
CREATE FUNCTION callboard.index_offers(
    p_rows_max integer, p_bytes_max bigint, p_owner_max integer)
RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_turn text;
    v_last text;
    v_owner text;
    v_is_again boolean := false;
    v_owners text[] := '{}';
    v_each integer;
    v_rows tid[];
    v_dids text[];
    v_done integer;
    -- By owner, agent and capability, none of which has a blank.
    v_places jsonb;
BEGIN
    -- One at a time: of two, the one with the older cards might write last.
    PERFORM pg_advisory_xact_lock(hashtext('callboard.index_offers'));
    SELECT owner_did INTO STRICT v_turn FROM callboard.offer_turn;
    -- Each owner is one look at an index, however many changes it has: those behind the turn, then the
    -- others.
    v_last := v_turn;
    WHILE cardinality(v_owners) < p_rows_max LOOP
        SELECT owner_did INTO v_owner FROM callboard.offer_due
        WHERE owner_did > v_last ORDER BY owner_did LIMIT 1;
        EXIT WHEN v_is_again AND (v_owner IS NULL OR v_owner > v_turn);
        IF v_owner IS NULL THEN
            v_is_again := true;
            v_last := '';
        ELSE
            v_owners := v_owners || v_owner;
            v_last := v_owner;
        END IF;
    END LOOP;
    IF v_owners = '{}' THEN
        RETURN 0;
    END IF;
    -- A few times what is read, so that few owners, or one with many changes of an agent, fill a step.
    -- Between one value and the same: of one value the index by number keeps the order too, and where
    -- one owner or agent has had most of the changes, the planner takes that and reads them all.
    v_each := 4 * p_rows_max / cardinality(v_owners);
    WITH turned AS (
        SELECT d.noted, d.did, o.place,
            row_number() OVER (PARTITION BY o.place ORDER BY d.seq) AS turn
        FROM unnest(v_owners) WITH ORDINALITY o(owner_did, place) CROSS JOIN LATERAL (
            SELECT ctid AS noted, seq, did FROM callboard.offer_due
            WHERE owner_did BETWEEN o.owner_did AND o.owner_did
            ORDER BY owner_did, seq LIMIT v_each
        ) d
    ), changed AS (
        SELECT DISTINCT ON (did) noted, did, place, turn FROM turned ORDER BY did, turn, place
    ), first AS (
        SELECT noted, did, place, turn FROM changed ORDER BY turn, place LIMIT p_rows_max
    ), sized AS (
        SELECT f.noted, f.did, f.place, f.turn, CASE WHEN a.status = 'active' THEN coalesce(
            callboard.words_bytes(a.card, a.capability_ids), 0
        ) + 1024 * greatest(cardinality(a.capability_ids), 1) ELSE 0 END
            + 256 * (SELECT count(*) FROM callboard.offer o WHERE o.did = f.did) AS bytes
        FROM first f LEFT JOIN callboard.agent a USING (did)
    ), counted AS (
        SELECT noted, did, place, turn,
            sum(bytes) OVER (ORDER BY turn, place) - bytes AS bytes_before
        FROM sized
    )
    SELECT array_agg(noted), array_agg(did),
        (array_agg(v_owners[place] ORDER BY turn DESC, place DESC))[1]
    INTO v_rows, v_dids, v_turn FROM counted WHERE bytes_before < p_bytes_max;
    -- Before a card is read: what is noted from now on may be of a newer card.
    v_each := 20 * p_rows_max / cardinality(v_dids);
    v_rows := v_rows || ARRAY(
        SELECT d.noted FROM unnest(v_dids) f(did) CROSS JOIN LATERAL (
            SELECT ctid AS noted FROM callboard.offer_due
            WHERE did BETWEEN f.did AND f.did ORDER BY did LIMIT v_each
        ) d
    );
    -- By their places, which stay, because nothing else moves or deletes a row: by their numbers, a plan
    -- that was made when the table had just been emptied would look for each in the index by owner.
    DELETE FROM callboard.offer_due WHERE ctid = ANY (v_rows);
    GET DIAGNOSTICS v_done = ROW_COUNT;
    UPDATE callboard.offer_turn SET owner_did = v_turn;
    SELECT jsonb_object_agg(concat_ws(' ', owner_did, did, capability_id), place) INTO v_places
    FROM callboard.offer WHERE did = ANY (v_dids);
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
        SELECT c.did, c.owner_did, c.registered_ms, c.offers, w.capability_id, w.version, w.words
        FROM changed c CROSS JOIN LATERAL callboard.offers_of_card(c.card) w
        WHERE NOT c.is_large AND w.capability_id IS NOT NULL AND w.words IS NOT NULL
        UNION ALL
        SELECT c.did, c.owner_did, c.registered_ms, c.offers, i.id, NULL,
            setweight(to_tsvector('english', translate(i.id, '._-', '   ')), 'A')
        FROM changed c CROSS JOIN LATERAL unnest(c.capability_ids) i(id)
        WHERE c.is_large
    ), known AS (
        SELECT *, (v_places ->> concat_ws(' ', owner_did, did, capability_id))::bigint AS known_place
        FROM offered
    ), placed AS (
        SELECT did, capability_id, owner_did, version, words, least(
            coalesce(known_place, offers + count(known_place) OVER owned - 1 + row_number() OVER (
                PARTITION BY owner_did, known_place IS NULL ORDER BY registered_ms, did)),
            offers + count(*) OVER owned - 1) AS place
        FROM known WINDOW owned AS (PARTITION BY owner_did)
    )
    INSERT INTO callboard.offer (did, capability_id, owner_did, place, version, words)
    SELECT did, capability_id, owner_did, place, version, words FROM placed WHERE place < p_owner_max
    ON CONFLICT (did, capability_id) DO NOTHING;
    RETURN v_done;
END $$;
