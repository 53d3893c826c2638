"""The machine's rules, one by one. Spec: States and transitions."""

from __future__ import annotations

import pytest

from core.errors import IllegalTransition, NodeErrorCode
from core.workflow.actions import Decision, DispatchNode
from core.workflow.events import (
    AgentSelected,
    AttemptFailed,
    AttemptSucceeded,
    CancelRequested,
    Event,
    Failure,
    RetryDue,
    RuntimeExceeded,
    Verdict,
    VerifierSelected,
    WorkflowAccepted,
    WorkStarted,
)
from tests.core.workflow.engine import AGENTS, Engine, chain, engine, inputs_of
from tests.core.workflow.stake_book import StakeBook

DIAMOND = {
    "nodes": {
        "top": {"capabilityId": "cap.work"},
        "left": {"capabilityId": "cap.work", "dependsOn": ["top"]},
        "right": {"capabilityId": "cap.work", "dependsOn": ["top"]},
        "bottom": {"capabilityId": "cap.work", "dependsOn": ["left", "right"]},
    }
}


def test_chain_runs_in_order_and_pays_each_node_once() -> None:
    run = engine(chain("a", "b", "c")).run_to_end()
    assert [d.node for d in run.dispatched] == ["a", "b", "c"]
    assert [change.status for change in run.changes] == ["running", "success"]
    assert {line: paid.gross_micro for line, paid in run.payments.items()} == {
        "a": 10,
        "b": 10,
        "c": 10,
    }


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


def test_diamond_dispatches_in_parallel_and_joins_after_both() -> None:
    run = engine(DIAMOND)
    run.succeed("top")
    assert {d.node for d in run.open} == {"left", "right"}
    run.succeed("right")
    assert {d.node for d in run.open} == {"left"}
    run.succeed("left")
    assert {d.node for d in run.open} == {"bottom"}


def test_free_work_moves_no_money() -> None:
    run = engine(chain("a"), agents={"cap.work": {"did:x:free": 0}}, hold_micro=0).run_to_end()
    assert run.status == "success"
    assert not run.payments


def test_work_started_moves_to_running_without_a_record() -> None:
    run = engine(chain("a"))
    assert run.hear(WorkStarted("a", 1, run.at_ms)) == Decision()
    assert run.machine.node("a").status == "running"


def test_result_without_work_started_is_taken() -> None:
    run = engine(chain("a"))
    assert run.machine.node("a").status == "dispatched"
    run.succeed("a")
    assert run.status == "success"


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


def test_max_retries_0_is_one_attempt() -> None:
    run = engine(chain("a", maxRetries=0))
    run.fail("a")
    assert run.status == "failed"
    assert len(run.dispatched) == 1


def test_retry_after_lengthens_up_to_30_s_and_never_shortens() -> None:
    run = engine(chain("a"))
    run.fail("a", retry_after_ms=7_000)
    assert run.timers["a"] - run.at_ms - 5 == 7_000
    run.wait_retry("a")
    run.fail("a", retry_after_ms=100)
    assert run.timers["a"] - run.at_ms - 5 == 5_000
    run.wait_retry("a")
    run.fail("a", retry_after_ms=90_000)
    assert run.timers["a"] - run.at_ms - 5 == 30_000


def test_case_10_success_after_retry_pays_only_the_successful_attempt() -> None:
    run = engine(chain("a"))
    run.fail("a")
    run.wait_retry("a")
    run.succeed("a")
    assert run.paid_micro == 10
    assert [(line.attempt, line.outcome) for line in run.history] == [(1, "error"), (2, "success")]


def test_node_whose_last_attempt_timed_out_ends_as_timeout_and_the_workflow_as_failed() -> None:
    run = engine(chain("a", "b", maxRetries=1))
    run.fail("a")
    run.wait_retry("a")
    run.fail("a", code=NodeErrorCode.AGENT_TIMEOUT)
    assert run.statuses() == {"a": "timeout", "b": "skipped"}
    assert run.status == "failed"
    assert run.history[-1].outcome == "timeout"


def test_node_whose_earlier_attempt_timed_out_ends_as_failed() -> None:
    run = engine(chain("a", maxRetries=1))
    run.fail("a", code=NodeErrorCode.AGENT_TIMEOUT)
    run.wait_retry("a")
    run.fail("a")
    assert run.statuses() == {"a": "failed"}


def test_final_failure_is_not_retried() -> None:
    run = engine(chain("a"))
    run.fail("a", Verdict.FINAL, NodeErrorCode.INPUT_MAPPING_FAILED)
    assert run.error_code("a") == "INPUT_MAPPING_FAILED"
    assert run.status == "failed"


def test_attempt_time_is_cut_at_the_end_of_the_runtime() -> None:
    run = engine({**chain("a"), "settings": {"maxRuntimeMs": 5_000}})
    assert run.open[0].timeout_ms == 5_000


def test_early_retry_timer_of_an_earlier_back_off_is_ignored() -> None:
    run = engine(chain("a"))
    run.fail("a")
    assert run.hear(RetryDue("a", run.timers["a"] - 1)) == Decision()
    run.wait_retry("a")
    assert run.statuses()["a"] == "dispatched"


# -- failure, cancel, timeout ---------------------------------------------------------------------


