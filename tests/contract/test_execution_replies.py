"""Every dialect of a reply, retries and their delays, and who is tried next, row by row.

Spec: Dispatch response, Errors, Limits (retry backoff).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from tests.contract.conftest import Caller, MakeAgent
from tests.contract.stub_agent import succeed
from tests.contract.test_execution_async import one_node

Json = dict[str, Any]
Reply = tuple[int, Json]


def scripted(*replies: Reply) -> Callable[[Json], Reply]:
    """Return an answer that gives these replies in turn, the last one from then on."""
    left = list(replies)

    def reply(dispatch: Json) -> Reply:
        status, body = left.pop(0) if len(left) > 1 else left[0]
        return status, {"eventId": dispatch["eventId"], **body}

    return reply


GOOD = (200, {"status": "success", "result": {"n": 1}})

SUCCESSES: dict[str, Json] = {
    "status success": {"status": "success", "result": {"n": 1}},
    "status ok and output": {"status": "ok", "output": {"n": 1}},
    "unknown members": {"status": "success", "result": {"n": 1}, "mood": "good"},
}


@pytest.mark.parametrize("body", SUCCESSES.values(), ids=SUCCESSES)
def test_success_in_every_dialect(payer: Caller, make_agent: MakeAgent, body: Json) -> None:
    record = payer.run(one_node(make_agent(lambda _: (200, body)).capability))
    assert (record["status"], record["nodes"]["a"]["result"]) == ("success", {"n": 1})


# Of each kind one: tests/core/workflow/test_verdict.py has the others.
RETRYABLE: dict[str, Reply] = {
    "200 with status error": (200, {"status": "error", "error": "no luck"}),
    "wrong eventId": (200, {"eventId": "another", "status": "success", "result": {}}),
    "500 as the specification has it": (500, {"status": "error", "error": "boom", "code": "E1"}),
    "metrics above 16 KiB": (200, {"result": {}, "metrics": {"model": "m" * 16_384}}),
}


@pytest.mark.parametrize("reply", RETRYABLE.values(), ids=RETRYABLE)
def test_retryable_reply_is_retried_after_a_second_by_the_same_agent(
    payer: Caller, make_agent: MakeAgent, reply: Reply
) -> None:
    agent = make_agent(scripted(reply, GOOD), price_cents=20)
    record = payer.run(one_node(agent.capability, targetAgentId=agent.did))
    node = record["nodes"]["a"]
    assert (record["status"], node["attempts"]) == ("success", 2)
    assert record["spentCredits"] == 0.2, "the failed attempt is not paid"
    first, second = agent.stub.dispatches
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert first["eventId"] != second["eventId"]
    assert at_ms(second) - at_ms(first) >= 1_000


def at_ms(dispatch: Json) -> int:
    """Return when a dispatch was written, as the service stamped it; Unix time."""
    return round(datetime.fromisoformat(dispatch["timestamp"]).timestamp() * 1_000)


FINAL: dict[str, Reply] = {
    "400": (400, {"status": "error", "error": "cannot do this"}),
    "401 as the specification has it": (401, {"status": "error", "error": "Invalid signature"}),
    "404 unknown capability": (404, {"status": "error", "error": "unknown capability"}),
}


@pytest.mark.parametrize("reply", FINAL.values(), ids=FINAL)
def test_final_reply_of_a_target_is_not_retried(
    payer: Caller, make_agent: MakeAgent, reply: Reply
) -> None:
    agent = make_agent(scripted(reply))
    record = payer.run(one_node(agent.capability, targetAgentId=agent.did))
    node = record["nodes"]["a"]
    assert (record["status"], node["status"], node["attempts"]) == ("failed", "failed", 1)
    assert node["error"]["code"] == "AGENT_ERROR"
    assert len(agent.stub.dispatches) == 1


def test_final_reply_sends_an_untargeted_node_to_another_agent_at_once(
    payer: Caller, make_agent: MakeAgent
) -> None:
    bad = make_agent(scripted((400, {"status": "error", "error": "no"})))
    good = make_agent(capability=bad.capability)
    record = payer.run(one_node(bad.capability, maxRetries=0))
    assert record["status"] == "success", record
    assert record["nodes"]["a"]["agentDid"] == good.did
    assert len(bad.stub.dispatches) <= 1


def test_at_most_three_agents_are_tried_for_a_node(payer: Caller, make_agent: MakeAgent) -> None:
    reply = scripted((400, {"status": "error", "error": "no"}))
    first = make_agent(reply)
    agents = [first, *(make_agent(reply, capability=first.capability) for _ in range(3))]
    record = payer.run(one_node(first.capability))
    assert record["status"] == "failed"
    assert record["nodes"]["a"]["attempts"] == 3
    assert sorted(len(agent.stub.dispatches) for agent in agents) == [0, 1, 1, 1]


def test_allowFallbackAgents_false_keeps_to_the_first_agent(
    payer: Caller, make_agent: MakeAgent
) -> None:
    first = make_agent(scripted((400, {"status": "error", "error": "no"})))
    second = make_agent(
        scripted((400, {"status": "error", "error": "no"})), capability=first.capability
    )
    manifest = one_node(first.capability)
    manifest["settings"] = {"allowFallbackAgents": False}
    record = payer.run(manifest)
    assert (record["status"], record["nodes"]["a"]["attempts"]) == ("failed", 1)
    assert len(first.stub.dispatches) + len(second.stub.dispatches) == 1


def test_retries_stop_after_maxRetries_and_wait_0_1_5_seconds(
    payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent(scripted((503, {})))
    record = payer.run(one_node(agent.capability, maxRetries=2))
    node = record["nodes"]["a"]
    assert (node["status"], node["attempts"]) == ("failed", 3)
    times = [at_ms(dispatch) for dispatch in agent.stub.dispatches]
    assert [dispatch["attempt"] for dispatch in agent.stub.dispatches] == [1, 2, 3]
    assert times[1] - times[0] >= 1_000
    assert times[2] - times[1] >= 5_000
    assert record["spentCredits"] == 0


def test_maxRetries_0_is_one_attempt(payer: Caller, make_agent: MakeAgent) -> None:
    agent = make_agent(scripted((500, {"status": "error", "error": "boom", "code": "E1"})))
    node = payer.run(one_node(agent.capability, maxRetries=0))["nodes"]["a"]
    assert (node["status"], node["attempts"]) == ("failed", 1)
    assert "boom" in node["error"]["message"]


def test_Retry_After_lengthens_the_delay(payer: Caller, make_agent: MakeAgent) -> None:
    agent = make_agent(scripted((503, {"__retry_after": 3}), GOOD))
    record = payer.run(one_node(agent.capability))
    assert record["status"] == "success"
    first, second = agent.stub.dispatches
    assert at_ms(second) - at_ms(first) >= 3_000


def test_refused_connection_is_retried_and_then_AGENT_UNAVAILABLE(
    payer: Caller, make_agent: MakeAgent, free_address: str
) -> None:
    agent = make_agent(succeed, endpoint=free_address)
    options = {"targetAgentId": agent.did, "maxRetries": 1}
    node = payer.run(one_node(agent.capability, **options))["nodes"]["a"]
    assert node["status"] == "failed"
    assert node["error"]["error"] == "AGENT_UNAVAILABLE"
    assert node["error"]["targetAgentId"] == agent.did
    assert node["error"]["details"] == "agent_offline"
