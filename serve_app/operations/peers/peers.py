"""Endpoints of peers: additions, removals, heartbeats, lists, routes and trust events.

Reference: features.md (Peers, Routing between regions).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from actors.routing.peer_heartbeats import HEARTBEAT_PATH, own_heartbeat, take_signed_heartbeat
from core.errors import ErrorCode, ServiceError
from core.money import credits_number
from core.peers.documents import (
    DEPLOYMENT_DID,
    HEARTBEAT_BYTES_MAX,
    check_heartbeat_bounds,
    deployment_did,
    signed,
)
from core.peers.routing import peer_routes
from core.records.api.peers import (
    Peer,
    PeerAdded,
    PeerHeartbeat,
    PeerHeartbeatTaken,
    PeerPage,
    PeerRemoved,
    PeerRequest,
    PeersQuery,
    RouteQuery,
    RouteResult,
    TrustEventsQuery,
    TrustPage,
)
from core.trust.access import FEDERATE, READ_TRUST
from core.trust.signatures import key_bytes
from ledger.peers.own_state import read_own_identity, read_trust_events
from ledger.peers.peer_reads import known_peer, peer_page, peer_row
from ledger.peers.peers import AddPeer, RemovePeer
from ledger.reads.reader import RowDict
from serve_app.callers.limits import RateClass
from serve_app.http.calls import Call, Json, Operations, found, invalid, not_found
from serve_app.http.lists import listed, page_of
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

    The peer gets work after it has signed a heartbeat with its key. Its operator must add this
    deployment there, too.
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


@OPERATIONS.add("DELETE", "/v1/federation/peers/{peer_id}", scope=FEDERATE, reply=PeerRemoved)
async def remove(call: Call) -> Json:
    """Remove a peer.

    It gets no more work and its requests are refused. Its clearing account and its statements stay.
    """
    peer_id = call.path_values["peer_id"]
    outcome = await call.commit(RemovePeer(peer_id=peer_id), until_known=True)
    return shown_result(PeerRemoved, outcome)


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
    heartbeat of this deployment. For any other the caller needs `federation:admin`.
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
