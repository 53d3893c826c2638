"""A workflow that fails inside the service is quarantined, alone, and can be resumed or ended.

Method: while an agent works, the test stores under its own connection, in the place of its result,
a refusal that no owner foresees; later it damages a stored manifest. Contract: section 6
(Quarantine). Decision 0090.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import psycopg
import pytest

from tests.contract.conftest import (
    Caller,
    Json,
    MakeAgent,
    MakeCaller,
    RegisteredAgent,
    answer,
    chain_of,
    refusal,
    wait,
)
from tests.faults.victims import superuser_url
from tests.platform.deployments import RunningDeployment

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


class Damage:
    """Changes what is stored, which nothing else may."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        connection.execute("SET session_replication_role = replica")  # no trigger looks on

    def refuse_result(self, workflow_id: str, node: str) -> None:
        """Refuse the result of a node's first attempt."""
        self._connection.execute(
            "INSERT INTO callboard.command (id, result, error, detail, created_ms)"
            " VALUES (%s, '{}', 'INTERNAL_ERROR', 'damaged by a test', 0)",
            (f"AttemptSucceeded:{workflow_id}:{node}:1:0",),
        )

    def break_manifest(self, workflow_id: str) -> None:
        """Leave a manifest that this version refuses to compile."""
        changed = self._connection.execute(
            "UPDATE callboard.workflow SET manifest = replace(manifest, %s, %s) WHERE id = %s",
            ('"nodes":', '"unheardOf":1,"nodes":', workflow_id),
        )
        assert changed.rowcount == 1


@pytest.fixture(scope="module")
def damage(deployment: RunningDeployment) -> Iterator[Damage]:
    """A way to damage what is stored."""
    with psycopg.connect(superuser_url(deployment), autocommit=True) as connection:
        yield Damage(connection)


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
    kinds = [entry["eventType"] for entry in events]
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
    reply = answer(payer.http.post(f"/v1/workflows/{workflow_id}/cancel"))
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
