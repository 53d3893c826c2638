"""Nodes without side effects go out while their parents' commit is under way. Decision 0197."""

from __future__ import annotations

import threading
from typing import Any

import httpx

from tests.contract.conftest import Caller, MakeAgent, answer, wait
from tests.contract.test_clients_that_leave import stopped_ledger
from tests.contract.test_execution_async import PATH, begin, finished, handed_in
from tests.platform.deployments import RunningDeployment

Json = dict[str, Any]


def test_a_child_without_side_effects_is_dispatched_before_its_parents_commit_and_paid_after(
    deployment: RunningDeployment, payer: Caller, make_agent: MakeAgent, anonymous: httpx.Client
) -> None:
    """Nothing can be committed while it works; its result waits, whichever way it comes."""
    root_may_answer = threading.Event()

    def answered(dispatch: Json) -> tuple[int, Json]:
        if dispatch["nodeId"] == "a":
            assert root_may_answer.wait(60)
        elif dispatch["nodeId"] == "later":
            return 202, {"ok": True}
        return 200, {"eventId": dispatch["eventId"], "status": "success", "result": {}}

    agent = make_agent(answered, price_cents=10)
    child = {"capabilityId": agent.capability, "dependsOn": ["a"]}
    nodes = {
        "a": {"capabilityId": agent.capability},
        "waits": child,
        "now": {**child, "sideEffects": False},
        "later": {**child, "sideEffects": False},
        "end": {**child, "dependsOn": ["now"], "sideEffects": False},
    }

    def dispatched() -> list[str]:
        return sorted(dispatch["nodeId"] for dispatch in agent.stub.dispatches)

    replies: list[httpx.Response] = []
    path = begin(payer, {"nodes": nodes})
    wait(lambda: dispatched() == ["a"], "the root")
    with stopped_ledger(deployment):
        root_may_answer.set()
        wait(lambda: dispatched() == ["a", "later", "now"], "what has no side effects")
        later = next(one for one in agent.stub.dispatches if one["nodeId"] == "later")
        body = handed_in(later, agentDid=agent.did)
        hand_in = threading.Thread(
            target=lambda: replies.append(anonymous.post(PATH, json=body, timeout=60))
        )
        hand_in.start()
        record = answer(payer.http.get(path))
        assert record["nodes"]["now"]["status"] == "pending"
        assert dispatched() == ["a", "later", "now"]
    hand_in.join()
    if replies[0].status_code == 503:
        assert replies[0].headers["retry-after"] == "1"
        replies[0] = anonymous.post(PATH, json=body)
    assert answer(replies[0])["status"] == "success"
    record = finished(payer, path)
    assert record["status"] == "success"
    assert {node["attempts"] for node in record["nodes"].values()} == {1}
    assert dispatched() == ["a", "end", "later", "now", "waits"]
