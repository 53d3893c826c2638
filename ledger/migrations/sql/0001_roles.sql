-- Who may do what. The service's login is a member of three roles and takes one per connection.
-- ledger_writer inserts and cannot rewrite; balances, counters and the chain's head move only inside
-- the triggers. ops_writer has no right on anything audited.

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['ledger_writer', 'ledger_reader', 'ops_writer'] LOOP
        IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = name) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', name);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL;  -- another database of this server is being migrated at the same time
            END;
        END IF;
        IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'callboard_service')
                AND NOT pg_has_role('callboard_service', name, 'MEMBER') THEN
            EXECUTE format('GRANT %I TO callboard_service', name);
        END IF;
    END LOOP;
END $$;

REVOKE ALL ON SCHEMA callboard FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA callboard FROM PUBLIC;
GRANT USAGE ON SCHEMA callboard TO ledger_writer, ledger_reader, ops_writer;

GRANT SELECT ON ALL TABLES IN SCHEMA callboard TO ledger_reader;
GRANT EXECUTE ON FUNCTION callboard.offered_words(text) TO ledger_reader;
REVOKE SELECT ON callboard.rate_lease FROM ledger_reader;

GRANT SELECT ON
    callboard.compatibility, callboard.head, callboard.account, callboard.command, callboard.entry, callboard.escrow,
    callboard.audit, callboard.audit_event, callboard.workflow, callboard.node, callboard.attempt, callboard.owner,
    callboard.agent, callboard.api_key, callboard.revocation
    TO ledger_writer;
GRANT UPDATE (epoch) ON callboard.head TO ledger_writer;
-- No balance column: an account starts empty.
GRANT INSERT (id, address, owner_did, kind, created_ms) ON callboard.account TO ledger_writer;
GRANT INSERT ON
    callboard.command, callboard.entry, callboard.escrow, callboard.audit, callboard.audit_event,
    callboard.workflow, callboard.node, callboard.attempt, callboard.owner, callboard.agent, callboard.api_key,
    callboard.revocation
    TO ledger_writer;
GRANT UPDATE (status, released_ms) ON callboard.escrow TO ledger_writer;
GRANT UPDATE (
    status, owner, started_ms, completed_ms, spent_micro, error, end_reason, end_details,
    ended_by_did, is_halted, quarantined_ms, quarantine_code) ON callboard.workflow TO ledger_writer;
GRANT UPDATE ON callboard.node, callboard.owner, callboard.agent, callboard.revocation
    TO ledger_writer;
GRANT UPDATE (revoked_ms) ON callboard.api_key TO ledger_writer;
GRANT EXECUTE ON FUNCTION callboard.commit_batch(
    bigint, json, json, json, json, json, json, json, json, text, json, uuid[], json, json, json,
    bigint),
    callboard.commit_registry(json, bigint), callboard.commit_market(json, bigint),
    callboard.commit_reputation(json, bigint) TO ledger_writer;

GRANT SELECT, INSERT ON
    callboard.capability_price, callboard.stake, callboard.stake_share, callboard.reputation,
    callboard.auction,
    callboard.bid, callboard.quota, callboard.invoice, callboard.invoice_line, callboard.dispute,
    callboard.feedback
    TO ledger_writer;
GRANT UPDATE ON callboard.capability_price, callboard.reputation, callboard.quota TO ledger_writer;
GRANT UPDATE (updated_ms) ON callboard.stake TO ledger_writer;
GRANT UPDATE (micro) ON callboard.stake_share TO ledger_writer;
GRANT UPDATE (status, winner_did, price_micro, excluded, closed_ms) ON callboard.auction
    TO ledger_writer;
GRANT UPDATE (status, settled_ms, settled_by_did) ON callboard.invoice TO ledger_writer;
GRANT UPDATE (is_void) ON callboard.invoice_line TO ledger_writer;
GRANT UPDATE (
    status, resolution, refund_asked_micro, refunded_micro, short_micro, resolved_ms,
    resolved_by_did) ON callboard.dispute TO ledger_writer;

GRANT SELECT, INSERT, UPDATE, DELETE ON callboard.rate_lease, callboard.agent_live TO ops_writer;
GRANT INSERT (hash, bytes) ON callboard.blob TO ops_writer;
