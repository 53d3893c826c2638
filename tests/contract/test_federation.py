"""Work at a peer: two regions, each with its own database and key, that are peers of each other.

The session's deployment is the region here; the region `us` is a second one. After each test both
books agree by reference. Spec: Peer, Route result; money.md (Work of peers).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from queue import Queue
from typing import Any

import httpx
import psycopg
import pytest
from nacl.signing import SigningKey

from callboard import Client
from core.timestamps import unix_ms
from tests.conftest import US, US_SEED
from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    answer,
    client,
    refusal,
    unique,
    wait,
)
from tests.contract.signers import Signer
from tests.contract.stub_agent import Answer, StubAgent, stub_agent, succeed
from tests.faults.victims import find_all, frozen, superuser_url
from tests.platform.deployments import RunningDeployment

Json = dict[str, Any]
PEERS = "/v1/federation/peers"
SUBNETS, POLICIES = "/v1/federation/subnets", "/v1/federation/policies"
PREFUND = 50.0
CANCELS = 12


def verify(dispatch: Json) -> tuple[int, Json]:
    """Approve a result unless its inputs say that it is bad."""
    approved = "bad" not in dispatch["inputs"]["inputs"]
    return 200, {"status": "success", "result": {"approved": approved}}


@dataclass
class Region:
    """The region `us`: its deployment, its agents by capability, and who operates it."""

    deployment: RunningDeployment
    http: httpx.Client
    agents: dict[str, StubAgent] = field(default_factory=dict)
    dids: dict[str, str] = field(default_factory=dict)
    # Called, each in a thread of its own, as the agent of `raced` replies.
    as_it_replies: list[Callable[[], object]] = field(default_factory=list)

    def race(self, dispatch: Json) -> tuple[int, Json]:
        """Succeed, while something else happens."""
        for call in self.as_it_replies:
            threading.Thread(target=call).start()
        return succeed(dispatch)

    def register(
        self, stub: StubAgent, capability: str, price_cents: int, owner: httpx.Client
    ) -> None:
        """Register an agent of an owner."""
        did = unique("did:net:us-")
        offered = {"id": capability, "description": "A test's", "price_cents": price_cents}
        card = {"did": did, "endpoint": stub.url, "version": 1, "capabilities": [offered]}
        answer(owner.post("/v1/agents/register", json={"acard": card}))
        self.agents[capability], self.dids[capability] = stub, did

    def balance(self, did: str) -> float:
        """Return what a DID has in this region."""
        query = {"ownerDid": did}
        return float(answer(self.http.get("/v1/ledger/balance", params=query))["balance"])

    def orders(self, here: str) -> list[Json]:
        """Return the workflows that the other region has published, the newest first."""
        query = {"payerDid": here, "limit": 100}
        return list(answer(self.http.get("/v1/workflows", params=query))["workflows"])


@dataclass(frozen=True)
class Both:
    """Both regions; `us` is a peer here, and this region one there."""

    us: Region
    admin: Caller
    did: str
    clearing_did: str
    books: Client
    echo: str
    held: str
    dear: str
    checked: str
    raced: str
    tenth: str

    def cleared(self) -> float:
        """Return what the clearing account holds here."""
        query = {"ownerDid": self.clearing_did}
        return float(answer(self.admin.http.get("/v1/ledger/balance", params=query))["balance"])

    def wait_routable(self) -> None:
        """Wait until the owners have read that the peer is proven and what it offers."""
        trial = {"nodes": {"n": {"capabilityId": self.echo, "region": US}}, "dryRun": True}

        def is_candidate() -> bool:
            answered = answer(self.admin.http.post("/v1/workflows/publish", json=trial))
            return bool(answered["candidates"]["n"])

        wait(is_candidate, "the peer as a candidate")


def micro(credits: float) -> int:
    """Return micro-credits."""
    return round(credits * 1_000_000)


def describe(http: httpx.Client) -> Json:
    return answer(http.get("/.well-known/callboard.json"))


def addition(url: str, described: Json) -> Json:
    key = described["signingKeys"][0]["publicKey"]
    place = {"endpoint": url, "region": described["region"]}
    return {"publicKey": key, "did": described["did"], **place}


@pytest.fixture(scope="module")
def both(
    deployment: RunningDeployment, second_region: RunningDeployment, admin: Caller
) -> Iterator[Both]:
    """Start the agents of the region `us`, make each a peer of the other, and pay in advance."""
    running = second_region
    with ExitStack() as stack:
        http = stack.enter_context(client(running.url, running.admin_key))
        us = Region(running, http)
        asked = tuple(unique(f"cap.{kind}.") + ".v1" for kind in "ehdcrt")
        echo, held, dear, checked, raced, tenth = asked
        offers: list[tuple[str, Answer, int, bool]] = [
            (echo, succeed, 100, False),
            (held, succeed, 100, True),
            (dear, succeed, 100_000, False),
            (checked, succeed, 100, False),
            (raced, us.race, 100, False),
            (tenth, succeed, 1_000, False),
            ("cap.verify.generic.v1", verify, 20, False),
        ]
        key = answer(http.post("/v1/keys", json={"ownerDid": "did:net:us-owner"}))["key"]
        owner = stack.enter_context(client(running.url, key))
        for capability, reply, cents, is_held in offers:
            stub = stack.enter_context(stub_agent(reply, is_held=is_held))
            # A verifier is trusted whom the operator registers, and has an owner of its own.
            us.register(stub, capability, cents, http if reply is verify else owner)
        here, there = describe(admin.http), describe(http)
        assert there["did"] != here["did"] and there["region"] == US
        added = answer(http.post(PEERS, json={"peerId": "home", **addition(deployment.url, here)}))
        assert added["did"] == here["did"]
        peer = answer(admin.http.post(PEERS, json={"peerId": US, **addition(running.url, there)}))
        stack.callback(admin.http.delete, f"{PEERS}/{US}")
        paid = {"amount": PREFUND, "ownerDid": here["did"]}
        answer(http.post("/v1/ledger/deposit", json=paid))

        def is_known() -> bool:
            shown = answer(admin.http.get(f"{PEERS}/{US}"))
            offered = {one["id"] for one in shown["offers"]}
            return shown["provenAt"] is not None and offered >= {one[0] for one in offers}

        wait(is_known, "the heartbeat of the peer")
        books = stack.enter_context(Client(deployment.url, api_key=deployment.admin_key))
        made = Both(us, admin, here["did"], peer["clearingDid"], books, *asked)
        made.wait_routable()
        yield made


@pytest.fixture(autouse=True)
def _books_agree(both: Both) -> Iterator[None]:
    """Compare both books order by order after each test."""
    yield

    def agrees() -> bool:
        found = both.books.check_peer(US)
        assert found.agrees, found
        return not found.open_orders

    wait(agrees, "the end of all orders")


def test_a_middle_node_runs_in_the_other_region_and_is_paid_there(
    both: Both, payer: Caller, make_agent: MakeAgent
) -> None:
    local = make_agent(price_cents=10)
    secret = {"text": "{{own}}{{other}}", "own": "b"}
    nodes: Json = {
        "a": {"capabilityId": local.capability, "payload": {"own": "a"}},
        "b": {
            "capabilityId": both.echo,
            "region": US,
            "payload": secret,
            "inputMappings": {"before": "$.a.result.inputs.own"},
            "dependsOn": ["a"],
        },
        "c": {
            "capabilityId": local.capability,
            "inputMappings": {"before": "$.b.result.inputs"},
            "dependsOn": ["b"],
        },
    }
    cleared, prefund = both.cleared(), both.us.balance(both.did)
    record = payer.run({"nodes": nodes})
    assert record["status"] == "success", record
    sent = {"text": "b{{other}}", "own": "b", "before": "a"}
    assert record["nodes"]["c"]["result"]["inputs"] == {"before": sent}

    node = record["nodes"]["b"]
    (order,) = [one for one in both.us.orders(both.did) if one["status"] == "success"][:1]
    assert node["agentDid"] == both.clearing_did
    assert node["selection"]["peer"] == {
        "id": US,
        "region": US,
        "endpoint": both.us.deployment.url,
        "routingReason": "preferred_region",
    }
    assert node["metrics"]["peer"] == {
        "peerId": US,
        "workflowId": order["id"],
        "chargedCredits": 1,
    }
    # The agent there knows of this deployment, and of nothing and nobody behind it.
    (dispatch,) = both.us.agents[both.echo].dispatches[-1:]
    assert (dispatch["inputs"], dispatch["parents"]) == (sent, {})
    assert payer.did not in str(dispatch) and record["id"] not in str(dispatch)
    assert order["payerDid"] == both.did and order["spentCredits"] == 1

    assert both.us.balance(both.us.dids[both.echo]) >= 0.95
    assert prefund - both.us.balance(both.did) == pytest.approx(1)
    assert both.cleared() - cleared == pytest.approx(1), "what was charged there, exactly"
    assert node["costCredits"] == pytest.approx(1 / 0.95, abs=1e-6)

    statement = both.books.peer_statement(US)
    (line,) = [one for one in statement.rows if one.workflow_id == record["id"]]
    assert order["intent"] == f"order {line.order_id}"
    assert (line.node_id, line.outcome, line.received_credits) == ("b", "success", 1)
    assert line.peer_workflow_id == order["id"] and line.paid_credits == node["costCredits"]
    held = both.books.peer_balance(US)
    assert held.own_did == both.did and held.own_credits == both.us.balance(both.did)
    assert held.clearing_credits == both.cleared()


def test_a_node_leaves_only_if_its_payer_has_said_so(both: Both, payer: Caller) -> None:
    node = {"capabilityId": both.echo}
    stayed = payer.run({"nodes": {"n": node}})
    assert stayed["nodes"]["n"]["error"]["code"] == "NO_CANDIDATE"
    assert "settings.federate" in stayed["nodes"]["n"]["error"]["message"]
    left = payer.run({"nodes": {"n": node}, "settings": {"federate": True}})
    assert left["nodes"]["n"]["selection"]["peer"]["routingReason"] == "least_loaded"
    refused = payer.publish({"nodes": {"n": {**node, "region": "a b"}}})
    refusal(refused, 400, "INVALID_MANIFEST")


def test_a_policy_lets_a_node_leave_or_keeps_it(both: Both, payer: Caller) -> None:
    """An `allow_region` that the payer has joined permits it; a `deny_region` outweighs all."""
    team = {"name": "team", "policyType": "private"}
    terms = {"subnetId": answer(payer.http.post(SUBNETS, json=team))["id"], "region": US}

    def add_policy(kind: str) -> None:
        answer(payer.http.post(POLICIES, json={**terms, "policyType": kind}))

    node = {"capabilityId": both.echo}
    add_policy("allow_region")
    left = payer.run({"nodes": {"n": node}})
    assert left["status"] == "success", left
    assert left["nodes"]["n"]["agentDid"] == both.clearing_did
    add_policy("deny_region")
    cleared, orders = both.cleared(), len(both.us.orders(both.did))
    named = {"nodes": {"n": {**node, "region": US}}, "settings": {"federate": True}}
    for manifest in ({"nodes": {"n": node}}, named):
        error = payer.run(manifest)["nodes"]["n"]["error"]
        assert error["code"] == "NO_CANDIDATE"
        refused = "1 peer offers it (1 in a region that a policy of the payer's subnets refuses)"
        assert refused in error["message"]
    assert (both.cleared(), len(both.us.orders(both.did))) == (cleared, orders)


def test_a_node_with_less_than_3_s_or_with_the_peer_as_target_stays(
    both: Both, payer: Caller
) -> None:
    """In such a time an order might be paid there, and end here without a payment."""
    cleared, orders = both.cleared(), len(both.us.orders(both.did))
    short = {"capabilityId": both.echo, "region": US, "timeoutMs": 2_999}
    for manifest in (
        {"nodes": {"n": short}},
        {"nodes": {"n": {**short, "timeoutMs": 60_000}}, "settings": {"maxRuntimeMs": 2_999}},
    ):
        error = payer.run(manifest)["nodes"]["n"]["error"]
        assert error["code"] == "NO_CANDIDATE", error
        assert "1 peer offers it (1 with less than 3 s" in error["message"]
    target = {"capabilityId": both.echo, "region": US, "targetAgentId": both.clearing_did}
    error = payer.run({"nodes": {"n": target}})["nodes"]["n"]["error"]
    assert error["code"] == "AGENT_UNAVAILABLE", error
    assert (both.cleared(), len(both.us.orders(both.did))) == (cleared, orders)


def test_what_came_from_a_peer_is_never_sent_on(both: Both, deployment: RunningDeployment) -> None:
    """The region `us` asks for a capability that only it offers itself."""
    described = describe(both.us.http)
    with client(deployment.url) as http:
        http.auth = Signer(described["did"], SigningKey(US_SEED))
        manifest = {"nodes": {"n": {"capabilityId": both.echo}}, "settings": {"federate": True}}
        headers = {"Prefer": "wait=30"}
        record = answer(http.post("/v1/workflows/publish", json=manifest, headers=headers))
    assert record["nodes"]["n"]["error"]["code"] == "NO_CANDIDATE", record
    assert "peer" not in record["nodes"]["n"]["error"]["message"]


def test_without_enough_credits_there_another_candidate_takes_the_node(
    both: Both, make_caller: MakeCaller, make_agent: MakeAgent
) -> None:
    payer = make_caller(5_000)
    make_agent(capability=both.dear, price_cents=100_000)
    cleared, prefund = both.cleared(), both.us.balance(both.did)
    record = payer.run({"nodes": {"n": {"capabilityId": both.dear, "region": US}}})
    node = record["nodes"]["n"]
    assert record["status"] == "success" and node["agentDid"] != both.clearing_did, node
    assert node["attempts"] == 2
    assert (both.cleared(), both.us.balance(both.did)) == (cleared, prefund)


def test_the_orders_of_a_prefund_never_cost_more_than_it_holds(
    both: Both, make_caller: MakeCaller
) -> None:
    """To the micro-credit: what does not fit any more is refused there, and pays nothing here."""
    payer, price = make_caller(200), 10
    cleared, prefund = both.cleared(), both.us.balance(both.did)
    node = {"capabilityId": both.tenth, "region": US, "maxRetries": 0}
    manifest = {"nodes": {f"n{number}": node for number in range(8)}}
    ended = payer.run(manifest)["nodes"].values()
    done = [one for one in ended if one["status"] == "success"]
    paid = {"amount": price * len(done), "ownerDid": both.did}
    left = both.us.balance(both.did)
    answer(both.us.http.post("/v1/ledger/deposit", json=paid))
    assert len(done) == int(prefund // price) < len(ended)
    assert micro(prefund) - micro(left) == price * len(done) * 1_000_000
    assert micro(both.cleared()) - micro(cleared) == price * len(done) * 1_000_000


def test_a_cancellation_travels(both: Both, payer: Caller) -> None:
    agent = both.us.agents[both.held]
    manifest = {"nodes": {"n": {"capabilityId": both.held, "region": US}}}
    path = f"/v1/workflows/{answer(payer.publish(manifest))['workflowId']}"
    agent.wait_dispatched()
    answer(payer.cancel(path))
    agent.wait_cancelled()
    wait(lambda: both.us.orders(both.did)[0]["status"] == "cancelled", "the cancelled order")
    assert both.us.orders(both.did)[0]["spentCredits"] == 0
    assert answer(payer.http.get(path))["spentCredits"] == 0


def test_a_payer_that_cancels_as_the_result_comes_pays_for_it(both: Both, payer: Caller) -> None:
    """Otherwise it could have agents of its own at the peer paid by the operator here."""
    lost = both.books.check_peer(US).lost_credits
    for number in range(CANCELS):
        manifest = {"nodes": {"n": {"capabilityId": both.raced, "region": US}}}
        paths: Queue[str] = Queue()

        def cancel(pause_s: float = number / 1_000, paths: Queue[str] = paths) -> None:
            path = paths.get()
            time.sleep(pause_s)
            payer.cancel(path)

        both.us.as_it_replies[:] = [cancel]
        path = f"/v1/workflows/{answer(payer.publish(manifest))['workflowId']}"
        paths.put(path)
        assert payer.finished(path)["status"] in ("cancelled", "success")
    both.us.as_it_replies.clear()
    wait(lambda: both.books.check_peer(US).agrees, "books that agree")
    assert both.books.check_peer(US).lost_credits == lost


def test_a_result_is_verified_there_before_it_is_paid(both: Both, payer: Caller) -> None:
    cleared = both.cleared()
    node: Json = {"capabilityId": both.checked, "region": US, "requiresVerification": True}
    good = payer.run({"nodes": {"n": node}})
    assert good["status"] == "success", good
    assert both.cleared() - cleared == pytest.approx(1.2)
    assert good["spentCredits"] == pytest.approx(1.2 / 0.95, abs=1e-6)
    bad = {**node, "payload": {"bad": True}, "maxRetries": 0}
    rejected = payer.run({"nodes": {"n": bad}})
    assert rejected["nodes"]["n"]["error"]["code"] == "VERIFICATION_REJECTED", rejected
    assert both.cleared() - cleared == pytest.approx(1.4), "the verifier alone was paid"
    assert rejected["spentCredits"] == pytest.approx(0.2 / 0.95, abs=1e-6)
    (line, *_) = both.books.peer_statement(US).rows
    assert (line.outcome, line.received_credits) == ("error", 0.2)


def test_a_peer_that_falls_silent_loses_the_node_to_another_candidate(
    both: Both, payer: Caller, make_agent: MakeAgent
) -> None:
    """Its order is cancelled when it is back, and nothing is paid twice."""
    local = make_agent(capability=both.held, price_cents=100)
    agent, us = both.us.agents[both.held], both.us.deployment
    cleared = both.cleared()
    manifest = {"nodes": {"n": {"capabilityId": both.held, "region": US, "timeoutMs": 6_000}}}
    path = f"/v1/workflows/{answer(payer.publish(manifest))['workflowId']}"
    agent.wait_dispatched()
    with frozen([*find_all(us, "proxy"), *find_all(us, "replica")]):
        record = payer.finished(path)
    node = record["nodes"]["n"]
    assert record["status"] == "success" and node["agentDid"] == local.did, node
    assert node["attempts"] == 2 and both.cleared() == cleared
    wait(lambda: both.us.orders(both.did)[0]["completedAt"] is not None, "the end of the order")
    assert both.us.orders(both.did)[0]["spentCredits"] == 0


def test_an_operator_moves_the_clearing_accounts_credits_out(both: Both, payer: Caller) -> None:
    payer.run({"nodes": {"n": {"capabilityId": both.echo, "region": US}}})
    refusal(payer.http.post(f"{PEERS}/{US}/settle"), 403, "INSUFFICIENT_SCOPE")
    before, held = both.admin.balance()["balance"], both.cleared()
    path, body = f"{PEERS}/{US}/settle", {"amount": held + 1}
    refusal(both.admin.http.post(path, json=body), 409, "CONFLICT")
    moved = both.books.settle_peer(US)
    assert (moved.amount, moved.balance) == (held, 0) and both.cleared() == 0
    assert both.admin.balance()["balance"] == pytest.approx(before + held)
    refusal(both.admin.http.post(path), 409, "CONFLICT")


def test_a_check_takes_a_period_and_says_what_is_open(both: Both, payer: Caller) -> None:
    records = [
        payer.run({"nodes": {"n": {"capabilityId": both.echo, "region": US}}}) for _ in range(2)
    ]
    ends = [record["nodes"]["n"]["completedAt"] for record in records]
    period = {
        name: unix_ms(datetime.fromisoformat(at))
        for name, at in zip(("start_time", "end_time"), ends, strict=True)
    }
    path = f"{PEERS}/{US}/check"
    found = both.books.check_peer(US, **period)
    assert (found.start_time, found.end_time) == (ends[0], ends[1])
    assert (found.agrees, found.order_count, found.charged_credits) == (True, 1, 1)
    # An order that the peer lists in another time is looked up by its key. A charge that is not
    # what was paid is a difference.
    order = records[0]["nodes"]["n"]["metrics"]["peer"]["workflowId"]
    week_ms = 7 * 86_400_000
    with psycopg.connect(superuser_url(both.us.deployment), autocommit=True) as there:

        def change(column: str, by: int) -> None:
            moved = f"UPDATE callboard.workflow SET {column} = {column} + %s WHERE id = %s"
            there.execute(moved, (by, order))

        change("created_ms", -week_ms)
        found = both.books.check_peer(US, **period)
        assert (found.agrees, found.order_count, found.charged_credits) == (True, 1, 1)
        for moved_ms in (0, week_ms):
            change("spent_micro", 500_000)
            change("created_ms", moved_ms)
            found = both.books.check_peer(US, **period)
            change("spent_micro", -500_000)
            assert not found.agrees
            (other,) = found.differences
            assert (other["peerWorkflowId"], other["outcome"]) == (order, "success")
            assert (other["chargedCredits"], other["receivedCredits"]) == (1.5, 1)
    past = both.books.check_peer(US, month="2020-02")
    assert (past.order_count, past.end_time) == (0, "2020-03-01T00:00:00.000Z")
    for query in (
        {"startTime": ends[0]},
        {"startTime": ends[1], "endTime": ends[0]},
        {"startTime": ends[0], "endTime": ends[1], "month": "2026-11"},
    ):
        refusal(both.admin.http.get(path, params=query), 400, "INVALID_REQUEST")
    # An order that runs is open on both sides, and no difference.
    node = {"capabilityId": both.held, "region": US}
    workflow = f"/v1/workflows/{answer(payer.publish({'nodes': {'n': node}}))['workflowId']}"
    both.us.agents[both.held].wait_dispatched()
    running = both.books.check_peer(US)
    assert (running.agrees, running.open_orders) == (True, 1)
    answer(payer.cancel(workflow))


def test_the_books_of_a_removed_peer_stay_and_its_account_can_be_emptied(
    both: Both, payer: Caller
) -> None:
    payer.run({"nodes": {"n": {"capabilityId": both.echo, "region": US}}})
    added = addition(both.us.deployment.url, describe(both.us.http))
    answer(both.admin.http.delete(f"{PEERS}/{US}"))
    try:
        held = both.books.peer_balance(US)
        assert held.clearing_credits == both.cleared() > 0
        assert held.own_credits == both.us.balance(both.did)
        assert both.books.peer_statement(US).order_count > 0
        assert both.books.check_peer(US).agrees
        assert both.books.settle_peer(US).balance == 0
        refusal(both.admin.http.get(f"{PEERS}/{US}"), 404, "NOT_FOUND")
    finally:
        answer(both.admin.http.post(PEERS, json={"peerId": US, **added}))
        both.wait_routable()


def test_a_result_of_an_agent_that_is_revoked_here_is_refused(both: Both, payer: Caller) -> None:
    """The agent is registered there alone. Its charge is paid: a payer may own and revoke it."""
    did = both.us.dids[both.echo]
    why = {"did": did, "reason": "It lies.", "evidence": {}}
    lost, cleared = both.books.check_peer(US).lost_credits, both.cleared()
    answer(both.admin.http.post("/v1/trust/revoke", json=why))
    try:
        node = {"capabilityId": both.echo, "region": US, "maxRetries": 0}
        record = payer.run({"nodes": {"n": node}})
    finally:
        answer(both.admin.http.delete(f"/v1/revoked/{did}"))
    assert record["status"] == "failed", record
    assert "revoked" in record["nodes"]["n"]["error"]["message"]
    assert both.cleared() == pytest.approx(cleared + 1)
    assert both.books.check_peer(US).lost_credits == lost
