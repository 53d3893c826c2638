"""A workflow that is cancelled while its nodes are at peers: what a peer has charged is paid first.

Goal: no payer gets work of a peer for nothing by cancelling as the result comes. Reference:
money.md (Work of peers).
"""

from __future__ import annotations

from typing import Any

import pytest

from actors.engine.runner import ORDERS_END_MS
from actors.ports import DispatchOrder
from actors.workflows.step_commands import CancelReply
from core.errors import ErrorCode, NodeErrorCode, ServiceError
from core.peers.documents import clearing_did
from core.peers.routing import KnownPeer, PeerOffer
from core.workflow.events import AttemptFailed, AttemptSucceeded, Failure, Verdict
from tests.actors.engine.runner_bench import Bench
from tests.simulation.shapes import CAPABILITIES, compiled

DID = "did:callboard:us"
FAR = "cap.far.v1"
# Of 100 micro-credits, 5 % are the fee here.
PAID = 95


def bench_with(nodes: dict[str, Any]) -> tuple[Bench, list[DispatchOrder]]:
    """Return a bench whose workflow is at work, and its orders."""
    bench = Bench()
    offers = {FAR: PeerOffer(100, None, None)}
    peer = KnownPeer(
        id="us",
        did=DID,
        endpoint="https://us.example",
        region="us",
        public_key="",
        clearing_did=clearing_did(DID),
        is_proven=True,
        heard_ms=0,
        offers=offers,
    )
    bench.directory.put_peers([peer])
    bench.publish_and_commit(compiled({"nodes": nodes, "settings": {"federate": True}}))
    return bench, bench.outbox.sent


def succeed(bench: Bench, order: DispatchOrder) -> None:
    now_ms = bench.clock.now_ms()
    event = AttemptSucceeded(
        order.node, order.attempt, "1", "sha256:i", "sha256:o", now_ms, now_ms, charged_micro=100
    )
    bench.runner.receive(order.workflow_id, event)


def fail(bench: Bench, order: DispatchOrder, *, charged_micro: int = 0) -> None:
    now_ms = bench.clock.now_ms()
    failure = Failure(NodeErrorCode.AGENT_UNAVAILABLE, "gone", Verdict.RETRYABLE, is_declined=True)
    if charged_micro:
        failure = Failure(NodeErrorCode.VERIFICATION_REJECTED, "bad", is_spared=True)
    times = (now_ms, now_ms, charged_micro)
    bench.runner.receive(
        order.workflow_id, AttemptFailed(order.node, order.attempt, failure, *times)
    )


def settle(bench: Bench) -> None:
    """Let the callbacks of this moment run."""
    bench.run_until(bench.clock.now_ms())


def paid(bench: Bench) -> int:
    return sum(micro for name, micro in bench.model.balances.items() if clearing_did(DID) in name)


def test_a_result_that_comes_after_the_cancellation_is_paid() -> None:
    bench, (first, second) = bench_with({"a": {"capabilityId": FAR}, "b": {"capabilityId": FAR}})
    bench.cancel()
    assert bench.outbox.given_up == [first, second]
    assert not bench.gate.waiting and bench.status() == "running"
    succeed(bench, first)
    settle(bench)
    assert bench.status() == "running", "the end of the other order is not known"
    fail(bench, second)
    settle(bench)
    assert bench.status() == "cancelled" and paid(bench) == PAID
    assert isinstance(bench.replies[-1], CancelReply)


def test_a_workflow_whose_last_result_comes_then_has_succeeded() -> None:
    bench, (order,) = bench_with({"a": {"capabilityId": FAR}})
    bench.cancel()
    bench.cancel()
    succeed(bench, order)
    settle(bench)
    assert bench.status() == "success" and paid(bench) == PAID
    assert [reply.code for reply in bench.replies[-2:]] == [ErrorCode.NOT_CANCELLABLE] * 2


def test_nothing_more_is_dispatched_while_orders_end() -> None:
    nodes = {
        "a": {"capabilityId": FAR},
        "b": {"capabilityId": FAR, "dependsOn": ["a"]},
        "c": {"capabilityId": FAR},
        "d": {"capabilityId": CAPABILITIES[1]},
        "e": {"capabilityId": FAR, "dependsOn": ["d"]},
    }
    bench, sent = bench_with(nodes)
    first, held, local = sent
    bench.cancel()
    succeed(bench, first)
    bench.deliver(local)
    settle(bench)
    fail(bench, held)
    settle(bench)
    assert sent == [first, held, local]
    assert bench.status() == "cancelled" and paid(bench) == PAID


def test_a_peer_that_does_not_answer_holds_a_cancellation_for_a_bounded_time() -> None:
    bench, (order,) = bench_with({"a": {"capabilityId": FAR}})
    bench.cancel()
    bench.clock.run_until(bench.clock.now_ms() + ORDERS_END_MS - 1)
    assert not bench.gate.waiting
    bench.run_until(bench.clock.now_ms() + 1)
    assert bench.status() == "cancelled"
    assert [one for one, _ in bench.outbox.aborted] == [order]
    succeed(bench, order)
    settle(bench)
    assert paid(bench) == 0


def test_a_failure_there_does_not_end_the_workflow_before_the_cancellation() -> None:
    bench, (order,) = bench_with({"a": {"capabilityId": FAR, "maxRetries": 0}})
    bench.cancel()
    fail(bench, order)
    settle(bench)
    assert bench.status() == "cancelled"
    assert not any(isinstance(reply, ServiceError) for reply in bench.replies)


@pytest.mark.parametrize("retries", [0, 3])
def test_a_rejection_that_was_charged_is_paid_before_the_cancellation(retries: int) -> None:
    """Otherwise a payer's own verifier at the peer would earn what the clearing account loses."""
    node = {"capabilityId": FAR, "requiresVerification": True, "maxRetries": retries}
    bench, (order,) = bench_with({"a": node})
    bench.cancel()
    fail(bench, order, charged_micro=20)
    settle(bench)
    assert bench.status() == ("cancelled" if retries else "failed") and paid(bench) == 19
    assert bench.outbox.sent == [order]


@pytest.mark.parametrize("is_at_peer", [False, True])
def test_only_orders_at_peers_hold_a_cancellation(is_at_peer: bool) -> None:
    capability = FAR if is_at_peer else CAPABILITIES[1]
    bench, _ = bench_with({"a": {"capabilityId": capability}})
    bench.cancel()
    assert bool(bench.gate.waiting) is not is_at_peer
