"""Nodes wait for agents that are away for a passing reason, and for no others.

Decision agent-health-and-waiting.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.contract.conftest import (
    Caller,
    Json,
    MakeAgent,
    MakeCaller,
    RegisteredAgent,
    answer,
    unique,
    wait,
)
from tests.contract.test_execution_async import begin, one_node
from tests.platform.deployments import ROOT, RunningDeployment

# A real agent: its first node says that it has begun and takes a moment.
KIT_AGENT = """
import sys, time
from callboard import Agent
agent = Agent(sys.argv[1])
@agent.capability(sys.argv[2], price_cents=10)
def work(text: str = "") -> dict:
    return {"text": text}
agent.run(until_eof=True, deregister=sys.argv[3] == "deregister")
"""


@contextmanager
def kit_agent(deployment: RunningDeployment, caller: Caller, *words: str) -> Iterator[Any]:
    """Run an agent of the kit; stopped with SIGTERM when the block is left."""
    variables = {"CALLBOARD_URL": deployment.url, "CALLBOARD_API_KEY": caller.key}
    process = subprocess.Popen(
        [sys.executable, "-c", KIT_AGENT, *words],
        cwd=ROOT,
        env={**os.environ, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline(), "the agent did not start"
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


def node_of(payer: Caller, path: str, name: str = "a") -> Json:
    """Return a node of a record."""
    node: Json = answer(payer.http.get(path))["nodes"].get(name, {})
    return node


def wait_waiting(payer: Caller, path: str, name: str = "a") -> Json:
    """Return what a node waits for, as soon as it does."""
    wait(lambda: "waitingFor" in node_of(payer, path, name), "a node that waits")
    node = node_of(payer, path, name)
    assert set(node["waitingFor"]) == {"reason", "since", "until"}, node
    return node


def say(caller: Caller, agent: RegisteredAgent, word: str) -> None:
    """Send a heartbeat."""
    answer(caller.http.post(f"/v1/agents/{agent.did}/heartbeat", json={"status": word}))


def leave(caller: Caller, agent: RegisteredAgent) -> None:
    """Deregister an agent."""
    answer(caller.http.delete(f"/v1/agents/{agent.did}"))


def come_back(caller: Caller, agent: RegisteredAgent, **changes: Any) -> None:
    """Register an agent again."""
    answer(caller.http.post("/v1/agents/register", json={"acard": {**agent.card, **changes}}))


def revoke(caller: Caller, agent: RegisteredAgent) -> None:
    """Revoke an agent."""
    body = {"did": agent.did, "reason": "a test", "evidence": {}}
    answer(caller.http.post("/v1/trust/revoke", json=body))


def code_of(record: Json, name: str = "a") -> str:
    """Return the code with which a node failed."""
    assert record["nodes"][name]["status"] == "failed", record["nodes"]
    return str(record["nodes"][name]["error"]["code"])


@pytest.mark.parametrize("ending", ["deregister", "offline"])
def test_an_agent_that_is_stopped_and_started_again_gets_the_next_node(
    deployment: RunningDeployment, make_caller: MakeCaller, make_agent: MakeAgent, ending: str
) -> None:
    """The issue's first row: SIGTERM while a workflow runs, the same agent a moment later."""
    payer, owner = make_caller(100), make_caller()
    first = make_agent(is_held=True)
    words = (unique("did:net:kit-"), unique("cap.kit."), ending)
    nodes = one_node(first.capability)["nodes"]
    nodes["b"] = {"capabilityId": words[1], "dependsOn": ["a"], "payload": {"text": "x"}}
    with kit_agent(deployment, owner, *words):
        path = begin(payer, {"nodes": nodes})
        first.stub.wait_dispatched()
    first.stub.gate.set()
    waiting = wait_waiting(payer, path, "b")
    assert (waiting["status"], waiting["attempts"]) == ("ready", 0)
    assert words[1] in waiting["waitingFor"]["reason"]
    with kit_agent(deployment, owner, *words):
        record = payer.finished(path)
    assert record["status"] == "success", record["nodes"]
    b = record["nodes"]["b"]
    assert (b["attempts"], b["agentDid"], b["result"]) == (1, words[0], {"text": "x"})
    assert "waitingFor" not in b
    assert record["spentCredits"] == 0.2


