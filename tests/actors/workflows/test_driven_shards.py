"""A shard is given away: when it is idle, and what becomes of calls that are open even so."""

from __future__ import annotations

from core.workflow.events import AttemptAccepted, AttemptSucceeded
from tests.actors.engine.runner_bench import CHAIN, FIRST, SHARD, VERIFIED, Bench
from tests.simulation.shapes import Shape


def running(shape: Shape = CHAIN) -> Bench:
    """Return a bench whose first node is open at its agent."""
    bench = Bench()
    bench.publish_and_commit(shape, watcher="gateway")
    return bench


def give(bench: Bench) -> None:
    """Let another runner take the shard over, as an owner does after its Give."""
    for _ in bench.runner.shards.drop([SHARD], is_told=False):
        pass
    bench.restart_and_commit()


def test_a_shard_is_idle_between_two_calls() -> None:
    bench = running()
    assert not bench.runner.shards.is_idle(SHARD)
    assert bench.runner.shards.is_idle(SHARD + 1)
    bench.deliver(bench.outbox.sent[0])
    assert bench.runner.shards.is_idle(SHARD), "the step of its end is not committed yet"
    bench.gate.commit()
    assert not bench.runner.shards.is_idle(SHARD)


def test_a_call_that_is_open_is_closed_without_a_notice_and_made_again() -> None:
    bench = running()
    give(bench)
    assert [order.node for order in bench.outbox.cancelled] == ["a"]
    assert not bench.outbox.aborted, "a notice could end the call that is made again"
    assert [(order.node, order.attempt) for order in bench.outbox.sent] == [("a", 1), ("a", 2)]


def test_a_step_that_is_under_way_when_its_shard_is_given_sends_nothing() -> None:
    bench = running()
    bench.deliver(bench.outbox.sent[0])
    for _ in bench.runner.shards.drop([SHARD], is_told=False):
        pass
    bench.gate.commit()
    assert [order.node for order in bench.outbox.sent] == ["a"], "the next owner sends the next"
    bench.restart_and_commit()
    assert [order.node for order in bench.outbox.sent][:2] == ["a", "b"]


def test_what_an_agent_has_accepted_is_no_open_call_and_stays_with_its_rows() -> None:
    bench = running()
    now_ms = bench.clock.now_ms()
    bench.runner.receive(FIRST, AttemptAccepted("a", 1, now_ms, now_ms, 0, "sha256:i"))
    assert bench.runner.shards.is_idle(SHARD)
    bench.gate.commit()
    give(bench)
    assert [order.node for order in bench.outbox.over] == ["a"], "its place here is free"
    assert [order.node for order in bench.outbox.held] == ["a"], "and taken there"
    assert (len(bench.outbox.sent), bench.outbox.cancelled) == (1, [])


def test_an_accepted_verification_is_open_because_no_row_tells_of_it() -> None:
    bench = running(VERIFIED)
    bench.deliver_and_commit(bench.outbox.sent[0])
    began_ms = bench.clock.now_ms()
    bench.runner.receive(FIRST, AttemptAccepted("a", 1, began_ms, began_ms + 5, 1))
    assert not bench.runner.shards.is_idle(SHARD)


def test_a_late_result_of_a_given_shard_changes_nothing() -> None:
    bench = running()
    runner, order = bench.runner, bench.outbox.sent[0]
    give(bench)
    now_ms = bench.clock.now_ms()
    late = AttemptSucceeded(order.node, 1, "{}", "sha256:i", "sha256:o", now_ms, now_ms)
    runner.receive(FIRST, late)
    assert not bench.gate.waiting
