-- The triggers of 0001 that every batch goes through, with one statement where they had several:
-- starting a statement costs more than what it does for the few rows of a batch. They check the same.

-- Entries: (1) the writer is the current one and ids go on without a gap, (2) every entry belongs to
-- a stored audit entry, (3) both accounts exist and their balances move by the netted amounts.
CREATE OR REPLACE FUNCTION callboard.apply_entries() RETURNS trigger
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
CREATE OR REPLACE FUNCTION callboard.link_audit() RETURNS trigger
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

-- Escrow: terms never change, `released` needs an empty account, and there is no way back.
CREATE OR REPLACE FUNCTION callboard.check_escrow() RETURNS trigger
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
