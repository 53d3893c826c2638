"""Agents that answer as the seed says: well, late, twice, wrongly, never.

Stands where `actors/dispatch/dispatcher.py` and the network stand. What an agent answers in words
is judged by the service's own `judge_reply`, so the failures here are the real ones. Reference:
features.md (Agent interface), http.md (Errors).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from zlib import crc32

import orjson

from actors.dispatch.http_failures import judge_failure
from actors.ports import Contact, DispatchOrder
from actors.transport.messages import NodeResultRequest
from core.errors import NodeErrorCode
from core.workflow.events import (
    AttemptAccepted,
    AttemptFailed,
    AttemptSucceeded,
    Event,
    Failure,
    Verdict,
    VerificationFinished,
    WorkStarted,
)
from core.workflow.verdict import judge_reply
from federation.http_connection import HttpFailure, HttpFailureKind
from tests.simulation.costs import ABORT_US, DISPATCH_US
from tests.simulation.shapes import tokens_spent

if TYPE_CHECKING:
    from tests.simulation.process import Process

Receive = Callable[[str, Event], None]
OrderId = tuple[str, str, int, int]


def _judged(status: int, body: bytes | None, retry_after: str | None = None) -> Failure:
    failure = judge_reply(
        status, "application/json", body, event_id="e", capability_id="c", retry_after=retry_after
    )
    assert isinstance(failure, Failure), failure
    return failure


TOO_MANY = _judged(429, b"", "60")
WORDS = (
    _judged(200, b'{"eventId": "e", "status": "error", "error": "no luck"}'),
    _judged(500, b'{"eventId": "e", "status": "error", "error": "boom", "code": "E1"}'),
    _judged(503, b"", "3"),
    TOO_MANY,
    _judged(200, b'{"eventId": "another", "status": "success", "result": {}}'),
    _judged(200, None),
    _judged(200, b"<html>"),
    _judged(302, b""),
)
LAST_WORDS = (
    _judged(404, b'{"eventId": "e", "status": "error", "error": "unknown capability c"}'),
    _judged(401, b'{"eventId": "e", "status": "error", "error": "Invalid signature"}'),
    _judged(200, b'{"status": "error", "error": "unknown capability c"}'),
)
FORGED = Failure(
    NodeErrorCode.INVALID_REPLY, "the signature is not the agent's", Verdict.FINAL_FOR_AGENT,
    is_forged=True,
)  # fmt: skip
OUT_OF_BOUNDS = Failure(NodeErrorCode.POLICY_DENIED, "the egress policy forbids it", Verdict.FINAL)
LOST = Failure(NodeErrorCode.AGENT_ERROR, "the dispatching process ended", Verdict.LOST)
CUT_OFF = HttpFailure(HttpFailureKind.TIMEOUT, "no reply in time")
CONTACTS = {
    NodeErrorCode.AGENT_UNAVAILABLE: Contact.UNREACHABLE,
    NodeErrorCode.AGENT_TIMEOUT: Contact.UNANSWERED,
}


def _timeout(order: DispatchOrder) -> Failure:
    return Failure(
        NodeErrorCode.AGENT_TIMEOUT, f"no reply within {order.timeout_ms} ms",
        is_spared=order.timeout_ms < order.promised_ms,
    )  # fmt: skip


def _offline(order: DispatchOrder) -> Failure:
    return Failure(
        NodeErrorCode.AGENT_UNAVAILABLE, "the connection was refused", details="agent_offline",
        target_agent_id=order.agent_did, is_declined=True,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Later:
    """The agent accepts, and hands this in after a while; perhaps twice."""

    reply: bool | Failure
    after_ms: int
    times: int


@dataclass(frozen=True, slots=True)
class Timed:
    """The agent answers after a while, or its payer has cut it off by then."""

    reply: bool | Failure | Later
    after_ms: int


class Temper:
    """How one agent answers in one run."""

    def __init__(self, chance: random.Random, *, is_flaky: bool, is_later: bool) -> None:
        self.success = 1.0 if not is_flaky else chance.choice((0.0, 0.3, 0.7, 0.95))
        self.latency_ms_max = chance.choice((5, 40, 400)) if is_flaky else 20
        self.later = chance.choice((0.3, 1.0)) if is_later else 0.0


class SimulatedDispatch:
    """Implements `DispatchPort` for one owner's process; silent once that process is dead."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self._clock = process.world.clock  # of agents, who go on when this process is dead
        self._chance = process.world.chance
        self._open: dict[OrderId, DispatchOrder] = {}
        self.held: dict[int, DispatchOrder] = {}  # places of accepted orders, by identity
        self._over: dict[int, DispatchOrder] = {}  # kept, so that no identity is used again
        # By identity, who receives what comes of an order.
        self._receivers: dict[int, tuple[DispatchOrder, Receive]] = {}
        self._unsent: list[DispatchOrder] = []  # until a renewal is acknowledged
        self.on_waiting: Callable[[str], None] = lambda _: None

    def send(self, order: DispatchOrder, receive: Receive) -> None:
        """Take an order; its events come later."""
        process = self._process
        process.step("send")
        if not process.is_alive:
            return
        self._world.faults.may_raise("send")
        self._receivers[id(order)] = (order, receive)
        self._open[order_id(order)] = order
        process.directory.begin(order.agent_did)
        if process.owner.may_send():
            self._send(order)
        else:
            self._unsent.append(order)

    def _send(self, order: DispatchOrder) -> None:
        process = self._process
        self._world.checks.dispatched(order, process)
        process.loop.charge(DISPATCH_US)
        self._reply(order, partial(self._hear, order))
        process.step("sent")

    def _hear(self, order: DispatchOrder, workflow_id: str, event: Event) -> None:
        self._receivers[id(order)][1](workflow_id, event)

    def resume(self) -> None:
        """Send what has waited for the ledger to acknowledge a renewal."""
        if not self._process.owner.may_send():
            return
        unsent, self._unsent = self._unsent, []
        for order in unsent:
            if self._open.get(order_id(order)) is order and self._process.is_alive:
                self._send(order)

    def withdraw(self, order: DispatchOrder) -> bool:
        """Drop an order that was not sent."""
        if order not in self._unsent:
            return False
        self.cancel(order)
        return True

    def cancel(self, order: DispatchOrder) -> bool:
        """Stop waiting for a reply, without a word to the agent."""
        self.abort(order, "")
        return True

    def notify(self, order: DispatchOrder, reason: str) -> None:
        """Tell an agent: simulated ones do not listen."""

    def give_up(self, order: DispatchOrder) -> None:
        """Implement `DispatchPort`: there are no peers."""

    @property
    def open_calls(self) -> int:
        """Return how many orders wait for a reply."""
        return len(self._open)

    def waiting_agents(self) -> list[str]:
        """Return no agent: each takes what it is sent at once."""
        return []

    def wake(self) -> None:
        """Do nothing: no order waits for a share of its agent."""

    @property
    def waiting(self) -> int:
        """Implement `DispatchPort`: agents take what they are sent at once."""
        return 0

    def waiting_of(self, payer: str) -> int:
        """Implement `DispatchPort`."""
        return 0

    def hold(self, order: DispatchOrder) -> None:
        """Take the place of an order that was accepted before this process began."""
        if self._process.is_alive:
            self.held[id(order)] = order

    def release(self, order: DispatchOrder) -> None:
        """Free the place of an accepted order; one that is still open will hold none."""
        if self.held.pop(id(order), None) is None and self._open.get(order_id(order)) is order:
            self._over[id(order)] = order

    def holds(self, order: DispatchOrder) -> bool:
        """Say whether the place of this order, or of what was made of it later, is held."""
        return order_id(order) in map(order_id, self.held.values())

    def abort(self, order: DispatchOrder, reason: str) -> None:
        """Stop waiting for a reply."""
        if not self._process.is_alive:
            return
        self._process.loop.charge(ABORT_US)
        self._world.checks.aborted(order)
        self.release(order)
        if self._open.pop(order_id(order), None) is not None:
            self._close(order, Contact.REACHED)

    def _reply(self, order: DispatchOrder, receive: Receive) -> None:
        chance = self._chance
        if self._world.script is not None:
            first, *others = self._world.script(order)
            if isinstance(first, Timed):
                self._reply_in_time(order, receive, first)
                return
            if isinstance(first, Later):
                self._clock.call_in(5, self._accept, order, receive, first, 5)
                return
            self._call_in(5, self._answer, order, receive, first, self._now())
            for reply in others:
                assert not isinstance(reply, Later | Timed)
                self._call_in(6, self._late, order, receive, reply, self._now())
            return
        temper = self._world.tempers[order.agent_did]
        draw = chance.random()
        latency_ms = chance.randint(0, temper.latency_ms_max)
        wait_ms = chance.randint(0, 2)
        if draw < temper.success:
            reply: Failure | bool = True
            if order.is_verification and chance.random() < 0.15:
                reply = False
        else:
            reply, latency_ms = self._misbehaviour(order, latency_ms)
        if latency_ms > order.timeout_ms:
            reply, latency_ms = _timeout(order), order.timeout_ms
        if temper.success < 1.0 and chance.random() < 0.002:
            # The port breaks its promise: only the workflow's own deadline ends this.
            self._world.checks.vanished.add((order.workflow_id, order.node))
            return
        total_ms = wait_ms + latency_ms
        if chance.random() < temper.later:
            after_ms = chance.choice((0, 10, 300, order.timeout_ms - 1, order.timeout_ms + 5_000))
            later = Later(reply, after_ms, chance.choice((1, 1, 2)))
            self._clock.call_in(total_ms, self._accept, order, receive, later, latency_ms)
            return
        if not order.is_verification and chance.random() < 0.2:
            self._call_in(wait_ms, self._begin, order, receive)
        self._call_in(wait_ms, self._on_its_way, order, receive, reply, latency_ms)
        if temper.success < 1.0 and chance.random() < 0.05:
            # Against the port's promise: a second answer, the same or another one.
            second = reply if chance.random() < 0.5 else True
            later_ms = total_ms + chance.choice((0, 1, 50, 5_000, 100_000))
            self._call_in(later_ms, self._late, order, receive, second, self._now() + wait_ms)

    def _reply_in_time(self, order: DispatchOrder, receive: Receive, timed: Timed) -> None:
        reply, after_ms = timed.reply, timed.after_ms
        if after_ms > order.timeout_ms:
            settings = self._world.settings
            reply, after_ms = judge_failure(order, CUT_OFF, settings)[0], order.timeout_ms
        if isinstance(reply, Later):
            self._clock.call_in(after_ms, self._accept, order, receive, reply, after_ms)
        else:
            self._call_in(after_ms, self._answer, order, receive, reply, self._now())

    def _misbehaviour(self, order: DispatchOrder, latency_ms: int) -> tuple[Failure, int]:
        kind = self._chance.random()
        if kind < 0.5:
            return self._chance.choice(WORDS), latency_ms
        if kind < 0.6:
            words = self._chance.choice(LAST_WORDS)
            # A verifier's signature is not judged.
            return FORGED if kind < 0.54 and not order.is_verification else words, latency_ms
        if kind < 0.62:
            return OUT_OF_BOUNDS, 0
        if kind < 0.72:
            return LOST, latency_ms
        if kind < 0.82:
            return _offline(order), 0
        return _timeout(order), order.timeout_ms

    def _call_in(self, delay_ms: int, callback: Callable[..., None], *arguments: Any) -> None:
        """Call back in a turn of the process's loop, never if it is dead by then."""
        self._process.loop.call_later(delay_ms / 1_000, callback, *arguments)

    def _now(self) -> int:
        return self._process.owner.clock.now_ms()

    def _on_its_way(
        self, order: DispatchOrder, receive: Receive, reply: Failure | bool, latency_ms: int
    ) -> None:
        self._call_in(latency_ms, self._answer, order, receive, reply, self._now())

    def _begin(self, order: DispatchOrder, receive: Receive) -> None:
        receive(order.workflow_id, WorkStarted(order.node, order.attempt, self._now()))

    def _answer(
        self, order: DispatchOrder, receive: Receive, reply: Failure | bool, started_ms: int
    ) -> None:
        """Close the order with its one event, unless it was aborted."""
        if self._open.pop(order_id(order), None) is None:
            return
        contact = Contact.REACHED
        if not isinstance(reply, bool):
            contact = CONTACTS.get(reply.code, Contact.REACHED)
            if contact is Contact.UNANSWERED and reply.is_spared:
                contact = Contact.UNKNOWN
        self._close(order, contact)
        self._late(order, receive, reply, started_ms)

    def _accept(
        self, order: DispatchOrder, receive: Receive, later: Later, latency_ms: int
    ) -> None:
        """Answer that the result will come; the agent goes on under any later owner."""
        for number in range(later.times):
            after_ms = later.after_ms + 20 * number
            self._clock.call_in(after_ms, self._world.hand_in, order, later.reply)
        self._call_in(0, self._accepted, order, receive, latency_ms)

    def _accepted(self, order: DispatchOrder, receive: Receive, latency_ms: int) -> None:
        if self._open.pop(order_id(order), None) is None:
            return
        self._close(order, Contact.REACHED)
        self._world.checks.aborted(order)
        if id(order) not in self._over:
            self.held[id(order)] = order
        now_ms = self._now()
        accepted = AttemptAccepted(
            order.node, order.attempt, now_ms - latency_ms, now_ms, order.verify_attempt,
            "sha256:in",
        )  # fmt: skip
        self._world.settling.accepted(order)
        receive(order.workflow_id, accepted)

    def _late(
        self, order: DispatchOrder, receive: Receive, reply: Failure | bool, started_ms: int
    ) -> None:
        self._world.checks.answered(order, reply, self._process)
        if not order.is_verification and isinstance(reply, bool) and self._chance.random() < 0.5:
            receive(order.workflow_id, WorkStarted(order.node, order.attempt, started_ms))
        result = self._world.checks.result_of(order)
        receive(order.workflow_id, event_of(order, reply, result, started_ms, self._now()))

    def _close(self, order: DispatchOrder, contact: Contact) -> None:
        self._process.directory.note_outcome(
            order.agent_did, contact, self._now(), payer_did=order.payer_did
        )


