-- The open attempt's promise, whether its agent has the payer's owner, and how the node's end counts.
ALTER TABLE callboard.node
    ADD COLUMN promised_ms bigint NOT NULL DEFAULT 10000 CHECK (promised_ms >= 0),
    ADD COLUMN is_own boolean NOT NULL DEFAULT false,
    ADD COLUMN counts_as text CHECK (
        counts_as IN ('successful', 'failed', 'cancelled'));
-- Of the outcomes, those of nodes with a price above 0.
ALTER TABLE callboard.reputation
    ADD COLUMN paid_successful bigint NOT NULL DEFAULT 0 CHECK (paid_successful BETWEEN 0 AND successful),
    ADD COLUMN paid_failed bigint NOT NULL DEFAULT 0 CHECK (paid_failed BETWEEN 0 AND failed),
    ADD COLUMN paid_cancelled bigint NOT NULL DEFAULT 0 CHECK (paid_cancelled BETWEEN 0 AND cancelled),
    ADD COLUMN paid_latency_ms_sum bigint NOT NULL DEFAULT 0
        CHECK (paid_latency_ms_sum BETWEEN 0 AND latency_ms_sum);
-- An administrator registered it: it may verify where the payer names no verifier.
ALTER TABLE callboard.agent ADD COLUMN is_trusted boolean NOT NULL DEFAULT false;
-- Locked of the bidder's stake until the round is closed.
ALTER TABLE callboard.bid
    ADD COLUMN stake_locked_micro bigint NOT NULL DEFAULT 0 CHECK (stake_locked_micro >= 0);
-- Since when the agent offers each capability, in the order of capability_ids; NULL: since it was
-- registered. What a card leaves out and brings back is offered since it came back. An owner to whom
-- an unproven claim yields offers everything since then; an heir keeps the former owner's times.
ALTER TABLE callboard.agent ADD COLUMN offered_since_ms bigint[];
CREATE FUNCTION callboard.note_offered_since() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.offered_since_ms := ARRAY(
        SELECT CASE WHEN former.place IS NULL
            OR NEW.owner_did <> OLD.owner_did AND NEW.inherited_from_did IS NULL THEN NEW.updated_ms
            ELSE coalesce(OLD.offered_since_ms[former.place], OLD.registered_ms) END
        FROM unnest(NEW.capability_ids) WITH ORDINALITY offered(id, place)
        CROSS JOIN LATERAL (SELECT array_position(OLD.capability_ids, offered.id)) former(place)
        ORDER BY offered.place);
    RETURN NEW;
END $$;
CREATE TRIGGER agent_offered_since BEFORE UPDATE OF capability_ids, owner_did ON callboard.agent
    FOR EACH ROW WHEN ((NEW.capability_ids, NEW.owner_did) IS DISTINCT FROM
        (OLD.capability_ids, OLD.owner_did))
    EXECUTE FUNCTION callboard.note_offered_since();
-- An administrator assigned the line: nobody takes it over.
ALTER TABLE callboard.capability_line ADD COLUMN is_assigned boolean NOT NULL DEFAULT false;
