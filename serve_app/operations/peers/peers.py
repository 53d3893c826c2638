"""Peers: add and remove them, take heartbeats, show routes, trust events, statements and balances.

Reference: features.md (Peers, Routing between regions); money.md (Work of peers).
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from actors.routing.peer_client import unusable
from actors.routing.peer_heartbeats import HEARTBEAT_PATH, own_heartbeat, take_signed_heartbeat
from core.errors import ErrorCode, ServiceError
from core.money import credits_number, micro_from_credits
from core.peers.books import OrderHere, OrderThere, compare
from core.peers.documents import (
    DEPLOYMENT_DID,
    HEARTBEAT_BYTES_MAX,
    check_heartbeat_bounds,
    deployment_did,
    signed,
)
from core.peers.routing import peer_routes
from core.records.api.market import CollectRequest
from core.records.api.peers import (
    DIFFERENCES_MAX,
    CheckQuery,
    Peer,
    PeerAdded,
    PeerBalance,
    PeerCheck,
    PeerHeartbeat,
    PeerHeartbeatTaken,
    PeerOrder,
    PeerPage,
    PeerRequest,
    PeersQuery,
    RouteQuery,
    RouteResult,
    Settled,
    Statement,
    StatementQuery,
    TrustEventsQuery,
    TrustPage,
)
from core.records.api.record import Removed
from core.timestamps import iso_ms, unix_ms
from core.trust.access import DEPOSIT, FEDERATE, READ_TRUST
from core.trust.signatures import key_bytes
from core.workflow.peer_orders import ORDER_INTENT
from ledger.features.own_state import read_own_did, read_own_identity, read_trust_events
from ledger.features.peer_money import (
    SettlePeer,
    ended_orders,
    open_order_ids,
    order_rows,
    order_sums,
)
from ledger.features.peers import AddPeer, RemovePeer, known_peer, peer_page, peer_row
from ledger.reads.reader import RowDict
from serve_app.callers.limits import RateClass
from serve_app.http.calls import Call, Json, Operations, found, invalid, not_found
from serve_app.http.lists import listed, number_after, page_of
from serve_app.operations.agents.endpoints import endpoint_refusals
from serve_app.operations.views import iso_time, shown, shown_result

OPERATIONS = Operations("federation")


@OPERATIONS.add(
    "POST",
    "/v1/federation/peers",
    scope=FEDERATE,
    body=PeerRequest,
    reply=PeerAdded,
    errors=(ErrorCode.POLICY_DENIED, ErrorCode.QUOTA_EXCEEDED),
)
async def add(call: Call) -> Json:
    """Add a peer.

    The peer gets work after it has sent a heartbeat that is signed with its key. The peer's
    operator must also add this deployment as a peer.
    """
    body = call.given(PeerRequest)
    public_key = body.public_key.removeprefix("ed25519:")
    try:
        key_bytes(public_key)
    except ValueError:
        raise invalid("publicKey", body.public_key[:100], "base64 of 32 bytes") from None
    did = body.did or deployment_did(public_key)
    peer_id = body.peer_id or did.removeprefix(DEPLOYMENT_DID)
    allowed = body.capabilities
    (refusal,) = await endpoint_refusals(call.services, call.caller, [body.endpoint])
    if refusal is not None:
        raise refusal
    command = AddPeer(
        peer_id=peer_id,
        did=did,
        endpoint=body.endpoint,
        region=body.region,
        public_key=public_key,
        capabilities=None if allowed is None else tuple(allowed),
    )
    await call.commit(command, until_known=True)
    return _record(PeerAdded, await _peer(call, peer_id), success=True)


@OPERATIONS.add("GET", "/v1/federation/peers", query=PeersQuery, reply=PeerPage)
async def list_peers(call: Call) -> Json:
    """List peers, ordered by id."""
    query = call.given(PeersQuery)
    page = page_of(call, query)
    rows = await peer_page(call.services.reader, query.region, after_id=page.after, **page.rows)
    form = partial(_record, Peer)
    return listed("peers", rows, page, lambda row: row["id"], form=form)


@OPERATIONS.add("GET", "/v1/federation/peers/{peer_id}", reply=Peer)
async def get(call: Call) -> Json:
    """Read a peer."""
    return _record(Peer, await _peer(call, call.path_values["peer_id"]))


@OPERATIONS.add("DELETE", "/v1/federation/peers/{peer_id}", scope=FEDERATE, reply=Removed)
async def remove(call: Call) -> Json:
    """Remove a peer.

    A removed peer gets no more work, and its requests are refused. Its clearing account and its
    statements remain.
    """
    peer_id = call.path_values["peer_id"]
    outcome = await call.commit(RemovePeer(peer_id=peer_id), until_known=True)
    return shown_result(Removed, outcome)


@OPERATIONS.add(
    "POST",
    HEARTBEAT_PATH,
    scope=None,
    rate=RateClass.MACHINE,
    body=PeerHeartbeat,
    reply=PeerHeartbeatTaken,
    errors=(
        ErrorCode.INVALID_SIGNATURE,
        ErrorCode.INSUFFICIENT_SCOPE,
        ErrorCode.NOT_FOUND,
        ErrorCode.CONFLICT,
    ),
)
async def take_heartbeat(call: Call) -> Json:
    """Store a heartbeat of a peer.

    A signed heartbeat needs no credential: the signature is checked, and the reply has the signed
    heartbeat of this deployment. For an unsigned heartbeat the caller needs `federation:admin`.
    """
    if len(call.body) > HEARTBEAT_BYTES_MAX:
        detail = f"got {len(call.body)} bytes, expected at most {HEARTBEAT_BYTES_MAX}"
        raise ServiceError(ErrorCode.PAYLOAD_TOO_LARGE, detail)
    heartbeat, services = call.given(PeerHeartbeat), call.services
    reader, store = services.reader, services.peer_store
    if heartbeat.signature is None:
        call.require(FEDERATE)
        check_heartbeat_bounds(heartbeat)
        if heartbeat.peer_id is None:
            raise invalid("peerId", "nothing", "the id of the peer, because nothing is signed")
        row = await _peer(call, heartbeat.peer_id)
        await store.store_heartbeat(row["id"], heartbeat, key=None)
        return {"success": True, "id": row["id"]}
    now_ms = services.now_ms()
    commit = services.gateway.commit
    document = call.object_body()
    outcome = "refused"
    try:
        peer_id = await take_signed_heartbeat(
            document, heartbeat, reader, store, commit, now_ms=now_ms
        )
        outcome = "taken"
    finally:
        services.counters["callboard_peer_heartbeats", outcome] += 1
    own = await own_heartbeat(services.own_state, reader, services.settings, now_ms=now_ms)
    return {"success": True, "id": peer_id, "heartbeat": own}


@OPERATIONS.add("GET", "/v1/federation/route/{capability_id}", query=RouteQuery, reply=RouteResult)
async def route(call: Call) -> Json:
    """Read which peer gets work of a capability first."""
    capability_id = call.path_values["capability_id"]
    routes = peer_routes(
        await call.services.peer_reader.read(),
        capability_id,
        region=call.given(RouteQuery).request_region,
        fallback_regions=call.services.settings.fallback_regions,
        is_for_work=False,
    )
    if not routes:
        raise not_found(f"a peer that offers {capability_id}")
    best, offer, reason = routes[0]
    return {
        "peer": {
            "id": best.id,
            "endpoint": best.endpoint,
            "region": best.region,
            "workflowCount": best.workflow_count,
        },
        "routingReason": reason.value,
        "priceCredits": credits_number(offer.price_micro),
        "latencyMs": offer.latency_ms,
    }


@OPERATIONS.add(
    "GET", "/v1/federation/trust-events", scope=READ_TRUST, query=TrustEventsQuery, reply=TrustPage
)
async def trust_events(call: Call) -> Json:
    """Read revocations and new keys of agents: for peers, and for operators of peers."""
    after, services = call.given(TrustEventsQuery).after or 0, call.services
    own = await read_own_identity(services.reader, services.settings)
    events, to = await read_trust_events(services.reader, after)
    return signed({"did": own.did, "after": after, "to": to, "events": events}, own.key)


async def _peer(call: Call, peer_id: str) -> RowDict:
    return found(await peer_row(call.services.reader, peer_id), f"the peer {peer_id}")


def _record(declared: type[Peer], row: RowDict, **others: Any) -> dict[str, Any]:
    known = known_peer(row)
    return shown(
        declared,
        row,
        status=known.status.value,
        last_seen_at=iso_time(row["heartbeat_ms"]),
        proven_at=iso_time(row["proven_ms"]) if known.is_proven else None,
        agent_count=known.agent_count,
        workflow_count=known.workflow_count,
        load=known.load,
        offer_count=len(known.offers),
        offers=[
            {
                "id": capability_id,
                "priceCredits": credits_number(offer.price_micro),
                "latencyMs": offer.latency_ms,
                "version": offer.version,
            }
            for capability_id, offer in known.offers.items()
        ],
        **others,
    )


# The most orders of each side that a check compares, and the orders that one request to the peer
# returns.
_CHECKED_MAX: Final = 10_000
_PAGE: Final = 100
# The largest expected difference between the clocks of both sides, and between the end of an
# attempt and its commit.
_SKEW_MS: Final = 120_000

log = logging.getLogger("callboard.peers")


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
    page, row = page_of(call, query), await _known_peer(call)
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
    row, reader = await _known_peer(call), call.services.reader
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

    1. Read the attempts that ended here in the period.
    2. Read the peer's orders of the period. Read missing orders by their keys if they were paid
       here or began before the period.
    3. Read the attempts that are open here.
    4. If the peer has further orders, read the attempts that ended here later.

    The order matters: an order that the peer has charged in step 2 is open in step 3, or has ended
    by then.
    """
    row, reader = await _known_peer(call), call.services.reader
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

    The caller also needs the scope `ledger:deposit`.
    """
    row = await _known_peer(call)
    call.require(DEPOSIT)
    did, amount_micro = row["clearing_did"], call.given(CollectRequest).amount
    outcome = await call.commit(SettlePeer(clearing_did=did, amount_micro=amount_micro))
    amount = credits_number(outcome.result["amountMicro"])
    others = {"clearing_did": did, "owner_did": call.caller.did, "amount": amount}
    return shown_result(Settled, outcome, **others)


async def _known_peer(call: Call) -> RowDict:
    """Return the peer in the path, even if it was removed: its account and its orders remain.

    Raises:
        ServiceError: NOT_FOUND.
    """
    peer_id = call.path_values["peer_id"]
    row = await peer_row(call.services.reader, peer_id, is_removed_too=True)
    return found(row, f"the peer {peer_id}")


def _order(row: RowDict) -> dict[str, Any]:
    return shown(PeerOrder, row, node_id=row["node"])


def _month(call: Call, asked: str | None) -> tuple[str, int, int]:
    """Return the requested month (`YYYY-MM`) or the current one, its start and its end.

    The times are Unix milliseconds.
    """
    month = asked or datetime.fromtimestamp(call.services.now_ms() / 1_000, UTC).strftime("%Y-%m")
    year, number = map(int, month.split("-"))
    after = (year + 1, 1) if number == 12 else (year, number + 1)
    start, end = datetime(year, number, 1, tzinfo=UTC), datetime(*after, 1, tzinfo=UTC)
    return month, unix_ms(start), unix_ms(end)


def _period(call: Call, query: CheckQuery) -> tuple[int, int]:
    """Return the start and the end of the period to check, Unix milliseconds.

    Default: the current month.

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
    """Return the orders that a query of the peer's workflows finds, by their ids.

    Args:
        call: the request.
        row: the peer's row.
        query: the parameters of the query, URL-encoded.

    Raises:
        ServiceError: AGENT_UNAVAILABLE: the peer gives no usable reply. CONFLICT: too many orders.
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
