"""A result that waits for its verifier is shown to nobody, and a cancel discards it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    answer,
    refusal,
    unique,
)
from tests.contract.test_execution_async import handed_in, later

Json = dict[str, Any]
SECRET = unique("the-work-")


def texts(caller: Caller, published: Json) -> dict[str, httpx.Response]:
    """Return every reply that could show the result of the workflow's node."""
    workflow_id, task_id = published["workflowId"], published["taskId"]
    paths = (
        f"/v1/workflows/{workflow_id}",
        f"/v1/workflows/{workflow_id}/nodes/a/result",
        f"/v1/tasks/{task_id}",
        "/v1/workflows?limit=5",
        f"/v1/audit?targetId={workflow_id}",
        f"/v1/workflows/{workflow_id}/escrow",
    )
    replies = {path: caller.http.get(path) for path in paths}
    waiting = caller.http.get(paths[0], headers={"Prefer": "wait=0.2"})
    return {**replies, "wait": waiting}


def reply_with(size: int) -> Any:
    """Return an agent's reply: the secret, and as much besides."""
    result = {"text": SECRET, "more": "x" * size}
    return lambda _: (200, {"status": "success", "result": result})


@pytest.mark.parametrize("size", [0, 100_000], ids=["small", "large"])
@pytest.mark.parametrize("end", ["cancel", "approve", "reject"])
def test_a_result_is_shown_when_it_is_settled(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller, size: int, end: str
) -> None:
    agent = make_agent(reply_with(size))
    verifier = make_agent(later, price_cents=0, ownerDid=make_caller().did)
    node = {
        "capabilityId": agent.capability,
        "requiresVerification": True,
        "verifierCapabilityId": verifier.capability,
        "maxRetries": 0,
    }
    published = answer(payer.publish({"nodes": {"a": node}}))
    path = f"/v1/workflows/{published['workflowId']}"
    verifier.stub.wait_dispatched()
    worker = make_caller(ownerDid=agent.did)
    for caller in (payer, worker):
        for name, reply in texts(caller, published).items():
            assert SECRET not in reply.text, name
        assert answer(caller.http.get(path))["nodes"]["a"]["status"] == "running"
        refusal(caller.http.get(f"{path}/nodes/a/result"), 404, "NOT_FOUND")
    if end == "cancel":
        cancelled = answer(payer.cancel(path))
        assert cancelled["nodesAffected"] == 1
    else:
        verdict = handed_in(verifier.stub.dispatches[0], result={"approved": end == "approve"})
        answer(payer.http.post("/v1/workflows/nodeResult", json=verdict))
    record = payer.finished(path)
    if end == "approve":
        assert record["nodes"]["a"]["result"]["text"] == SECRET
        assert SECRET in payer.http.get(f"{path}/nodes/a/result").text
        return
    for name, reply in texts(payer, published).items():
        assert SECRET not in reply.text, name
    assert not {"result", "resultRef"} & record["nodes"]["a"].keys()
    assert payer.balance()["balance"] == 100
