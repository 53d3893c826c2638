"""The money of peers: statements, balances on both sides, and the comparison of both books.

Reference: money.md (Work of peers).
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from actors.routing.peer_client import unusable
from core.errors import ErrorCode, ServiceError
from core.money import credits_number, micro_from_credits
from core.peers.books import OrderHere, OrderThere, compare
from core.records.api.market import CollectRequest
from core.records.api.peers import (
    DIFFERENCES_MAX,
    CheckQuery,
    PeerBalance,
    PeerCheck,
    PeerOrder,
    Settled,
    Statement,
    StatementQuery,
)
from core.timestamps import iso_ms, unix_ms
from core.trust.access import DEPOSIT, FEDERATE
from core.workflow.peer_orders import ORDER_INTENT
from ledger.peers.own_state import read_own_did
from ledger.peers.peer_money import (
    SettlePeer,
    ended_orders,
    open_order_ids,
    order_rows,
    order_sums,
)
from ledger.peers.peer_reads import peer_row
from ledger.reads.reader import RowDict
from serve_app.http.calls import Call, Json, Operations, found, invalid
from serve_app.http.lists import listed, number_after, page_of
from serve_app.operations.views import shown, shown_result

# Orders of each side that a check compares; a page of them is one request to the peer.
_CHECKED_MAX: Final = 10_000
_PAGE: Final = 100
# Between the clocks of both sides, and between the end of an attempt and its commit.
_SKEW_MS: Final = 120_000

log = logging.getLogger("callboard.peers")
OPERATIONS = Operations("federation")


@OPERATIONS.add(
    "GET",
    "/v1/federation/peers/{peer_id}/statement",
    scope=FEDERATE,
    query=StatementQuery,
    reply=Statement,
)
async def statement(call: Call) -> Json:
    """List the orders at a peer that ended in a month, with what was paid for them."""
    query = call.given(StatementQuery)
    page, row = page_of(call, query), await _peer(call)
    month, start_ms, end_ms = _month(call, query.month)
    reader, did = call.services.reader, row["clearing_did"]
    rows = await order_rows(
        reader, did, start_ms, end_ms, limit=page.limit + 1, before_id=number_after(page)
    )
    sums = await order_sums(reader, did, start_ms, end_ms)
    body = listed("orders", rows, page, lambda one: one["id"], form=_order)
    others = {
        "peerId": row["id"],
        "month": month,
        "orderCount": sums["order_count"],
        "paidCredits": credits_number(sums["paid_micro"]),
        "receivedCredits": credits_number(sums["received_micro"]),
    }
    return {**body, **others}


@OPERATIONS.add("GET", "/v1/federation/peers/{peer_id}/balance", scope=FEDERATE, reply=PeerBalance)
async def balance(call: Call) -> Json:
    """Read what the clearing account holds, and what this deployment has at the peer."""
    row, reader = await _peer(call), call.services.reader
    held = await reader.balance(row["clearing_did"])
    own: list[Any] = [None, None]
    try:
        there = await call.services.peer_client.get(row, "/v1/ledger/balance")
        own = [credits_number(micro_from_credits(there[name])) for name in ("balance", "pending")]
    except (ServiceError, KeyError, ValueError) as error:
        log.info("no balance from the peer %s: %s", row["id"], error)
    return {
        "peerId": row["id"],
        "clearingDid": row["clearing_did"],
        "clearingCredits": credits_number(held.balance_micro),
        "ownDid": await read_own_did(reader),
        "ownCredits": own[0],
        "ownPending": own[1],
    }


@OPERATIONS.add(
    "GET",
    "/v1/federation/peers/{peer_id}/check",
    scope=FEDERATE,
    query=CheckQuery,
    reply=PeerCheck,
    errors=(ErrorCode.CONFLICT, ErrorCode.AGENT_UNAVAILABLE),
)
async def check(call: Call) -> Json:
    """Compare the orders of a period with the peer's books, order by order.

    Steps: (1) the attempts that ended here; (2) the orders there of this time, and by their keys
    those that are paid or began before; (3) the attempts that are open here; (4) those that ended
    later, if the peer has other orders. In this order: what is charged there in (2) is open in (3)
    or has ended by then.
    """
    row, reader = await _peer(call), call.services.reader
    start_ms, end_ms = _period(call, call.given(CheckQuery))
    did, until_ms = row["clearing_did"], min(end_ms, call.services.now_ms())
    first_ms = start_ms - _SKEW_MS
    ended = await ended_orders(reader, did, first_ms, until_ms, limit=_CHECKED_MAX + 1)  # 1
    if len(ended) > _CHECKED_MAX:
        raise _too_many()
    times = f"startTime={iso_ms(max(0, first_ms))}&endTime={iso_ms(until_ms + _SKEW_MS)}"
    there = await _orders_there(call, row, times)  # 2
    missing = [
        order_id
        for order_id, one in ended.items()
        if order_id not in there and (one["received_micro"] or one["started_ms"] < first_ms)
    ]
    for order_id in missing[:_PAGE]:
        there |= await _orders_there(call, row, f"idempotencyKey={order_id}")
    open_ids = await open_order_ids(reader, did)  # 3
    if there.keys() - ended.keys() - open_ids:  # 4
        now_ms = call.services.now_ms()
        later = (min(until_ms, now_ms - _SKEW_MS), now_ms + _SKEW_MS)
        ended |= await ended_orders(reader, did, *later, limit=_CHECKED_MAX)
    here = {
        order_id: OrderHere(one["outcome"], one["completed_ms"], one["received_micro"])
        for order_id, one in ended.items()
    }
    compared = compare(here, there, open_ids, start_ms=start_ms, end_ms=until_ms)
    others = {
        "peer_id": row["id"],
        "start_time": iso_ms(start_ms),
        "end_time": iso_ms(end_ms),
        "agrees": not compared.differences,
        "differences": [_difference(*one) for one in compared.differences[:DIFFERENCES_MAX]],
    }
    return shown(PeerCheck, vars(compared), **others)


@OPERATIONS.add(
    "POST",
    "/v1/federation/peers/{peer_id}/settle",
    scope=FEDERATE,
    body=CollectRequest,
    is_body_optional=True,
    reply=Settled,
)
async def settle(call: Call) -> Json:
    """Move credits from a clearing account to the caller's wallet.

    The caller needs `ledger:deposit` too.
    """
    row = await _peer(call)
    call.require(DEPOSIT)
    did, amount_micro = row["clearing_did"], call.given(CollectRequest).amount
    outcome = await call.commit(SettlePeer(clearing_did=did, amount_micro=amount_micro))
    amount = credits_number(outcome.result["amountMicro"])
    others = {"clearing_did": did, "owner_did": call.caller.did, "amount": amount}
    return shown_result(Settled, outcome, **others)


async def _peer(call: Call) -> RowDict:
    """Return a peer, also if it was removed: its account and its orders stay."""
    peer_id = call.path_values["peer_id"]
    row = await peer_row(call.services.reader, peer_id, is_removed_too=True)
    return found(row, f"the peer {peer_id}")


def _order(row: RowDict) -> dict[str, Any]:
    return shown(PeerOrder, row, node_id=row["node"])


def _month(call: Call, asked: str | None) -> tuple[str, int, int]:
    """Return a month, its start and its end, Unix milliseconds."""
    month = asked or datetime.fromtimestamp(call.services.now_ms() / 1_000, UTC).strftime("%Y-%m")
    year, number = map(int, month.split("-"))
    after = (year + 1, 1) if number == 12 else (year, number + 1)
    start, end = datetime(year, number, 1, tzinfo=UTC), datetime(*after, 1, tzinfo=UTC)
    return month, unix_ms(start), unix_ms(end)


def _period(call: Call, query: CheckQuery) -> tuple[int, int]:
    """Return the start and the end of the period of a check, Unix milliseconds.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    start_ms, end_ms = query.start_time, query.end_time
    if start_ms is None and end_ms is None:
        return _month(call, query.month)[1:]
    if start_ms is None or end_ms is None or start_ms >= end_ms or query.month is not None:
        got = f"startTime {start_ms}, endTime {end_ms}, month {query.month}"
        expected = "a month, or a startTime before an endTime (Unix milliseconds)"
        raise invalid("startTime", got, expected)
    return start_ms, end_ms


async def _orders_there(call: Call, row: RowDict, query: str) -> dict[str, OrderThere]:
    """Return the orders at a peer that a query of its workflows finds, by their ids.

    Raises:
        ServiceError: AGENT_UNAVAILABLE, CONFLICT.
    """
    orders: dict[str, OrderThere] = {}
    path = next_path = f"/v1/workflows?limit={_PAGE}&{query}"
    for _ in range(_CHECKED_MAX // _PAGE):
        body = await call.services.peer_client.get(row, next_path)
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


def _difference(order_id: str, here: OrderHere | None, there: OrderThere | None) -> dict[str, Any]:
    return {
        "orderId": order_id,
        "peerWorkflowId": there.workflow_id if there else None,
        "outcome": here.outcome if here else None,
        "chargedCredits": credits_number(there.charged_micro if there else 0),
        "receivedCredits": credits_number(here.received_micro if here else 0),
    }


def _too_many() -> ServiceError:
    detail = (
        f"more than {_CHECKED_MAX} orders in the period:"
        " give a shorter one by startTime and endTime"
    )
    return ServiceError(ErrorCode.CONFLICT, detail)
