-- Operational: the newest heartbeat and the newest probe of each agent. Not audited; no foreign key,
-- because ops_writer may not look at audited tables. Times are of the database's clock.

CREATE TABLE callboard.agent_live (
    did text PRIMARY KEY,
    status text,
    load double precision CHECK (load BETWEEN 0 AND 1),
    queue_depth integer CHECK (queue_depth >= 0),
    version text,
    latency_ms double precision CHECK (latency_ms >= 0),
    heartbeat_ms bigint,
    probe_ms bigint,
    probe_ok boolean,
    probe_failures integer NOT NULL DEFAULT 0 CHECK (probe_failures >= 0),
    updated_ms bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
-- Owners ask once a second what has changed since they last asked.
CREATE INDEX agent_live_updated ON callboard.agent_live (updated_ms);

GRANT SELECT, INSERT, UPDATE, DELETE ON callboard.agent_live TO ops_writer;
GRANT SELECT ON callboard.agent_live TO ledger_reader;
