-- The invariants that no code above can break: append-only tables, the fence, gap-free ids,
-- balances moved by entries alone, the hash link, the life of an escrow.
-- CB001: the writer is fenced off; CB005: what it remembers of ids or the chain is wrong. Both end
-- it. Any other refusal is about a command of the batch.
-- All are statement triggers: their cost is per batch, not per row. ENABLE ALWAYS, so that
-- session_replication_role does not switch them off.

CREATE FUNCTION callboard.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'CB002';
END $$;

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY[
        'entry', 'audit', 'audit_event', 'attempt', 'command', 'bid', 'feedback'] LOOP
        EXECUTE format(
            'CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON callboard.%I
             FOR EACH STATEMENT EXECUTE FUNCTION callboard.refuse_change()', name);
        EXECUTE format('ALTER TABLE callboard.%I ENABLE ALWAYS TRIGGER append_only', name);
    END LOOP;
    FOREACH name IN ARRAY ARRAY[
        'account', 'escrow', 'head', 'stake', 'auction', 'invoice', 'invoice_line', 'dispute'] LOOP
        EXECUTE format(
            'CREATE TRIGGER no_removal BEFORE DELETE OR TRUNCATE ON callboard.%I
             FOR EACH STATEMENT EXECUTE FUNCTION callboard.refuse_change()', name);
        EXECUTE format('ALTER TABLE callboard.%I ENABLE ALWAYS TRIGGER no_removal', name);
    END LOOP;
END $$;

-- Entries: (1) the writer is the current one and ids go on without a gap, (2) every entry belongs to
-- a stored audit entry, (3) both accounts exist and their balances move by the netted amounts.
CREATE FUNCTION callboard.apply_entries() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    lowest bigint;
    highest bigint;
    total bigint;
    touched bigint;
    audit_lowest bigint;
    audit_highest bigint;
    audited bigint;
BEGIN
    SELECT min(id), max(id), count(*), min(audit_id), max(audit_id)
    INTO lowest, highest, total, audit_lowest, audit_highest FROM fresh;
    IF total = 0 THEN
        RETURN NULL;
    END IF;
    UPDATE callboard.head SET entry_seq = highest  -- (1)
    WHERE epoch = nullif(current_setting('callboard.epoch', true), '')::bigint
        AND entry_seq = lowest - 1 AND highest - lowest + 1 = total
    RETURNING audit_seq INTO audited;
    IF NOT FOUND THEN
        PERFORM callboard.raise_fenced();
        RAISE EXCEPTION 'entry ids are not contiguous: got % to %', lowest, highest
            USING ERRCODE = 'CB005';
    END IF;
    IF audit_lowest < 1 OR audit_highest > audited THEN  -- (2) these ids have no gap
        RAISE EXCEPTION 'an entry belongs to no audit entry' USING ERRCODE = 'CB003';
    END IF;
    UPDATE callboard.account a SET balance = a.balance + moved.amount  -- (3)
    FROM (
        SELECT leg.account_id, sum(leg.amount)::bigint AS amount
        FROM (
            SELECT debit_account_id AS account_id, -amount AS amount FROM fresh
            UNION ALL
            SELECT credit_account_id, amount FROM fresh
        ) leg
        GROUP BY leg.account_id
    ) moved
    WHERE a.id = moved.account_id;
    GET DIAGNOSTICS touched = ROW_COUNT;
    IF touched <> (SELECT count(*) FROM (
            SELECT debit_account_id FROM fresh UNION SELECT credit_account_id FROM fresh) d) THEN
        RAISE EXCEPTION 'an entry names an account that does not exist' USING ERRCODE = 'CB003';
    END IF;
    RETURN NULL;
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

-- Audit: the writer is the current one, ids go on without a gap, each body carries the hash before.
CREATE FUNCTION callboard.link_audit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    lowest bigint;
    highest bigint;
    total bigint;
    before bytea;
    latest bytea;
BEGIN
    SELECT min(id), max(id), count(*) INTO lowest, highest, total FROM fresh;
    IF total = 0 THEN
        RETURN NULL;
    END IF;
    SELECT hash INTO before FROM callboard.head;
    SELECT hash INTO latest FROM fresh WHERE id = highest;
    UPDATE callboard.head SET audit_seq = highest, hash = latest
    WHERE epoch = nullif(current_setting('callboard.epoch', true), '')::bigint
        AND audit_seq = lowest - 1 AND highest - lowest + 1 = total;
    IF NOT FOUND THEN
        PERFORM callboard.raise_fenced();
        RAISE EXCEPTION 'audit ids are not contiguous: got % to %', lowest, highest
            USING ERRCODE = 'CB005';
    END IF;
    IF EXISTS (
            SELECT 1 FROM (
                SELECT id, body, lag(hash, 1, before) OVER (ORDER BY id) AS prev_hash FROM fresh
            ) linked
            WHERE position(
                    '"prevHash":"sha256:' || encode(prev_hash, 'hex') || '"' IN body) = 0
                OR position('"id":' || id || ',' IN body) = 0) THEN
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

-- Terms never change, `released` needs an empty account, and there is no way back.
CREATE FUNCTION callboard.check_escrow() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (
            SELECT 1 FROM past p LEFT JOIN fresh f ON f.workflow_id = p.workflow_id
            WHERE (f.payer_did, f.account_id, f.amount, f.fee_bps)
                IS DISTINCT FROM (p.payer_did, p.account_id, p.amount, p.fee_bps)) THEN
        RAISE EXCEPTION 'the terms of an escrow are immutable' USING ERRCODE = 'CB003';
    END IF;
    IF EXISTS (
            SELECT 1 FROM past p JOIN fresh f ON f.workflow_id = p.workflow_id
            WHERE p.status = 'released' AND f.status <> 'released') THEN
        RAISE EXCEPTION 'a released escrow stays released' USING ERRCODE = 'CB003';
    END IF;
    IF EXISTS (
            SELECT 1 FROM fresh f JOIN callboard.account a ON a.id = f.account_id
            WHERE f.status = 'released' AND a.balance <> 0) THEN
        RAISE EXCEPTION 'an escrow is released when its account is empty' USING ERRCODE = 'CB003';
    END IF;
    RETURN NULL;
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
ALTER TABLE callboard.entry ENABLE ALWAYS TRIGGER apply_entries;
ALTER TABLE callboard.audit ENABLE ALWAYS TRIGGER link_audit;
ALTER TABLE callboard.escrow ENABLE ALWAYS TRIGGER check_new_escrow;
ALTER TABLE callboard.escrow ENABLE ALWAYS TRIGGER check_escrow;
