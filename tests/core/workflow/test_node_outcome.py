"""What counts for an agent. Reference: money.md (Reputation, Promised time)."""

from __future__ import annotations

from typing import Any

import pytest

from core.errors import NodeErrorCode
from core.market.reputation import Outcome
from core.workflow.events import CancelRequested
from core.workflow.rules.node_ends import counted_as
from core.workflow.transitions import NodeStatus
from core.workflow.workflow_state import NodeState
from tests.core.workflow.engine import Engine, chain, engine

FAILED = {
    NodeErrorCode.AGENT_ERROR, NodeErrorCode.AGENT_TIMEOUT, NodeErrorCode.INVALID_REPLY,
    NodeErrorCode.RESULT_TOO_LARGE, NodeErrorCode.OUTPUT_SCHEMA,
    NodeErrorCode.VERIFICATION_REJECTED,
}  # fmt: skip
PROMISED_MS = 300


def ended(code: str | None, *, is_spared: bool = False, **fields: Any) -> NodeState:
    """Return a node that has ended after an attempt of 300 ms, as long as was promised."""
    (node,) = engine(chain("a")).machine.compiled.nodes.values()
    values = {
        "status": NodeStatus.SUCCESS if code is None else NodeStatus.FAILED,
        "attempt": 1,
        "started_ms": 1_000,
        "completed_ms": 1_000 + PROMISED_MS,
        "promised_ms": PROMISED_MS,
        "error": None if code is None else {"code": code, "isSpared": is_spared},
    }
    return NodeState(node.name, compiled=node, **{**values, **fields})


@pytest.mark.parametrize("code", NodeErrorCode)
@pytest.mark.parametrize("was_at_work", [True, False])
@pytest.mark.parametrize("is_spared", [True, False])
def test_each_end_of_anothers_node_counts_as_the_rule_says(
    code: NodeErrorCode, was_at_work: bool, is_spared: bool
) -> None:
    expected = None
    if code in FAILED and not is_spared:
        expected = Outcome.FAILED
    elif code is NodeErrorCode.WORKFLOW_TIMEOUT and was_at_work:
        expected = Outcome.CANCELLED
    state = ended(str(code), is_spared=is_spared)
    assert counted_as(state, was_at_work=was_at_work) is expected
    state.is_own = True
    assert counted_as(state, was_at_work=was_at_work) is None


def test_a_success_counts_unless_it_is_the_payers_own() -> None:
    assert counted_as(ended(None)) == "successful"
    assert counted_as(ended(None, is_own=True)) is None
    assert counted_as(ended("UPSTREAM_FAILED", attempt=0)) is None
    assert counted_as(ended("OF_A_LATER_VERSION")) is None


@pytest.mark.parametrize(
    "fields", [{"promised_ms": PROMISED_MS + 1}, {"started_ms": None}], ids=["early", "unsent"]
)
def test_a_workflow_that_ends_before_the_promised_time_counts_for_nothing(
    fields: dict[str, Any],
) -> None:
    assert counted_as(ended("WORKFLOW_TIMEOUT", **fields), was_at_work=True) is None


def test_an_error_that_is_handed_in_is_work_given_up_and_a_late_one_is_not() -> None:
    assert counted_as(ended("AGENT_ERROR", is_accepted=True)) == "cancelled"
    assert counted_as(ended("AGENT_TIMEOUT", is_accepted=True)) == "failed"
    assert counted_as(ended("AGENT_ERROR", is_accepted=True, is_spared=True)) is None


# -- as the machine writes it ----------------------------------------------------------------------


def counted(run: Engine) -> str | None:
    """Return how the end of node `a` counts."""
    return run.rows["a"].counts_as


def test_the_machine_stores_how_a_node_counts() -> None:
    run = engine(chain("a"))
    assert counted(run) is None
    run.succeed("a")
    assert counted(run) == "successful"
    run = engine(chain("a", maxRetries=0))
    run.fail("a", code=NodeErrorCode.AGENT_ERROR)
    assert counted(run) == "failed"
    run = engine(chain("a", maxRetries=0))
    run.accept_later("a")
    run.fail("a", code=NodeErrorCode.AGENT_ERROR)
    assert counted(run) == "cancelled"


@pytest.mark.parametrize(("runtime_ms", "expected"), [(9_000, None), (11_000, "cancelled")])
def test_the_runtime_cancels_what_had_its_time(runtime_ms: int, expected: str) -> None:
    """An agent that says nothing promises ten seconds."""
    run = engine({**chain("a", "b"), "settings": {"maxRuntimeMs": runtime_ms}})
    run.accept_later("a")
    run.exceed_runtime()
    assert counted(run) == expected
    assert run.rows["b"].counts_as is None


def test_what_a_payer_cancels_counts_for_nothing() -> None:
    run = engine(chain("a"))
    run.accept_later("a")
    run.at_ms += 60_000
    run.hear(CancelRequested("user_request", "", "did:x:payer", run.at_ms))
    assert (run.status, counted(run)) == ("cancelled", None)
