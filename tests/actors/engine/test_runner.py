"""The runner's own promises, one by one: order of commit and dispatch, keys, repeats, loss."""

from __future__ import annotations

from typing import Any

import pytest

from actors.engine.node_results import take_result
from actors.transport.messages import (
    NodeResultRequest,
    PublishReply,
    ResumeRequest,
)
from core.errors import ErrorCode, NodeErrorCode, ServiceError
from core.settings import Settings
from core.workflow.actions import SelectAgent
from core.workflow.events import (
    AttemptFailed,
    Failure,
    Verdict,
)
from ledger.commands import Outcome, OutcomeStatus
from tests.actors.engine.runner_bench import CHAIN, FIRST, PAYER, SHARD, Bench, wid
from tests.simulation.shapes import CAPABILITIES, Shape, compiled


def test_a_verification_is_sent_without_the_parents_of_its_node() -> None:
    """They were read, shipped and counted for it, and its body has none."""
    node = {"capabilityId": CAPABILITIES[1]}
    last = {**node, "dependsOn": ["a"], "requiresVerification": True}
    bench = Bench()
    bench.publish_and_commit(compiled({"nodes": {"a": node, "b": last}}))
    bench.deliver_and_commit(bench.outbox.sent[-1])
    bench.deliver_and_commit(bench.outbox.sent[-1], {"of": "b"})
    verification = bench.outbox.sent[-1]
    sources = verification.sources
    assert verification.is_verification and sources is not None
    assert (sources.unverified, sources.results) == ('{"of":"b"}', {})
    assert sources.node.depends_on == ()


def test_three_node_chain_is_four_commands() -> None:
    nodes: dict[str, Any] = {"a": {"capabilityId": CAPABILITIES[1]}}
    nodes["b"] = {**nodes["a"], "dependsOn": ["a"]}
    nodes["c"] = {**nodes["a"], "dependsOn": ["b"]}
    bench = Bench()
    bench.publish(compiled({"nodes": nodes}))
    for number in range(3):
        bench.gate.commit()
        bench.deliver(bench.outbox.sent[number])
    bench.gate.commit()
    assert bench.status() == "success"
    assert bench.finished == [wid("w1")]
    assert bench.runner.statistics().commands == 4
    assert bench.runner.statistics().running == 0


@pytest.mark.parametrize(("max_runtime_ms", "is_cut_short"), [(500, True), (1_000, False)])
def test_order_says_whether_its_workflow_leaves_it_the_nodes_time(
    max_runtime_ms: int, is_cut_short: bool
) -> None:
    bench = Bench()
    node = {"capabilityId": CAPABILITIES[1], "timeoutMs": 1_000}
    bench.publish_and_commit(
        compiled({"nodes": {"a": node}, "settings": {"maxRuntimeMs": max_runtime_ms}})
    )
    (order,) = bench.outbox.sent
    assert (order.timeout_ms, order.is_cut_short) == (max_runtime_ms, is_cut_short)
    assert order.ends_ms == bench.clock.now_ms() + max_runtime_ms


def test_publish_without_credits_is_refused_and_forgotten() -> None:
    bench = Bench(deposit=5)
    bench.publish_and_commit()
    (reply,) = bench.replies
    assert isinstance(reply, ServiceError)
    assert reply.code is ErrorCode.INSUFFICIENT_CREDITS
    assert not bench.runner.is_driving(wid("w1"))
    assert not bench.outbox.sent


def test_publish_above_the_bound_is_refused_before_anything_is_stored() -> None:
    bench = Bench(settings=Settings(workflows_per_actor_max=1))
    bench.publish()
    bench.publish(workflow_id=wid("w2"))
    assert [reply.code for reply in bench.replies] == [ErrorCode.OVERLOADED]
    assert len(bench.gate.waiting) == 1


def test_a_payer_that_has_filled_its_share_leaves_room_for_another() -> None:
    """Its 20,000 unfinished workflows refused everybody's first one for their whole runtime."""
    bench = Bench(settings=Settings(workflows_per_actor_max=18), deposit=10**12)
    for number in range(17):
        bench.publish(workflow_id=wid(f"w{number}"))
    assert [reply.code for reply in bench.replies] == [ErrorCode.OVERLOADED]
    assert len(bench.gate.waiting) == 16
    bench.gate.commit()
    bench.publish_and_commit(
        workflow_id=wid("theirs"), payer_did="did:test:other", actor_did="did:test:other"
    )
    assert bench.replies[-1].code is ErrorCode.INSUFFICIENT_CREDITS, "the ledger's answer, its own"


