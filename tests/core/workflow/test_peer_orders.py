"""What is published at a peer, and what its replies mean: a lie is a failure that pays nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from core.errors import NodeErrorCode
from core.records.manifest import parse_manifest
from core.workflow.dag import compile_workflow
from core.workflow.events import Verdict
from core.workflow.peer_orders import (
    Done,
    Failed,
    OrderTerms,
    Placed,
    judge_refusal,
    order_body,
    read_order,
)

Json = dict[str, Any]
ID = "01928f7a-0000-7000-8000-000000000001"
TERMS = OrderTerms("us-1", 100_000, 500, ">=1.2", True, "cap.verify.x.v1")


def record(**changed: Any) -> Json:
    """Return the record of an order that has succeeded."""
    node = {"status": "success", "result": {"n": 1}, "costCredits": 0.1, "attempts": 1}
    return {
        "id": ID,
        "workflowId": ID,
        "status": "success",
        "intent": "order event-1",
        "nodes": {"node": node},
        "spentCredits": 0.1,
        **changed,
    }


def failed(code: str, **changed: Any) -> Json:
    """Return the record of an order whose node has failed."""
    node = {"status": "failed", "error": {"code": code, "message": "because"}}
    return record(status="failed", nodes={"node": node}, **changed)


def read(reply: Any, known_id: str | None = None) -> Placed | Done | Failed:
    return read_order(json.dumps(reply).encode(), TERMS, "event-1", known_id)


def test_an_order_is_a_manifest_of_one_node_whose_inputs_are_values() -> None:
    inputs = {"text": "{{secret}}", "secret": "s"}
    manifest = json.loads(
        order_body(TERMS, "event-1", "cap.a.v1", 10_000, json.dumps(inputs).encode())
    )
    compiled = compile_workflow(parse_manifest(manifest))
    node = compiled.nodes["node"]
    assert (node.payload, node.has_templates) == (inputs, False)
    assert (node.capability_id, node.versions) == ("cap.a.v1", ">=1.2")
    assert node.requires_verification and node.chosen_verifier_capability_id == "cap.verify.x.v1"
    assert (node.max_retries, node.wait_for_agent_ms, node.depends_on) == (0, 0, ())
    assert (compiled.max_runtime_ms, node.timeout_ms) == (9_000, 9_000)
    assert compiled.budget_micro == 100_000
    assert not node.is_federated and node.region == ""


@pytest.mark.parametrize(
    ("timeout_ms", "left_ms"), [(1, 1), (-5, 1), (3_000, 2_000), (60_000, 59_000)]
)
def test_an_order_ends_before_its_attempt(timeout_ms: int, left_ms: int) -> None:
    terms = OrderTerms("us-1", 0, 500)
    manifest = json.loads(order_body(terms, "e", "cap.a.v1", timeout_ms, b"{}"))
    assert manifest["settings"]["maxRuntimeMs"] == left_ms
    assert manifest["settings"]["maxBudgetCredits"] == 0


def test_large_inputs_have_time_to_arrive() -> None:
    """An order that begins later there must not end after its attempt."""
    inputs = json.dumps({"text": "x" * 2**21}).encode()
    manifest = json.loads(order_body(TERMS, "e", "cap.a.v1", 60_000, inputs))
    assert manifest["settings"]["maxRuntimeMs"] == 60_000 - 1_000 - 6_000


def test_a_record_that_has_ended_well_is_the_result_and_the_charge() -> None:
    assert read(record()) == Done(ID, b'{"n": 1}', 100_000)
    assert read(record(spentCredits="0.05"), ID) == Done(ID, b'{"n": 1}', 50_000)


@pytest.mark.parametrize(
    ("told", "agent_did"),
    [("did:x:a", "did:x:a"), ("did:x:\0", ""), ("did:x:" + "a" * 300, ""), (7, ""), (None, "")],
)
def test_who_worked_is_told_by_a_did_or_not_at_all(told: Any, agent_did: str) -> None:
    node = {"status": "success", "result": 1, "agentDid": told}
    assert read(record(nodes={"node": node})) == Done(ID, b"1", 100_000, agent_did)


@pytest.mark.parametrize("status", ["pending", "running"])
def test_an_order_that_has_not_ended_pays_nothing_whatever_else_its_record_says(
    status: str,
) -> None:
    assert read(record(status=status)) == Placed(ID)
    assert read({"workflowId": ID, "status": status}) == Placed(ID)


LIES: dict[str, Json] = {
    "charged more than agreed": record(spentCredits=0.100001),
    "charged below nothing": record(spentCredits=-0.1),
    "charged no number": record(spentCredits="much"),
    "charged a list": record(spentCredits=[0.1]),
    "charged with too many decimals": record(spentCredits=0.00000001),
    "charge is missing": {k: v for k, v in record().items() if k != "spentCredits"},
    "another node": record(nodes={"other": {"status": "success", "result": 1}}),
    "two nodes": record(nodes={**record()["nodes"], "more": {"status": "success", "result": 1}}),
    "no node": record(nodes={}),
    "another order": record(intent="order event-2"),
    "an order without intent": record(intent=None),
    "an unknown status": record(status="splendid"),
    "the node has not ended": record(nodes={"node": {"status": "running", "result": 1}}),
    "no result": record(nodes={"node": {"status": "success"}}),
    "an id that is a path": record(workflowId="../../v1/keys"),
    "no id": {k: v for k, v in record().items() if k != "workflowId"},
    "nodes of another kind": record(nodes=[1]),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_a_lie_is_a_failure_that_is_final_for_the_peer(lie: Json) -> None:
    read_lie = read(lie)
    assert isinstance(read_lie, Failed), read_lie
    assert read_lie.charged_micro == 0
    assert read_lie.failure.code is NodeErrorCode.INVALID_REPLY
    assert read_lie.failure.verdict is Verdict.FINAL_FOR_AGENT


def test_the_record_of_another_workflow_is_a_lie() -> None:
    assert isinstance(read(record(), "01928f7a-0000-7000-8000-000000000002"), Failed)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b"\xff{", b"[" * 100_000, b'{"workflowId":1}']
)
def test_a_body_that_is_no_record_is_a_lie(body: bytes) -> None:
    lie = read_order(body, TERMS, "event-1", None)
    assert isinstance(lie, Failed) and lie.failure.code is NodeErrorCode.INVALID_REPLY


@pytest.mark.parametrize(
    ("code", "known", "is_declined"),
    [
        ("NO_CANDIDATE", NodeErrorCode.AGENT_UNAVAILABLE, True),
        ("BUDGET_EXCEEDED", NodeErrorCode.AGENT_UNAVAILABLE, True),
        ("AGENT_TIMEOUT", NodeErrorCode.AGENT_TIMEOUT, False),
        ("WORKFLOW_TIMEOUT", NodeErrorCode.AGENT_TIMEOUT, False),
        ("INPUT_SCHEMA", NodeErrorCode.INPUT_SCHEMA, False),
        ("AGENT_ERROR", NodeErrorCode.AGENT_ERROR, False),
        ("MADE_UP\u0000", NodeErrorCode.AGENT_ERROR, False),
    ],
)
def test_a_failure_there_is_one_here_and_pays_nothing(
    code: str, known: NodeErrorCode, is_declined: bool
) -> None:
    found = read(failed(code))
    assert isinstance(found, Failed) and found.charged_micro == 0
    assert (found.failure.code, found.failure.is_declined) == (known, is_declined)
    assert "\u0000" not in found.failure.message


def test_a_rejected_verification_has_the_verifiers_charge() -> None:
    found = read(failed("VERIFICATION_REJECTED", spentCredits=0.02))
    assert isinstance(found, Failed) and found.charged_micro == 20_000
    assert found.failure.code is NodeErrorCode.VERIFICATION_REJECTED


def test_a_publish_that_fails_at_once_is_declined() -> None:
    error = {"code": "BUDGET_EXCEEDED", "message": "the estimate exceeds the budget"}
    found = read({"workflowId": ID, "status": "failed", "error": error})
    assert isinstance(found, Failed) and found.failure.is_declined


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (401, "INSUFFICIENT_CREDITS", "declined"),
        (402, "", "declined"),
        (401, "UNAUTHORIZED", "left alone"),
        (403, "POLICY_DENIED", "declined"),
        (429, "RATE_LIMITED", "left alone"),
        (503, "OVERLOADED", "left alone"),
        (503, "LEDGER_UNAVAILABLE", "again"),
        (500, "INTERNAL_ERROR", "again"),
        (502, "", "again"),
        (408, "REQUEST_TIMEOUT", "again"),
        (400, "INVALID_MANIFEST", "final"),
        (409, "KEY_REUSED", "final"),
        (302, "", "final"),
    ],
)
def test_a_refusal(status: int, code: str, kind: str) -> None:
    body = json.dumps({"code": code, "detail": "d"}).encode()
    found = judge_refusal(status, body, 2_000, TERMS, is_stored=False)
    if kind == "again":
        assert found is None
        return
    assert found is not None and found.charged_micro == 0
    failure = found.failure
    assert failure.is_declined == (kind != "final")
    assert failure.is_spared
    if kind == "final":
        assert failure.verdict is Verdict.FINAL_FOR_AGENT
    else:
        # Only what says something of the peer itself keeps other nodes from it.
        assert (failure.details == "agent_offline") == (kind == "left alone")


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_an_order_that_may_be_stored_is_asked_for_again(status: int) -> None:
    body = b'{"code":"OVERLOADED"}'
    assert judge_refusal(status, body, 0, TERMS, is_stored=True) is None
