-- The invariants that no code above can break: append-only tables, the fence, gap-free ids,
-- balances moved by entries alone, the hash link, the life of an escrow.
-- CB001: the writer is fenced off; CB005: what it remembers of ids or the chain is wrong. Both end
-- the writer. Any other refusal is about a command of the batch.
-- They are statement triggers with one statement each: starting a statement costs more than what it
-- does for the few rows of a batch. ENABLE ALWAYS, so that session_replication_role does not switch
-- them off.

CREATE FUNCTION callboard.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'CB002';
END $$;

CREATE FUNCTION callboard.raise_fenced() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (
            SELECT 1 FROM callboard.head
            WHERE epoch = nullif(current_setting('callboard.epoch', true), '')::bigint) THEN
        RAISE EXCEPTION 'ledger writer fenced off' USING ERRCODE = 'CB001';
    END IF;
END $$;

-- Entries: (1) the writer is the current one and ids go on without a gap, (2) every entry belongs to
-- a stored audit entry, (3) both accounts exist and their balances move by the netted amounts.
CREATE FUNCTION callboard.apply_entries() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    is_audited boolean;
    unknown bigint;
BEGIN
    UPDATE callboard.head h SET entry_seq = news.highest  -- (1)
    FROM (
        SELECT min(id) AS lowest, max(id) AS highest, count(*) AS total,
            min(audit_id) AS audit_lowest, max(audit_id) AS audit_highest
        FROM fresh
    ) news
    WHERE h.epoch = nullif(current_setting('callboard.epoch', true), '')::bigint
        AND h.entry_seq = news.lowest - 1 AND news.highest - news.lowest + 1 = news.total
    RETURNING news.audit_lowest >= 1 AND news.audit_highest <= h.audit_seq INTO is_audited;
    IF NOT FOUND THEN
        IF NOT EXISTS (SELECT 1 FROM fresh) THEN
            RETURN NULL;
        END IF;
        PERFORM callboard.raise_fenced();
        RAISE EXCEPTION 'entry ids are not contiguous: got % to %',
            (SELECT min(id) FROM fresh), (SELECT max(id) FROM fresh)
            USING ERRCODE = 'CB005';
    END IF;
    IF NOT is_audited THEN  -- (2) these ids have no gap
        RAISE EXCEPTION 'an entry belongs to no audit entry' USING ERRCODE = 'CB003';
    END IF;
    WITH moved AS MATERIALIZED (  -- (3)
        SELECT leg.account_id, sum(leg.amount)::bigint AS amount
        FROM (
            SELECT debit_account_id AS account_id, -amount AS amount FROM fresh
            UNION ALL
            SELECT credit_account_id, amount FROM fresh
        ) leg
        GROUP BY leg.account_id
    ), touched AS (
        UPDATE callboard.account a SET balance = a.balance + moved.amount
        FROM moved
        WHERE a.id = moved.account_id
        RETURNING a.id
    )
    SELECT (SELECT count(*) FROM moved) - (SELECT count(*) FROM touched) INTO unknown;
    IF unknown <> 0 THEN
        RAISE EXCEPTION 'an entry names an account that does not exist' USING ERRCODE = 'CB003';
    END IF;
    RETURN NULL;
END $$;

-- Audit: the writer is the current one, ids go on without a gap, each body carries the hash before.
CREATE FUNCTION callboard.link_audit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    is_linked boolean;
BEGIN
    UPDATE callboard.head h SET audit_seq = news.highest, hash = news.latest
    FROM (
        SELECT min(id) AS lowest, max(id) AS highest, count(*) AS total,
            (array_agg(hash) FILTER (WHERE is_last))[1] AS latest,
            bool_and(
                position('"prevHash":"sha256:' || encode(before, 'hex') || '"' IN body) > 0
                AND position('"id":' || id || ',' IN body) > 0) AS are_linked
        FROM (
            SELECT f.id, f.body, f.hash, lead(f.id) OVER by_id IS NULL AS is_last,
                lag(f.hash, 1, (SELECT hash FROM callboard.head)) OVER by_id AS before
            FROM fresh f
            WINDOW by_id AS (ORDER BY f.id)
        ) entries
    ) news
    WHERE h.epoch = nullif(current_setting('callboard.epoch', true), '')::bigint
        AND h.audit_seq = news.lowest - 1 AND news.highest - news.lowest + 1 = news.total
    RETURNING news.are_linked INTO is_linked;
    IF NOT FOUND THEN
        IF NOT EXISTS (SELECT 1 FROM fresh) THEN
            RETURN NULL;
        END IF;
        PERFORM callboard.raise_fenced();
        RAISE EXCEPTION 'audit ids are not contiguous: got % to %',
            (SELECT min(id) FROM fresh), (SELECT max(id) FROM fresh)
            USING ERRCODE = 'CB005';
    END IF;
    IF NOT is_linked THEN
        RAISE EXCEPTION 'an audit body does not carry the hash before it' USING ERRCODE = 'CB005';
    END IF;
    RETURN NULL;
END $$;

-- Escrow: its account exists. Accounts are never removed, so one look at the insert says what a
-- foreign key would, once per batch.
CREATE FUNCTION callboard.check_new_escrow() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM fresh f WHERE NOT EXISTS (
            SELECT 1 FROM callboard.account a WHERE a.id = f.account_id)) THEN
        RAISE EXCEPTION 'an escrow names an account that does not exist' USING ERRCODE = 'CB003';
    END IF;
    RETURN NULL;
