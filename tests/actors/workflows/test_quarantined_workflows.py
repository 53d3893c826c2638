"""A workflow that fails unforeseen stops alone: its owner's process and all others go on.

Each way in which one workflow can fail has a case: a step that the ledger refuses, an exception in
a callback of the ledger, of a timer, of a dispatch, of an agent's result, rows that cannot be
restored. Of each, another workflow of the same owner succeeds. Decision state-machine-and-recovery.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from actors.engine.node_results import take_result
from actors.ports import DispatchOrder
from actors.transport.messages import (
    CancelReply,
    CancelRequest,
    NodeResultReply,
    NodeResultRequest,
    NotYet,
    ResumeRequest,
)
from actors.workflows.quarantined_workflows import END_RETRY_MS
from core.errors import ErrorCode, NodeErrorCode, ServiceError
from core.settings import Settings
from core.workflow.actions import Decision
from core.workflow.events import AttemptFailed, Event, Failure
from ledger.commands import Command, Outcome, OutcomeStatus
from ledger.features.workflow_commands import AdvanceWorkflow
from tests.actors.engine.runner_bench import PAYER, SHARD, VERIFIED, Bench, Outbox, wid
from tests.simulation.shapes import CAPABILITIES, auctioned_shape, compiled

REFUSED = Outcome(OutcomeStatus.REJECTED, {}, ErrorCode.INTERNAL_ERROR, "unforeseen")


def published() -> Bench:
    """Return a bench with two workflows at their first node."""
    bench = Bench()
    bench.publish()
    bench.publish_and_commit(workflow_id=wid("w2"))
    return bench


def damaged(bench: Bench) -> None:
    """Make the ledger refuse the payment of the first workflow's first node."""
    bench.model.escrows[wid("w1")].paid["a"] = ("did:test:other", 0, 0)


def quarantined() -> Bench:
    """Return a bench whose first workflow was quarantined by a refused step."""
    bench = published()
    damaged(bench)
    bench.deliver_and_commit(bench.outbox.sent[0])
    assert_only_the_first_is_quarantined(bench)
    return bench


def assert_only_the_first_is_quarantined(bench: Bench) -> None:
    """The process lives, the first workflow stands still, in its status, the other is driven."""
    assert bench.lost == []
    assert bench.runner.is_quarantined(wid("w1"))
    assert not bench.runner.is_driving(wid("w1"))
    assert bench.runner.is_driving(wid("w2"))
    assert bench.status() in ("pending", "running")
    assert bench.runner.statistics().quarantined == 1


def finish_the_other(bench: Bench) -> None:
    """Drive the second workflow to its end."""
    while bench.runner.is_driving(wid("w2")):
        order = [order for order in bench.outbox.sent if order.workflow_id == wid("w2")][-1]
        bench.deliver_and_commit(order)
    assert bench.model.workflows[wid("w2")]["status"] == "success"


def reread(bench: Bench) -> None:
    """Do as the owner does when its runner asks for rows."""
    assert bench.unsure.count(wid("w1")) == len(bench.unsure) > 0
    bench.unsure.clear()
    bench.adopt_all()
    bench.gate.commit()


def resume(bench: Bench) -> None:
    """Ask for the first workflow to be resumed."""
    request = ResumeRequest(workflow_id=wid("w1"), actor_did=PAYER)
    bench.runner.resume(request, bench.replies.append)
    bench.gate.commit()


# -- what quarantines ------------------------------------------------------------------------------


def test_refused_step_quarantines_its_workflow_and_the_process_lives() -> None:
    bench = quarantined()
    assert bench.model.trust.quarantined == {wid("w1"): "ALREADY_SETTLED"}
    assert [order.workflow_id for order in bench.outbox.sent].count(wid("w1")) == 1, (
        "nothing follows"
    )
    finish_the_other(bench)


