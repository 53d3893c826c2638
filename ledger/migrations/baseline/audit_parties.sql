-- One row: the entry up to which the parties of all are known.
CREATE TABLE callboard.audit_party_mark (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    audit_id bigint NOT NULL CHECK (audit_id >= 0)
) WITH (fillfactor = 10);
INSERT INTO callboard.audit_party_mark (audit_id) VALUES (0);

-- Store the parties of the entries behind the mark, at most p_rows_max and until p_bytes_max of their
-- bodies are counted, and move the mark, in one transaction: each entry is indexed once. Nothing is done
-- where the chain is more than p_behind_max entries ahead. Return where the mark is, and the newest entry.
--
-- p_rules: {event type: [[as what it names a party, where in the event], ...]}. An entry with a type
-- that is not there stops the mark: code that knows the type goes on.
--
-- Nearly all entries are of workflows' lives, and of types whose rules name a workflow by the target and
-- agents by `payload.agentDid` alone. Their parties are taken from the entry's columns and from the text
-- of the body, which is canonical JSON: a quote within a text is escaped, so `"agentDid":"` begins a member
-- of that name, and events of these types have no other. To read the body as JSON takes three times as long.
--
-- What is looked up for an entry is looked up by key, row by row (OFFSET 0): no plan reads a table whole,
-- whatever was there when it was made.
--
-- An agent's owner is the one that it had at that entry: the owner of now, unless a later entry says from
-- whom the agent went to another.
CREATE FUNCTION callboard.index_parties(
    p_rules jsonb, p_rows_max integer, p_bytes_max bigint, p_behind_max bigint)
