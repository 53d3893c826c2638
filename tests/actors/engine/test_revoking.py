"""Revoked agents in the owner: what it knows, what it sends, and how it goes on after a refusal.

Reference: features.md (Revocation), money.md (Settlement); decision permissions-and-keys.
"""

from __future__ import annotations

from collections import deque

from actors.directory.health.revoked_agents import Revocations
from actors.ports import DispatchOrder
from actors.transport.messages import CancelReply, PublishReply
from core.errors import ErrorCode
from core.workflow.events import AttemptAccepted, AttemptFinished, VerificationFinished
from ledger.features.workflow_commands import AdvanceWorkflow
from tests.actors.engine.runner_bench import VERIFIED, Bench, wid
from tests.ledger.making import revoke
from tests.simulation.shapes import CAPABILITIES, compiled

FIRST = "did:sim:w0"


def known_to(bench: Bench, did: str = FIRST) -> None:
    """Let the owner know that an agent is revoked, and act on it."""
    bench.directory.revocations.apply_rows([{"did": did, "expires_ms": None, "ended_ms": None}])
    deque(bench.runner.revoked_work_steps(), maxlen=0)


def revoked(bench: Bench, did: str = FIRST) -> None:
    """Revoke an agent at the ledger; the owner does not know."""
    (outcome,) = bench.model.commit([revoke(did)])
    assert outcome.error is None


def test_revocations_last_until_they_expire_or_are_taken_back() -> None:
    known = Revocations(lambda did: None)
    assert not known
    row = {"did": "a", "expires_ms": None, "ended_ms": None}
    known.apply_rows([row, {**row, "did": "b", "expires_ms": 10}])
    assert (known.is_revoked("a", 10**15), known.is_revoked("b", 9)) == (True, True)
    assert not known.is_revoked("b", 10)
    known.apply_rows([{**row, "ended_ms": 5}])
    assert not known.is_revoked("a", 6)
    assert "a" not in known
    assert "b" in known


def test_work_of_the_revoked_is_taken_in_the_step_that_restores() -> None:
    """A look at all workflows followed each read of one, once any agent had ever been revoked."""
    bench = Bench()
    bench.publish_and_commit()
    (order,) = bench.outbox.sent
    now_ms = bench.clock.now_ms()
    bench.runner.receive(
        wid("w1"), AttemptAccepted(order.node, order.attempt, now_ms, now_ms, 0, "sha256:i")
    )
    bench.gate.commit()
    bench.runner = bench.new_runner()
    bench.directory.revocations.apply_rows([{"did": FIRST, "expires_ms": None, "ended_ms": None}])
    bench.adopt_all()
    (held,) = bench.outbox.held
    ((command, _),) = bench.gate.waiting
    assert isinstance(command, AdvanceWorkflow)
    assert [type(record) for record in command.records].count(AttemptFinished) == 1
    bench.gate.commit()
    assert [sent.agent_did for sent in bench.outbox.sent] == [FIRST, "did:sim:w1"]
    assert bench.outbox.aborted == [(held, "policy_violation")]
    assert not bench.gate.waiting
    bench.deliver_and_commit(bench.outbox.sent[-1])
    assert bench.lost == bench.unsure == []


def test_work_is_taken_from_an_agent_and_given_to_another() -> None:
    bench = Bench()
    bench.publish_and_commit()
    known_to(bench)
    bench.gate.commit()
    assert [order.agent_did for order in bench.outbox.sent] == [FIRST, "did:sim:w1"]
    assert bench.outbox.aborted == [(bench.outbox.sent[0], "policy_violation")]


def test_what_may_not_be_stored_yet_is_left_alone_and_then_not_sent() -> None:
    """The publish's answer says whether it is this run that is stored."""
    bench = Bench()
    bench.publish()
    known_to(bench)
    assert len(bench.gate.waiting) == 1, "the publish alone"
    bench.gate.commit()
    assert [order.agent_did for order in bench.outbox.sent] == ["did:sim:w1"]
    assert isinstance(bench.replies[0], PublishReply)


def test_work_is_not_taken_from_the_revoked_before_its_publish_is_known() -> None:
    """Were its answer lost, the step would be behind the rows from which it is restored."""
    bench = Bench()
    bench.publish()
    known_to(bench)
    bench.gate.commit(times=2)
    assert bench.unsure == [wid("w1")]
    assert bench.model.attempts.get(wid("w1"), []) == []


def halted(bench: Bench) -> None:
    """Let a result arrive that the ledger refuses, with another step behind it."""
    nodes = {name: {"capabilityId": CAPABILITIES[1]} for name in "ab"}
    bench.publish_and_commit(compiled({"nodes": nodes}))
    first, other = bench.outbox.sent
    assert first.agent_did == other.agent_did == FIRST
    revoked(bench)
    bench.deliver(first)
    bench.deliver_and_commit(other)


def test_after_a_refusal_the_workflow_is_read_again_and_the_process_goes_on() -> None:
    bench = Bench()
    halted(bench)
    assert bench.lost == []
    assert bench.unsure == [wid("w1")], "once, however many steps were refused"
    assert not bench.runner.is_driving(wid("w1"))
    assert all(run.is_halted for run in bench.runner._running.stored())
    bench.adopt_all()
    bench.gate.commit()
    assert bench.runner.is_driving(wid("w1"))
    assert {order.agent_did for order in bench.outbox.sent[2:]} == {"did:sim:w1"}
    for order in bench.outbox.sent[-2:]:
        bench.deliver(order)
    bench.gate.commit()
    assert bench.status() == "success"