def test_a_payer_has_its_room_back_when_its_workflows_have_ended() -> None:
    bench = Bench(settings=Settings(workflows_per_actor_max=1))
    bench.publish_and_commit()
    bench.cancel_and_commit()
    bench.publish_and_commit(workflow_id=wid("w2"))
    assert isinstance(bench.replies[-1], PublishReply)
    bench.adopt_all()
    bench.gate.commit()
    bench.publish(workflow_id=wid("w3"))
    assert bench.replies[-1].code is ErrorCode.OVERLOADED, "taken up again, it is counted once"


def test_publish_is_refused_while_as_many_dispatches_wait_as_may() -> None:
    bench = Bench(dispatches_max=5)
    bench.outbox.waiting = 5
    bench.publish()
    assert [reply.code for reply in bench.replies] == [ErrorCode.OVERLOADED]
    assert bench.replies[0].retry_after_s == 1
    assert not bench.gate.waiting, "nothing is stored or held"
    bench.outbox.waiting = 4
    bench.publish_and_commit()
    assert isinstance(bench.replies[1], PublishReply)


def test_dispatches_that_are_being_committed_wait_too() -> None:
    """Else a thousand publishes of one batch would all find an empty queue."""
    bench = Bench(dispatches_max=2)
    for number in range(4):
        bench.publish(workflow_id=wid(f"w{number}"))
    assert [reply.code for reply in bench.replies] == [ErrorCode.OVERLOADED] * 2
    assert len(bench.gate.waiting) == 2
    bench.gate.commit()
    assert [order.workflow_id for order in bench.outbox.sent] == [wid("w0"), wid("w1")]
    bench.publish(workflow_id=wid("w4"))
    assert len(bench.gate.waiting) == 1, "they have left"


def test_dispatches_of_a_refused_publish_do_not_wait() -> None:
    bench = Bench(dispatches_max=1, deposit=5)
    for number in range(2):
        bench.publish_and_commit(workflow_id=wid(f"w{number}"))
    codes = [reply.code for reply in bench.replies]
    assert codes == [ErrorCode.INSUFFICIENT_CREDITS] * 2


def test_children_of_what_was_accepted_are_let_in_however_much_waits() -> None:
    bench = Bench(dispatches_max=1)
    bench.publish_and_commit()
    bench.outbox.waiting = 1
    bench.deliver_and_commit(bench.outbox.sent[0])
    assert [order.node for order in bench.outbox.sent] == ["a", "b"]


def list_looks(
    monkeypatch: pytest.MonkeyPatch, shape: Shape
) -> tuple[list[SelectAgent], PublishReply]:
    """Return what a dry run asks the directory, and the reply."""
    bench = Bench()
    looks: list[SelectAgent] = []
    list_available = bench.directory.list_available_agents

    def counted(
        action: SelectAgent, at_ms: int, *, payer_did: str
    ) -> tuple[list[str], Failure | None]:
        looks.append(action)
        return list_available(action, at_ms, payer_did=payer_did)

    monkeypatch.setattr(bench.directory, "list_available_agents", counted)
    bench.publish(shape, is_dry_run=True)
    (reply,) = bench.replies
    return looks, reply


