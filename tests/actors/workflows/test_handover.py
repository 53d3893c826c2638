"""A shard is given away with its open calls: agents are called once, and what they say is heard."""

from __future__ import annotations

from msgspec.structs import replace

from actors.dispatch.handed_calls import HandedShard
from actors.ports import UNREAD_SCHEMA
from actors.workflows.driven_shards import GIVEN_PLACE_MS
from core.workflow.events import AttemptAccepted, AttemptSucceeded, RetryDue
from tests.actors.engine.runner_bench import CHAIN, FIRST, PAYER, SHARD, VERIFIED, Bench, wid
from tests.simulation.shapes import Shape, agent_rows


def running(shape: Shape = CHAIN) -> Bench:
    """Return a bench whose first node is open at its agent."""
    bench = Bench()
    bench.publish(shape, watcher="gateway")
    bench.runner.watch(FIRST, "gateway")
    bench.gate.commit()
    return bench


def succeeded(bench: Bench, node: str = "a", attempt: int = 1) -> AttemptSucceeded:
    """Return an agent's success."""
    now_ms = bench.clock.now_ms()
    return AttemptSucceeded(node, attempt, "{}", "sha256:i", "sha256:o", now_ms, now_ms)


def hand_over(bench: Bench) -> HandedShard:
    """Let another member take the shard over, with the hint; `bench.runner` is its runner."""
    given = bench.runner.shards.give(SHARD, "two")
    bench.held.drop(SHARD)
    handed = HandedShard("one", SHARD, 1, given.calls, given.watchers, "two")
    bench.runner = bench.new_runner()
    bench.runner.shards.hints.keep(handed)
    bench.adopt_all()
    bench.gate.commit()
    return handed


def test_an_open_call_is_awaited_and_not_repeated() -> None:
    bench = running()
    assert [order.node for order in bench.outbox.sent] == ["a"]
    handed = hand_over(bench)
    assert [(call.node, call.attempt) for call in handed.calls] == [("a", 1)]
    assert [order.node for order in bench.outbox.sent] == ["a"], "its agent is not called again"
    ((serial, order),) = bench.outbox.expected
    assert (serial, order.node, order.attempt) == (handed.calls[0].serial, "a", 1)
    assert (order.workflow_id, order.payer_did) == (FIRST, PAYER)
    bench.runner.receive(FIRST, succeeded(bench))
    bench.gate.commit()
    bench.deliver(bench.outbox.sent[-1])
    bench.gate.commit()
    assert bench.status() == "success"
    assert bench.model.attempts[FIRST][0]["attempt"] == 1


def test_without_the_hint_the_attempt_is_repeated() -> None:
    bench = running()
    bench.runner.shards.give(SHARD, "two")
    bench.runner = bench.new_runner()
    bench.adopt_all()
    bench.gate.commit()
    assert [(order.node, order.attempt) for order in bench.outbox.sent] == [("a", 1), ("a", 2)]


def test_a_verification_under_way_is_awaited_too() -> None:
    bench = running(VERIFIED)
    bench.deliver(bench.outbox.sent[0])
    bench.gate.commit()
    assert bench.outbox.sent[-1].is_verification
    handed = hand_over(bench)
    assert [(call.node, call.verify_attempt) for call in handed.calls] == [("a", 1)]
    assert len(bench.outbox.sent) == 2
    assert bench.outbox.expected[0][1].is_verification


def test_a_verification_that_its_agent_has_accepted_is_not_asked_for_again() -> None:
    """Its rows do not tell that it is accepted: the verifier was called a second time."""
    bench = running(VERIFIED)
    bench.deliver(bench.outbox.sent[0])
    bench.gate.commit()
    began_ms = bench.clock.now_ms()
    bench.runner.receive(FIRST, AttemptAccepted("a", 1, began_ms, began_ms + 5, 1))
    given = bench.runner.shards.give(SHARD, "two")
    assert [(call.node, call.verify_attempt) for call in given.calls] == [("a", 1)]
    assert given.heard == ((1, AttemptAccepted("a", 1, began_ms, began_ms, 1)),)
    assert bench.outbox.over[1:] == [], "its place is held here until the recipient frees it"


def test_what_a_verifier_has_said_while_the_shard_was_frozen_is_told_on() -> None:
    """Its acceptance was not: the recipient waited for a reply until the workflow's deadline."""
    bench = running(VERIFIED)
    bench.deliver(bench.outbox.sent[0])
    bench.gate.commit()
    accepted = AttemptAccepted("a", 1, bench.clock.now_ms(), bench.clock.now_ms(), 1)
    bench.held.freeze(SHARD)
    bench.runner.receive(FIRST, accepted)
    given = bench.runner.shards.give(SHARD, "two")
    assert given.heard == ((1, accepted),)


