"""The machine's rules, one by one. Reference: features.md (States)."""

from __future__ import annotations

import pytest

from core.errors import IllegalTransition, NodeErrorCode
from core.workflow.actions import DispatchNode
from core.workflow.events import (
    AgentSelected,
    Event,
    VerifierSelected,
    WorkflowAccepted,
    WorkStarted,
)
from tests.core.workflow.engine import AGENTS, Engine, chain, engine
from tests.core.workflow.stake_book import StakeBook


def test_a_step_costs_one_commit_for_result_payment_and_the_childs_dispatch() -> None:
    run = engine(chain("a", "b"), stakes=StakeBook(0))
    decision = run.succeed("a")
    assert [type(record).__name__ for record in decision.records] == [
        "AttemptFinished",
        "NodeChanged",
        "NodePaid",
        "NodeChanged",
    ]
    assert decision.actions == [DispatchNode("b", 1, "did:x:one", 60_000)]


def test_free_work_moves_no_money() -> None:
    run = engine(chain("a"), agents={"cap.work": {"did:x:free": 0}}, hold_micro=0).run_to_end()
    assert run.status == "success"
    assert not run.payments


# -- retries --------------------------------------------------------------------------------------


def test_retries_wait_1_5_30_30_seconds_and_stop_after_max_retries() -> None:
    run = engine(chain("a", maxRetries=4))
    delays = []
    for _ in range(4):
        run.fail("a")
        assert run.statuses()["a"] == "ready"
        delays.append(run.timers["a"] - run.at_ms - 5)
        run.wait_retry("a")
    assert delays == [1_000, 5_000, 30_000, 30_000]
    run.fail("a")
    assert run.statuses()["a"] == "failed"
    assert run.error_code("a") == "AGENT_ERROR"
    assert run.status == "failed"
    assert [line.attempt for line in run.history] == [1, 2, 3, 4, 5]


def test_node_whose_earlier_attempt_timed_out_ends_as_failed() -> None:
    run = engine(chain("a", maxRetries=1))
    run.fail("a", code=NodeErrorCode.AGENT_TIMEOUT)
    run.wait_retry("a")
    run.fail("a")
    assert run.statuses() == {"a": "failed"}


def test_attempt_time_is_cut_at_the_end_of_the_runtime() -> None:
    run = engine({**chain("a"), "settings": {"maxRuntimeMs": 5_000}})
    assert run.open[0].timeout_ms == 5_000


# -- failure, cancel, timeout ---------------------------------------------------------------------


def test_cancel_before_anything_was_accepted() -> None:
    run = Engine(chain("a"), AGENTS)
    run.cancel()
    assert [change.status for change in run.changes] == ["cancelled"]


def test_runtime_exceeded_before_the_first_dispatch_passes_through_running() -> None:
    run = Engine(chain("a"), AGENTS)
    run.exceed_runtime()
    assert [change.status for change in run.changes] == ["running", "timeout"]


# -- late, double and illegal events --------------------------------------------------------------


def test_illegal_events_are_refused_and_change_nothing() -> None:
    run = engine(chain("a", "b"))
    before = repr(run.machine), [run.machine.node(n).row() for n in "ab"]
    illegal: list[Event] = [
        WorkflowAccepted(0),
        AgentSelected("a", "did:x:two", 0, 0),
        AgentSelected("b", "did:x:two", 0, 0),
        VerifierSelected("a", "did:x:judge", 0, 0),
        WorkStarted("nobody", 1, 0),
    ]
    for event in illegal:
        with pytest.raises(IllegalTransition):
            run.machine.step(event)
        assert (repr(run.machine), [run.machine.node(n).row() for n in "ab"]) == before
    run.run_to_end()


# -- money ----------------------------------------------------------------------------------------


def test_reservations_of_others_are_not_for_sale() -> None:
    run = engine(chain("a", "b"), hold_micro=25, reserved={"a": 10, "b": 10})
    assert run.selections[0].price_max_micro == 15


def test_node_whose_money_was_taken_meanwhile_gets_a_cheaper_agent() -> None:
    nodes = {name: {"capabilityId": "cap.work"} for name in "ab"}
    agents = {"cap.work": {"did:x:dear": 20, "did:x:cheap": 5}}
    run = engine({"nodes": nodes}, agents=agents, hold_micro=25)
    assert [d.agent_did for d in run.dispatched] == ["did:x:dear", "did:x:cheap"]


def test_dearer_agent_than_asked_for_fails_the_node_instead_of_overspending() -> None:
    run = Engine(chain("a"), AGENTS, hold_micro=5)
    run.machine.step(WorkflowAccepted(0))
    run.machine.step(AgentSelected("a", "did:x:one", 10, 0))
    assert run.machine.node("a").status == "failed"
    error = run.machine.node("a").error
    assert error is not None
    assert error["code"] == "BUDGET_EXCEEDED"


def test_max_cost_credits_bounds_the_price() -> None:
    manifest = chain("a", maxCostCredits=0.000015)
    run = engine(manifest)
    assert run.selections[0].price_max_micro == 15
