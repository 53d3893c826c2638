"""Agents that answer later. Spec: contract.md section 5 (asynchronous agents)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from callboard import Agent, Later, calls

BODY = {"eventId": "e1", "capabilityId": "cap.slow.v1", "workflowId": "w", "nodeId": "n"}


def slow_agent(kept: list[Later]) -> Agent:
    agent = Agent("did:net:slow", "Slow")

    @agent.capability("cap.slow.v1")
    def slow(later: Later, text: str = "") -> Later:
        kept.append(later)
        return later

    return agent


def ask(agent: Agent, **members: Any) -> tuple[int, Any]:
    answer = asyncio.run(agent.answer(json.dumps({**BODY, **members}).encode(), None))
    return answer.status, json.loads(answer.body)


def test_a_handler_that_returns_its_later_is_answered_with_202() -> None:
    kept: list[Later] = []
    reply = ask(slow_agent(kept), resultId="r")
    assert reply == (202, {"ok": True, "eventId": "e1"})
    assert kept == [Later("e1", "w", "n", "r")]


def test_a_later_can_be_kept_as_json() -> None:
    later = Later("e1", "w", "n", "r")
    assert Later.from_json(json.loads(json.dumps(later.to_json()))) == later


def test_a_dispatch_without_a_result_id_cannot_be_answered_later() -> None:
    status, reply = ask(slow_agent([]))
    assert (status, reply["status"]) == (400, "error")
    assert "resultId" in reply["error"]


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"result": {"n": 1}}, {"status": "success", "result": {"n": 1}}),
        ({}, {"status": "success", "result": {}}),
        (
            {"error": "no luck", "code": "E1"},
            {"status": "error", "error": "no luck", "code": "E1"},
        ),
    ],
)
def test_a_result_or_an_error_is_handed_in(given: dict[str, Any], sent: dict[str, Any]) -> None:
    call = next(calls.node_result("w", "n", "r", agent_did="did:net:slow", **given))
    assert (call.method, call.path) == ("POST", "/v1/workflows/nodeResult")
    ids = {"workflowId": "w", "nodeId": "n", "resultId": "r", "agentDid": "did:net:slow"}
    assert call.body == {**ids, **sent}
    assert call.repeatable
