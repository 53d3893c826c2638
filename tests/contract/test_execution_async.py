"""Agents that answer "later" and hand their result in, row by row.

Spec: Dispatch response; money.md (Settlement).
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest

from callboard import Agent, CallboardError, Later
from callboard.kit.serving import serving
from core.trust.signing import is_signature_valid
from tests.contract.audit_events import events_of
from tests.contract.conftest import (
    PATIENCE_S,
    POLL_S,
    Caller,
    MakeAgent,
    answer,
    chain_of,
    refusal,
    unique,
)
from tests.platform.deployments import RunningDeployment

Json = dict[str, Any]
PATH = "/v1/workflows/nodeResult"
DIALECTS = {"202": (202, {}), "202 with a body": (202, {"ok": True}), "200 ok": (200, {"ok": True})}


def later(_: Json) -> tuple[int, Json]:
    """Accept, and say no more."""
    return 202, {"ok": True}


def one_node(capability: str, **options: Any) -> Json:
    """Return a manifest of one node `a`."""
    return {"nodes": {"a": {"capabilityId": capability, **options}}}


def handed_in(dispatch: Json, **members: Any) -> Json:
    """Return the body with which the result of a dispatch is handed in."""
    ids = {name: dispatch[name] for name in ("workflowId", "nodeId", "resultId")}
    return {**ids, "status": "success", "result": {"n": 1}, **members}


def begin(payer: Caller, manifest: Json) -> str:
    """Publish and return the path of the workflow."""
    return f"/v1/workflows/{answer(payer.publish(manifest))['workflowId']}"


def wait_node(payer: Caller, path: str, status: str, name: str = "a") -> Json:
    """Return the record once the node has this status."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        record = answer(payer.http.get(path))
        if record["nodes"][name]["status"] == status:
            return record
        assert time.monotonic() < deadline, record
        time.sleep(POLL_S)


@pytest.mark.parametrize("reply", DIALECTS.values(), ids=DIALECTS)
def test_accepted_node_is_running_until_its_result_is_handed_in_and_paid(
    payer: Caller, make_agent: MakeAgent, anonymous: httpx.Client, reply: tuple[int, Json]
) -> None:
    agent = make_agent(lambda _: reply, price_cents=20)
    path = begin(payer, one_node(agent.capability))
    running = wait_node(payer, path, "running")
    assert running["status"] == "running"
    dispatch = agent.stub.dispatches[0]
    body = handed_in(dispatch, metrics={"tokens_used": 5}, agentDid=agent.did)
    first = anonymous.post(PATH, json=body)
    taken = answer(first)
    assert taken == {
        "success": True,
        "ok": True,
        "workflowId": dispatch["workflowId"],
        "nodeId": "a",
        "attempt": 1,
        "status": "success",
    }
    assert first.headers["x-ratelimit-limit"] == "6000"
    record = payer.finished(path)
    assert record["status"] == "success"
    assert record["nodes"]["a"]["result"] == {"n": 1}
    assert record["nodes"]["a"]["attempts"] == 1
    metrics = record["nodes"]["a"]["metrics"]
    assert metrics["tokens_used"] == 5 and metrics["latency_ms"] >= 0
    assert record["spentCredits"] == 0.2
    again = anonymous.post(PATH, json=body)
    assert answer(again) == taken, "the stored answer"
    assert again.headers["idempotency-replayed"] == "true"
    assert answer(payer.http.get(path))["spentCredits"] == 0.2


def test_a_result_that_is_sent_several_times_at_once_is_taken_once_and_so_answered(
    payer: Caller, make_agent: MakeAgent
) -> None:
    """It ends its workflow: the others come when the ledger takes nothing of it any more."""
    agent = make_agent(later)
    with ThreadPoolExecutor(3) as pool:
        for number in range(6):
            path = begin(payer, one_node(agent.capability))
            wait_node(payer, path, "running")
            body = handed_in(agent.stub.dispatches[number])
            sent = [pool.submit(payer.http.post, PATH, json=body) for _ in range(3)]
            assert [answer(one.result())["status"] for one in sent] == ["success"] * 3


def test_accepted_nodes_count_among_what_an_agent_takes_at_once(
    payer: Caller, make_agent: MakeAgent, anonymous: httpx.Client
) -> None:
    agent, other = make_agent(later, max_concurrency=2), make_agent()
    for _ in range(3):
        begin(payer, one_node(agent.capability))
    for _ in range(2):
        agent.stub.wait_dispatched()
    for dispatch in agent.stub.dispatches[:2]:
        wait_node(payer, f"/v1/workflows/{dispatch['workflowId']}", "running")
    payer.finished(begin(payer, one_node(other.capability)))
    assert len(agent.stub.dispatches) == 2, "it has its hands full"
    answer(anonymous.post(PATH, json=handed_in(agent.stub.dispatches[0])))
    agent.stub.wait_dispatched()
    assert len(agent.stub.dispatches) == 3


