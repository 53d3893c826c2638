"""Children that are dispatched while their parents' commit is under way. Decision 0197."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from actors.engine.node_results import take_result
from actors.ports import DispatchOrder
from actors.transport.messages import NodeResultReply, NodeResultRequest
from actors.workflows import running_workflow
from actors.workflows.workflow_restore import compile_stored_manifest
from core.errors import ErrorCode, NodeErrorCode, ServiceError
from core.records.manifest import parse_manifest
from core.settings import Settings
from core.workflow.dag import compile_workflow
from core.workflow.events import (
    AttemptAccepted,
    AttemptFailed,
    Failure,
    RuntimeExceeded,
    WorkStarted,
)
from core.workflow.transitions import NodeStatus
from ledger.commands import Outcome, OutcomeStatus
from serve_app.operations.work.publishing import workflow_limits
from tests.actors.engine.runner_bench import Bench, wid
from tests.actors.engine.test_revoking import known_to, revoked
from tests.simulation.shapes import CAPABILITIES, Shape, compiled


def chain(**child: Any) -> Shape:
    """Return a chain of three; what is said of `b` besides is `child`."""
    node = {"capabilityId": CAPABILITIES[1], "sideEffects": False}
    children = {"b": {**node, "dependsOn": ["a"], **child}, "c": {**node, "dependsOn": ["b"]}}
    return compiled({"nodes": {"a": node, **children}})


def with_child_under_way(shape: Shape | None = None) -> Bench:
    """Return a bench whose node `a` has its result, which is not committed yet."""
    bench = Bench()
    bench.publish(chain() if shape is None else shape)
    assert not bench.outbox.sent, "the hold is not committed"
    bench.gate.commit()
    bench.deliver(bench.outbox.sent[0])
    return bench


def sent(bench: Bench) -> list[str]:
    return [order.node for order in bench.outbox.sent]


def hand_in(bench: Bench, order: DispatchOrder) -> list[Any]:
    """Hand in the result of an order; returns the list that gets the answer."""
    answers: list[Any] = []
    request = NodeResultRequest(
        workflow_id=wid("w1"),
        node=order.node,
        attempt=order.attempt,
        verify_attempt=0,
        result_json='{"n":1}',
        output_hash="sha256:o",
        binding=order.binding,
    )
    take_result(bench.runner, request, bench.clock.now_ms(), answers.append)
    return answers


def test_a_child_goes_out_before_its_parents_commit_and_its_reply_waits_for_it() -> None:
    bench = with_child_under_way()
    assert sent(bench) == ["a", "b"]
    bench.deliver(bench.outbox.sent[1])
    assert len(bench.gate.waiting) == 1, "nothing is decided on the reply before that commit"
    assert sent(bench) == ["a", "b"], "one generation at most is not committed"
    bench.gate.commit()
    assert sent(bench) == ["a", "b", "c"]
    bench.deliver(bench.outbox.sent[2])
    bench.gate.commit()
    assert (bench.status(), bench.finished) == ("success", [wid("w1")])
    assert bench.runner.statistics().commands == 4
    assert not bench.outbox.aborted


@pytest.mark.parametrize(
    "shape",
    [
        chain(sideEffects=True),
        chain(sideEffects=None),
    ],
    ids=["has side effects", "does not say"],
)
def test_a_child_that_may_not_go_early_waits(shape: Shape) -> None:
    bench = with_child_under_way(shape)
    assert sent(bench) == ["a"]


def test_a_child_of_a_result_that_is_to_be_verified_waits() -> None:
    node = {"capabilityId": CAPABILITIES[1], "sideEffects": False}
    nodes = {"a": {**node, "requiresVerification": True}, "b": {**node, "dependsOn": ["a"]}}
    bench = with_child_under_way(compiled({"nodes": nodes}))
    assert sent(bench) == ["a"]
    bench.gate.commit()
    assert [order.is_verification for order in bench.outbox.sent] == [False, True]


def test_what_says_nothing_goes_early_where_the_deployment_assumes_so() -> None:
    text = chain(sideEffects=None).manifest_json
    for setting, has_side_effects in (("declared", True), ("assumed", False)):
        settings = Settings(early_dispatch=setting)  # type: ignore[arg-type]
        assert (
            compile_stored_manifest(text, settings).nodes["b"].has_side_effects is has_side_effects
        )
        limits = workflow_limits(settings)
        published = compile_workflow(parse_manifest(orjson.loads(text)), limits)
        assert published.nodes["b"].has_side_effects is has_side_effects


def test_a_refused_commit_takes_the_child_back_and_its_reply_counts_for_nothing() -> None:
    bench = with_child_under_way()
    early = bench.outbox.sent[1]
    answers = hand_in(bench, early)
    revoked(bench, bench.outbox.sent[0].agent_did)  # whose result is in the step
    bench.gate.commit()
    assert [order for order, _ in bench.outbox.aborted][-1] is early
    assert answers == [None], "the agent is asked to hand it in again"
    assert bench.unsure == [wid("w1")]
    bench.deliver(early)
    assert not bench.gate.waiting
    assert "b" not in bench.model.escrows[wid("w1")].paid


def test_a_child_whose_agent_is_revoked_by_then_is_not_paid() -> None:
    target = {"targetAgentId": "did:sim:w1", "allowBroadcastFallback": True}
    bench = with_child_under_way(chain(**target))
    early = bench.outbox.sent[1]
    assert early.agent_did != bench.outbox.sent[0].agent_did
    revoked(bench, early.agent_did)
    bench.deliver(early)
    bench.gate.commit()
    assert (bench.outbox.sent[-1].node, bench.outbox.sent[-1].attempt) == ("b", 2)
    assert bench.outbox.sent[-1].agent_did != early.agent_did
    assert "b" not in bench.model.escrows[wid("w1")].paid


def test_a_child_of_an_agent_that_is_known_to_be_revoked_goes_to_another() -> None:
    bench = Bench()
    bench.publish(chain())
    bench.gate.commit()
    known_to(bench, "did:sim:w0")
    bench.gate.commit()
    bench.deliver(bench.outbox.sent[-1])
    assert bench.outbox.sent[-1].node == "b"
    assert bench.outbox.sent[-1].agent_did != "did:sim:w0"


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_cancel_in_between_ends_the_child_unpaid(*, is_answered: bool) -> None:
    bench = with_child_under_way()
    early = bench.outbox.sent[1]
    bench.cancel()
    if is_answered:
        bench.deliver(early)
    bench.gate.commit()
    assert bench.status() == "cancelled"
    assert [order for order, _ in bench.outbox.aborted] == ([] if is_answered else [early])
    assert set(bench.model.escrows[wid("w1")].paid) == {"a"}


def test_a_result_that_is_handed_in_before_the_commit_is_answered_after_it() -> None:
    bench = with_child_under_way()
    answers = hand_in(bench, bench.outbox.sent[1])
    assert not answers
    bench.gate.commit()
    assert answers == [NodeResultReply(status="success")]


def dispatched_again(bench: Bench, result: object = None) -> DispatchOrder:
    """Lose the process and its commit; return the child's order after its parent's next result."""
    bench.gate.waiting.clear()
    bench.runner = bench.new_runner()
    bench.adopt_all()
    bench.gate.commit()
    bench.deliver(bench.outbox.sent[-1], result)
    order = bench.outbox.sent[-1]
    bench.gate.commit()
    return order


def test_only_the_dispatch_that_counts_can_be_answered_when_there_were_two() -> None:
    """The first one's commit was lost with its process; its parent's second result is another."""
    bench = with_child_under_way()
    first = bench.outbox.sent[1]
    second = dispatched_again(bench, {"from": "another try"})
    assert (second.node, second.attempt) == (first.node, first.attempt) == ("b", 1)
    assert second.binding != first.binding
    (answer,) = hand_in(bench, first)
    assert isinstance(answer, ServiceError) and answer.code is ErrorCode.UNAUTHORIZED
    assert not bench.gate.waiting
    answers = hand_in(bench, second)
    bench.gate.commit()
    assert answers == [NodeResultReply(status="success")]


def test_the_same_inputs_to_the_same_agent_are_the_same_dispatch() -> None:
    bench = with_child_under_way()
    first = bench.outbox.sent[1]
    second = dispatched_again(bench)
    assert (second.node, second.agent_did) == (first.node, first.agent_did)
    assert second.binding == first.binding
    answers = hand_in(bench, first)
    bench.gate.commit()
    assert answers == [NodeResultReply(status="success")]


def test_a_result_that_comes_beside_the_reply_is_answered_too() -> None:
    """Both were held back; the reply was taken, and who handed in the same waited in vain."""
    bench = with_child_under_way()
    early = bench.outbox.sent[1]
    bench.deliver(early)
    answers = [hand_in(bench, early), hand_in(bench, early)]
    assert answers == [[], []]
    bench.gate.commit()
    assert answers == [[NodeResultReply(status="success", is_repeat=True)]] * 2


@pytest.mark.parametrize("ends", ["cancel", "deadline"])
def test_a_result_of_a_workflow_that_ended_in_between_is_answered(ends: str) -> None:
    bench = with_child_under_way()
    answers = hand_in(bench, bench.outbox.sent[1])
    if ends == "cancel":
        bench.cancel()
    else:
        run = bench.runner.find_run(wid("w1"))
        assert run is not None
        bench.runner.receive(wid("w1"), RuntimeExceeded(run.machine.deadline_ms))
    bench.gate.commit()
    (answer,) = answers
    assert isinstance(answer, ServiceError) and answer.code is ErrorCode.ESCROW_RELEASED


def test_an_ended_workflows_early_dispatches_are_taken_back() -> None:
    """The rows say that it has ended: its machine is of older ones."""
    bench = with_child_under_way()
    early = bench.outbox.sent[1]
    answers = hand_in(bench, early)
    bench.gate.waiting, waiting = [], bench.gate.waiting
    for _, done in waiting:
        done(Outcome(OutcomeStatus.REJECTED, {}, ErrorCode.ESCROW_RELEASED))
    assert [order for order, _ in bench.outbox.aborted] == [early]
    assert answers == [None]


@pytest.mark.parametrize("event", [WorkStarted, AttemptAccepted, AttemptFailed])
def test_whatever_an_early_dispatch_brings_waits_for_the_commit(event: type) -> None:
    bench = with_child_under_way()
    now_ms = bench.clock.now_ms()
    values: dict[type, tuple[Any, ...]] = {
        WorkStarted: (now_ms,),
        AttemptAccepted: (now_ms, now_ms),
        AttemptFailed: (Failure(NodeErrorCode.AGENT_ERROR, "boom"), now_ms, now_ms),
    }
    bench.runner.receive(wid("w1"), event("b", 1, *values[event]))
    run = bench.runner.find_run(wid("w1"))
    assert run is not None
    assert run.machine.node("b").status is NodeStatus.DISPATCHED
    assert len(bench.gate.waiting) == 1
    bench.gate.commit()
    assert run.machine.node("b").status is not NodeStatus.DISPATCHED


def test_a_restored_order_is_cancelled_by_the_event_id_that_it_was_sent_with() -> None:
    bench = with_child_under_way()
    bench.gate.commit()
    early, now_ms = bench.outbox.sent[1], bench.clock.now_ms()
    bench.runner.receive(wid("w1"), AttemptAccepted("b", 1, now_ms, now_ms))
    bench.gate.commit()
    bench.runner = bench.new_runner()
    bench.adopt_all()
    (held,) = bench.outbox.held
    assert held.binding == early.binding != ""


def test_a_result_is_hashed_once_however_many_are_bound_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand children of a thousand parents hashed all of their results, each."""
    node = {"capabilityId": CAPABILITIES[0], "sideEffects": False}
    parents = [f"p{number}" for number in range(3)]
    children = {f"c{number}": {**node, "dependsOn": parents} for number in range(4)}
    bench = Bench()
    bench.publish(compiled({"nodes": {**dict.fromkeys(parents, node), **children}}))
    bench.gate.commit()
    hashed: list[bytes] = []
    monkeypatch.setattr(
        running_workflow, "hash_bytes", lambda text: hashed.append(text) or str(len(hashed))
    )
    for order in list(bench.outbox.sent):
        bench.deliver(order)
        bench.gate.commit()
    assert len(bench.outbox.sent) == 7
    assert len(hashed) == 3


def test_a_defect_in_sending_early_does_not_answer_the_parents_result_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    bench.publish(chain())
    bench.gate.commit()

    def send(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(bench.outbox, "send", send)
    answers = hand_in(bench, bench.outbox.sent[0])
    assert not answers
    bench.gate.commit()
    assert answers == [NodeResultReply(status="success")]
    assert bench.runner.is_quarantined(wid("w1"))