def test_refusal_that_stores_nothing_is_stored_by_the_owner() -> None:
    """As of a command that could not even be carried to the ledger."""
    bench = published()
    bench.deliver(bench.outbox.sent[0])
    _, done = bench.gate.waiting.pop()
    done(REFUSED)
    bench.gate.commit()
    assert_only_the_first_is_quarantined(bench)
    assert bench.model.trust.quarantined == {wid("w1"): "STEP_REFUSED"}
    finish_the_other(bench)


def test_steps_behind_a_refused_one_are_dropped() -> None:
    bench = Bench()
    nodes = {name: {"capabilityId": CAPABILITIES[1]} for name in "ab"}
    bench.publish(compiled({"nodes": nodes}))
    bench.publish_and_commit(workflow_id=wid("w2"))
    damaged(bench)
    for order in bench.outbox.sent[:2]:
        bench.deliver(order)
    bench.gate.commit()
    assert_only_the_first_is_quarantined(bench)
    assert bench.model.balances["escrow:" + wid("w1")] == bench.model.escrows[wid("w1")].amount


class RaisingOutbox(Outbox):
    """A dispatcher in which the first workflow's orders raise."""

    def send(self, order: DispatchOrder, receive: Callable[..., None]) -> None:
        """Implement `DispatchPort`."""
        if order.workflow_id == wid("w1") and order.node == "b":
            raise RuntimeError("unforeseen")
        super().send(order, receive)


def test_exception_in_the_callback_of_a_commit_quarantines_its_workflow() -> None:
    bench = Bench()
    bench.outbox = RaisingOutbox()
    bench.runner = bench.new_runner()
    bench.publish()
    bench.publish_and_commit(workflow_id=wid("w2"))
    bench.deliver_and_commit(bench.outbox.sent[0])
    assert_only_the_first_is_quarantined(bench)
    assert bench.model.trust.quarantined == {wid("w1"): "STEP_FAILED"}
    assert bench.runner.statistics().raised == 1
    finish_the_other(bench)


def spoilt(bench: Bench) -> None:
    """Make the first workflow's machine raise at its next step."""
    run = bench.runner.find_run(wid("w1"))
    assert run is not None
    run.machine.compiled = None  # type: ignore[assignment]


def test_exception_while_a_result_is_heard_quarantines_its_workflow() -> None:
    bench = published()
    spoilt(bench)
    bench.deliver_and_commit(bench.outbox.sent[0])
    assert_only_the_first_is_quarantined(bench)
    assert [order.workflow_id for order, _ in bench.outbox.aborted] == []
    finish_the_other(bench)


def broken_step(bench: Bench) -> None:
    """Make the first workflow's machine raise when its next step is done."""
    run = bench.runner.find_run(wid("w1"))
    assert run is not None
    step = run.machine.step

    def raising(event: Event) -> Decision:
        step(event)
        raise RuntimeError("unforeseen")

    run.machine.step = raising  # type: ignore[method-assign]


@pytest.mark.parametrize("spoil", [spoilt, broken_step])
def test_exception_while_a_result_is_taken_answers_the_agent(
    spoil: Callable[[Bench], None],
) -> None:
    """Its call, and others' requests in it, waited 10 s for an answer that never came."""
    bench = published()
    order = bench.outbox.sent[0]
    spoil(bench)
    heard: list[NodeResultReply | ServiceError | None] = []
    request = NodeResultRequest(
        workflow_id=wid("w1"),
        node=order.node,
        attempt=order.attempt,
        verify_attempt=0,
        result_json="{}",
    )
    take_result(bench.runner, request, bench.clock.now_ms(), heard.append)
    bench.gate.commit()
    assert heard == [None], "the gateway asks again, and hears of the quarantine"
    assert_only_the_first_is_quarantined(bench)


def test_exception_while_a_workflow_is_cancelled_quarantines_it_and_is_answered() -> None:
    """It left the machine cancelled, the workflow driven, and its money held for ever."""
    bench = published()
    broken_step(bench)
    bench.cancel_and_commit()
    assert isinstance(bench.replies[-1], NotYet)
    assert_only_the_first_is_quarantined(bench)
    bench.cancel()
    reread(bench)
    assert isinstance(bench.replies[-1], CancelReply)
    assert bench.status() == "cancelled"
    assert bench.model.balances["escrow:" + wid("w1")] == 0


