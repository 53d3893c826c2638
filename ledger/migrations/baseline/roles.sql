-- Who may do what. The service's login is a member of three roles and takes one per connection.
-- ledger_writer inserts and cannot rewrite; balances, counters and the chain's head move only inside
-- the triggers. ops_writer has no right on anything audited. What the writer may insert and update
-- is granted with the function that commits its batches (ledger/tables/write_function.py).

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
REVOKE SELECT ON
    callboard.rate_lease, callboard.http_reply, callboard.request_nonce, callboard.readiness,
    callboard.outage
    FROM ledger_reader;

-- agent_live: the writer judges by it whether an agent is silent.
GRANT SELECT ON callboard.compatibility, callboard.head, callboard.agent_live TO ledger_writer;
GRANT UPDATE (epoch, address) ON callboard.head TO ledger_writer;

GRANT SELECT, INSERT, UPDATE, DELETE ON
    callboard.rate_lease, callboard.agent_live, callboard.http_reply, callboard.request_nonce,
    callboard.webhook, callboard.event_delivery, callboard.peer_live, callboard.peer_agent
    TO ops_writer;
GRANT INSERT (hash, bytes) ON callboard.blob TO ops_writer;
GRANT SELECT, UPDATE ON callboard.readiness TO ops_writer;
GRANT SELECT, INSERT ON callboard.outage, callboard.checkpoint TO ops_writer;
GRANT SELECT, INSERT, UPDATE ON callboard.audit_tile TO ops_writer;
GRANT SELECT, INSERT, UPDATE ON callboard.log_position TO ops_writer;

GRANT EXECUTE ON FUNCTION callboard.ready_ms_since(bigint) TO ledger_reader, ledger_writer;
GRANT EXECUTE ON FUNCTION callboard.first_audit_id_since(bigint) TO ledger_reader;
GRANT EXECUTE ON FUNCTION
    callboard.reseal_secrets(text[], bytea[], bytea[]),
    callboard.store_receipts(text, json),
    callboard.due_offers(text[], integer, bigint),
    callboard.store_offers(text[], bigint[], text[], text[], text[], text[], integer)
    TO ops_writer;