@pytest.mark.parametrize("away", ["offline", "unhealthy", "deregistered"])
@pytest.mark.parametrize("is_targeted", [False, True], ids=["open", "targeted"])
def test_a_root_is_accepted_and_priced_while_its_agent_is_away(
    admin: Caller, payer: Caller, make_agent: MakeAgent, away: str, is_targeted: bool
) -> None:
    agent = make_agent(price_cents=70)
    leave(admin, agent) if away == "deregistered" else say(admin, agent, away)
    manifest = one_node(agent.capability, **({"targetAgentId": agent.did} if is_targeted else {}))
    foreseen = answer(payer.publish({**manifest, "dryRun": True}))
    assert foreseen["holdCredits"] == foreseen["estimatedCredits"] == 0.7
    assert foreseen["waiting"]["a"]["waitForAgentMs"] == 60_000
    assert foreseen["waiting"]["a"]["reason"] == foreseen["unavailable"]["a"]["message"]
    path = begin(payer, manifest)
    wait_waiting(payer, path)
    assert payer.balance()["pending"] == pytest.approx(0.7)
    if away == "deregistered":
        come_back(admin, agent)
    else:
        say(admin, agent, "healthy")
    record = payer.finished(path)
    assert (record["status"], record["nodes"]["a"]["attempts"]) == ("success", 1)
    assert record["spentCredits"] == 0.7


def test_who_waits_in_vain_fails_when_its_time_is_over(
    admin: Caller, payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent()
    say(admin, agent, "offline")
    record = payer.run(one_node(agent.capability, targetAgentId=agent.did, waitForAgentMs=700))
    node = record["nodes"]["a"]
    assert (code_of(record), node["attempts"]) == ("AGENT_UNAVAILABLE", 0)
    assert node["error"]["details"] == "agent_offline"
    assert (record["spentCredits"], payer.balance()["pending"]) == (0, 0)


def test_what_does_not_pass_fails_at_once(
    admin: Caller, payer: Caller, make_agent: MakeAgent
) -> None:
    """Never offered, too dear: no second is waited."""
    agent = make_agent(price_cents=50)
    say(admin, agent, "offline")
    never = one_node(unique("cap.never."))
    for manifest in (never, one_node(agent.capability, maxCostCredits=0.1)):
        assert code_of(payer.run(manifest)) == "NO_CANDIDATE"
    assert not answer(payer.publish({**never, "dryRun": True}))["waiting"]


def test_a_revoked_agent_ends_the_wait_for_it(
    admin: Caller, payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent()
    say(admin, agent, "offline")
    path = begin(payer, one_node(agent.capability))
    wait_waiting(payer, path)
    revoke(admin, agent)
    assert code_of(payer.finished(path)) == "NO_CANDIDATE"


def test_a_result_waits_for_its_verifier(
    admin: Caller, payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    agent, owner = make_agent(), make_caller()
    approve = lambda sent: (  # noqa: E731
        200,
        {"eventId": sent["eventId"], "status": "success", "result": {"approved": True}},
    )
    verifier = make_agent(approve, ownerDid=owner.did)
    say(owner, verifier, "offline")
    node = {"requiresVerification": True, "verifierCapabilityId": verifier.capability}
    path = begin(payer, one_node(agent.capability, **node))
    waiting = wait_waiting(payer, path)
    assert (waiting["status"], waiting["attempts"]) == ("running", 1)
    say(owner, verifier, "healthy")
    record = payer.finished(path)
    assert (record["status"], record["nodes"]["a"]["attempts"]) == ("success", 1)
    assert len(agent.stub.dispatches) == 1


def test_an_auction_waits_for_its_bidders(
    admin: Caller, payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    """A round that has only bidders who are away ends; another begins when one is back."""
    owner = make_caller(5)
    price = {"price_cents": 10, "standingBid": {"bidAmount": 0.1}}
    agent = make_agent(price=price, owner=owner, stake=5)
    say(admin, agent, "offline")
    path = begin(payer, one_node(agent.capability, selection="auction", maxCostCredits=1))
    wait_waiting(payer, path)
    say(admin, agent, "healthy")
    record = payer.finished(path)
    assert record["status"] == "success", record["nodes"]
