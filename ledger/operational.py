"""Leases of calls for rate limits, written by the operational role without audit entries.

The role has no right on audited tables. `synchronous_commit` is off, so a crash may lose the newest
counts. Reference: http.md (Request limits).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sql

from ledger.connections.pools import OperationalPool
from ledger.schema import typed

# The length of a window.
WINDOW_MS: Final = 60_000
# A statement reads the clock before it waits for the row's lock. Meanwhile another statement may
# begin a window that starts later than that time. This is the maximum difference.
_OVERTAKEN_MS = 1_000
# A window begins with its first call. The granted calls are computed while the row is locked, by
# the database's clock, which all replicas share. If that clock is set back by more than
# `_OVERTAKEN_MS`, a new window begins.
_TAKE = sql.text(
    """
    INSERT INTO callboard.rate_lease AS r (principal, class, window_ms, used, granted)
    SELECT :principal, :class, now_ms, least(:wanted, :most), least(:wanted, :most)
    FROM (
        SELECT coalesce(:at_ms, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
    ) AS clock (now_ms)
    ON CONFLICT (principal, class) DO UPDATE SET
        window_ms = CASE WHEN excluded.window_ms BETWEEN r.window_ms - :overtaken_ms
                AND r.window_ms + :length_ms - 1
            THEN r.window_ms ELSE excluded.window_ms END,
        granted = CASE WHEN excluded.window_ms BETWEEN r.window_ms - :overtaken_ms
                AND r.window_ms + :length_ms - 1
            THEN least(:wanted, greatest(:most - r.used, 0)) ELSE least(:wanted, :most) END,
        used = CASE WHEN excluded.window_ms BETWEEN r.window_ms - :overtaken_ms
                AND r.window_ms + :length_ms - 1
            THEN r.used + least(:wanted, greatest(:most - r.used, 0))
            ELSE least(:wanted, :most) END
    RETURNING granted, used, least(:length_ms, window_ms + :length_ms
        - coalesce(:at_ms, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)) AS ends_in_ms
    """
).bindparams(
    sql.bindparam("overtaken_ms", _OVERTAKEN_MS, type_=sql.BigInteger),
    sql.bindparam("length_ms", WINDOW_MS, type_=sql.BigInteger),
    *typed(bigint="at_ms", integer="wanted most"),
)


@dataclass(frozen=True, slots=True)
class RateBlock:
    """A lease of calls. `used`: all calls leased in the window so far. `ends_in_ms`: the time until
    the window ends."""

    calls: int
    used: int
    ends_in_ms: int


class OperationalStore(OperationalPool):
    """Leases calls for rate limits, as the role `ops_writer`."""

    name, is_durable, size = "callboard-operational", False, 2

    async def take_rate_block(
        self,
        principal: str,
        rate_class: str,
        wanted: int,
        limit: int,
        *,
        at_ms: int | None = None,
    ) -> RateBlock:
        """Lease up to `wanted` calls of the principal's current window of a rate class.

        Args:
            limit: maximum calls per window, for all leases together.
            at_ms: the time, Unix milliseconds; None: the database's time.
        """
        values = {
            "principal": principal,
            "class": rate_class,
            "at_ms": at_ms,
            "wanted": wanted,
            "most": limit,
        }
        (row,) = await self.rows(_TAKE, values)
        return RateBlock(calls=row["granted"], used=row["used"], ends_in_ms=row["ends_in_ms"])
