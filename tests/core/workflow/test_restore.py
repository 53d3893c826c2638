"""Restoring a machine from stored rows."""

from __future__ import annotations

from core.errors import NodeErrorCode
from tests.core.workflow.engine import chain, engine


def test_open_attempt_is_lost_and_the_next_begins_at_once_without_using_a_retry() -> None:
    run = engine(chain("a", maxRetries=0))
    run.crash()
    assert [(d.node, d.attempt) for d in run.open] == [("a", 2)]
    assert run.rows["a"].retries_used == 0
    assert [(line.attempt, line.outcome) for line in run.history] == [(1, "lost")]
    run.run_to_end()
    assert run.status == "success"


def test_reservations_beyond_the_hold_starve_nobody_after_a_crash() -> None:
    run = engine(chain("a", "b"), hold_micro=20, reserved={"a": 10, "b": 10})
    run.reserved = {"a": 30, "b": 30}
    run.crash()
    assert run.selections[-1].price_max_micro == 10
    run.run_to_end()
    assert run.status == "success"


def test_time_that_is_over_ends_the_workflow_at_restore() -> None:
    run = engine(chain("a", "b"))
    run.at_ms = run.deadline_ms
    run.crash()
    assert run.statuses() == {"a": "timeout", "b": "skipped"}
    assert run.status == "timeout"
    assert not run.open


def test_lost_attempt_does_not_explain_a_missing_agent() -> None:
    run = engine(chain("a"))
    run.agents = {}
    run.crash()
    assert run.error_code("a") == NodeErrorCode.NO_CANDIDATE


def test_case_29_an_agent_is_spared_when_its_process_ends_while_the_workflow_fails() -> None:
    """No next attempt follows, since another node has failed: this one ends by our doing."""
    manifest = chain("a", maxRetries=0)
    manifest["nodes"]["b"] = dict(manifest["nodes"]["a"])
    run = engine(manifest)
    run.fail("b")
    run.crash()
    error = run.rows["a"].error
    assert run.status == "failed"
    assert error is not None
    assert (error["code"], error.get("isSpared")) == (NodeErrorCode.AGENT_ERROR, True)
    spared = run.rows["b"].error
    assert spared is not None
    assert "isSpared" not in spared, "whose agent did fail"
