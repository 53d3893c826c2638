"""What becomes of a result that is handed in, at a runner without Ray, sockets or a real ledger."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest
from nacl.signing import SigningKey

from actors.engine.node_results import find_order_to_judge, take_result
from actors.ports import UNREAD_SCHEMA
from actors.transport.messages import NodeResultReply, NodeResultRequest, SettlementRequest
from actors.workflows.dispatch_orders import build_timeout_event
from actors.workflows.workflow_restore import restore_workflow
from core.errors import ErrorCode, NodeErrorCode, ServiceError
from core.workflow.actions import AwaitResult
from core.workflow.events import AttemptAccepted, Verdict
from ledger.authority import Authority
from ledger.features.workflow_commands import AdvanceWorkflow
from tests.actors.engine.runner_bench import SHARD, VERIFIED, Bench, wid
from tests.simulation.shapes import Shape, agent_rows

KEY = SigningKey(bytes(range(32)))
ADMIN, BY_ADMIN = "did:x:admin", Authority("admin", "asked for by phone")


class Stopped(Exception):
    """The virtual clock has come to where a test looks."""


def stop() -> None:
    """Stop the clock."""
    raise Stopped


def accepted(shape: Shape | None = None) -> Bench:
    """Return a bench whose first order was accepted."""
    bench = Bench()
    bench.publish() if shape is None else bench.publish(shape)
    bench.gate.commit()
    bench.replies.clear()
    accept(bench)
    return bench


def accept(bench: Bench) -> None:
    """Let the agent of the newest order answer that it works on."""
    order, now_ms = bench.outbox.sent[-1], bench.clock.now_ms()
    event = AttemptAccepted(
        order.node, order.attempt, now_ms, now_ms, order.verify_attempt, "sha256:i"
    )
    bench.runner.receive(order.workflow_id, event)
    bench.gate.commit()


def settle(bench: Bench, named_micro: int, *, is_late: bool = False) -> list[Any]:
    """End the attempt as its payer; returns the list that gets the answer."""
    request = SettlementRequest(
        workflow_id=wid("w1"),
        node="a",
        attempt=1,
        verify_attempt=0,
        result_json="{}",
        output_hash="sha256:o",
        named_micro=named_micro,
        actor_did=ADMIN,
        authority=BY_ADMIN,
        is_late=is_late,
    )
    answers: list[Any] = []
    take_result(bench.runner, request, bench.clock.now_ms(), answers.append)
    return answers


def result_of(node: str = "a", attempt: int = 1, **fields: Any) -> NodeResultRequest:
    """Return a result that is handed in."""
    values: dict[str, Any] = {
        "verify_attempt": 0,
        "result_json": '{"n":1}',
        "output_hash": "sha256:o",
    }
    return NodeResultRequest(
        workflow_id=wid("w1"), node=node, attempt=attempt, **{**values, **fields}
    )


def hand_in(bench: Bench, node: str = "a", attempt: int = 1, **fields: Any) -> list[Any]:
    """Hand a result in; returns the list that gets the answer."""
    request = result_of(node, attempt, **fields)
    answers: list[Any] = []
    take_result(bench.runner, request, bench.clock.now_ms(), answers.append)
    return answers


def code_of(answers: list[Any]) -> ErrorCode:
    (refusal,) = answers
    assert isinstance(refusal, ServiceError)
    return refusal.code


def test_result_is_answered_after_its_commit_and_the_child_goes_out() -> None:
    bench = accepted()
    answers = hand_in(bench)
    assert not answers, "nothing is promised before the commit"
    bench.gate.commit()
    assert answers == [NodeResultReply(status="success")]
    sources = bench.outbox.sent[-1].sources
    assert sources is not None
    assert sources.results == {"a": '{"n":1}'}
    row = bench.model.nodes[wid("w1")]["a"]
    assert (row["status"], row["attempt"], row["input_hash"]) == ("success", 1, "sha256:i")


def test_the_same_result_again_gets_the_same_answer_once_the_first_is_committed() -> None:
    bench = accepted()
    first, again = hand_in(bench), hand_in(bench)
    assert not again
    bench.gate.commit()
    assert first == [NodeResultReply(status="success")]
    assert again == [NodeResultReply(status="success", is_repeat=True)]
    later = hand_in(bench)
    bench.gate.commit()
    assert later == again


def test_result_may_come_before_the_acceptance_and_knows_its_inputs() -> None:
    bench = Bench()
    bench.publish_and_commit()
    answers = hand_in(bench)
    bench.gate.commit()
    assert answers == [NodeResultReply(status="success")]
    (line,) = bench.model.attempts[wid("w1")]
    assert str(line["input_hash"]).startswith("sha256:")


@pytest.mark.parametrize("is_restored", [False, True])
def test_a_payer_ends_an_accepted_attempt_and_no_other(is_restored: bool) -> None:
    """While the request is open its agent may succeed, and would have worked for less."""
    bench = Bench()
    bench.publish_and_commit()
    assert code_of(settle(bench, 1)) is ErrorCode.ALREADY_SETTLED
    accept(bench)
    if is_restored:
        bench.restart_and_commit()
    answers = settle(bench, 1)
    ((command, _),) = bench.gate.waiting
    assert isinstance(command, AdvanceWorkflow)
    assert (command.actor_did, command.authority) == (ADMIN, BY_ADMIN), "who has money moved"
    bench.gate.commit()
    assert answers == [NodeResultReply(status="success")]
    row = bench.model.nodes[wid("w1")]["a"]
    assert (row["status"], row["cost_micro"]) == ("success", 1_000_000), "its price"
    late = hand_in(bench)
    bench.gate.commit()
    assert late == [NodeResultReply(status="success", is_repeat=True)]


def test_a_settlement_that_comes_too_late_is_no_late_result() -> None:
    """A record of it would say that the agent had handed one in, and stand in for that one's."""
    bench = accepted()
    bench.cancel()
    assert code_of(settle(bench, 1)) is ErrorCode.ESCROW_RELEASED
    assert len(bench.gate.waiting) == 1, "the cancellation alone"
    bench.gate.commit()
    assert code_of(settle(bench, 1, is_late=True)) is ErrorCode.ESCROW_RELEASED
    assert not bench.gate.waiting