def test_running_nodes_may_finish_after_a_failure_and_are_paid() -> None:
    run = engine(DIAMOND)
    run.succeed("top")
    run.fail("left", Verdict.FINAL)
    assert run.status == "running"
    assert run.statuses()["bottom"] == "skipped"
    run.succeed("right")
    assert run.status == "failed"
    assert set(run.payments) == {"top", "right"}


def test_child_of_a_node_that_finishes_after_a_failure_stays_skipped() -> None:
    run = engine(
        {
            "nodes": {
                "a": {"capabilityId": "cap.work"},
                "b": {"capabilityId": "cap.work"},
                "child": {"capabilityId": "cap.work", "dependsOn": ["b"]},
            }
        }
    )
    run.fail("a", Verdict.FINAL)
    run.succeed("b")
    assert run.statuses() == {"a": "failed", "b": "success", "child": "skipped"}


def test_running_node_that_fails_after_a_failure_is_not_retried() -> None:
    run = engine(DIAMOND)
    run.succeed("top")
    run.fail("left", Verdict.FINAL)
    run.fail("right")
    assert run.statuses()["right"] == "failed"
    assert run.status == "failed"
    assert run.changes[-1].error is not None
    assert run.changes[-1].error["node"] == "left"


def test_node_in_back_off_is_skipped_when_another_fails() -> None:
    run = engine(DIAMOND)
    run.succeed("top")
    run.fail("left")
    due_ms = run.timers["left"]
    run.fail("right", Verdict.FINAL)
    assert run.statuses()["left"] == "skipped"
    assert run.status == "failed"
    assert run.hear(RetryDue("left", due_ms)) == Decision()


def test_cancel_skips_everything_unfinished_and_aborts_what_is_at_work() -> None:
    run = engine(DIAMOND)
    run.succeed("top")
    decision = run.cancel()
    assert run.statuses() == {
        "top": "success",
        "left": "skipped",
        "right": "skipped",
        "bottom": "skipped",
    }
    assert run.status == "cancelled"
    assert {(a.node, a.reason) for a in run.aborted} == {
        ("left", "user_request"),
        ("right", "user_request"),
    }
    assert run.changes[-1].by_did == "did:x:payer"
    assert [line.outcome for line in run.history] == ["success", "discarded", "discarded"]
    assert run.paid_micro == 10
    assert len(decision.records) == 2 + 2 + 3 + 1  # stakes, attempts, nodes, workflow


def test_cancel_before_anything_was_accepted() -> None:
    run = Engine(chain("a"), AGENTS)
    run.cancel()
    assert [change.status for change in run.changes] == ["cancelled"]


def test_runtime_exceeded_times_out_active_nodes_and_skips_waiting_ones() -> None:
    run = engine(DIAMOND)
    run.succeed("top")
    run.fail("left")
    run.exceed_runtime()
    assert run.statuses() == {
        "top": "success",
        "left": "skipped",
        "right": "timeout",
        "bottom": "skipped",
    }
    assert run.status == "timeout"
    assert run.error_code("right") == "WORKFLOW_TIMEOUT"


def test_runtime_exceeded_before_the_first_dispatch_passes_through_running() -> None:
    run = Engine(chain("a"), AGENTS)
    run.exceed_runtime()
    assert [change.status for change in run.changes] == ["running", "timeout"]


# -- late, double and illegal events --------------------------------------------------------------


def test_late_and_repeated_replies_decide_nothing() -> None:
    run = engine(chain("a", "b"))
    run.fail("a")
    run.wait_retry("a")
    late = Failure(NodeErrorCode.AGENT_ERROR, "late")
    assert run.hear(AttemptFailed("a", 1, late, 0, 1)) == Decision()
    assert run.hear(AttemptSucceeded("a", 1, "{}", "i", "o", 0, 1)) == Decision()
    assert run.hear(WorkStarted("a", 1, 0)) == Decision()
    run.succeed("a")
    for heard in run.heard[1:]:
        assert run.machine.step(heard) == Decision()
    run.run_to_end()
    for event in run.heard:
        assert run.machine.step(event) == Decision()
    assert run.machine.step(RuntimeExceeded(0)) == Decision()
    assert run.machine.step(CancelRequested("error", "", "did:x:p", 0)) == Decision()


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


def test_case_08_parallel_nodes_cannot_overspend_the_hold() -> None:
    nodes = {name: {"capabilityId": "cap.work"} for name in "abc"}
    run = engine({"nodes": nodes}, hold_micro=25)
    assert [d.node for d in run.dispatched] == ["a", "b"]
    assert run.error_code("c") == "BUDGET_EXCEEDED"
    run.run_to_end()
    assert run.status == "failed"
    assert run.paid_micro == 20


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


def test_inputs_hold_payload_and_mapped_values_of_any_ancestor() -> None:
    manifest = chain("a", "b", "c")
    manifest["nodes"]["c"]["payload"] = {"lang": "en", "text": "?"}
    manifest["nodes"]["c"]["inputMappings"] = {"text": "$.a.result.text"}
    run = engine(manifest)
    run.succeed("a", {"text": "hello"})
    run.succeed("b", {"n": 1})
    assert inputs_of(run, "c") == {"lang": "en", "text": "hello"}