END $$;

-- Escrow: terms never change, `released` needs an empty account, and there is no way back.
CREATE FUNCTION callboard.check_escrow() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    is_changed boolean;
    is_reopened boolean;
    has_rest boolean;
BEGIN
    SELECT
        bool_or((f.payer_did, f.account_id, f.amount, f.fee_bps)
            IS DISTINCT FROM (p.payer_did, p.account_id, p.amount, p.fee_bps)),
        bool_or(p.status = 'released' AND f.status <> 'released'),
        bool_or(f.status = 'released' AND a.balance <> 0)
    INTO is_changed, is_reopened, has_rest
    FROM past p
    LEFT JOIN fresh f ON f.workflow_id = p.workflow_id
    LEFT JOIN callboard.account a ON a.id = f.account_id;
    IF is_changed THEN
        RAISE EXCEPTION 'the terms of an escrow are immutable' USING ERRCODE = 'CB003';
    END IF;
    IF is_reopened THEN
        RAISE EXCEPTION 'a released escrow stays released' USING ERRCODE = 'CB003';
    END IF;
    IF has_rest THEN
        RAISE EXCEPTION 'an escrow is released when its account is empty' USING ERRCODE = 'CB003';
    END IF;
    RETURN NULL;
END $$;

-- Invoices are never removed and a line stays with its invoice, so one check per statement suffices.
CREATE FUNCTION callboard.check_invoice_lines() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    missing uuid;
BEGIN
    SELECT l.invoice_id INTO missing FROM (SELECT DISTINCT invoice_id FROM fresh) AS l
    WHERE NOT EXISTS (SELECT 1 FROM callboard.invoice i WHERE i.id = l.invoice_id) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'a line of the invoice %, which is not stored', missing
            USING ERRCODE = 'foreign_key_violation';
    END IF;
    RETURN NULL;
END $$;

-- Since when the agent offers each capability, in the order of capability_ids; NULL: since it was
-- registered. What a card leaves out and brings back is offered since it came back. An owner to whom
-- an unproven claim yields offers everything since then; an heir keeps the former owner's times.
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

CREATE TRIGGER apply_entries AFTER INSERT ON callboard.entry
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION callboard.apply_entries();
CREATE TRIGGER link_audit AFTER INSERT ON callboard.audit
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION callboard.link_audit();
CREATE TRIGGER check_new_escrow AFTER INSERT ON callboard.escrow
    REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION callboard.check_new_escrow();
CREATE TRIGGER check_escrow AFTER UPDATE ON callboard.escrow
    REFERENCING OLD TABLE AS past NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION callboard.check_escrow();
CREATE TRIGGER invoice_of_lines AFTER INSERT ON callboard.invoice_line
    REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION callboard.check_invoice_lines();
-- A line that is voided changes none of these columns, so the triggers cost it nothing.
CREATE TRIGGER fixed BEFORE UPDATE OF invoice_id, entry_id, amount_micro ON callboard.invoice_line
    FOR EACH STATEMENT EXECUTE FUNCTION callboard.refuse_change();
CREATE TRIGGER fixed BEFORE UPDATE OF id ON callboard.invoice
    FOR EACH STATEMENT EXECUTE FUNCTION callboard.refuse_change();

DO $$
DECLARE
    name text;
    made record;
BEGIN
    FOREACH name IN ARRAY ARRAY[
        'entry', 'audit', 'audit_event', 'attempt', 'command', 'bid', 'feedback',
        'agent_card', 'submitted_receipt'] LOOP
        EXECUTE format(
            'CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON callboard.%I
             FOR EACH STATEMENT EXECUTE FUNCTION callboard.refuse_change()', name);
    END LOOP;
    FOREACH name IN ARRAY ARRAY[
        'account', 'escrow', 'head', 'stake', 'auction', 'invoice', 'invoice_line', 'dispute',
        'member', 'shard', 'former_key', 'agent_name', 'inheritance', 'guardian_set', 'recovery',
        'capability_line', 'capability_version'] LOOP
        EXECUTE format(
            'CREATE TRIGGER no_removal BEFORE DELETE OR TRUNCATE ON callboard.%I
             FOR EACH STATEMENT EXECUTE FUNCTION callboard.refuse_change()', name);
    END LOOP;
    FOR made IN
        SELECT tgrelid::regclass AS of, tgname FROM pg_trigger
        JOIN pg_class c ON c.oid = tgrelid
        WHERE c.relnamespace = 'callboard'::regnamespace AND NOT tgisinternal
    LOOP
        EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', made.of, made.tgname);
    END LOOP;
END $$;

-- Not ENABLE ALWAYS: it keeps times of offers, and guards nothing.
CREATE TRIGGER agent_offered_since BEFORE UPDATE OF capability_ids, owner_did ON callboard.agent
    FOR EACH ROW WHEN ((NEW.capability_ids, NEW.owner_did) IS DISTINCT FROM
        (OLD.capability_ids, OLD.owner_did))
    EXECUTE FUNCTION callboard.note_offered_since();
