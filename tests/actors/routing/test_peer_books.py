"""The check of a peer's orders: which orders it reads from a peer that lists only some of them."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import pytest

from actors.routing.peer_books import check_orders
from core.errors import ErrorCode, ServiceError
from core.ids import event_id
from core.timestamps import iso_ms
from ledger.features.peer_money import ENDED_ORDERS

PEER = {"id": "eu", "clearing_did": "did:callboard:clearing-eu"}
START_MS, END_MS = 1_000_000_000, 1_000_100_000


class Books:
    """Attempts that began long before the period and ended in it, each paid with one credit."""

    def __init__(self, orders: int) -> None:
        self.rows_here = [
            {
                "workflow_id": f"w-{number}",
                "node": "n",
                "attempt": 1,
                "outcome": "success",
                "started_ms": START_MS - 10_000_000,
                "completed_ms": START_MS + 1,
                "received_micro": 1_000_000,
            }
            for number in range(orders)
        ]

    async def rows(self, text: Any, _values: Any) -> list[Any]:
        """Return the ended attempts; none is open."""
        return self.rows_here if text is ENDED_ORDERS else []


class Listing:
    """A peer that lists no order of the period, and finds each order by its key."""

    def __init__(self, lacks: frozenset[str] = frozenset()) -> None:
        self.lacks = lacks

    async def get(self, _row: Any, path: str) -> Any:
        """Reply to a query of the workflows."""
        keys = parse_qs(urlsplit(path).query).get("idempotencyKey", [])
        at = iso_ms(START_MS - 10_000_000)
        found = [
            {
                "id": f"there-{key}",
                "intent": f"order {key}",
                "createdAt": at,
                "completedAt": at,
                "spentCredits": 1,
            }
            for key in keys
            if key not in self.lacks
        ]
        return {"workflows": found, "nextCursor": None}


async def check(orders: int, peer: Listing) -> Any:
    given = cast(Any, Books(orders)), cast(Any, peer), cast(Any, PEER)
    return await check_orders(*given, start_ms=START_MS, end_ms=END_MS, now_ms=lambda: END_MS)


async def test_every_order_that_the_period_does_not_list_is_read_by_its_key() -> None:
    compared = await check(250, Listing())
    assert (compared.order_count, compared.differences) == (250, [])


async def test_an_order_that_the_peer_does_not_know_is_a_difference() -> None:
    compared = await check(3, Listing(frozenset({event_id("w-1", "n", 1)})))
    assert [one[0] for one in compared.differences] == [event_id("w-1", "n", 1)]


async def test_more_orders_than_a_check_compares_are_refused() -> None:
    with pytest.raises(ServiceError, match="startTime") as refused:
        await check(10_001, Listing())
    assert refused.value.code is ErrorCode.CONFLICT