def test_exception_in_a_timer_quarantines_its_workflow() -> None:
    bench = published()
    order, now_ms = bench.outbox.sent[0], bench.clock.now_ms()
    failure = Failure(NodeErrorCode.AGENT_ERROR, "comes again in a second")
    for attempt in (1, 2):  # the first retry is at once
        bench.runner.receive(wid("w1"), AttemptFailed("a", attempt, failure, now_ms, now_ms))
        bench.gate.commit()
        bench.clock.run_until(now_ms)
    spoilt(bench)
    bench.run_until(now_ms + 40_000)
    assert order.attempt == 1
    assert_only_the_first_is_quarantined(bench)


def test_refused_end_of_a_round_quarantines_its_workflow() -> None:
    """It was dropped, and the auction never ended."""
    bench = Bench()
    bench.publish(auctioned_shape(0))
    bench.publish_and_commit(workflow_id=wid("w2"))
    asked: list[Command] = []
    bench.clock.run_until(bench.clock.now_ms() + 60_000, while_not=lambda: bool(bench.gate.waiting))
    while bench.gate.waiting:
        command, done = bench.gate.waiting.pop(0)
        asked.append(command)
        is_bids = type(command).__name__ == "EndBidding"
        done(REFUSED if is_bids else bench.model.commit([command])[0])
    assert any(type(command).__name__ == "EndBidding" for command in asked), asked
    assert_only_the_first_is_quarantined(bench)


def test_rows_that_cannot_be_restored_quarantine_their_workflow() -> None:
    bench = published()
    bench.model.workflows[wid("w1")]["manifest"] = "{}"
    bench.restart_and_commit()
    assert_only_the_first_is_quarantined(bench)
    assert bench.model.trust.quarantined == {wid("w1"): "NOT_RESTORABLE"}
    finish_the_other(bench)


def test_publish_that_raises_is_refused_alone() -> None:
    bench = Bench()
    bench.publish()
    _, done = bench.gate.waiting.pop()
    done(REFUSED)
    assert bench.replies[0].code is ErrorCode.INTERNAL_ERROR
    assert bench.unsure == [wid("w1")], "whether it is stored, only the rows can tell"
    assert bench.lost == []


# -- what follows ----------------------------------------------------------------------------------


def test_deadline_ends_a_quarantined_workflow_and_returns_its_money() -> None:
    bench = quarantined()
    before_micro = bench.model.balances[f"wallet:{PAYER}"]
    deadline_ms = bench.model.workflows[wid("w1")]["deadline_ms"]
    bench.run_until(deadline_ms)
    reread(bench)
    assert bench.status() == "timeout"
    assert bench.model.balances[f"wallet:{PAYER}"] > before_micro
    assert not bench.runner.is_quarantined(wid("w1"))
    assert wid("w1") in bench.finished


def test_workflow_that_cannot_be_restored_can_be_cancelled() -> None:
    bench = published()
    bench.model.workflows[wid("w1")]["manifest"] = "{}"
    bench.restart_and_commit()
    bench.cancel()
    reread(bench)
    assert isinstance(bench.replies[-1], CancelReply)
    assert bench.status() == "cancelled"
    assert bench.model.nodes[wid("w1")]["a"]["status"] == "skipped"


def test_resumed_workflow_whose_cause_stays_is_quarantined_again() -> None:
    bench = quarantined()
    resume(bench)
    reread(bench)
    bench.deliver_and_commit(
        [order for order in bench.outbox.sent if order.workflow_id == wid("w1")][-1]
    )
    assert_only_the_first_is_quarantined(bench)


def test_restarted_owner_repeats_nothing_of_a_quarantined_workflow() -> None:
    bench = quarantined()
    sent = len([order for order in bench.outbox.sent if order.workflow_id == wid("w1")])
    bench.restart_and_commit()
    assert_only_the_first_is_quarantined(bench)
    assert len([order for order in bench.outbox.sent if order.workflow_id == wid("w1")]) == sent
    bench.run_until(bench.model.workflows[wid("w1")]["deadline_ms"])
    reread(bench)
    assert bench.status() == "timeout", "its deadline is kept across the restart"


