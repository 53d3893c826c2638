"""Rows 2 and 3 of the market's attacks: no stranger's and no payer's verifier robs an agent.

Spec: money.md (Verifiers).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    RegisteredAgent,
    answer,
    refusal,
    unique,
)

Json = dict[str, Any]
GENERIC = "cap.verify.generic.v1"
BID = {"price_cents": 10, "standingBid": {"bidAmount": 0.1}}


def says(is_approved: bool) -> Any:
    """Return the answers of a verifier that says this of every result."""
    return lambda _: (200, {"status": "success", "result": {"approved": is_approved}})


@pytest.fixture
def generic(
    make_agent: MakeAgent, make_caller: MakeCaller, admin: Caller
) -> Iterator[RegisteredAgent]:
    """A trusted verifier that needs not be chosen; other tests do not meet it."""
    owner = make_caller()
    made = make_agent(says(True), capability=GENERIC, price_cents=1, ownerDid=owner.did)
    # Its owner's word does not take away what the administrator's has given.
    answer(owner.http.post("/v1/agents/register", json={"acard": made.card}))
    yield made
    answer(admin.http.delete(f"/v1/agents/{made.did}"))


@pytest.fixture
def worker(make_caller: MakeCaller) -> Caller:
    """The owner of agents that work."""
    return make_caller(10)


def staked(make_agent: MakeAgent, worker: Caller, **card: Any) -> RegisteredAgent:
    """Return an agent with a standing bid and a stake of one credit, and with this in its card."""
    agent = make_agent(price=BID, owner=worker, stake=1)
    if card:
        answer(worker.http.post("/v1/agents/register", json={"acard": {**agent.card, **card}}))
    return agent


def verified(agent: RegisteredAgent, verifier: str | None = None, **more: Any) -> Json:
    """Return a node whose result is verified, by whom the payer chooses or by any trusted one."""
    node = {"capabilityId": agent.capability, "requiresVerification": True, "maxRetries": 0, **more}
    return node if verifier is None else {**node, "verifierCapabilityId": verifier}


def auctioned(agent: RegisteredAgent, verifier: str | None = None) -> Json:
    """Return the same, auctioned, so that a part of the agent's stake is locked for it."""
    return verified(agent, verifier, selection="auction", maxCostCredits=1)


def check_unharmed(worker: Caller, agent: RegisteredAgent, successful: int) -> None:
    """Check that an agent has all of its stake, and that no failure is counted against it."""
    assert answer(worker.http.get(f"/v1/stakes/{agent.did}"))["stakedAmount"] == 1
    counted = answer(worker.http.get(f"/v1/reputation/{agent.did}"))
    assert (counted["totalTasks"], counted["successfulTasks"]) == (successful, successful)


def test_row_2_a_strangers_verifier_judges_nobody(
    payer: Caller,
    worker: Caller,
    make_agent: MakeAgent,
    make_caller: MakeCaller,
    generic: RegisteredAgent,
) -> None:
    spy = make_agent(says(False), capability=GENERIC, price_cents=0, owner=make_caller())
    agent = staked(make_agent, worker)
    nodes = {
        "a": verified(agent), "b": auctioned(agent),
        "c": verified(agent, GENERIC), "d": auctioned(agent, GENERIC),
    }  # fmt: skip
    record = payer.run({"nodes": nodes})
    assert record["status"] == "success", record["nodes"]
    assert not spy.stub.dispatches, "a stranger has read a result"
    assert len(generic.stub.dispatches) == 4
    check_unharmed(worker, agent, successful=4)


