"""Agents that answer later outlive the process that asked them."""

from __future__ import annotations

from typing import Any

import httpx

from tests.contract.conftest import Caller, answer, client, unique, wait
from tests.contract.stub_agent import StubAgent, stub_agent
from tests.faults.victims import await_one, kill
from tests.platform.deployments import RunningDeployment

Json = dict[str, Any]
TEXT = "x" * 300_000


def test_accepted_attempt_outlives_its_owner_and_its_large_result_reaches_the_child(
    victim: RunningDeployment,
) -> None:
    """Goal: no second dispatch of `a`; the owner that builds b's inputs never saw a's result."""
    with (
        client(victim.url, victim.admin_key) as http,
        stub_agent(lambda _: (202, {"ok": True})) as slow,
        stub_agent() as child,
    ):
        payer = Caller("", victim.admin_key, "", http)
        nodes = {
            # However long the successor takes to start: the attempt is still open.
            "a": {"capabilityId": registered(http, slow), "timeoutMs": 280_000},
            "b": {"capabilityId": registered(http, child), "dependsOn": ["a"]},
        }
        published = answer(http.post("/v1/workflows/publish", json={"nodes": nodes}))
        path = f"/v1/workflows/{published['workflowId']}"
        wait_running(http, path)
        first = kill(victim, "workflows")
        await_one(victim, "workflows", after=first)
        ids = {name: slow.dispatches[0][name] for name in ("workflowId", "nodeId", "resultId")}
        body = {**ids, "status": "success", "result": {"text": TEXT}}
        assert handed_in(http, body)["status"] == "success"
        child.wait_dispatched()
        record = payer.finished(path)
        assert record["status"] == "success", record
        assert [dispatch["attempt"] for dispatch in slow.dispatches] == [1]
        assert child.dispatches[0]["parents"] == {"a": {"result": {"text": TEXT}}}
        assert record["nodes"]["a"]["result"] == {"text": TEXT}
        assert answer(http.post("/v1/workflows/nodeResult", json=body))["status"] == "success"


def registered(http: httpx.Client, agent: StubAgent) -> str:
    """Register an agent and return its capability."""
    capability = unique("cap.later.")
    card = {
        "did": unique("did:net:later-"),
        "endpoint": agent.url,
        "version": 1,
        "capabilities": [{"id": capability, "description": "A test's", "price_cents": 0}],
    }
    answer(http.post("/v1/agents/register", json={"acard": card}))
    return capability


def wait_running(http: httpx.Client, path: str) -> None:
    """Return when node `a` is running."""
    wait(lambda: answer(http.get(path))["nodes"]["a"]["status"] == "running", "work on it")


def handed_in(http: httpx.Client, body: Json) -> Json:
    """Hand a result in; who is told to come again while the successor starts does so."""
    replies: list[httpx.Response] = []

    def is_answered() -> bool:
        replies.append(http.post("/v1/workflows/nodeResult", json=body))
        return replies[-1].status_code != 503

    wait(is_answered, "the owner's successor")
    return answer(replies[-1])
