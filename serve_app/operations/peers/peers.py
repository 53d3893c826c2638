"""Peers: add and remove peers, store their heartbeats, read routes, trust events and statements.

Reference: features.md (Peers, Routing between regions); money.md (Work of peers).
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from functools import partial
from typing import Any

from actors.routing.peer_books import check_orders
from actors.routing.peer_heartbeats import HEARTBEAT_PATH, own_heartbeat, take_signed_heartbeat
from core.errors import ErrorCode, ServiceError
from core.money import credits_number, micro_from_credits
from core.peers.books import OrderHere, OrderThere
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
from ledger.features.own_state import read_own_did, read_own_identity, read_trust_events
from ledger.features.peer_money import (
    SettlePeer,
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
    rows = await peer_page(
        call.services.reader, after_id=page.after, region=query.region, **page.rows
    )
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

    A signed heartbeat needs no credential: its signature is checked. The reply to it has the signed
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


log = logging.getLogger("callboard.peers")


@OPERATIONS.add(
    "GET",
    "/v1/federation/peers/{peer_id}/statement",
    scope=FEDERATE,
    query=StatementQuery,
    reply=Statement,
)
async def statement(call: Call) -> Json:
    """List the orders at a peer that ended in a month, with the payments for them."""
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
    """Read the balance of the clearing account, and this deployment's balance at the peer."""
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
    """Compare the orders of a period with the peer's books, order by order."""
    row, services = await _known_peer(call), call.services
    start_ms, end_ms = _period(call, call.given(CheckQuery))
    compared = await check_orders(
        services.reader,
        services.peer_client,
        row,
        start_ms=start_ms,
        end_ms=min(end_ms, services.now_ms()),
        now_ms=services.now_ms,
    )
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
    entry = outcome.result["entry"]
    others = {"clearing_did": did, "owner_did": call.caller.did, "id": entry["id"]}
    return shown_result(Settled, outcome, amount=credits_number(entry["amount"]), **others)


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


def _difference(order_id: str, here: OrderHere | None, there: OrderThere | None) -> dict[str, Any]:
    return {
        "orderId": order_id,
        "peerWorkflowId": there.workflow_id if there else None,
        "outcome": here.outcome if here else None,
        "chargedCredits": credits_number(there.charged_micro if there else 0),
        "receivedCredits": credits_number(here.received_micro if here else 0),
    }