def test_child_gets_what_was_handed_in(
    payer: Caller, make_agent: MakeAgent, anonymous: httpx.Client
) -> None:
    slow, child = make_agent(later), make_agent()
    manifest = chain_of(child.capability, "ab")
    manifest["nodes"]["a"]["capabilityId"] = slow.capability
    manifest["nodes"]["b"]["inputMappings"] = {"n": "$.a.result.n"}
    path = begin(payer, manifest)
    slow.stub.wait_dispatched()
    answer(anonymous.post(PATH, json=handed_in(slow.stub.dispatches[0])))
    record = payer.finished(path)
    assert record["nodes"]["b"]["result"]["inputs"] == {"own": "b", "n": 1}


@pytest.mark.parametrize(
    "wrong",
    [
        {"resultId": "0" * 64},
        {"resultId": "ü"},
        {"resultId": ""},
        {"nodeId": "b"},
        {"nodeId": "nobody"},
        {"workflowId": "0199c0de-0000-7000-8000-000000000009"},
        {"workflowId": "nonsense"},
        {"agentDid": "did:net:another"},
    ],
    ids=str,
)
def test_wrong_token_is_401_and_changes_nothing(
    payer: Caller, make_agent: MakeAgent, anonymous: httpx.Client, wrong: Json
) -> None:
    agent = make_agent(later)
    manifest = {"nodes": {name: {"capabilityId": agent.capability} for name in "ab"}}
    path = begin(payer, manifest)
    wait_node(payer, path, "running")
    wait_node(payer, path, "running", "b")
    dispatch = next(d for d in agent.stub.dispatches if d["nodeId"] == "a")
    refusal(anonymous.post(PATH, json=handed_in(dispatch, **wrong)), 401, "UNAUTHORIZED")
    record = answer(payer.http.get(path))
    assert {node["status"] for node in record["nodes"].values()} == {"running"}


@pytest.mark.parametrize(
    "members",
    [
        {"status": "perhaps"},
        {"status": None, "result": None, "error": None, "ok": 1},
        {"resultId": 5},
        {"workflowId": None},
        {"eventId": "another"},
        {"result": {"n": 10**128}},
        {"metrics": {"model": "m" * 16_384}},
    ],
    ids=lambda members: str(members)[:40],
)
def test_result_that_cannot_be_used_is_400_and_may_be_handed_in_again(
    payer: Caller, make_agent: MakeAgent, anonymous: httpx.Client, members: Json
) -> None:
    agent = make_agent(later)
    path = begin(payer, one_node(agent.capability))
    wait_node(payer, path, "running")
    dispatch = agent.stub.dispatches[0]
    body = handed_in(dispatch, **members)
    if members.get("ok"):
        del body["result"]
    refusal(anonymous.post(PATH, json=body), 400, "INVALID_REQUEST")
    answer(anonymous.post(PATH, json=handed_in(dispatch, eventId=dispatch["eventId"])))
    assert payer.finished(path)["status"] == "success"


def test_error_handed_in_is_retried_as_a_reply_would_be(
    payer: Caller, make_agent: MakeAgent, anonymous: httpx.Client
) -> None:
    agent = make_agent(later)
    path = begin(payer, one_node(agent.capability))
    wait_node(payer, path, "running")
    agent.stub.wait_dispatched()
    body = handed_in(agent.stub.dispatches[0], status="error", error="no luck")
    del body["result"]
    assert answer(anonymous.post(PATH, json=body))["status"] == "ready"
    refusal(anonymous.post(PATH, json=body), 409, "ALREADY_SETTLED")
    agent.stub.wait_dispatched()
    wait_node(payer, path, "running")
    answer(anonymous.post(PATH, json=handed_in(agent.stub.dispatches[1])))
    record = payer.finished(path)
    assert (record["status"], record["nodes"]["a"]["attempts"]) == ("success", 2)


def test_unknown_capability_handed_in_is_final_for_the_agent(
    payer: Caller, make_agent: MakeAgent, anonymous: httpx.Client
) -> None:
    agent = make_agent(later)
    path = begin(payer, one_node(agent.capability))
    agent.stub.wait_dispatched()
    message = f"unknown capability {agent.capability}"
    body = handed_in(agent.stub.dispatches[0], status="error", error=message)
    assert answer(anonymous.post(PATH, json=body))["status"] == "failed"
    record = payer.finished(path)
    assert record["nodes"]["a"]["error"]["code"] == "AGENT_ERROR"


def test_accepted_node_times_out_at_its_deadline_and_its_late_result_is_409(
    payer: Caller, make_agent: MakeAgent, anonymous: httpx.Client, admin: Caller
) -> None:
    agent = make_agent(later, price_cents=20)
    path = begin(payer, one_node(agent.capability, timeoutMs=2_000, maxRetries=0))
    record = payer.finished(path)
    node = record["nodes"]["a"]
    assert (record["status"], node["status"]) == ("failed", "timeout")
    assert node["error"]["code"] == "AGENT_TIMEOUT"
    body = handed_in(agent.stub.dispatches[0])
    for _ in range(2):
        refusal(anonymous.post(PATH, json=body), 409, "ESCROW_RELEASED")
    assert answer(payer.http.get(path)) == record, "the output is discarded"
    assert payer.balance()["balance"] == 100
    query = f"/v1/audit?targetId=late:{record['id']}:a:1:0"
    (entry,) = answer(admin.http.get(query))["entries"]
    assert entry["eventType"] == "command.refused"
    (event,) = events_of(entry)
    assert event["payload"]["code"] == "ESCROW_RELEASED"


