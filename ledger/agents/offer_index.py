"""The index of what agents offer, kept outside the writer: its callers have cards parsed.

The writer only notes which agents have changed. `index_offers`, a function of the database, reads
their cards and stores their words, a bounded number of rows and bytes in one transaction. A search
calls it first, so that what was registered before is found; a replica calls it after a registration
in the background, so that searches seldom have much to do. Decision 0172.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sql

from ledger.connections.pools import OPERATIONAL_TIMEOUT_S, OperationalPool
from ledger.merged_runs import MergedRuns

# One transaction: a tenth of a second of parsing.
ROWS_MAX: Final = 1_000
BYTES_MAX: Final = 1024 * 1024
# A search waits for so many transactions at most; what is due then is found by a later one.
STEPS_MAX: Final = 4
# Offers of one owner that words find, the earlier registered ones.
OWNER_OFFERS_MAX: Final = 20_000

_INDEX: Final = sql.text(
    "SELECT callboard.index_offers(:rows_max, :bytes_max, :owner_max) AS done"
).bindparams(
    sql.bindparam("rows_max", type_=sql.Integer),
    sql.bindparam("bytes_max", type_=sql.BigInteger),
    sql.bindparam("owner_max", type_=sql.Integer),
)


class OfferIndex:
    """Brings the index up to date, on a connection of its own.

    Args:
        url: `postgresql://…` of a login that is a member of `ops_writer`.
        timeout_s: how long a call waits for the connection, and then for the server.
    """

    def __init__(self, url: str, *, timeout_s: float = OPERATIONAL_TIMEOUT_S) -> None:
        self._pool = OperationalPool(
            url, "callboard-offers", size=1, timeout_s=timeout_s, is_durable=False
        )
        self._reads = MergedRuns("reading changed cards", self._index_all)

    def __repr__(self) -> str:
        return f"OfferIndex({self._pool!r})"

    async def close(self) -> None:
        """Close the connection."""
        await self._reads.close()
        await self._pool.close()

    async def catch_up(self) -> None:
        """Read the cards that have changed, up to a bound.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
        """
        for _ in range(STEPS_MAX):
            if not await self.index_some():
                return

    def follow(self) -> None:
        """Read all cards that have changed, in the background."""
        self._reads.soon()

    async def _index_all(self) -> None:
        while await self.index_some():
            pass

    async def index_some(self) -> int:
        """Read some cards that have changed; return how many changes are done.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
        """
        bounds = {"rows_max": ROWS_MAX, "bytes_max": BYTES_MAX, "owner_max": OWNER_OFFERS_MAX}
        (row,) = await self._pool.rows(_INDEX, bounds)
        return int(row["done"])
