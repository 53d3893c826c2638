"""Heartbeats and probes of agents: stored in batches by the operational role, read to select
agents.

Heartbeats and probes are not audited. A crash may lose the newest ones, but new ones arrive within
seconds. All times are from the database's clock, so the clocks of machines need not agree.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

import sqlalchemy as sql

from core.errors import ServiceError
from core.json_text import write_json
from core.market.agent_liveness import HEARTBEAT_TTL_MS, Liveness
from ledger.connections.pools import OperationalPool
from ledger.features.directory import CHANNEL
from ledger.merged_runs import MergedRuns
from ledger.reads.reader import LedgerReader, RowDict
from ledger.schema import agent, typed

# A failed probe is repeated after 30 s; the pause doubles up to 5 min. A successful probe is
# repeated before its result expires.
PROBE_PAUSE_MS: Final = 30_000
PROBE_PAUSE_MS_MAX: Final = 300_000

_NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
# Notifies directories that an agent's health has changed. The notice has its own transaction,
# because commits with a notice wait for each other. With a notice in their transaction, heartbeats
# would wait for the writer's commits, and those wait for the disk and the standby. The timeout is
# short, because owner processes look for changes twice a second anyway.
_NOTICE: Final = sql.text(
    f"SELECT set_config('lock_timeout', '100', true), pg_notify('{CHANNEL}', '')"
)
# Locks the rows before it reads them, so that two replicas agree on the previous values.
_HEARTBEATS: Final = sql.text(
    f"""
    WITH given AS (
        SELECT * FROM json_to_recordset(CAST(:rows AS json)) AS r(
            did text, status text, load double precision, queue_depth integer, version text,
            latency_ms double precision)
    ), before AS MATERIALIZED (
        SELECT b.did, b.status, b.load, b.heartbeat_ms, b.probe_ms, b.probe_ok
        FROM callboard.agent_live b WHERE b.did IN (SELECT did FROM given)
        ORDER BY b.did FOR UPDATE
    ), stored AS (
        INSERT INTO callboard.agent_live AS l (
            did, status, load, queue_depth, version, latency_ms, heartbeat_ms, updated_ms)
        SELECT g.did, g.status, g.load, g.queue_depth, g.version, g.latency_ms, {_NOW}, {_NOW}
        FROM given g LEFT JOIN before b ON b.did = g.did
        ORDER BY g.did
        ON CONFLICT (did) DO UPDATE SET
            status = excluded.status, load = excluded.load,
            queue_depth = coalesce(excluded.queue_depth, l.queue_depth),
            version = coalesce(excluded.version, l.version),
            latency_ms = coalesce(excluded.latency_ms, l.latency_ms),
            heartbeat_ms = excluded.heartbeat_ms, updated_ms = excluded.updated_ms
        RETURNING l.did, l.heartbeat_ms AS at_ms, l.status, l.load
    )
    SELECT s.did, s.at_ms, b.status, b.load, b.heartbeat_ms, b.probe_ms, b.probe_ok,
        b.status IS DISTINCT FROM s.status OR b.load IS DISTINCT FROM s.load AS is_changed
    FROM stored s LEFT JOIN before b ON b.did = s.did
    """
)
_PROBES: Final = sql.text(
    f"""
    INSERT INTO callboard.agent_live AS l (did, probe_ms, probe_ok, probe_failures, updated_ms)
    SELECT did, {_NOW}, is_ok, CASE WHEN is_ok THEN 0 ELSE 1 END, {_NOW}
    FROM json_to_recordset(CAST(:rows AS json)) AS r(did text, is_ok boolean)
    ORDER BY did
    ON CONFLICT (did) DO UPDATE SET
        probe_ms = excluded.probe_ms, probe_ok = excluded.probe_ok,
        probe_failures = CASE WHEN excluded.probe_ok THEN 0
            ELSE least(l.probe_failures + 1, 1000) END,
        updated_ms = excluded.updated_ms
    """
)
# Agents whose heartbeat is overdue, and agents for which an owner process has an open circuit. If
# the card was changed after the newest probe, the agent is due without a pause.
_DUE: Final = sql.text(
    f"""
    SELECT a.did, a.endpoint FROM callboard.agent a
    LEFT JOIN callboard.agent_live l ON l.did = a.did
    WHERE a.status = 'active' AND a.endpoint <> ''
        AND (a.did = ANY (:named) OR l.heartbeat_ms < {_NOW} - :ttl_ms)
        AND a.did <> ALL (:left_alone)
        AND (l.probe_ms IS NULL OR l.probe_ms < a.updated_ms OR l.probe_ms < {_NOW}
            - least(:pause_ms * power(2, least(greatest(l.probe_failures - 1, 0), 10)), :most_ms))
    ORDER BY l.probe_ms NULLS FIRST
    LIMIT :most
    """
).bindparams(*typed(texts="named left_alone", bigint="ttl_ms pause_ms most_ms", integer="most"))


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """An agent's report about itself. `load`: the used share of its capacity, 0 to 1."""

    did: str
    status: str
    load: float | None = None
    queue_depth: int | None = None
    version: str | None = None
    latency_ms: float | None = None


