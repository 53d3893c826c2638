"""Measures the time in which the service was ready: a clock that stops while it was not usable.

One row has the time at which the service was last noted as ready. If two notes are more than
`PAUSE_MS_MAX` apart, the time between them is stored as an outage and does not count. The database
function `ready_ms_since` measures with these rows. All times are from the database's clock. The
timekeeper writes them as the operational role. Decision agent-identity.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sql

from ledger.connections.pools import OperationalPool

# Longer than it takes to replace a timekeeper (to detect its end, and to start another).
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