def test_what_was_parked_of_a_call_is_told_on_and_the_rest_is_asked_for_again() -> None:
    bench = running()
    answers: list[bool] = []
    bench.held.freeze(SHARD)
    bench.runner.receive(FIRST, succeeded(bench))
    bench.runner.receive(FIRST, RetryDue("b", 5))
    bench.runner.receive(FIRST, succeeded(bench, "b"), answers.append)
    assert not bench.gate.waiting, "nothing begins in a frozen shard"
    given = bench.runner.shards.give(SHARD, "two")
    assert [(serial, type(event)) for serial, event in given.heard] == [(1, AttemptSucceeded)]
    assert answers == [False]


def test_a_frozen_shard_that_stays_hears_what_was_parked() -> None:
    bench = running()
    bench.held.freeze(SHARD)
    bench.deliver(bench.outbox.sent[0])
    assert not bench.gate.waiting
    bench.held.thaw(SHARD)
    bench.runner.shards.thaw(SHARD)
    bench.gate.commit()
    assert [order.node for order in bench.outbox.sent] == ["a", "b"]


def test_what_an_agent_has_accepted_stays_with_its_rows() -> None:
    bench = running()
    now_ms = bench.clock.now_ms()
    bench.runner.receive(FIRST, AttemptAccepted("a", 1, now_ms, now_ms, 0, "sha256:i"))
    bench.gate.commit()
    handed = hand_over(bench)
    assert handed.calls == ()
    assert [order.node for order in bench.outbox.held] == ["a"], "its place is taken here"
    assert bench.outbox.over == [], "and not free yet where it was"
    bench.clock.run_until(bench.clock.now_ms() + GIVEN_PLACE_MS)
    assert [order.node for order in bench.outbox.over] == ["a"]
    assert not bench.outbox.aborted
    assert len(bench.outbox.sent) == 1


def test_who_waits_for_the_end_is_told_by_the_new_member() -> None:
    bench = running()
    handed = hand_over(bench)
    assert handed.watchers == ((FIRST, "gateway"),)
    run = bench.runner.find_run(FIRST)
    assert run is not None
    assert run.watchers == {"gateway"}


def test_the_giver_drives_nothing_of_the_shard_any_more() -> None:
    bench = running()
    bench.publish(workflow_id=wid("w2"))
    bench.gate.commit()
    giver = bench.runner
    giver.shards.give(SHARD, "two")
    assert giver.driven_workflow_ids() == set()
    giver.receive(FIRST, succeeded(bench))
    assert not bench.gate.waiting
    assert not bench.outbox.aborted, "the calls go on"


def test_an_attempt_that_was_decided_before_the_hand_over_is_not_awaited() -> None:
    """The rows are newer than the hint when a late reply was taken in between."""
    bench = running()
    given = bench.runner.shards.give(SHARD, "two")
    call = replace(given.calls[0], attempt=7)
    bench.runner = bench.new_runner()
    bench.runner.shards.hints.keep(HandedShard("one", SHARD, 1, (call,), (), "two"))
    bench.adopt_all()
    bench.gate.commit()
    assert bench.outbox.expected == []
    assert [(order.node, order.attempt) for order in bench.outbox.sent] == [("a", 1), ("a", 2)]


def test_calls_of_workflows_that_are_not_restored_are_left_over() -> None:
    bench = running()
    given = bench.runner.shards.give(SHARD, "two")
    bench.runner = bench.new_runner()
    bench.runner.shards.hints.keep(HandedShard("one", SHARD, 1, given.calls, given.watchers, "two"))
    assert bench.runner.shards.hints.forget(SHARD, 2) == list(given.calls)
    assert bench.runner.shards.hints.forget(SHARD, 2) == []


def test_a_lost_shards_calls_are_aborted_except_what_agents_have_accepted() -> None:
    bench = running()
    bench.publish(workflow_id=wid("w2"))
    bench.gate.commit()
    now_ms = bench.clock.now_ms()
    bench.runner.receive(FIRST, AttemptAccepted("a", 1, now_ms, now_ms, 0, "sha256:i"))
    bench.gate.commit()
    for _ in bench.runner.shards.drop([SHARD]):
        pass
    assert [order.workflow_id for order, _ in bench.outbox.aborted] == [wid("w2")]
    assert [order.workflow_id for order in bench.outbox.over] == [FIRST]


def test_who_waits_for_an_event_of_a_shard_that_is_lost_while_frozen_is_answered() -> None:
    """An agent that handed its result in was left without an answer."""
    bench = running()
    answers: list[bool] = []
    bench.held.freeze(SHARD)
    bench.runner.receive(FIRST, succeeded(bench), answers.append)
    for _ in bench.runner.shards.drop([SHARD]):
        pass
    assert answers == [False]


def test_a_handed_call_of_an_agent_that_was_deregistered_is_judged_by_its_card() -> None:
    bench = running(CHAIN)
    sent = bench.outbox.sent[0]
    bench.directory.put([{**row, "status": "inactive"} for row in agent_rows()])
    hand_over(bench)
    ((_, order),) = bench.outbox.expected
    assert (sent.output_schema, order.output_schema) == ("", UNREAD_SCHEMA)
