"""Verification: judged before paid, and by whom. Reference: features.md (Verification)."""

from __future__ import annotations

from core.errors import NodeErrorCode
from core.workflow.actions import SelectVerifier
from core.workflow.events import Failure, Verdict
from tests.core.workflow.engine import AGENTS, Engine, chain, engine

LATE = Failure(NodeErrorCode.AGENT_TIMEOUT, "no reply")
REFUSED = Failure(NodeErrorCode.AGENT_ERROR, "HTTP 404", Verdict.FINAL_FOR_AGENT)


def verified(**options: object) -> Engine:
    manifest = chain("a", "b")
    manifest["nodes"]["a"].update(requiresVerification=True, **options)
    return engine(manifest)


def test_verifier_is_neither_the_agent_nor_one_that_failed_for_good() -> None:
    run = verified()
    run.succeed("a")
    run.judge("a", failure=REFUSED)
    asked = [action for action in run.selections if isinstance(action, SelectVerifier)]
    assert [(action.primary_did, action.exclude) for action in asked] == [
        ("did:x:one", ("did:x:one",)),
        ("did:x:one", ("did:x:one", "did:x:judge")),
    ]
    assert run.open[0].agent_did == "did:x:judge2"


def test_failing_verifier_is_retried_by_its_own_counter_and_the_agent_is_not_run_again() -> None:
    run = verified(maxRetries=1)
    run.succeed("a")
    run.judge("a", failure=LATE)
    assert run.statuses()["a"] == "running"
    run.wait_retry("a")
    run.judge("a", failure=LATE)
    assert run.error_code("a") == "VERIFIER_UNAVAILABLE"
    assert run.statuses()["a"] == "failed"
    assert not run.payments
    assert [line.kind for line in run.history] == ["primary", "verify", "verify"]


def test_verifier_named_by_the_node_is_asked_for() -> None:
    manifest = chain("a", requiresVerification=True, verifierCapabilityId="cap.work")
    run = engine(manifest)
    run.succeed("a")
    assert run.open[0].agent_did == "did:x:two"


def test_verifiers_share_stays_reserved_while_the_agent_works() -> None:
    nodes = {
        "a": {"capabilityId": "cap.work", "requiresVerification": True},
        "free": {"capabilityId": "cap.free"},
        "b": {"capabilityId": "cap.work", "dependsOn": ["free"]},
    }
    agents = {**AGENTS, "cap.free": {"did:x:free": 0}}
    run = engine({"nodes": nodes}, agents=agents, hold_micro=23, reserved={"a": 13, "b": 10})
    run.succeed("free")
    assert run.selections[-1].node == "b"
    assert run.selections[-1].price_max_micro == 10
    run.run_to_end()
    assert run.status == "success"
    assert run.paid_micro == 23


def test_verifier_that_cannot_be_paid_fails_the_node() -> None:
    manifest = chain("a", requiresVerification=True)
    run = engine(manifest, hold_micro=10, reserved={"a": 10})
    run.succeed("a")
    assert run.error_code("a") == "BUDGET_EXCEEDED"
    assert not run.payments


def test_verification_goes_on_after_another_node_failed_and_is_paid() -> None:
    nodes = {
        "a": {"capabilityId": "cap.work", "requiresVerification": True},
        "b": {"capabilityId": "cap.work"},
    }
    run = engine({"nodes": nodes})
    run.fail("b", Verdict.FINAL)
    run.succeed("a")
    assert run.status == "running"
    run.judge("a", approved=True)
    assert run.status == "failed"
    assert set(run.payments) == {"a", "a#verify"}


def test_cancel_discards_an_open_verification() -> None:
    run = verified()
    run.succeed("a")
    run.cancel()
    assert run.statuses() == {"a": "skipped", "b": "skipped"}
    assert [(abort.node, abort.agent_did) for abort in run.aborted] == [("a", "did:x:judge")]
    assert [line.outcome for line in run.history] == ["success", "discarded"]
    assert not run.payments