def test_row_3_no_agent_works_for_a_verifier_of_the_payers(
    payer: Caller, worker: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    judge = make_agent(says(False), price_cents=0, owner=make_caller())
    agent = staked(make_agent, worker)
    for node in (
        verified(agent, judge.capability),
        auctioned(agent, judge.capability),
        verified(agent, judge.capability, targetAgentId=agent.did),
    ):
        error = payer.run({"nodes": {"a": node}})["nodes"]["a"]["error"]
        assert error["code"] == "NO_CANDIDATE"
        assert "verifier" in error["message"]
    assert not (agent.stub.dispatches or judge.stub.dispatches)
    assert payer.balance()["balance"] == 100
    check_unharmed(worker, agent, successful=0)


def test_a_trusted_workers_owner_makes_no_verifier_of_it(
    payer: Caller, worker: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    """An administrator registered a translator, whose owner's next card offered verification."""
    owner, judging = make_caller(), unique("cap.test.")
    judge = make_agent(says(False), price_cents=0, ownerDid=owner.did)
    offered = [*judge.card["capabilities"], {"id": judging, "description": ""}]
    body = {"acard": {**judge.card, "capabilities": offered}}
    answer(owner.http.post("/v1/agents/register", json=body))
    agent = staked(make_agent, worker)
    error = payer.run({"nodes": {"a": verified(agent, judging)}})["nodes"]["a"]["error"]
    assert error["code"] == "NO_CANDIDATE"
    assert not (agent.stub.dispatches or judge.stub.dispatches)


def test_an_untrusted_verifiers_rejection_costs_the_agent_that_accepts_it_nothing_but_its_pay(
    payer: Caller, worker: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    judge = make_agent(says(False), price_cents=0, owner=make_caller())
    agent = staked(make_agent, worker, acceptedVerifiers="any")
    node = payer.run({"nodes": {"a": auctioned(agent, judge.capability)}})["nodes"]["a"]
    assert (node["status"], node["error"]["code"]) == ("failed", "VERIFICATION_REJECTED")
    check_unharmed(worker, agent, successful=0)


def test_row_3_a_trusted_agent_that_is_no_verifier_costs_nobody_anything(
    payer: Caller, worker: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    """A payer may choose one so that it does not approve."""
    echo = make_agent(price_cents=0, ownerDid=make_caller().did)
    agent = staked(make_agent, worker)
    node = payer.run({"nodes": {"a": auctioned(agent, echo.capability)}})["nodes"]["a"]
    assert node["error"]["code"] == "VERIFICATION_REJECTED"
    check_unharmed(worker, agent, successful=0)


def test_a_trusted_verifiers_rejection_costs_stake_and_reputation(
    payer: Caller, worker: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    judge = make_agent(says(False), price_cents=0, ownerDid=make_caller().did)
    agent = staked(make_agent, worker)
    node = payer.run({"nodes": {"a": auctioned(agent, judge.capability)}})["nodes"]["a"]
    assert node["error"]["code"] == "VERIFICATION_REJECTED"
    assert answer(worker.http.get(f"/v1/stakes/{agent.did}"))["stakedAmount"] < 1
    counted = answer(worker.http.get(f"/v1/reputation/{agent.did}"))
    assert (counted["totalTasks"], counted["successfulTasks"]) == (1, 0)


def test_a_card_says_whose_judgement_its_agent_accepts(
    payer: Caller, worker: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    judge = make_agent(says(True), price_cents=0, owner=make_caller())
    choosy = staked(make_agent, worker)
    fussy = make_agent(capability=choosy.capability, owner=worker)
    agent = make_agent(capability=choosy.capability, owner=worker, price_cents=30)
    for one, accepted in ((fussy, [unique("did:net:judge-")]), (agent, [fussy.did, judge.did])):
        body = {"acard": {**one.card, "acceptedVerifiers": accepted}}
        answer(worker.http.post("/v1/agents/register", json=body))
    node = payer.run({"nodes": {"a": verified(agent, judge.capability)}})["nodes"]["a"]
    assert (node["status"], node["agentDid"]) == ("success", agent.did)
    own = make_agent(says(True), price_cents=0, owner=payer)
    trusting = staked(make_agent, worker, acceptedVerifiers="any")
    node = payer.run({"nodes": {"a": verified(trusting, own.capability)}})["nodes"]["a"]
    assert node["error"]["code"] == "NO_CANDIDATE", "the payer's own verifier is no one's"
    assert not own.stub.dispatches


@pytest.mark.parametrize("wrong", ["all", 1, ["me"], [f"did:net:{n}" for n in range(33)], {}])
def test_what_says_nothing_of_verifiers_is_refused(
    worker: Caller, make_agent: MakeAgent, wrong: object
) -> None:
    card = {**make_agent(owner=worker).card, "acceptedVerifiers": wrong}
    refused = worker.http.post("/v1/agents/register", json={"acard": card})
    problem = refusal(refused, 400, "INVALID_REQUEST")
    assert [one["path"] for one in problem["errors"]] == ["acard.acceptedVerifiers"]