def test_who_waits_for_the_end_is_told_of_it_by_the_new_run() -> None:
    told: list[set[str]] = []
    bench = Bench()
    bench.runner = bench.new_runner(on_finished=lambda _, watchers, __: told.append(set(watchers)))
    halted(bench)
    assert bench.runner.watch(wid("w1"), "replica")
    bench.adopt_all()
    bench.gate.commit()
    for order in bench.outbox.sent[-2:]:
        bench.deliver(order)
    bench.gate.commit()
    assert told == [{"replica"}]


def test_a_cancel_meanwhile_is_to_come_again() -> None:
    bench = Bench()
    halted(bench)
    bench.cancel()
    assert bench.replies[-1].code is ErrorCode.OVERLOADED
    bench.adopt_all()
    bench.gate.commit()
    bench.cancel_and_commit()
    assert isinstance(bench.replies[-1], CancelReply)


def test_a_cancel_that_was_sent_behind_a_refused_step_is_to_come_again() -> None:
    bench = Bench()
    bench.publish_and_commit()
    revoked(bench)
    bench.deliver(bench.outbox.sent[0])
    bench.cancel_and_commit()
    assert bench.replies[-1].code is ErrorCode.OVERLOADED
    assert bench.status() == "running"
    bench.adopt_all()
    bench.gate.commit()
    bench.cancel_and_commit()
    assert bench.status() == "cancelled"


def test_what_comes_for_the_halted_run_is_dropped() -> None:
    bench = Bench()
    halted(bench)
    bench.deliver(bench.outbox.sent[1])
    bench.clock.run()
    assert not bench.gate.waiting, "neither results nor timers"


def verifying(bench: Bench, **settings: int) -> DispatchOrder:
    """Publish a node with a verifier, deliver its result; return the order of its verification."""
    node = {"capabilityId": CAPABILITIES[1], "requiresVerification": True}
    bench.publish_and_commit(compiled({"nodes": {"a": node}, "settings": settings}))
    bench.deliver_and_commit(bench.outbox.sent[0])
    assert bench.outbox.sent[-1].is_verification
    return bench.outbox.sent[-1]


def approve(bench: Bench, order: DispatchOrder) -> None:
    """Let the verifier of an order approve."""
    now_ms = bench.clock.now_ms()
    event = VerificationFinished(
        order.node, order.attempt, True, None, now_ms, now_ms, order.verify_attempt
    )
    bench.runner.receive(order.workflow_id, event)
    bench.gate.commit()


def test_span_of_work_that_began_while_others_were_looked_at_is_not_below_zero() -> None:
    """Between two workflows of the sweep time passes, and a verifier may be chosen."""
    bench = Bench()
    bench.publish_and_commit(VERIFIED)
    bench.directory.revocations.apply_rows([{"did": FIRST, "expires_ms": None, "ended_ms": None}])
    steps = bench.runner.revoked_work_steps()
    next(steps)
    bench.clock.run_until(bench.clock.now_ms() + 5)
    bench.deliver(bench.outbox.sent[0])
    deque(steps, maxlen=0)
    records = [
        record
        for command, _ in bench.gate.waiting
        if isinstance(command, AdvanceWorkflow)
        for record in command.records
    ]
    ended = [record for record in records if isinstance(record, AttemptFinished)]
    spans = [(record.kind, record.completed_ms - record.started_ms) for record in ended]
    assert spans == [("primary", 0), ("verify", 0)]


def test_workflow_that_is_halted_again_is_read_after_a_delay() -> None:
    """Where clocks differ, a revocation is over for the owner and not for the ledger: the same
    verification was sent, refused, and its workflow read again, without a pause."""
    bench = Bench()
    order = verifying(bench)
    revoked(bench, order.agent_did)
    began_ms, read_ms = bench.clock.now_ms(), []
    for halts in range(1, 5):
        approve(bench, bench.outbox.sent[-1])
        bench.clock.run_until(began_ms + 60_000, while_not=lambda n=halts: len(bench.unsure) == n)
        read_ms.append(bench.clock.now_ms() - began_ms)
        bench.adopt_all()
        bench.gate.commit()
    assert read_ms == [0, 1_000, 6_000, 36_000]
    assert {sent.agent_did for sent in bench.outbox.sent[1:]} == {order.agent_did}


def test_workflow_that_is_halted_again_is_read_at_its_deadline_at_the_latest() -> None:
    bench = Bench()
    order = verifying(bench, maxRuntimeMs=3_000)
    revoked(bench, order.agent_did)
    began_ms = bench.clock.now_ms()
    for halts in range(1, 4):
        approve(bench, bench.outbox.sent[-1])
        bench.clock.run_until(began_ms + 60_000, while_not=lambda n=halts: len(bench.unsure) == n)
        bench.adopt_all()
        bench.gate.commit()
    assert bench.clock.now_ms() == began_ms + 3_000
    assert bench.status() == "timeout"