def test_result_of_an_earlier_attempt_is_409_while_the_next_one_is_open(
    payer: Caller, make_agent: MakeAgent, anonymous: httpx.Client
) -> None:
    agent = make_agent(later)
    path = begin(payer, one_node(agent.capability, timeoutMs=5_000, maxRetries=1))
    agent.stub.wait_dispatched()
    agent.stub.wait_dispatched()
    first, second = agent.stub.dispatches
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert first["resultId"] != second["resultId"]
    refusal(anonymous.post(PATH, json=handed_in(first)), 409, "ALREADY_SETTLED")
    answer(anonymous.post(PATH, json=handed_in(second, result={"from": 2})))
    record = payer.finished(path)
    assert record["nodes"]["a"]["result"] == {"from": 2}
    refusal(anonymous.post(PATH, json=handed_in(first)), 409, "ESCROW_RELEASED")


def test_cancel_tells_the_agent_of_an_accepted_node_with_a_signed_notice(
    payer: Caller, make_agent: MakeAgent, anonymous: httpx.Client
) -> None:
    agent = make_agent(later, signingSecret="hush hush hush hush")
    path = begin(payer, one_node(agent.capability))
    wait_node(payer, path, "running")
    answer(payer.http.post(f"{path}/cancel", json={"reason": "policy_violation"}))
    agent.stub.wait_cancelled()
    notice = agent.stub.cancels[0]
    dispatch = agent.stub.dispatches[0]
    assert notice["eventId"] == dispatch["eventId"]
    assert (notice["nodeId"], notice["reason"]) == ("a", "policy_violation")
    signature = agent.stub.cancel_signatures[0]
    assert is_signature_valid(notice["raw"], "hush hush hush hush", signature)
    response = anonymous.post(PATH, json=handed_in(dispatch))
    refusal(response, 409, "ESCROW_RELEASED")
    assert payer.balance()["balance"] == 100


def test_verifier_may_answer_later_and_the_primary_cannot_answer_for_it(
    payer: Caller, make_agent: MakeAgent, anonymous: httpx.Client, make_caller: Any
) -> None:
    primary = make_agent()
    verifier = make_agent(later, ownerDid=make_caller().did)
    node = {
        "capabilityId": primary.capability,
        "requiresVerification": True,
        "verifierCapabilityId": verifier.capability,
    }
    path = begin(payer, {"nodes": {"a": node}})
    verifier.stub.wait_dispatched()
    asked, own = verifier.stub.dispatches[0], primary.stub.dispatches[0]
    assert asked["resultId"] != own["resultId"]
    response = anonymous.post(PATH, json=handed_in(own, result={"approved": True}))
    assert answer(response)["status"] == "running"
    assert response.headers["idempotency-replayed"] == "true"
    assert answer(payer.http.get(path))["nodes"]["a"]["status"] != "success"
    taken = answer(anonymous.post(PATH, json=handed_in(asked, result={"approved": True})))
    assert taken["status"] == "success"
    assert payer.finished(path)["status"] == "success"


def test_agent_of_the_kit_delivers_later(
    payer: Caller, admin: Caller, deployment: RunningDeployment
) -> None:
    agent = Agent(unique("did:net:kit-"))
    capability = unique("cap.test.")
    kept: list[Later] = []

    @agent.capability(capability, price_cents=30)
    def slow(later: Later, text: str) -> Later:
        kept.append(later)
        return later

    async def scenario() -> Json:
        async with serving(agent) as endpoint:
            card = {"acard": agent.card(endpoint).to_json()}
            answer(admin.http.post("/v1/agents/register", json=card))
            path = begin(payer, one_node(capability, payload={"text": "x"}))
            await asyncio.to_thread(wait_node, payer, path, "running")
            taken = await agent.deliver(kept[0], {"text": "done"}, url=deployment.url)
            assert taken["status"] == "success"
            with pytest.raises(CallboardError) as refused:
                await agent.deliver(replace(kept[0], result_id="0" * 64), {}, url=deployment.url)
            assert refused.value.code == "UNAUTHORIZED"
            return await asyncio.to_thread(payer.finished, path)

    record = asyncio.run(scenario())
    assert record["nodes"]["a"]["result"] == {"text": "done"}
    assert record["spentCredits"] == 0.3


def test_unknown_members_and_nobodys_key_do_not_matter(
    payer: Caller, make_agent: MakeAgent, anonymous: httpx.Client
) -> None:
    agent = make_agent(later)
    path = begin(payer, one_node(agent.capability))
    agent.stub.wait_dispatched()
    body = handed_in(agent.stub.dispatches[0], mood="good")
    answer(anonymous.post(PATH, json=body, headers={"x-api-key": "nobody's"}))
    assert payer.finished(path)["status"] == "success"
