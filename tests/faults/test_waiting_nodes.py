"""kill -9 of every owner while a node waits for an agent.

Goal: the successor waits on, until the same time, and the agent gets the node once it is back.
Method: the only agent is deregistered, a workflow is published, the owners are killed.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Any

import httpx
import pytest

from tests.faults.victims import find_all, wait
from tests.faults.waiting_agent import WaitingAgent
from tests.platform.deployments import RunningDeployment

pytestmark = pytest.mark.slow

Json = dict[str, Any]
DID, CAPABILITY = "did:fault:away", "cap.fault.away.v1"


def answer(response: httpx.Response) -> Json:
    """Return the body of a reply that is none of a refusal."""
    assert response.status_code == 200, response.text[:500]
    body: Json = response.json()
    return body


def test_the_next_owner_waits_on_until_the_same_time(victim: RunningDeployment) -> None:
    key = {"x-api-key": victim.admin_key}
    with (
        WaitingAgent() as agent,
        httpx.Client(base_url=victim.url, headers=key, timeout=90.0, trust_env=False) as http,
    ):
        agent.may_answer.set()
        offered = [{"id": CAPABILITY, "description": "d"}]
        card = {"did": DID, "endpoint": agent.url, "version": 1, "capabilities": offered}
        answer(http.post("/v1/agents/register", json={"acard": card}))
        answer(http.delete(f"/v1/agents/{DID}"))
        node = {"capabilityId": CAPABILITY, "targetAgentId": DID, "waitForAgentMs": 240_000}
        path = answer(http.post("/v1/workflows/publish", json={"nodes": {"a": node}}))["id"]

        def read() -> Json:
            response = http.get(f"/v1/workflows/{path}")
            return answer(response) if response.status_code == 200 else {"nodes": {"a": {}}}

        wait(lambda: "waitingFor" in read()["nodes"]["a"], "a node that waits")
        before = read()["nodes"]["a"]["waitingFor"]
        killed = set(find_all(victim, "workflows"))
        for pid in killed:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait(lambda: bool(set(find_all(victim, "workflows")) - killed), "another owner")
        assert read()["nodes"]["a"].get("waitingFor", before) == before
        wait(
            lambda: http.post("/v1/agents/register", json={"acard": card}).status_code == 200,
            "the agent's registration",
        )
        wait(lambda: read().get("completedAt") is not None, "the end")
        record = read()
        assert (record["status"], record["nodes"]["a"]["attempts"]) == ("success", 1)
