"""A peer that lies of the orders it gets, or floods this deployment: nothing moves here.

The peer is a key and a server of the test's. Spec: Peer; money.md (Work of peers).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.contract.conftest import Caller, answer, client, refusal, unique, wait
from tests.platform.deployments import RunningDeployment
from tests.platform.stub_peer import StubPeer, offer, stub_peer

Json = dict[str, Any]
PEERS = "/v1/federation/peers"
HEARTBEAT = f"{PEERS}/heartbeat"
FLOOD = 20


@pytest.fixture(scope="module")
def liar(admin: Caller) -> Iterator[StubPeer]:
    """Add a peer that offers a capability for half a credit."""
    with stub_peer(os.urandom(32), unique("liar-")) as peer:
        peer.offers = [offer(unique("cap.lie.") + ".v1", 0.5)]
        answer(admin.http.post(PEERS, json=peer.addition))
        yield peer
        answer(admin.http.delete(f"{PEERS}/{peer.peer_id}"))


@pytest.fixture
def node(liar: StubPeer, payer: Caller) -> Json:
    """Return a node for the peer, which the owners know as a candidate."""
    made = {"capabilityId": liar.offers[0]["id"], "region": liar.region, "maxRetries": 0}
    trial = {"nodes": {"n": made}, "dryRun": True}
    wait(lambda: bool(answer(payer.publish(trial))["candidates"]["n"]), "the peer as a candidate")
    return made


def record(order: Json, **changed: Any) -> Json:
    """Return the record of an order that was done for the agreed price."""
    done = {"node": {"status": "success", "result": {"done": True}}}
    ended = {"id": "w1", "workflowId": "w1", "status": "success", "intent": order.get("intent")}
    return {**ended, "nodes": done, "spentCredits": 0.5, **changed}


LIES: dict[str, Json] = {
    "an inflated charge": {"spentCredits": 0.500001},
    "a negative charge": {"spentCredits": -0.5},
    "work that it never got": {"intent": "order 00000000-0000-7000-8000-000000000001:n:1"},
    "two nodes for one": {"nodes": {"node": {"status": "success", "result": 1}, "more": {}}},
    "a charge without a result": {"nodes": {"node": {"status": "success"}}},
    "a charge for a failure": {
        "status": "failed",
        "nodes": {
            "node": {"status": "failed", "error": {"code": "VERIFICATION_REJECTED", "message": ""}}
        },
    },
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_a_lie_about_an_order_moves_no_money(
    liar: StubPeer, node: Json, payer: Caller, admin: Caller, lie: Json
) -> None:
    liar.answer = lambda order: record(order, **lie)
    before = payer.balance()
    failed = payer.run({"nodes": {"n": node}})
    assert failed["status"] == "failed" and failed["spentCredits"] == 0, failed
    assert payer.balance() == before
    account = {"ownerDid": f"did:callboard:clearing-{liar.peer_id}"}
    assert answer(admin.http.get("/v1/ledger/balance", params=account))["balance"] == 0


def test_the_same_peer_is_paid_for_what_it_does(
    liar: StubPeer, node: Json, payer: Caller, admin: Caller
) -> None:
    """Otherwise the lies might fail for another reason."""
    liar.answer = record
    done = payer.run({"nodes": {"n": node}})
    assert done["status"] == "success" and done["nodes"]["n"]["result"] == {"done": True}, done
    account = {"ownerDid": f"did:callboard:clearing-{liar.peer_id}"}
    assert answer(admin.http.get("/v1/ledger/balance", params=account))["balance"] == 0.5


def test_a_flood_of_false_heartbeats_is_limited_and_leaves_no_trace(
    liar: StubPeer, deployment: RunningDeployment, admin: Caller
) -> None:
    """Each counts for the address that it comes from, also if its signature is wrong."""
    false = {**liar.heartbeat(), "load": 1.0}
    left = []
    with httpx.Client(
        base_url=deployment.url, transport=httpx.HTTPTransport(local_address="127.0.0.91")
    ) as flood:
        for _ in range(FLOOD):
            refused = flood.post(HEARTBEAT, json=false)
            refusal(refused, 401, "INVALID_SIGNATURE")
            assert refused.headers["ratelimit-policy"].startswith('"machine";')
            left.append(int(refused.headers["x-ratelimit-remaining"]))
    assert min(left) == max(left) - FLOOD + 1
    with client(deployment.url) as http:
        refusal(http.post(HEARTBEAT, json=false), 401, "INVALID_SIGNATURE")
        answer(http.post(HEARTBEAT, json=liar.heartbeat()))
    assert answer(admin.http.get(f"{PEERS}/{liar.peer_id}"))["load"] == 0.25