def test_end_that_is_refused_is_tried_again_and_not_in_a_loop() -> None:
    bench = quarantined()
    deadline_ms = bench.model.workflows[wid("w1")]["deadline_ms"]
    for attempt in range(2):
        bench.run_until(deadline_ms + attempt * END_RETRY_MS)
        assert bench.unsure.pop() == wid("w1")
        assert not bench.unsure
        bench.adopt_all()
        while bench.gate.waiting:
            command, done = bench.gate.waiting.pop(0)
            is_end = isinstance(command, AdvanceWorkflow) and command.workflow_id == wid("w1")
            done(REFUSED if is_end else bench.model.commit([command])[0])
        assert bench.runner.is_quarantined(wid("w1"))
    assert bench.lost == []


def test_rows_that_allow_no_end_at_all_are_read_again_for_it() -> None:
    """As after a step back to a version that does not know what a newer one has stored."""
    bench = quarantined()
    node = bench.model.nodes[wid("w1")]["a"]
    known, node["status"] = node["status"], "of a newer version"
    bench.cancel()
    reread(bench)
    assert bench.replies[-1].code is ErrorCode.INTERNAL_ERROR
    bench.run_until(bench.model.workflows[wid("w1")]["deadline_ms"] + END_RETRY_MS)
    node["status"] = known
    reread(bench)
    assert bench.status() == "timeout"
    assert not bench.runner.is_quarantined(wid("w1"))


def test_result_for_a_quarantined_workflow_is_told_to_come_again() -> None:
    bench = quarantined()
    answers: list[Any] = []
    request = NodeResultRequest(workflow_id=wid("w1"), node="a", attempt=1, verify_attempt=0)
    take_result(bench.runner, request, bench.clock.now_ms(), answers.append)
    assert isinstance(answers[0], ServiceError)
    assert answers[0].code is ErrorCode.OVERLOADED


def test_quarantined_workflows_count_against_the_bound() -> None:
    bench = Bench(settings=Settings(workflows_per_actor_max=2))
    bench.publish()
    bench.publish_and_commit(VERIFIED, workflow_id=wid("w2"))
    damaged(bench)
    bench.deliver_and_commit(bench.outbox.sent[0])
    bench.publish(workflow_id=wid("w3"))
    assert bench.replies[-1].code is ErrorCode.OVERLOADED


def test_rows_read_before_a_quarantine_do_not_start_the_workflow_again() -> None:
    bench = published()
    with bench.runner.reads.open() as changed_ids:
        rows = bench.model.unfinished([SHARD])
        damaged(bench)
        bench.deliver_and_commit(bench.outbox.sent[0])
        for stored in rows:
            bench.runner.restore_stored(stored, changed_ids)
    bench.gate.commit()
    assert_only_the_first_is_quarantined(bench)


@pytest.mark.parametrize("count", [1, 3])
def test_full_queue_refuses_at_the_door_and_keeps_what_was_accepted(count: int) -> None:
    """A step that was decided and not stored would hold money without a dispatch or deadline."""
    bench = Bench()
    for number in range(count):
        bench.publish(workflow_id=wid(f"w{number + 1}"))
    bench.gate.commit()
    bench.gate.is_full = True
    bench.publish(workflow_id=wid("refuse"))
    assert bench.replies[-1].code is ErrorCode.OVERLOADED
    for order in list(bench.outbox.sent):
        bench.deliver(order)
    bench.gate.commit()
    assert [order.node for order in bench.outbox.sent] == ["a"] * count + ["b"] * count
    bench.runner.cancel(
        CancelRequest(workflow_id=wid("w1"), reason="user_request", details="", actor_did=PAYER),
        bench.replies.append,
    )
    bench.gate.commit()
    assert isinstance(bench.replies[-1], CancelReply)