@dataclass(frozen=True, slots=True)
class StoredHeartbeat:
    """The time of a stored heartbeat, by the database's clock. `before`: the agent's health before
    it."""

    at_ms: int
    before: Liveness


class LivenessStore(OperationalPool):
    """Writes heartbeats and probes as the role `ops_writer`."""

    name, is_durable = "callboard-liveness", False

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._notices = MergedRuns("notices of changed health", self._notify)

    async def close(self) -> None:
        """Close all connections."""
        await self._notices.close()
        await super().close()

    async def store_heartbeats(self, heartbeats: Sequence[Heartbeat]) -> list[StoredHeartbeat]:
        """Store a batch in one statement. If an agent has several heartbeats, only the last is
        stored."""
        newest = {heartbeat.did: asdict(heartbeat) for heartbeat in heartbeats}
        rows = await self.rows(_HEARTBEATS, _given(list(newest.values())))
        if any(row["is_changed"] for row in rows):
            self._notices.soon()
        stored = {row["did"]: StoredHeartbeat(row["at_ms"], liveness_of(row)) for row in rows}
        return [stored[heartbeat.did] for heartbeat in heartbeats]

    async def store_probes(self, found: Sequence[tuple[str, bool]]) -> None:
        """Store the results of probes: (DID, whether the agent answered and is healthy)."""
        probes = [{"did": did, "is_ok": is_ok} for did, is_ok in found]
        await self.rows(_PROBES, _given(probes))
        self._notices.soon()

    async def _notify(self) -> None:
        with suppress(ServiceError):
            await self.rows(_NOTICE)


async def agent_claims(reader: LedgerReader, dids: Collection[str]) -> list[RowDict]:
    """Return `did, owner_did, status, token_revision, updated_ms` of these agents."""
    names = ("did", "owner_did", "status", "token_revision", "updated_ms")
    query = sql.select(*(agent.c[name] for name in names))
    return await reader.rows(query.where(agent.c.did.in_(list(dids))))


async def probes_due(
    reader: LedgerReader, named: Collection[str], left_alone: Collection[str] = (), *, limit: int
) -> list[tuple[str, str]]:
    """Return (did, endpoint) of active agents to be probed now, the least recently probed first.

    These are the agents whose heartbeat is overdue, and the agents in `named`.

    Args:
        named: agents for which the circuit of an owner process is open.
        left_alone: agents that are not probed.
        limit: maximum number of agents.
    """
    values = {
        "named": list(named),
        "left_alone": list(left_alone),
        "ttl_ms": HEARTBEAT_TTL_MS,
        "pause_ms": PROBE_PAUSE_MS,
        "most_ms": PROBE_PAUSE_MS_MAX,
        "most": limit,
    }
    return [(row["did"], row["endpoint"]) for row in await reader.rows(_DUE.bindparams(**values))]


def liveness_of(row: Mapping[str, Any]) -> Liveness:
    """Return the health of an agent as stored in a row."""
    return Liveness(
        row["status"], row["load"], row["heartbeat_ms"], row["probe_ms"], row["probe_ok"]
    )


def _given(rows: list[dict[str, Any]]) -> dict[str, str]:
    return {"rows": write_json(rows).decode()}