def test_deadline_is_kept_across_a_restart() -> None:
    bench = accepted()
    bench.restart_and_commit()
    due_ms = bench.model.nodes[wid("w1")]["a"]["deadline_ms"]
    bench.clock.call_at(due_ms, bench.gate.commit)
    bench.clock.call_at(due_ms + 1, stop)
    with pytest.raises(Stopped):
        bench.clock.run()
    (line,) = bench.model.attempts[wid("w1")]
    assert (line["outcome"], line["error_code"]) == ("timeout", "AGENT_TIMEOUT")
    assert code_of(hand_in(bench)) is ErrorCode.ALREADY_SETTLED


def test_result_while_the_cancellation_is_being_committed_is_refused() -> None:
    bench = accepted()
    bench.cancel()
    answers = hand_in(bench)
    bench.gate.commit()
    assert code_of(answers) is ErrorCode.ESCROW_RELEASED


def test_accepted_order_ends_with_its_result_not_before() -> None:
    bench = accepted()
    assert not bench.outbox.over
    hand_in(bench)
    assert [order.node for order in bench.outbox.over] == ["a"]
    assert bench.outbox.over[0] is bench.outbox.sent[0]


def test_accepted_order_ends_with_its_time_out() -> None:
    bench = accepted()
    due_ms = bench.model.nodes[wid("w1")]["a"]["deadline_ms"]
    bench.clock.call_at(due_ms + 1, stop)
    with pytest.raises(Stopped):
        bench.clock.run()
    assert [order.node for order in bench.outbox.over] == ["a"]


def test_accepted_order_holds_its_place_again_after_a_restart_and_ends_with_its_result() -> None:
    bench = accepted()
    bench.restart()
    (held,) = bench.outbox.held
    sent = bench.outbox.sent[0]
    assert (held.node, held.attempt, held.agent_did) == (sent.node, sent.attempt, sent.agent_did)
    row = bench.model.nodes[wid("w1")]["a"]
    assert held.timeout_ms == row["deadline_ms"] - bench.clock.now_ms()
    hand_in(bench)
    assert [order is held for order in bench.outbox.over] == [True]
    bench.gate.commit()
    assert bench.model.nodes[wid("w1")]["a"]["status"] == "success"


