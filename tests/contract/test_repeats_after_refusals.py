"""An `Idempotency-Key` after a refusal, at the same time, and with another spelling of the body."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    answer,
    chain_of,
    refusal,
    unique,
)

Json = dict[str, Any]
REPLAYED = "idempotency-replayed"


def at_once(caller: Caller, path: str, body: Json, count: int = 5) -> list[httpx.Response]:
    """Send the same request several times at once, under one key."""
    headers = {"Idempotency-Key": unique("k")}

    def send(_: int) -> httpx.Response:
        return caller.http.post(path, json=body, headers=headers)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(send, range(count)))


@pytest.mark.parametrize("kind", ["publish", "list", "task", "bulk", "stake"])
def test_a_refusal_for_lack_of_credits_is_not_kept(
    make_caller: MakeCaller, make_agent: MakeAgent, admin: Caller, kind: str
) -> None:
    payer = make_caller()
    agent = make_agent(owner=payer)
    capability = agent.capability
    manifest = chain_of(capability, "a", maxBudgetCredits=5)
    path, body = {
        "publish": ("/v1/workflows/publish", manifest),
        "list": (
            "/v1/workflows",
            {"nodes": [{"id": "a", "capability": capability}], "edges": [], "maxCents": 500},
        ),
        "task": ("/v1/tasks/publish", {"description": f"[{capability}] go", "budget": 5}),
        "bulk": ("/v1/workflows/publish/bulk", {"workflows": [manifest, manifest]}),
        "stake": ("/v1/stakes", {"amount": 5, "agentDid": agent.did}),
    }[kind]
    headers = {"Idempotency-Key": unique("k")}
    for _ in range(2):
        reply = payer.http.post(path, json=body, headers=headers)
        if kind == "bulk":
            codes = [one["code"] for one in answer(reply)["results"]]
            assert codes == ["INSUFFICIENT_CREDITS"] * 2
        else:
            refusal(reply, 401, "INSUFFICIENT_CREDITS")
        assert REPLAYED not in reply.headers
    deposit = {"amount": 20, "ownerDid": payer.did}
    answer(admin.http.post("/v1/ledger/deposit", json=deposit))
    first = payer.http.post(path, json=body, headers=headers)
    if kind == "bulk":
        assert all("workflowId" in one for one in answer(first)["results"])
    again = payer.http.post(path, json=body, headers=headers)
    assert answer(again) == answer(first)
    assert (REPLAYED in first.headers, REPLAYED in again.headers) == (False, True)
    other = payer.http.post(path, json={**body, "other": 1}, headers=headers)
    assert other.status_code in (400, 409)


def test_cancels_at_once_get_the_first_reply(payer: Caller, make_agent: MakeAgent) -> None:
    agent = make_agent(is_held=True)
    path = f"/v1/workflows/{answer(payer.publish(chain_of(agent.capability)))['workflowId']}/cancel"
    replies = at_once(payer, path, {"reason": "user_request"})
    assert len({json.dumps(answer(reply)) for reply in replies}) == 1
    assert sum(REPLAYED in reply.headers for reply in replies) == len(replies) - 1


def test_publishes_at_once_are_one(payer: Caller, make_agent: MakeAgent) -> None:
    manifest = chain_of(make_agent().capability, "a")
    replies = at_once(payer, "/v1/workflows/publish", manifest)
    assert len({answer(reply)["workflowId"] for reply in replies}) == 1
    assert sum(REPLAYED in reply.headers for reply in replies) == len(replies) - 1


def test_a_path_in_another_encoding_is_the_same_path(admin: Caller) -> None:
    did, headers = unique("did:net:q-"), {"Idempotency-Key": unique("k")}
    first, again = (
        admin.http.post(f"/v1/quotas/{path}", json={"maxWorkflowsPerDay": 1}, headers=headers)
        for path in (did, did.replace(":", "%3A"))
    )
    assert answer(again) == answer(first)
    assert again.headers[REPLAYED] == "true"
