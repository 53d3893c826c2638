"""A workflow that fails inside the service is quarantined, alone, and can be resumed or ended.

Method: while an agent works, the test stores under its own connection, in the place of its result,
a refusal that no owner foresees; later it damages a stored manifest. Contract: section 6
(Quarantine). Decision state-machine-and-recovery.
"""

from __future__ import annotations

import re

import pytest

from tests.contract.audit_events import events_of
from tests.contract.conftest import (
    Caller,
    Damage,
    Json,
    MakeAgent,
    MakeCaller,
    RegisteredAgent,
    answer,
    chain_of,
    refusal,
    wait,
)

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def quarantined(payer: Caller, agent: RegisteredAgent, damage: Damage) -> str:
    """Publish a workflow and quarantine it; returns its id."""
    workflow_id = str(answer(payer.publish(chain_of(agent.capability, "ab")))["workflowId"])
    agent.stub.wait_dispatched()
    damage.refuse_result(workflow_id, "a")
    agent.stub.gate.set()
    wait(lambda: record(payer, workflow_id)["quarantine"] is not None, "the quarantine")
    return workflow_id


def record(caller: Caller, workflow_id: str) -> Json:
    return answer(caller.http.get(f"/v1/workflows/{workflow_id}"))


def test_quarantined_workflow_is_shown_listed_resumed_and_others_go_on(
    payer: Caller,
    make_agent: MakeAgent,
    make_caller: MakeCaller,
    admin: Caller,
    damage: Damage,
) -> None:
    agent = make_agent(is_held=True)
    workflow_id = quarantined(payer, agent, damage)
    shown = record(payer, workflow_id)
    assert shown["status"] == "running", "the status stays as it is"
    assert shown["quarantine"]["code"] == "STEP_REFUSED"
    assert TIME.fullmatch(shown["quarantine"]["since"])
    for answers, ids in (("true", [workflow_id]), ("false", [])):
        listed = answer(payer.http.get(f"/v1/workflows?quarantined={answers}"))["workflows"]
        assert [workflow["id"] for workflow in listed] == ids
    refusal(payer.http.get("/v1/workflows?quarantined=perhaps"), 400, "INVALID_REQUEST")
    # Another payer's workflow at the same owner is not concerned.
    other = make_caller(100)
    assert other.run(chain_of(make_agent().capability))["status"] == "success"
    path = f"/v1/workflows/{workflow_id}/resume"
    refusal(other.http.post(path), 404, "NOT_FOUND")
    # It goes on from its rows: the attempt whose result was refused is made again.
    resumed = answer(payer.http.post(path))
    assert (resumed["success"], resumed["workflowId"]) == (True, workflow_id)
    assert resumed["resumedBy"] == payer.did
    ended = payer.finished(f"/v1/workflows/{workflow_id}")
    assert (ended["status"], ended["quarantine"]) == ("success", None)
    refusal(payer.http.post(path), 409, "CONFLICT")
    events = answer(admin.http.get(f"/v1/audit?targetId={workflow_id}"))["entries"]
    kinds = [event["type"] for entry in events for event in events_of(entry)]
    assert kinds.count("workflow.quarantined") == kinds.count("workflow.resumed") == 1


@pytest.mark.parametrize("is_restorable", [True, False])
def test_quarantined_workflow_is_cancelled_and_its_money_returns(
    payer: Caller, make_agent: MakeAgent, damage: Damage, is_restorable: bool
) -> None:
    before = payer.balance()
    workflow_id = quarantined(payer, make_agent(is_held=True), damage)
    if not is_restorable:
        damage.break_manifest(workflow_id)
    assert payer.balance()["pending"] > 0
    reply = answer(payer.cancel(f"/v1/workflows/{workflow_id}"))
    assert reply["status"] == "cancelled"
    assert reply["refundedCredits"] > 0
    shown = record(payer, workflow_id)
    assert shown["status"] == "cancelled"
    assert {node["status"] for node in shown["nodes"].values()} == {"skipped"}
    assert payer.balance() == before


def test_workflow_that_runs_cannot_be_resumed(payer: Caller, make_agent: MakeAgent) -> None:
    agent = make_agent(is_held=True)
    workflow_id = answer(payer.publish(chain_of(agent.capability, "a")))["workflowId"]
    agent.stub.wait_dispatched()
    assert record(payer, workflow_id)["quarantine"] is None
    refusal(payer.http.post(f"/v1/workflows/{workflow_id}/resume"), 409, "CONFLICT")
    agent.stub.gate.set()