@pytest.mark.parametrize("is_restarted", [False, True], ids=["same owner", "restarted"])
def test_result_of_an_agent_that_was_deregistered_is_judged_by_its_card(
    *, is_restarted: bool
) -> None:
    """After a restart its order was not known, so that its result was taken as it came."""
    schema = {"type": "object"}
    bench = Bench()
    rows = [{**row, "card": with_output_schema(row["card"], schema)} for row in agent_rows()]
    bench.directory.put(rows)
    bench.publish_and_commit()
    accept(bench)
    bench.directory.put([{**row, "status": "inactive"} for row in rows])
    if is_restarted:
        bench.restart()
        assert not bench.outbox.held
    sent = bench.outbox.sent[0]
    order = find_order_to_judge(bench.runner, result_of())
    assert order is not None
    assert order.output_schema == (UNREAD_SCHEMA if is_restarted else sent.output_schema)
    assert (order.agent_did, order.capability_id) == (sent.agent_did, sent.capability_id)
    assert find_order_to_judge(bench.runner, result_of(attempt=2)) is None
    hand_in(bench)
    bench.gate.commit()
    assert find_order_to_judge(bench.runner, result_of()) is None, "it is decided"


def with_output_schema(card: str, schema: dict[str, Any]) -> str:
    """Return a card whose capabilities have this schema."""
    read = orjson.loads(card)
    capabilities = [{**one, "outputSchema": schema} for one in read["capabilities"]]
    return orjson.dumps({**read, "capabilities": capabilities}).decode()


def test_place_of_a_workflow_that_had_ended_when_it_was_restored_is_given_back() -> None:
    bench = accepted()
    rows = bench.model.unfinished([SHARD])
    bench.cancel_and_commit()
    bench.runner.adopt(*restore_workflow(rows[0], bench.settings, bench.clock.now_ms()))
    (held,) = bench.outbox.held
    bench.gate.commit()
    assert not bench.runner.is_driving(wid("w1"))
    assert [order is held for order in bench.outbox.over] == [True]


def signed_bench() -> Bench:
    """Return a bench with an accepted order to an agent that has registered `KEY`."""
    bench = Bench()
    public_key = base64.b64encode(bytes(KEY.verify_key)).decode()
    bench.directory.put([{**row, "public_key": public_key} for row in agent_rows()])
    bench.publish_and_commit()
    accept(bench)
    return bench


def test_result_with_the_agents_signature_is_taken_also_after_a_restart() -> None:
    signature = base64.b64encode(KEY.sign(f"a:{wid('w1')}:sha256:o".encode()).signature).decode()
    for is_restarted in (False, True):
        bench = signed_bench()
        if is_restarted:
            bench.restart_and_commit()
        answers = hand_in(bench, signature=signature)
        bench.gate.commit()
        assert answers == [NodeResultReply(status="success")]


def test_result_with_a_wrong_signature_is_a_forgery_and_the_agents_last_word() -> None:
    for is_restarted in (False, True):
        bench = signed_bench()
        if is_restarted:
            bench.restart_and_commit()
        first = bench.model.nodes[wid("w1")]["a"]["agent_did"]
        hand_in(bench, signature="ed25519:AAAA")
        bench.gate.commit()
        (tried,) = bench.model.attempts[wid("w1")]
        assert (tried["agent_did"], tried["error_code"]) == (first, "INVALID_REPLY")
        assert "signature" in tried["error_message"]
        node = bench.model.nodes[wid("w1")]["a"]
        assert node["agents_tried"] == (first,)
        assert node["agent_did"] != first


def test_fenced_owner_does_not_say_that_a_result_was_taken() -> None:
    bench = accepted()
    old = bench.runner
    answers = hand_in(bench)
    bench.runner = bench.new_runner()
    bench.gate.commit()
    assert answers == [None]
    assert bench.lost and old is not bench.runner


def test_timed_out_verification_is_a_failure_of_the_verifier() -> None:
    event = build_timeout_event(AwaitResult("a", 1, 2, 100, 600))
    failure = getattr(event, "failure", None)
    assert failure is not None
    assert (failure.code, failure.verdict) == (NodeErrorCode.AGENT_TIMEOUT, Verdict.RETRYABLE)
    assert getattr(event, "verify_attempt", None) == 2
    assert "500 ms" in failure.message


def test_unverified_result_handed_in_again_is_a_repeat_and_goes_to_one_verifier() -> None:
    bench = accepted(VERIFIED)
    first, again = hand_in(bench), hand_in(bench)
    bench.gate.commit()
    assert first == [NodeResultReply(status="running")]
    assert again == [NodeResultReply(status="running", is_repeat=True)]
    assert [order.is_verification for order in bench.outbox.sent] == [False, True]
