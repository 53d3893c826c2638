"""Compares the orders of this deployment at a peer with the peer's books.

`core/peers/books.py` compares; this file reads both sides. Reference: money.md (Work of peers).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Final
from urllib.parse import quote

from actors.routing.peer_client import PeerClient, unusable
from core.errors import ErrorCode, ServiceError
from core.money import micro_from_credits
from core.peers.books import Comparison, OrderHere, OrderThere, compare
from core.timestamps import iso_ms, unix_ms
from core.workflow.peer_orders import ORDER_INTENT
from ledger.features.peer_money import ended_orders, open_order_ids
from ledger.reads.reader import LedgerReader, RowDict

# The most orders of each side that a check compares.
_CHECKED_MAX: Final = 10_000
# The orders that one request to the peer returns.
_PAGE: Final = 100
# The most orders that are read by their keys, one request each.
_MISSING_MAX: Final = 2_000
_MISSING_S: Final = 60.0
# The orders that are read by their keys at the same time.
_READ_AT_ONCE: Final = 20
# The largest expected difference between the clocks of both sides, and between the end of an
# attempt and its commit.
_SKEW_MS: Final = 120_000


async def check_orders(
    reader: LedgerReader,
    client: PeerClient,
    row: RowDict,
    *,
    start_ms: int,
    end_ms: int,
    now_ms: Callable[[], int],
) -> Comparison:
    """Compare the orders of a period with the peer's books, order by order.

    1. Read the attempts that ended here in the period.
    2. Read the peer's orders of the period. Read missing orders by their keys if they were paid
       here or began before the period.
    3. Read the attempts that are open here.
    4. If the peer has further orders, read the attempts that ended here later.

    The order matters: an order that the peer has charged in step 2 is open in step 3, or has ended
    by then.

    Args:
        row: the peer's row.
        start_ms, end_ms: the period, Unix milliseconds; `end_ms` is excluded.
        now_ms: returns the Unix time, milliseconds.

    Raises:
        ServiceError: AGENT_UNAVAILABLE: the peer gives no usable reply. CONFLICT: too many orders.
    """
    did, first_ms = row["clearing_did"], start_ms - _SKEW_MS
    ended = await ended_orders(reader, did, first_ms, end_ms, limit=_CHECKED_MAX + 1)  # 1
    if len(ended) > _CHECKED_MAX:
        raise _too_many()
    times = f"startTime={iso_ms(max(0, first_ms))}&endTime={iso_ms(end_ms + _SKEW_MS)}"
    there = await _orders_there(client, row, times)  # 2
    missing = [
        f"idempotencyKey={order_id}"
        for order_id, one in ended.items()
        if order_id not in there and (one["received_micro"] or one["started_ms"] < first_ms)
    ]
    if len(missing) > _MISSING_MAX:
        raise _too_many(_MISSING_MAX, " that the peer does not list")
    try:
        async with asyncio.timeout(_MISSING_S):
            for at in range(0, len(missing), _READ_AT_ONCE):
                queries = missing[at : at + _READ_AT_ONCE]
                reads = (_orders_there(client, row, query) for query in queries)
                for found in await asyncio.gather(*reads):
                    there |= found
    except TimeoutError:
        raise unusable(row, f"{len(missing)} orders not read in {_MISSING_S:.0f} s") from None
    open_ids = await open_order_ids(reader, did)  # 3
    if there.keys() - ended.keys() - open_ids:  # 4
        later = (min(end_ms, now_ms() - _SKEW_MS), now_ms() + _SKEW_MS)
        ended |= await ended_orders(reader, did, *later, limit=_CHECKED_MAX)
    here = {
        order_id: OrderHere(one["outcome"], one["completed_ms"], one["received_micro"])
        for order_id, one in ended.items()
    }
    return compare(here, there, open_ids, start_ms=start_ms, end_ms=end_ms)


async def _orders_there(client: PeerClient, row: RowDict, query: str) -> dict[str, OrderThere]:
    """Return the orders that a query (URL-encoded) of the peer's workflows finds, by their ids."""
    orders: dict[str, OrderThere] = {}
    path = next_path = f"/v1/workflows?limit={_PAGE}&{query}"
    for _ in range(_CHECKED_MAX // _PAGE):
        body = await client.get(row, next_path)
        try:
            for one in body["workflows"]:
                intent = str(one["intent"])
                if intent.startswith(ORDER_INTENT):
                    orders[intent.removeprefix(ORDER_INTENT)] = OrderThere(
                        workflow_id=str(one["id"]),
                        created_ms=unix_ms(datetime.fromisoformat(one["createdAt"])),
                        is_ended=one["completedAt"] is not None,
                        charged_micro=micro_from_credits(one["spentCredits"] or 0),
                    )
            if body["nextCursor"] is None:
                return orders
            next_path = f"{path}&cursor={quote(body['nextCursor'])}"
        except (KeyError, TypeError, ValueError) as error:
            raise unusable(row, repr(error)) from None
    raise _too_many()


def _too_many(most: int = _CHECKED_MAX, which: str = "") -> ServiceError:
    detail = (
        f"more than {most} orders in the period{which}:"
        " set a shorter period with startTime and endTime"
    )
    return ServiceError(ErrorCode.CONFLICT, detail)
