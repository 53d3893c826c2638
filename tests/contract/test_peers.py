"""Peers: additions, heartbeats, routes and trust events, and how a lying peer is refused.

The other side is a key and a server that signs documents as a deployment does.
Spec: Peer, Route result.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import psycopg
import pytest
from nacl.signing import SigningKey

from callboard import Client
from core.peers.documents import check_signature, signed
from core.timestamps import iso_ms
from tests.contract.conftest import (
    Caller,
    MakeAgent,
    answer,
    chain_of,
    refusal,
    unique,
    wait,
)  # fmt: skip
from tests.contract.conftest import client as http_client
from tests.contract.signers import Signer
from tests.faults.victims import superuser_url
from tests.platform.deployments import RunningDeployment
from tests.platform.stub_peer import StubPeer, offer, stub_peer

Json = dict[str, Any]
MakePeer = Callable[..., StubPeer]
PEERS = "/v1/federation/peers"
HEARTBEAT = f"{PEERS}/heartbeat"
AS_JSON = {"content-type": "application/json"}


@pytest.fixture
def make_peer(admin: Caller) -> Iterator[MakePeer]:
    """Start a peer, which is added unless said otherwise; it is removed after the test."""
    with ExitStack() as stack:

        def make(region: str = "eu", *, is_added: bool = True, **members: Any) -> StubPeer:
            peer = stack.enter_context(stub_peer(os.urandom(32), region))
            if is_added:
                answer(admin.http.post(PEERS, json={**peer.addition, **members}))
            stack.callback(admin.http.delete, f"{PEERS}/{members.get('peerId', peer.peer_id)}")
            return peer

        yield make


def show(caller: Caller, peer: StubPeer) -> Json:
    return answer(caller.http.get(f"{PEERS}/{peer.peer_id}"))


def test_a_peer_is_added_proves_its_key_and_is_removed(
    admin: Caller, payer: Caller, make_peer: MakePeer, anonymous: httpx.Client
) -> None:
    region, capability = unique("eu-"), unique("cap.peer.") + ".v1"
    peer = make_peer(region, is_added=False)
    peer.offers = [offer(capability, 0.25)]
    added = answer(admin.http.post(PEERS, json=peer.addition))
    assert added["success"] and added["id"] == peer.peer_id and added["did"] == peer.did
    assert added["status"] in ("added", "active") and added["addedByDid"] == admin.did
    assert added["clearingDid"] == f"did:callboard:clearing-{peer.peer_id}"
    # The timekeeper sends a heartbeat within a second, and the reply proves the peer's key.
    wait(lambda: show(payer, peer)["provenAt"] is not None, "the heartbeat")
    shown = show(payer, peer)
    assert shown["status"] == "active" and shown["lastSeenAt"] and shown["load"] == 0.25
    assert (shown["agentCount"], shown["workflowCount"]) == (3, 7)
    said = {"id": capability, "priceCredits": 0.25, "latencyMs": 40, "version": "1.0.0"}
    assert shown["offers"] == [said]
    listed = answer(payer.http.get(PEERS, params={"region": region}))
    assert (listed["peers"], listed["nextCursor"]) == ([shown], None)
    sent, described = peer.heard[0], answer(anonymous.get("/.well-known/callboard.json"))
    assert (
        sent["did"] == described["did"]
        and sent["publicKey"] == described["signingKeys"][0]["publicKey"]
    )
    check_signature(sent, sent["publicKey"])
    assert answer(admin.http.delete(f"{PEERS}/{peer.peer_id}")) == {
        "success": True, "id": peer.peer_id,
    }  # fmt: skip
    refusal(payer.http.get(f"{PEERS}/{peer.peer_id}"), 404, "NOT_FOUND")
    refusal(admin.http.delete(f"{PEERS}/{peer.peer_id}"), 404, "NOT_FOUND")
    refusal(anonymous.post(HEARTBEAT, json=peer.heartbeat()), 401, "INVALID_SIGNATURE")
    entries = answer(admin.http.get("/v1/audit", params={"targetId": peer.peer_id}))["entries"]
    assert [one["eventType"] for one in entries] == ["peer.removed", "peer.added"]


# -- heartbeats that lie ---------------------------------------------------------------------------


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def without_signature(document: Json, **members: Any) -> Json:
    return {**{k: v for k, v in document.items() if k != "signature"}, **members}


def lies(peer: StubPeer, other: StubPeer) -> dict[str, tuple[int, Json]]:
    """Return heartbeats of a peer with one thing each that is not so, and the status of each."""
    heartbeat, key = peer.heartbeat(), other.key.public_key
    plain, rotated = without_signature(heartbeat), {"publicKey": key, "proof": ""}
    rotated["proof"] = heartbeat["signature"]
    many = [offer(f"cap.x.v{number}") for number in range(501)]
    return {
        "of another key": (401, signed(plain, other.key)),
        "with another's key named": (401, peer.heartbeat(publicKey=key)),
        "of another DID": (401, {**heartbeat, "did": other.did}),
        "changed": (401, {**heartbeat, "load": 0.5}),
        "with a short signature": (401, {**heartbeat, "signature": "ed25519:AAAA"}),
        "of an unknown peer": (401, other.heartbeat()),
        "by an unknown key": (401, signed({**plain, "publicKey": key}, other.key)),
        "with a false proof of a new key": (
            401, signed({**plain, "publicKey": key, "rotations": [rotated]}, other.key),
        ),
        "without a key": (400, {**plain, "publicKey": None, "signature": "x"}),
        "without a DID": (400, {**without_signature(plain, did=None), "signature": "x"}),
        "of a minute ago": (400, peer.heartbeat(at_ms=now_ms() - 61_000)),
        "of a minute ahead": (400, peer.heartbeat(at_ms=now_ms() + 65_000)),
        "of another region": (400, peer.heartbeat(region="us")),
        "with another peerId": (400, peer.heartbeat(peerId="another")),
        "with a huge count": (400, peer.heartbeat(agentCount=10**30)),
        "with a negative count": (400, peer.heartbeat(workflowCount=-1)),
        "with too much load": (400, peer.heartbeat(load=1.5)),
        "with a negative price": (400, peer.heartbeat(capabilities=[offer("cap.x.v1", -1)])),
        "with an inflated price": (400, peer.heartbeat(capabilities=[offer("cap.x.v1", 10**10)])),
        "with 501 capabilities": (400, peer.heartbeat(capabilities=many)),
        "with 21 keys": (400, peer.heartbeat(rotations=[rotated] * 21)),
        "with a NUL": (400, peer.heartbeat(region="e\0u")),
        "with a lone surrogate": (400, peer.heartbeat(other="x") | {"region": "\ud800"}),
    }  # fmt: skip


def test_a_heartbeat_that_lies_is_refused_without_a_trace(
    admin: Caller, anonymous: httpx.Client, make_peer: MakePeer
) -> None:
    peer, other = make_peer(), make_peer(is_added=False)
    wait(lambda: show(admin, peer)["provenAt"] is not None, "the heartbeat")
    peer.gate.clear()  # the timekeeper hears nothing more of it
    answer(anonymous.post(HEARTBEAT, json=peer.heartbeat()))
    before = show(admin, peer)
    codes = {400: "INVALID_REQUEST", 401: "INVALID_SIGNATURE"}
    for kind, (status, document) in lies(peer, other).items():
        response = anonymous.post(HEARTBEAT, content=json.dumps(document), headers=AS_JSON)
        assert response.status_code == status, (kind, response.text)
        refusal(response, status, codes[status])
    good = peer.heartbeat()
    answer(anonymous.post(HEARTBEAT, json=good))
    refusal(anonymous.post(HEARTBEAT, json=good), 409, "CONFLICT")
    earlier = peer.heartbeat(at_ms=now_ms() - 30_000)
    refusal(anonymous.post(HEARTBEAT, json=earlier), 409, "CONFLICT")
    large = peer.heartbeat(filling="x" * 65_536)
    refusal(anonymous.post(HEARTBEAT, json=large), 413, "PAYLOAD_TOO_LARGE")
    moved = {"lastSeenAt", "provenAt"}
    after = show(admin, peer)
    assert {**after, **dict.fromkeys(moved)} == {**before, **dict.fromkeys(moved)}


def test_a_peer_learns_the_new_key_of_the_other_from_its_heartbeat(
    admin: Caller, anonymous: httpx.Client, make_peer: MakePeer
) -> None:
    peer = make_peer()
    peer.gate.clear()
    old = peer.key
    peer.rotate(os.urandom(32))
    peer.rotate(os.urandom(32))
    reply = answer(anonymous.post(HEARTBEAT, json=peer.heartbeat()))
    check_signature(reply["heartbeat"], reply["heartbeat"]["publicKey"])
    shown = show(admin, peer)
    assert (shown["publicKey"], shown["did"]) == (peer.key.public_key, peer.did)
    assert shown["provenAt"] is not None
    entry = answer(admin.http.get("/v1/audit", params={"targetId": peer.peer_id}))["entries"][0]
    assert entry["eventType"] == "peer.key_rotated" and entry["actorDid"] == peer.did
    # The former key is worth nothing from then on.
    peer.key, peer.rotations = old, []
    refusal(anonymous.post(HEARTBEAT, json=peer.heartbeat()), 401, "INVALID_SIGNATURE")


def test_an_operator_may_send_a_heartbeat_on_behalf_of_a_peer_which_proves_nothing(
    admin: Caller, payer: Caller, make_peer: MakePeer
) -> None:
    capability, peer_id = unique("cap.peer.") + ".v1", unique("p-")
    make_peer(endpoint="http://127.0.0.1:9", peerId=peer_id)
    said = {"peerId": peer_id, "capabilities": [offer(capability)], "agentCount": 5}
    refusal(payer.http.post(HEARTBEAT, json=said), 403, "INSUFFICIENT_SCOPE")
    assert answer(admin.http.post(HEARTBEAT, json=said)) == {"success": True, "id": peer_id}
    path = f"{PEERS}/{peer_id}"
    shown = answer(payer.http.get(path))
    assert (shown["status"], shown["provenAt"], shown["agentCount"]) == ("active", None, 5)
    # What is not said keeps its value.
    answer(admin.http.post(HEARTBEAT, json={"peerId": peer_id, "workflowCount": 9}))
    shown = answer(payer.http.get(path))
    assert (shown["agentCount"], shown["workflowCount"], len(shown["offers"])) == (5, 9, 1)
    route = answer(payer.http.get(f"/v1/federation/route/{capability}"))
    assert route["peer"]["id"] == peer_id
    refusal(admin.http.post(HEARTBEAT, json={"region": "eu"}), 400, "INVALID_REQUEST")
    refusal(admin.http.post(HEARTBEAT, json={"peerId": "nobody"}), 404, "NOT_FOUND")


# -- additions -------------------------------------------------------------------------------------


def test_a_peer_that_cannot_be_one_is_refused(
    admin: Caller, payer: Caller, make_peer: MakePeer, anonymous: httpx.Client, deployment: Any
) -> None:
    peer, other = make_peer(), make_peer(is_added=False)
    refusal(payer.http.post(PEERS, json=other.addition), 403, "INSUFFICIENT_SCOPE")
    refusal(payer.http.delete(f"{PEERS}/{peer.peer_id}"), 403, "INSUFFICIENT_SCOPE")
    own = answer(anonymous.get("/.well-known/callboard.json"))
    itself = {**other.addition, "publicKey": own["signingKeys"][0]["publicKey"], "did": own["did"]}
    caller_did = f"did:callboard:{os.urandom(8).hex()}"
    answer(admin.http.post("/v1/keys", json={"ownerDid": caller_did}))
    clearing_did = f"did:callboard:clearing-{peer.peer_id}"
    refused = {
        "the same again": (409, peer.addition),
        "its DID under another id": (409, {**peer.addition, "peerId": "other"}),
        "its id for another DID": (409, {**other.addition, "peerId": peer.peer_id}),
        "the DID of a caller": (409, {**other.addition, "did": caller_did}),
        "the DID of an administrator": (400, {**other.addition, "did": admin.did}),
        "the DID of a clearing account": (400, {**other.addition, "did": clearing_did}),
        "itself": (400, itself),
        "a DID of another method": (400, {**other.addition, "did": "did:net:x"}),
        "no key": (400, {**other.addition, "publicKey": "AAAA"}),
        "a reserved id": (400, {**other.addition, "peerId": "heartbeat"}),
        "an id with a slash": (400, {**other.addition, "peerId": "a/b"}),
        "no region": (400, {**other.addition, "region": ""}),
        "a region with a space": (400, {**other.addition, "region": "e u"}),
        "no URL": (400, {**other.addition, "endpoint": "ftp://x"}),
        "a URL with a query": (400, {**other.addition, "endpoint": "https://x/?a=b"}),
        "a forbidden address": (403, {**other.addition, "endpoint": "http://169.254.169.254"}),
    }  # fmt: skip
    codes = {400: "INVALID_REQUEST", 403: "POLICY_DENIED", 409: "CONFLICT"}
    for name, (status, body) in refused.items():
        response = admin.http.post(PEERS, json=body)
        assert response.status_code == status, (name, response.text)
        refusal(response, status, codes[status])
    # A removed peer comes back under its id, with the same clearing account.
    answer(admin.http.delete(f"{PEERS}/{peer.peer_id}"))
    refusal(
        admin.http.post(PEERS, json={**other.addition, "peerId": peer.peer_id}), 409, "CONFLICT"
    )
    again = answer(admin.http.post(PEERS, json=peer.addition))
    assert again["clearingDid"] == clearing_did


def test_nobody_registers_an_agent_under_the_did_of_a_deployment(
    admin: Caller, make_peer: MakePeer
) -> None:
    peer = make_peer()
    offers = [{"id": "cap.x.v1", "description": ""}]
    for did in (peer.did, f"did:callboard:clearing-{peer.peer_id}"):
        card = {"did": did, "endpoint": "http://127.0.0.1:9", "version": 1, "capabilities": offers}
        response = admin.http.post("/v1/agents/register", json={"acard": card})
        refusal(response, 400, "INVALID_REQUEST")


# -- requests of a peer ----------------------------------------------------------------------------


def test_a_peer_is_a_payer_with_the_rights_that_it_needs(
    admin: Caller, make_peer: MakePeer, make_agent: MakeAgent, deployment: RunningDeployment
) -> None:
    peer, agent = make_peer(), make_agent()
    answer(admin.http.post("/v1/ledger/deposit", json={"amount": 5, "ownerDid": peer.did}))
    with http_client(deployment.url) as http:
        signer = http.auth = Signer(peer.did, SigningKey(peer.key.seed))
        record = answer(
            http.post(
                "/v1/workflows/publish",
                json=chain_of(agent.capability, "a"),
                headers={"Prefer": "wait=30"},
            )
        )
        assert (record["status"], record["payerDid"]) == ("success", peer.did)
        assert answer(http.get("/v1/ledger/balance"))["credits"] == 4.9
        assert answer(http.get(f"{PEERS}/{peer.peer_id}"))["did"] == peer.did
        assert answer(http.get("/v1/federation/trust-events"))["to"] > 0
        # Inputs may be as large as those of a dispatch, and calls are those of a region.
        large = {"intent": "x", "nodes": {}, "filling": "x" * 600_000}
        refusal(http.post("/v1/workflows/publish", json=large), 400, "INVALID_MANIFEST")
        assert http.get("/v1/agents").headers["x-ratelimit-limit"] == "60000"
        for path in ("/v1/keys", "/v1/webhooks", "/v1/schedules", "/v1/trust/revoke"):
            refusal(http.post(path, json={}), 403, "INSUFFICIENT_SCOPE")
        signer.key = SigningKey.generate()
        refusal(http.get("/v1/ledger/balance"), 401, "UNAUTHORIZED")
        signer.key = SigningKey(peer.key.seed)
        answer(admin.http.delete(f"{PEERS}/{peer.peer_id}"))
        wait(lambda: http.get("/v1/ledger/balance").status_code == 401, "the end of its rights")


# -- money -----------------------------------------------------------------------------------------


def test_a_check_names_an_order_that_was_never_sent_and_ends_with_a_list_without_end(
    admin: Caller, make_peer: MakePeer
) -> None:
    peer = make_peer()
    path, at = f"{PEERS}/{peer.peer_id}/check", iso_ms(now_ms() - 1)
    order = {"id": "w", "intent": "order made-up", "createdAt": at, "completedAt": at}
    peer.workflows = [{**order, "spentCredits": 5}, {**order, "intent": "x", "spentCredits": 9}]
    found = answer(admin.http.get(path))
    assert (found["agrees"], found["chargedCredits"], found["lostCredits"]) == (False, 5, 0)
    assert found["differences"] == [
        {
            "orderId": "made-up",
            "peerWorkflowId": "w",
            "outcome": None,
            "chargedCredits": 5,
            "receivedCredits": 0,
        }
    ]
    peer.workflows = [{**order, "spentCredits": "much"}]
    refusal(admin.http.get(path), 503, "AGENT_UNAVAILABLE")
    peer.workflows, peer.next_cursor = [], "more"
    refused = refusal(admin.http.get(path), 409, "CONFLICT")
    assert "startTime" in str(refused)


# -- routes ----------------------------------------------------------------------------------------


def test_route_result_by_region_then_fallback_then_load(
    admin: Caller, payer: Caller, make_peer: MakePeer, anonymous: httpx.Client
) -> None:
    capability, region = unique("cap.peer.") + ".v1", unique("r-")
    busy, idle = make_peer(region), make_peer("elsewhere")
    refused = make_peer("elsewhere", capabilities=["cap.other.v1"])
    path = f"/v1/federation/route/{capability}"
    refusal(payer.http.get(path), 404, "NOT_FOUND")
    for peer, load, price in ((busy, 0.9, 2), (idle, 0.1, 1), (refused, 0.0, 0)):
        peer.offers = [offer(capability, price)]
        said = peer.heartbeat(load=load)
        peer.gate.clear()
        answer(anonymous.post(HEARTBEAT, json=said))
    assert answer(payer.http.get(path)) == {
        "peer": {
            "id": idle.peer_id, "endpoint": idle.url, "region": "elsewhere", "workflowCount": 7,
        },
        "routingReason": "least_loaded",
        "priceCredits": 1,
        "latencyMs": 40,
    }  # fmt: skip
    near = answer(payer.http.get(path, params={"requestRegion": region}))
    assert (near["peer"]["id"], near["routingReason"]) == (busy.peer_id, "preferred_region")
    refusal(payer.http.get("/v1/federation/route/no id"), 400, "INVALID_REQUEST")


# -- trust -----------------------------------------------------------------------------------------


def test_trust_events_are_a_signed_page_of_revocations_and_new_keys(
    admin: Caller, payer: Caller, make_agent: MakeAgent
) -> None:
    path = "/v1/federation/trust-events"
    # They are not for callers here: agents of all owners are named.
    refusal(payer.http.get(path), 403, "INSUFFICIENT_SCOPE")
    first = answer(admin.http.get(path))["to"]
    agent = make_agent()
    why = {"did": agent.did, "reason": "It lies.", "evidence": {}}
    ends = {"expiresAt": "2035-01-01T00:00:00.000Z"}
    answer(admin.http.post("/v1/trust/revoke", json={**why, **ends}))
    answer(admin.http.delete(f"/v1/revoked/{agent.did}"))
    page = answer(admin.http.get(path, params={"after": first}))
    check_signature(page, own_key(payer))
    assert page["after"] == first < page["to"]
    mine = [one for one in page["events"] if one["did"] == agent.did]
    assert [{**one, "id": 0} for one in mine] == [
        {"id": 0, "type": "agent.revoked", "did": agent.did, **ends},
        {"id": 0, "type": "agent.unrevoked", "did": agent.did},
    ]
    refusal(admin.http.get(path, params={"after": -1}), 400, "INVALID_REQUEST")


def own_key(caller: Caller) -> str:
    described = answer(caller.http.get("/.well-known/callboard.json"))
    return str(described["signingKeys"][0]["publicKey"])


def test_the_events_of_a_peer_count_for_agents_that_are_reached_through_it_alone(
    payer: Caller, make_peer: MakePeer, make_agent: MakeAgent, deployment: RunningDeployment
) -> None:
    local, there, back = make_agent(), unique("did:net:there-"), unique("did:net:back-")
    peer = make_peer()
    peer.to, peer.events = 9, [
        {"id": 2, "type": "agent.revoked", "did": there},
        {"id": 3, "type": "agent.revoked", "did": back},
        {"id": 4, "type": "agent.revoked", "did": local.did},
        {"id": 5, "type": "agent.unrevoked", "did": back},
        {"id": 6, "type": "agent.key_rotated", "did": there, "publicKey": "A" * 43 + "="},
    ]  # fmt: skip
    rows: Json = {}
    with psycopg.connect(superuser_url(deployment), autocommit=True) as connection:

        def is_stored() -> bool:
            found = connection.execute(
                "SELECT did, revoked_id FROM callboard.peer_agent WHERE peer_id = %s",
                (peer.peer_id,),
            )
            rows.update(dict(found.fetchall()))
            return len(rows) == 2

        wait(is_stored, "the events")
        assert rows == {there: 2, local.did: 4}
        # Signed by this deployment, and followed from where the last page ended.
        after, headers = peer.asked[0]
        assert after == 0 and headers["signature-input"]
        wait(lambda: peer.asked[-1][0] == 9, "the next page")
    # What is registered here works on, whatever a peer says of it.
    assert payer.run(chain_of(local.capability, "a"))["status"] == "success"


def test_the_client_and_the_field_client_find_peers(
    admin: Caller, make_peer: MakePeer, deployment: RunningDeployment
) -> None:
    peer, capability = make_peer(is_added=False), unique("cap.peer.") + ".v1"
    peer.offers = [offer(capability)]
    with Client(deployment.url, admin.key) as client:
        added = client.add_peer(
            peer.url, peer.region, peer.key.public_key, capabilities=[capability]
        )
        assert added.id == peer.peer_id and added.capabilities == [capability]
        assert peer.peer_id in [one.id for one in client.peers(region=peer.region).rows]
        peer.gate.clear()
        assert client.peer_heartbeat(peer.heartbeat()).heartbeat["did"] != peer.did
        assert client.peer(peer.peer_id).offers[0].id == capability
        assert client.route(capability, request_region="us").routing_reason == "least_loaded"
        assert client.trust_events(after=0).to > 0
        assert client.remove_peer(peer.peer_id).success
    others = [make_peer(region := unique("page-")), make_peer(region)]
    pages = [answer(admin.http.get(PEERS, params={"region": region, "limit": 1}))]
    pages.append(
        answer(admin.http.get(PEERS, params={"region": region, "cursor": pages[0]["nextCursor"]}))
    )
    listed = [one["id"] for page in pages for one in page["peers"]]
    assert listed == sorted(one.peer_id for one in others)
    refusal(admin.http.get(PEERS, params={"region": "a b"}), 400, "INVALID_REQUEST")
