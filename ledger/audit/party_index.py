"""The index of audit entries by party, kept outside the writer: it follows the chain.

`index_parties`, a function of the database, stores the parties of the entries behind a mark and
moves the mark in the same transaction, a bounded number of entries at a time. The timekeeper calls
it about once a second; a read calls it first, so that what was committed before is found. A read
waits for a bounded number of entries, and is refused where the mark is further behind: a list in
which newest entries are missing would be taken for the whole. Reference: money.md (Audit chain).
Decision audit-chain.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple

import sqlalchemy as sql

from core.errors import ErrorCode, ServiceError
from core.records.audit_parties import party_rules_json
from ledger.connections.pools import OPERATIONAL_TIMEOUT_S, OperationalPool
from ledger.step_rows import StepRows

log = logging.getLogger("callboard.ledger")

# Entries in one transaction, and bytes of their bodies: 20 ms of work where they are as usual.
ROWS_MAX: Final = 500
BYTES_MAX: Final = 2 * 1024 * 1024
# The server ends a step that takes longer. Shorter than a caller waits, so that the work ends too.
STEP_TIMEOUT_MS: Final = 2_000
# A read waits for so many steps at most.
STEPS_MAX: Final = 4
BEHIND_MAX: Final = STEPS_MAX * ROWS_MAX
FOLLOW_PAUSE_S: Final = 1.0
# By which a caller is told when to come again.
_ROWS_PER_S: Final = 10_000
_RETRY_AFTER_S_MAX: Final = 60
# Later than any entry.
NEWEST: Final = 2**62

_INDEX: Final = sql.text(
    "SELECT indexed_to, newest"
    " FROM callboard.index_parties(CAST(:rules AS jsonb), :rows_max, :bytes_max, :behind_max)"
).bindparams(
    sql.bindparam("rules", party_rules_json(), type_=sql.Text),
    sql.bindparam("rows_max", type_=sql.Integer),
    sql.bindparam("bytes_max", BYTES_MAX, type_=sql.BigInteger),
    sql.bindparam("behind_max", type_=sql.BigInteger),
)


class Indexed(NamedTuple):
    """Up to which entry parties are known, and the newest entry."""

    to: int
    newest: int


class PartyIndex:
    """Brings the index up to date, on a connection of its own.

    Args:
        url: `postgresql://…` of a login that is a member of `ops_writer`.
        timeout_s: how long a call waits for the connection, and then for a silent server.
        step_timeout_ms: how long the server works on one transaction.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = OPERATIONAL_TIMEOUT_S,
        step_timeout_ms: int = STEP_TIMEOUT_MS,
    ) -> None:
        self._pool = OperationalPool(
            url,
            "callboard-parties",
            size=1,
            timeout_s=timeout_s,
            is_durable=False,
            statement_timeout_ms=step_timeout_ms,
        )
        self._rows = StepRows()

    def __repr__(self) -> str:
        return f"PartyIndex({self._pool!r})"

    async def close(self) -> None:
        """Close the connection."""
        await self._pool.close()

    async def follow(self) -> None:
        """Index what is committed until cancelled."""
        while True:
            try:
                await self._index_all()
            except ServiceError as error:
                log.warning(
                    "parties not indexed error=%r next rows=%d", error, self._rows.of(ROWS_MAX)
                )
            except Exception:  # the edge of the loop: a failed round must not end it
                log.exception("parties not indexed")
            await asyncio.sleep(FOLLOW_PAUSE_S)

    async def _index_all(self) -> None:
        before = -1
        indexed = await self.index_some()
        # It stands still before an entry of a type that only newer code knows.
        while before < indexed.to < indexed.newest:
            before = indexed.to
            indexed = await self.index_some()

    async def catch_up(self, audit_id: int = NEWEST) -> int:
        """Index what a reader asks for; return up to which entry parties are known.

        Args:
            audit_id: the newest entry that the reader asks for; left out, all that are committed.

        Raises:
            ServiceError: OVERLOADED, the index is further behind; LEDGER_UNAVAILABLE.
        """
        indexed = await self.index_some(behind_max=BEHIND_MAX)
        wanted = min(audit_id, indexed.newest)
        for _ in range(1, STEPS_MAX):
            if indexed.to >= wanted:
                break
            indexed = await self.index_some(behind_max=BEHIND_MAX)
        if indexed.to < wanted:
            behind = wanted - indexed.to
            raise ServiceError(
                ErrorCode.OVERLOADED,
                f"the parties of the newest {behind} audit entries are not indexed yet: repeat the"
                " request",
                retry_after_s=min(1 + behind // _ROWS_PER_S, _RETRY_AFTER_S_MAX),
            )
        return indexed.to

    async def index_some(self, *, behind_max: int = NEWEST) -> Indexed:
        """Index the next entries, up to a bound, none where more than so many are behind the mark.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE; OVERLOADED, the step took too long.
        """
        values = {"rows_max": self._rows.of(ROWS_MAX), "behind_max": behind_max}
        try:
            (row,) = await self._pool.rows(_INDEX, values)
        except ServiceError:
            self._rows.note_failed(ROWS_MAX)
            raise
        self._rows.note_done()
        return Indexed(row["indexed_to"], row["newest"])