RETURNS TABLE (indexed_to bigint, newest bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off AS $$
DECLARE
    v_mark bigint;
    v_newest bigint;
    v_last bigint;
    v_unknown bigint;
    v_plain text[];
    -- Registrations of an agent after an entry, which are looked at for who owned it then. With more of
    -- them the owner of then is not known, and no party: only an index that is far behind meets so many.
    c_later_max CONSTANT integer := 2000;
    c_uuid CONSTANT text := '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$';
BEGIN
    SELECT m.audit_id, h.audit_seq INTO STRICT v_mark, v_newest
    FROM callboard.audit_party_mark m, callboard.head h;
    IF v_mark = v_newest OR v_newest - v_mark > p_behind_max THEN
        RETURN QUERY SELECT v_mark, v_newest;
        RETURN;
    END IF;
    SELECT m.audit_id INTO STRICT v_mark FROM callboard.audit_party_mark m FOR UPDATE;
    SELECT max(id) INTO v_last FROM (
        SELECT a.id, sum(octet_length(a.body)) OVER (ORDER BY a.id) - octet_length(a.body) AS before
        FROM callboard.audit a WHERE a.id > v_mark AND a.id <= v_mark + p_rows_max
    ) sized WHERE before < p_bytes_max;
    SELECT min(a.id) INTO v_unknown FROM callboard.audit a
    WHERE a.id > v_mark AND a.id <= v_last
        AND NOT a.event_types <@ ARRAY(SELECT jsonb_object_keys(p_rules));
    v_last := coalesce(v_unknown - 1, v_last, v_mark);
    IF v_last > v_mark THEN
        v_plain := ARRAY(
            SELECT key FROM jsonb_each(p_rules) WHERE value @> '[["workflow", "$.targetId"]]'
                AND value <@ '[["workflow", "$.targetId"], ["agent", "$.payload.agentDid"]]');
        WITH entry AS MATERIALIZED (
            SELECT a.id, a.actor_did, a.workflow_id, a.event_types <@ v_plain AS is_plain, a.body
            FROM callboard.audit a WHERE a.id > v_mark AND a.id <= v_last
        ), event AS MATERIALIZED (
            -- A NUL cannot be stored as jsonb; no party has one in its name.
            SELECT a.id, e.value AS said
            FROM (
                SELECT id, replace(body, '\u0000', '\u0020')::jsonb AS body
                FROM entry WHERE NOT is_plain
            ) a CROSS JOIN LATERAL jsonb_array_elements(a.body #> '{payload,events}') e
        ), said AS MATERIALIZED (
            SELECT DISTINCT e.id, r.value ->> 0 AS named, v.value #>> '{}' AS value
            FROM event e
            CROSS JOIN LATERAL jsonb_array_elements(p_rules -> (e.said ->> 'type')) r
            CROSS JOIN LATERAL jsonb_path_query(e.said, (r.value ->> 1)::jsonpath) v(value)
            WHERE jsonb_typeof(v.value) = 'string'
        ), disputed AS MATERIALIZED (
            SELECT s.id, d.complainant_did, d.respondent_did, w.payer_did
            FROM said s CROSS JOIN LATERAL (
                SELECT * FROM callboard.dispute
                WHERE id = CASE WHEN s.value ~ c_uuid THEN s.value::uuid END OFFSET 0
            ) d LEFT JOIN LATERAL (
                SELECT payer_did FROM callboard.workflow WHERE id = d.workflow_id OFFSET 0
            ) w ON true
            WHERE s.named = 'dispute'
        ), of_agent AS MATERIALIZED (
            SELECT id, value AS did FROM said WHERE named = 'agent'
            UNION
            SELECT e.id, split_part(m.rest, '"', 1) FROM entry e CROSS JOIN LATERAL
                unnest((string_to_array(e.body, '"agentDid":"'))[2:]) m(rest) WHERE e.is_plain
            UNION
            -- Of the two sides, the one that does not pay the workflow is its agent.
            SELECT d.id, side.did FROM disputed d
            CROSS JOIN LATERAL (VALUES (d.complainant_did), (d.respondent_did)) side(did)
            WHERE d.payer_did IS NOT NULL AND side.did <> d.payer_did
        ), later AS MATERIALIZED (
            SELECT f.did, v.audit_id, v.place
            FROM (SELECT did, min(id) AS first_id FROM of_agent GROUP BY did) f
            CROSS JOIN LATERAL (
                SELECT audit_id, row_number() OVER (ORDER BY audit_id) AS place FROM (
                    -- By its target: of a type there may be very many.
                    SELECT audit_id FROM callboard.audit_event
                    WHERE target_id = f.did AND audit_id > f.first_id
                        AND event_type || '' IN ('agent.inherited', 'agent.registered')
                    ORDER BY audit_id LIMIT c_later_max + 1
                ) found
            ) v
        ), handed_over AS MATERIALIZED (
            SELECT l.did, a.id, coalesce(
                e.value #>> '{payload,formerOwnerDid}', e.value #>> '{payload,yieldedBy}') AS former_did
            FROM later l CROSS JOIN LATERAL (
                SELECT id, body FROM callboard.audit WHERE id = l.audit_id OFFSET 0
            ) a CROSS JOIN LATERAL jsonb_array_elements(
                replace(a.body, '\u0000', '\u0020')::jsonb #> '{payload,events}') e
            WHERE (position('"formerOwnerDid":' IN a.body) > 0 OR position('"yieldedBy":' IN a.body) > 0)
                AND e.value ->> 'targetId' = l.did
        ), party AS (
            SELECT id, actor_did AS did FROM entry
            UNION SELECT e.id, w.payer_did FROM entry e CROSS JOIN LATERAL (
                SELECT payer_did FROM callboard.workflow WHERE id = e.workflow_id OFFSET 0
            ) w WHERE e.is_plain
            UNION SELECT id, value FROM said WHERE named = 'did'
            UNION SELECT id, did FROM of_agent
            UNION SELECT o.id, coalesce((
                    SELECT h.former_did FROM handed_over h
                    WHERE h.did = o.did AND h.id > o.id AND h.former_did IS NOT NULL
                    ORDER BY h.id LIMIT 1
                ), CASE WHEN NOT EXISTS (
                    SELECT 1 FROM later l WHERE l.did = o.did AND l.place > c_later_max
                ) THEN a.owner_did END)
            FROM of_agent o CROSS JOIN LATERAL (
                SELECT owner_did FROM callboard.agent WHERE did = o.did OFFSET 0
            ) a
            UNION SELECT s.id, w.payer_did FROM said s CROSS JOIN LATERAL (
                SELECT payer_did FROM callboard.workflow
                WHERE id = CASE WHEN s.value ~ c_uuid THEN s.value::uuid END OFFSET 0
            ) w WHERE s.named = 'workflow'
            UNION SELECT d.id, side.did FROM disputed d CROSS JOIN LATERAL (
                VALUES (d.complainant_did), (d.respondent_did), (d.payer_did)) side(did)
            UNION SELECT s.id, i.payer_did FROM said s CROSS JOIN LATERAL (
                SELECT payer_did FROM callboard.invoice
                WHERE id = CASE WHEN s.value ~ c_uuid THEN s.value::uuid END OFFSET 0
            ) i WHERE s.named = 'invoice'
        )
        -- Actors that are no DID are parts of the service.
        INSERT INTO callboard.audit_party (party, audit_id)
        SELECT did, id FROM party WHERE did LIKE 'did:%';
        UPDATE callboard.audit_party_mark m SET audit_id = v_last;
    END IF;
    RETURN QUERY SELECT v_last, h.audit_seq FROM callboard.head h;
END $$;
