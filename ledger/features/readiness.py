"""When the service was ready: a clock that stands while no caller could have used it.

One row says until when the service was last seen ready, and each gap before it is a row: what lies
between two notes further apart than `PAUSE_MS_MAX` does not count. The function `ready_ms_since` of
the database measures with it. All times are the database's. Written by the timekeeper, as the
operational role. Decision agent-identity.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sql

from ledger.connections.pools import OperationalPool

# Longer than a timekeeper takes to be replaced (its silence, and its start).
PAUSE_MS_MAX: Final = 60_000

_NOTE: Final = sql.text(
    """
    WITH seen AS (
        SELECT seen_ms, (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms
        FROM callboard.readiness FOR UPDATE
    ), gap AS (
        INSERT INTO callboard.outage (start_ms, end_ms)
        SELECT seen_ms, now_ms FROM seen WHERE now_ms - seen_ms > :pause_ms
    )
    UPDATE callboard.readiness AS r SET seen_ms = greatest(r.seen_ms, seen.now_ms)
    FROM seen RETURNING r.seen_ms
    """
).bindparams(sql.bindparam("pause_ms", type_=sql.BigInteger))


class ReadinessStore(OperationalPool):
    """Notes that the service is ready."""

    name, is_durable = "callboard-readiness", False

    async def note_ready(self) -> None:
        """Note that the service is ready now.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
        """
        await self.rows(_NOTE, {"pause_ms": PAUSE_MS_MAX})