def test_dry_run_looks_once_for_nodes_that_ask_for_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand looks at a thousand agents held the owner for more than a second."""
    looks, reply = list_looks(monkeypatch, CHAIN)
    assert len(reply.candidates) > len(looks) == len({*looks})
    node = {"capabilityId": CAPABILITIES[1]}
    many = {f"n{number}": {**node, "timeoutMs": 1_000 + number} for number in range(65)}
    looks, reply = list_looks(monkeypatch, compiled({"nodes": many}))
    assert (len(reply.candidates), [one.timeout_ms for one in looks]) == (65, [None])
    del many["n0"]
    looks, _ = list_looks(monkeypatch, compiled({"nodes": many}))
    assert [one.timeout_ms for one in looks] == [*range(1_001, 1_065)]


def test_a_publish_refused_for_an_unforeseen_reason_is_looked_for_in_the_rows() -> None:
    """Its commit may have been stored although its outcome could not be told."""
    bench = Bench()
    bench.publish()
    _, done = bench.gate.waiting.pop()
    done(Outcome(OutcomeStatus.REJECTED, {}, ErrorCode.INTERNAL_ERROR, "unforeseen"))
    assert bench.unsure == [wid("w1")]
    assert not bench.runner.is_driving(wid("w1"))


def test_runner_whose_shard_was_taken_drops_it_and_sends_nothing() -> None:
    bench = Bench()
    bench.publish_and_commit()
    bench.new_runner()
    bench.deliver_and_commit(bench.outbox.sent[0])
    assert bench.lost == [(SHARD, 1)]
    assert len(bench.outbox.sent) == 1
    assert not bench.runner.is_driving(FIRST)


def test_before_a_publish_is_known_to_be_stored_nothing_else_is_decided() -> None:
    """A restarted owner's machine of a repeated publish is behind the rows: a result that was
    taken for it left the stake of the next attempt locked."""
    bench = Bench()
    bench.publish()
    result = NodeResultRequest(workflow_id=wid("w1"), node="a", attempt=1, verify_attempt=0)
    take_result(bench.runner, result, bench.clock.now_ms(), bench.replies.append)
    bench.cancel()
    assert len(bench.gate.waiting) == 1, "the publish alone"
    assert [reply.code for reply in bench.replies] == [ErrorCode.OVERLOADED] * 2
    bench.gate.commit()
    bench.cancel_and_commit()
    assert bench.status() == "cancelled"


def wide(parents: int, children: int) -> Shape:
    """Return a workflow in which each child needs all parents."""
    nodes: dict[str, Any] = {f"p{n}": {"capabilityId": CAPABILITIES[1]} for n in range(parents)}
    child = {"capabilityId": CAPABILITIES[1], "dependsOn": list(nodes)}
    return compiled({"nodes": nodes | {f"c{n}": child for n in range(children)}})


@pytest.mark.parametrize(("parents", "most"), [(1, 191), (60, 50)])
def test_a_step_s_orders_are_sent_in_turns_of_the_loop(parents: int, most: int) -> None:
    """900 children of 85 parents held the loop for 100 ms."""
    bench = Bench(deposit=10**12)
    bench.publish_and_commit(wide(parents, 400))
    roots, bench.outbox.sent = bench.outbox.sent, []
    for order in roots:
        bench.deliver(order)
    bench.gate.commit()
    assert len(bench.outbox.sent) == most
    bench.clock.run_until(bench.clock.now_ms())
    assert [order.node for order in bench.outbox.sent] == [f"c{n}" for n in range(400)]


def half_sent_bench() -> Bench:
    """Return a bench with a root's 400 children, of which the first have been sent."""
    bench = Bench(deposit=10**12)
    bench.publish_and_commit(wide(1, 400))
    bench.deliver_and_commit(bench.outbox.sent[0])
    return bench


def test_what_waits_for_its_turn_is_not_sent_for_a_workflow_that_has_ended() -> None:
    bench = half_sent_bench()
    sent = len(bench.outbox.sent)
    bench.cancel_and_commit()
    bench.clock.run_until(bench.clock.now_ms() + 1_000)
    assert len(bench.outbox.sent) == sent < 400
    assert len(bench.outbox.aborted) == sent - 1
    assert bench.status() == "cancelled"


def test_an_agent_that_is_revoked_before_its_turn_gets_no_order() -> None:
    bench = half_sent_bench()
    sent = list(bench.outbox.sent)
    revoked = sent[-1].agent_did
    row = {"did": revoked, "expires_ms": None, "ended_ms": None}
    bench.directory.revocations.apply_rows([row])
    bench.run_until(bench.clock.now_ms())
    bench.clock.run_until(bench.clock.now_ms())
    later = bench.outbox.sent[len(sent) :]
    assert {order.node for order in [*sent[1:], *later]} == {f"c{n}" for n in range(400)}
    assert revoked not in {order.agent_did for order in later}


def test_workflow_that_is_not_driven_here_is_not_said_to_have_ended() -> None:
    """Another owner may drive it, or will: its row tells, which the gateway reads."""
    bench = Bench()
    bench.cancel()
    bench.runner.resume(ResumeRequest(workflow_id=wid("w1"), actor_did=PAYER), bench.replies.append)
    assert bench.replies == [None, None]
    assert not bench.gate.waiting
    assert not bench.runner.watch(wid("w1"), "gateway")


def test_late_answer_leaves_the_open_order_alone() -> None:
    """The deadline still aborts the second attempt after the first was answered twice."""
    bench = Bench()
    bench.publish_and_commit()
    lost = Failure(NodeErrorCode.AGENT_ERROR, "lost", Verdict.LOST)
    now_ms = bench.clock.now_ms()
    for _ in range(2):
        bench.runner.receive(wid("w1"), AttemptFailed("a", 1, lost, now_ms, now_ms))
        bench.gate.commit()
    assert [order.attempt for order in bench.outbox.sent] == [1, 2]
    bench.cancel_and_commit()
    assert [order.attempt for order, _ in bench.outbox.aborted] == [2]