def order_id(order: DispatchOrder) -> OrderId:
    """Return what tells orders apart."""
    return order.workflow_id, order.node, order.attempt, order.verify_attempt


def result_of(order: DispatchOrder, number: int) -> dict[str, Any]:
    """Return what an agent delivers: of which attempt, of what inputs, and by which dispatch of it.

    Args:
        number: how often this attempt has been dispatched by now.
    """
    assert order.sources is not None
    made_of = digest_of(order.sources.results)
    return {"value": f"{order.node}/{order.attempt}", "of": made_of, "number": number}


def digest_of(results: Mapping[str, object]) -> int:
    """Return what tells inputs apart."""
    return crc32(repr(sorted(results.items())).encode())


def _tokens(order: DispatchOrder) -> dict[str, int]:
    read, written = tokens_spent(order.workflow_id, order.node, order.attempt)
    return {"input_tokens": read, "output_tokens": written}


def event_of(
    order: DispatchOrder,
    reply: Failure | bool,
    result: dict[str, Any],
    started_ms: int,
    at_ms: int,
) -> Event:
    """Return the event of an answer: a failure, a result, or a judgement."""
    if order.is_verification:
        failure = None if isinstance(reply, bool) else reply
        return VerificationFinished(
            order.node, order.attempt, reply is True, failure, started_ms, at_ms,
            order.verify_attempt,
        )  # fmt: skip
    if not isinstance(reply, bool):
        return AttemptFailed(order.node, order.attempt, reply, started_ms, at_ms)
    return AttemptSucceeded(
        order.node, order.attempt, orjson.dumps(result).decode(), "sha256:in",
        "sha256:out", started_ms, at_ms, {"latency_ms": at_ms - started_ms, **_tokens(order)},
    )  # fmt: skip


def result_request(
    order: DispatchOrder, reply: Failure | bool, made: dict[str, Any], *, is_late: bool
) -> NodeResultRequest:
    """Return what an agent hands in: a failure, a result, or a judgement."""
    result: dict[str, Any] | None = None
    if isinstance(reply, bool):
        result = {"approved": reply} if order.is_verification else made
    return NodeResultRequest(
        workflow_id=order.workflow_id,
        node=order.node,
        attempt=order.attempt,
        verify_attempt=order.verify_attempt,
        result_json=None if result is None else orjson.dumps(result).decode(),
        output_hash="sha256:out",
        failure=None if isinstance(reply, bool) else reply,
        is_late=is_late,
        metrics=_tokens(order),
    )
