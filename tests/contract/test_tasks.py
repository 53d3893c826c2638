"""Tasks: one node, described in words. Spec: contract.md section 6 (Tasks)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    answer,
    chain_of,
    client,
    refusal,
    unique,
)
from tests.contract.test_execution_ends import BAD
from tests.contract.test_execution_replies import scripted

Json = dict[str, Any]
PATH = "/v1/tasks"


def ended(caller: Caller, published: Json) -> Json:
    """Return a task once it has ended."""
    path = f"/v1/workflows/{published['workflowId']}"
    answer(caller.http.get(path, headers={"Prefer": "wait=30"}))
    return answer(caller.http.get(f"{PATH}/{published['taskId']}"))


def publish(caller: Caller, description: str, **more: Any) -> Json:
    """Publish a task."""
    return answer(caller.http.post(f"{PATH}/publish", json={"description": description, **more}))


def test_a_task_names_its_capability_and_completes(payer: Caller, make_agent: MakeAgent) -> None:
    agent = make_agent(price_cents=50)
    made = publish(payer, f"[{agent.capability}] Sum this up", budget=2)
    assert (made["status"], made["capabilityId"]) == ("pending", agent.capability)
    task = ended(payer, made)
    assert (task["status"], task["agentDid"]) == ("completed", agent.did)
    assert task["result"]["inputs"] == {"description": "Sum this up"}
    assert (task["error"], task["spentCredits"]) == (None, 0.5)
    assert payer.balance()["balance"] == 99.5


def test_a_task_without_a_name_goes_to_the_capability_that_its_words_fit(
    payer: Caller, make_agent: MakeAgent
) -> None:
    word = unique("zx")
    make_agent(capability=f"cap.other.{unique('q')}.v1")
    agent = make_agent(capability=f"cap.text.{word}.v1")
    made = publish(payer, f"please do some {word} for me")
    assert made["capabilityId"] == agent.capability
    assert ended(payer, made)["result"]["inputs"]["description"].startswith("please")
    nothing = payer.http.post(f"{PATH}/publish", json={"description": unique("qqq")})
    refusal(nothing, 422, "NO_CAPABILITY_MATCH")


def test_a_failed_task_says_why_and_a_cancelled_one_is_cancelled(
    payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent(scripted(BAD))
    task = ended(payer, publish(payer, f"[{agent.capability}] x"))
    assert (task["status"], task["result"]) == ("failed", None)
    assert task["error"]["code"] == "AGENT_ERROR"
    held = make_agent(is_held=True)
    made = publish(payer, f"[{held.capability}] x")
    held.stub.wait_dispatched()
    answer(payer.http.post(f"/v1/workflows/{made['workflowId']}/cancel"))
    assert ended(payer, made)["status"] == "cancelled"


def test_any_workflow_is_read_as_its_task(payer: Caller, make_agent: MakeAgent) -> None:
    record = payer.run(chain_of(make_agent().capability, "abc"))
    task = answer(payer.http.get(f"{PATH}/{record['taskId']}"))
    assert (task["workflowId"], task["status"]) == (record["id"], "completed")
    assert task["result"] == {"c": record["nodes"]["c"]["result"]}


@pytest.mark.parametrize("changes", [{"description": ""}, {"description": 5}, {"budget": -1}])
def test_a_bad_task_is_400(payer: Caller, changes: Json) -> None:
    body = {"description": "[cap.x.v1] x", **changes}
    refusal(payer.http.post(f"{PATH}/publish", json=body), 400, "INVALID_REQUEST")


def test_a_task_is_published_once_under_its_key(payer: Caller, make_agent: MakeAgent) -> None:
    headers = {"Idempotency-Key": unique("k")}
    body = {"description": f"[{make_agent().capability}] x"}
    first = answer(payer.http.post(f"{PATH}/publish", json=body, headers=headers))
    again = payer.http.post(f"{PATH}/publish", json=body, headers=headers)
    assert answer(again) == {**first, "status": answer(again)["status"]}
    assert again.headers["idempotency-replayed"] == "true"


def test_settle_acknowledges_what_was_paid_and_pays_nothing(
    payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent(price_cents=50, is_held=True)
    made = publish(payer, f"[{agent.capability}] x", budget=2)
    path = f"{PATH}/{made['taskId']}/settle"
    agent.stub.wait_dispatched()
    refusal(payer.http.post(path), 409, "CONFLICT")
    agent.stub.gate.set()
    ended(payer, made)
    before = payer.balance()
    for body in ({}, {"amount": 0.5}, {"amount": "0.5"}):
        settled = answer(payer.http.post(path, json=body))
        assert (settled["settledCredits"], settled["returnedCredits"]) == (0.5, 1.5)
    refusal(payer.http.post(path, json={"amount": 2.01}), 400, "INVALID_REQUEST")
    refusal(payer.http.post(path, json={"amount": 1}), 409, "ALREADY_SETTLED")
    assert payer.balance() == before


def test_tasks_belong_to_their_payers_and_agents(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    agent = make_agent()
    made = publish(payer, f"[{agent.capability}] x")
    ended(payer, made)
    path = f"{PATH}/{made['taskId']}"
    worker, stranger = make_caller(ownerDid=agent.did), make_caller()
    assert answer(worker.http.get(path))["status"] == "completed"
    refusal(worker.http.post(f"{path}/settle"), 403, "FORBIDDEN")
    refusal(worker.http.post(f"{path}/feedback", json={"rating": 1}), 404, "NOT_FOUND")
    for refused in (stranger.http.get(path), stranger.http.post(f"{path}/settle")):
        refusal(refused, 404, "NOT_FOUND")
    refusal(payer.http.get(f"{PATH}/x"), 404, "NOT_FOUND")
    given = answer(payer.http.post(f"{path}/feedback", json={"rating": 0.7}))
    assert (given["agentDid"], given["rating"]) == (agent.did, 0.7)
    with client(str(payer.http.base_url)) as nobody:
        refusal(nobody.get(path), 401, "UNAUTHORIZED")
