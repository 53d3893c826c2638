"""Dispatches over the owners of the cluster: this event loop first, then other owners.

An order that waits because this owner's share of its agent is full, or its bound of open orders is
reached, is offered to an owner that has a share of the agent. That owner takes the order if it can
send it at once; otherwise the order waits here and is offered again soon. An owner without a share
sends all orders of the agent to the owners that have one, where they wait.

An order travels in a batched call to the other owner's `WorkflowActor`, which sends it from its own
loop; its events come back the same way. There is no call per node.
An order is lost if its call fails. Events, ends and aborts are sent repeatedly until they are
acknowledged, because duplicates are harmless. The orders of a process that ends are lost, except
those that their agents have accepted. An accepted order is held at the machine that sent it until
the owner's machine releases it. An abort makes the other machine close the request, which frees its
socket and the agent's place. It never overtakes its order, because a member has one channel, and an
order whose call has failed is not aborted.

Each sending of an order has a serial number, which its messages name. The order's own numbers do
not tell two sendings apart: a restored workflow sends a verification again under the id of the one
that was aborted, and an event of the first must not meet the second.
Each message is encoded by itself, where it is submitted, so that its length is its weight in a
batch; one that its receiver cannot read is refused alone.
Decisions dispatch and messages-and-large-values.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, assert_never

from actors.dispatch.dispatcher import Dispatcher, deliver_event
from actors.dispatch.ticket import Receive
from actors.ports import DispatchOrder
from actors.transport.channel import Channel
from actors.transport.messages import CALL_BYTES_MAX
from actors.transport.wire import Undecodable, Unencodable, Wire
from actors.values.reply_events import build_failed_event
from core.errors import NodeErrorCode, ServiceError
from core.message import Message
from core.peers.documents import CLEARING_DID
from core.shards.agent_shares import AgentShares
from core.workflow.events import (
    AttemptAccepted,
    Event,
    Failure,
    Verdict,
    WorkStarted,
)

log = logging.getLogger("callboard.dispatch")

QUEUE_MAX = 100_000
BATCH_SIZE = 512
REPEAT_S = 0.2
# A peer that could not be reached gets no order for this long, because a lost attempt is repeated
# at once.
AVOIDED_MS = 1_000
# A peer that refuses an order of an agent is offered the next one after this time: while all owners
# are busy, more offers would cost more than the calls.
REFUSED_MS = 400
# Between two looks at the orders that wait; a peer that does not answer an offer gets another one.
OFFER_MS, ANSWER_MS = 100, 1_600
# Agents whose orders are offered in one turn of the loop.
OFFERED_AGENTS_MAX = 500
# Messages that wait until their member answers again; the results in them may have 64 KiB each.
UNTOLD_MAX = 10_000


class Send(Message, frozen=True):
    """Send this order; `serial`: of its sending, among those of its `origin`, an owner.

    `is_offer`: refuse the order if it would have to wait.
    """

    serial: int
    origin: str
    order: DispatchOrder
    is_offer: bool = False


class End(Message, frozen=True):
    """The order has ended at its origin: its place at the agent is free.

    `is_abort`: close the order's request, or never send it.
    """

    serial: int
    origin: str
    is_abort: bool = False


class SentEvent(Message, frozen=True):
    """An event of the receiver's order, which the owner `origin` returns."""

    serial: int
    origin: str
    event: Event


OrderMessage = Send | End | SentEvent

ORDERS: Final = Wire[OrderMessage](OrderMessage)


@dataclass(frozen=True, slots=True)
class PeerCalls:
    """The call to another owner's process; `close` ends its connection.

    `send`: encoded messages out; for each of them back, whether it was taken.
    """

    send: Callable[[list[bytes]], Awaitable[Sequence[bool]]]
    close: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class _Told:
    """A message to a member that must arrive; `refused` is called if the member cannot read it."""

    name: str
    body: bytes
    refused: Callable[[], None]


@dataclass(slots=True)
class _Away:
    """An order of this owner at the machine `peer`; `is_accepted`: its agent works on it there."""

    peer: str
    order: DispatchOrder
    receive: Receive
    is_accepted: bool = False


@dataclass(slots=True)
class _Foreign:
    """An order of another owner that is sent from here; `is_accepted`: it only holds its place."""

    order: DispatchOrder
    is_accepted: bool = False


class RemoteDispatch:
    """Implements `DispatchPort` over this machine's dispatcher and the other machines' actors.

    Args:
        local: the dispatcher of this loop.
        name: this member's id, under which the others return events.
        now_ms: wall time.
        is_always: use all machines in turn even with capacity here (`CALLBOARD_DISPATCH=spread`).
        shares: of agents among owners; None: what waits here is offered to nobody.
        may_send: whether anything new may be sent now.
    """

    def __init__(
        self,
        local: Dispatcher,
        name: str,
        *,
        now_ms: Callable[[], int],
        is_always: bool,
        shares: AgentShares | None = None,
        may_send: Callable[[], bool] = lambda: True,
    ) -> None:
        self._local = local
        # Orders to peers never leave this process; accepted ones are held here, whoever sent them.
        self.waiting_of, self.hold, self.give_up = local.waiting_of, local.hold, local.give_up
        self._name = name
        self._now_ms = now_ms
        self._is_always = is_always
        self._shares = shares
        # Agents for which orders wait here, and by peer until when it is offered none of them.
        self._waiting: dict[str, dict[str, int]] = {}
        self._offers: asyncio.Handle | None = None
        local.on_waiting = self._note_waiting
        self._may_send = may_send
        self._peers: dict[str, Channel[bytes, bool]] = {}
        # Other numbers than those of this owner's predecessor, whose events may still come.
        self._serials = itertools.count(int.from_bytes(os.urandom(5)) << 20)
        self._away: dict[int, _Away] = {}  # by serial number
        self._serial_of: dict[int, int] = {}  # by the identity of the order that is away
        self._foreign: dict[tuple[str, int], _Foreign] = {}  # by origin and serial number
        # Messages under way, and those that wait for a member: it could not be reached, it has just
        # joined, or its lease has expired for a moment.
        self._telling = 0
        self._untold: deque[_Told] = deque(maxlen=UNTOLD_MAX)
        self._repeat: asyncio.Handle | None = None
        self._avoided: dict[str, int] = {}
        self._next_peer = itertools.count()

    @property
    def waiting(self) -> int:
        """How many orders wait, here or in a channel to another machine."""
        return self._local.waiting + sum(peer.queued for peer in self._peers.values())

    @property
    def open_calls(self) -> int:
        """How many calls would be lost with this process.

        Orders that are open or wait here, also those of other owners; orders at other machines that
        no agent has accepted; and messages that members known here have not acknowledged.
        """
        away = sum(not away.is_accepted for away in self._away.values())
        untold = self._telling + sum(told.name in self._peers for told in self._untold)
        return self._local.open_calls + away + untold

    def set_peers(self, calls: Mapping[str, Callable[[], PeerCalls]]) -> None:
        """Replace the known other members, by id.

        Orders at a member that is gone are lost: their attempts fail at once. A process that is
        started again is another member.

        Args:
            calls: make the calls to each of them; only called for one that was not known.
        """
        for name in list(self._peers):
            if name not in calls:
                self._forget(name)
        for name, call in calls.items():
            if name not in self._peers:
                self._peers[name] = self._open_channel(name, call())
        self._tell_again()
        for did in self._local.waiting_agents():
            self._note_waiting(did)

    def _open_channel(self, name: str, calls: PeerCalls) -> Channel[bytes, bool]:
        async def call(batch: list[bytes]) -> Sequence[bool]:
            if not self._may_send():  # the member there has a lease of its own, and would send them
                raise ConnectionError("this member has no lease")
            return await calls.send(batch)

        return Channel(
            f"dispatch to {name}",
            call,
            capacity=QUEUE_MAX,
            batch_size=BATCH_SIZE,
            weight_of=len,
            batch_weight=CALL_BYTES_MAX,
            on_close=calls.close,
        )

    def send(self, order: DispatchOrder, receive: Receive) -> None:
        """Send the order here while there is room, else from another owner."""
        if self._is_always and order.peer is None and self._may_send():
            takers = self._takers(order.agent_did)
            # This owner takes its turn too, so that `spread` over n owners sends 1/n from each.
            names = takers if takers and not self._own_share(order.agent_did) else ["", *takers]
            if name := names[next(self._next_peer) % len(names)]:
                self._send_away(order, receive, name, is_offer=False)
                return
        self._local.send(order, receive)

    def _own_share(self, did: str) -> int:
        return 1 if self._shares is None else self._shares.own(did)

    def _takers(self, did: str) -> list[str]:
        """Return the peers to which an agent's orders may be sent now."""
        now_ms, paused_ms = self._now_ms(), self._waiting.get(did, {})
        several = list(self._peers) if self._shares is None else self._shares.others(did)
        return [
            name
            for name in several
            if name in self._peers
            and self._avoided.get(name, 0) <= now_ms
            and paused_ms.get(name, 0) <= now_ms
        ]

    def _note_waiting(self, did: str) -> None:
        """Offer the orders of an agent to other owners, from a later turn of the loop."""
        # An order to a peer is sent by its workflow's owner, which alone can give it up.
        if did.startswith(CLEARING_DID):
            return
        if self._shares is not None and self._peers and did not in self._waiting:
            self._waiting[did] = {}
            self._offer_in(0)

    def _offer_in(self, delay_ms: int) -> None:
        if self._offers is not None:
            if delay_ms:
                return
            self._offers.cancel()
        loop = asyncio.get_running_loop()
        self._offers = loop.call_later(delay_ms / 1_000, self._offer_waiting)

    def _offer_waiting(self) -> None:
        self._offers = None
        is_more = False
        if self._may_send():
            for did in list(islice(self._waiting, OFFERED_AGENTS_MAX)):
                is_more |= self._local.may_hand_out(did) and self._hand_out(did)
                paused_ms = self._waiting.pop(did)
                if self._peers and self._local.has_waiting(did):
                    self._waiting[did] = paused_ms  # behind the others
        if self._waiting:
            self._offer_in(0 if is_more else OFFER_MS)

    def _hand_out(self, did: str) -> bool:
        """Send an agent's waiting orders to other owners; return whether more of them may go now.

        An owner with a share offers one to each owner; each that takes it is offered the next one.
        An owner without a share sends all, because the orders cannot leave from here.
        """
        takers, is_offer = self._takers(did), self._own_share(did) > 0
        if not takers:
            return False
        for number in range(len(takers) if is_offer else BATCH_SIZE):
            waiting = self._local.hand_out(did)
            if waiting is None:
                return False
            name = takers[(number if is_offer else next(self._next_peer)) % len(takers)]
            if is_offer:  # the next one is offered after the answer
                self._waiting[did][name] = self._now_ms() + ANSWER_MS
            self._send_away(*waiting, name, is_offer=is_offer)
        return not is_offer

    def _send_away(
        self, order: DispatchOrder, receive: Receive, name: str, *, is_offer: bool
    ) -> None:
        serial = next(self._serials)

        def sent(outcome: bool | BaseException) -> None:
            if outcome is True:
                if self._waiting.get(order.agent_did, {}).pop(name, None) is not None:
                    self._offer_in(0)
                return
            if isinstance(outcome, BaseException):
                self._avoid(name, outcome)
            away = self._away.get(serial)
            if away is None or away.is_accepted:
                return
            if outcome is False:
                self._take_back(serial)
            else:
                self._lose(serial)

        try:
            body = ORDERS.encode(Send(serial, self._name, order, is_offer))
            self._peers[name].submit(body, sent)
        except (ServiceError, Unencodable):
            # The peer's queue is full; the bound at publish limits the local one.
            self._local.send(order, receive)
        else:
            self._away[serial] = _Away(name, order, receive)
            self._serial_of[id(order)] = serial

    def _take_back(self, serial: int) -> None:
        """Let an order wait here that a peer has refused."""
        away = self._forget_away(serial)
        paused_ms = self._waiting.setdefault(away.order.agent_did, {})
        paused_ms[away.peer] = self._now_ms() + REFUSED_MS
        self._local.send(away.order, away.receive)
        self._offer_in(OFFER_MS)

    def release(self, order: DispatchOrder) -> None:
        """Free the order's capacity, here or at the machine that sent it."""
        if not self._end_away(order):
            self._local.release(order)

    def abort(self, order: DispatchOrder, reason: str) -> None:
        """Abort an order, here or at the machine that sends it; notify the agent."""
        if self._end_away(order, is_abort=True):
            self._local.notify(order, reason)
        else:
            self._local.abort(order, reason)

    def cancel(self, order: DispatchOrder) -> None:
        """Stop waiting for an order's reply, or never send it; its agent is not told."""
        if not self._end_away(order, is_abort=True):
            self._local.cancel(order)

    def accept(self, bodies: Sequence[bytes]) -> list[bool]:
        """Send orders of another machine, end them, and receive the events of orders there.

        An order that arrives twice is sent to its agent once; one of a member that does not live
        by what is known here never, because others may have its shards.

        Args:
            bodies: encoded `OrderMessage`s.

        Returns: for each of them, whether it was taken.
        """
        return [self._accept(body) for body in bodies]

    def _accept(self, body: bytes) -> bool:
        """Return whether a message was taken, which may be another version's."""
        try:
            return self._take(ORDERS.decode(body))
        except Undecodable as error:  # its sender hears of it; the others are carried out
            log.error("got what is no message between owners reason=%s", error)
        except Exception:  # the edge to another process, which would send the whole batch for ever
            log.exception("a message between owners was not taken")
        return False

    def _take(self, message: OrderMessage) -> bool:
        sending = message.origin, message.serial
        match message:
            case Send(order=order):
                if sending not in self._foreign:
                    return self._take_order(sending, order, is_offer=message.is_offer)
            case End():
                self._end_foreign(sending, is_abort=message.is_abort)
            case SentEvent():
                self._take_event(message)
            case _:
                assert_never(message)
        return True

    def _take_order(
        self, sending: tuple[str, int], order: DispatchOrder, *, is_offer: bool
    ) -> bool:
        if sending[0] not in self._peers:
            return False
        receive = partial(self._return_event, *sending)
        if is_offer and not self._local.send_now(order, receive):
            return False
        self._foreign[sending] = _Foreign(order)
        if not is_offer:
            self._local.send(order, receive)
        return True

    def _take_event(self, message: SentEvent) -> None:
        serial, event = message.serial, message.event
        away = self._away.get(serial)
        if away is None:
            if isinstance(event, AttemptAccepted):
                # The order has ended, or an earlier process of this owner sent it.
                self._send_end(message.origin, serial)
            return
        if away.is_accepted:
            return  # it came before
        if isinstance(event, AttemptAccepted):
            away.is_accepted = True
        elif not isinstance(event, WorkStarted):
            self._forget_away(serial)
        deliver_event(away.order, away.receive, event)

    def _return_event(self, origin: str, serial: int, _: str, event: Event) -> None:
        sending = origin, serial
        foreign = self._foreign.get(sending)
        if isinstance(event, AttemptAccepted):
            if origin not in self._peers:
                self._end_foreign(sending)  # else its place is held for one that may be gone
            elif foreign is not None:
                foreign.is_accepted = True
        elif not isinstance(event, WorkStarted):
            self._foreign.pop(sending, None)
        order = None if foreign is None else foreign.order
        failed = partial(self._return_failure, origin, serial, order)
        try:
            body = ORDERS.encode(SentEvent(serial, self._name, event))
        except Unencodable as error:
            log.error("event cannot be returned to=%s reason=%s", origin, error)
            failed()
        else:
            self._tell(_Told(origin, body, failed))

    def _return_failure(self, origin: str, serial: int, order: DispatchOrder | None) -> None:
        """Let an order fail whose event its owner cannot read, and would wait for without end.

        It counts as a failed attempt, because the next one may end in the same way.
        """
        self._end_foreign((origin, serial), is_abort=True)
        if order is None:
            return
        at_ms = self._now_ms()
        message = "what came of the attempt cannot be told to the workflow's owner"
        failure = Failure(NodeErrorCode.AGENT_ERROR, message, is_spared=True)
        event = build_failed_event(order, failure, at_ms, at_ms)
        self._return_event(origin, serial, "", event)

    def _tell(self, told: _Told) -> None:
        """Send a message to a member until the member answers.

        This process and that member learn of each other by their own renewals, not at once.
        """
        peer = self._peers.get(told.name)
        if peer is None:
            self._untold.append(told)
            return

        def answered(outcome: bool | BaseException) -> None:
            self._telling -= 1
            if isinstance(outcome, BaseException):
                self._avoid(told.name, outcome)
                self._untold.append(told)
                if self._repeat is None:
                    loop = asyncio.get_running_loop()
                    self._repeat = loop.call_later(REPEAT_S, self._tell_again)
            elif not outcome:
                told.refused()

        self._telling += 1
        peer.submit_always(told.body, answered)

    def _tell_again(self) -> None:
        if self._repeat is not None:
            self._repeat.cancel()
            self._repeat = None
        untold, self._untold = self._untold, deque(maxlen=UNTOLD_MAX)
        for told in untold:
            self._tell(told)

    def _avoid(self, name: str, error: BaseException) -> None:
        """Send no further orders to a peer for a while; log the first failed call."""
        now_ms = self._now_ms()
        if self._avoided.get(name, 0) <= now_ms:
            log.warning("calls to an owner fail and are repeated to=%s", name, exc_info=error)
        self._avoided[name] = now_ms + AVOIDED_MS

    def _end_foreign(self, sending: tuple[str, int], *, is_abort: bool = False) -> None:
        foreign = self._foreign.pop(sending, None)
        if foreign is not None:
            (self.cancel if is_abort else self.release)(foreign.order)

    def _end_away(self, order: DispatchOrder, *, is_abort: bool = False) -> bool:
        """Drop an order at another machine and end it there; False when none has it."""
        serial = self._serial_of.get(id(order))
        if serial is None:
            return False
        self._send_end(self._forget_away(serial).peer, serial, is_abort=is_abort)
        return True

    def _send_end(self, name: str, serial: int, *, is_abort: bool = False) -> None:
        if name in self._peers:
            body = ORDERS.encode(End(serial, self._name, is_abort))
            self._tell(_Told(name, body, lambda: None))

    def _forget_away(self, serial: int) -> _Away:
        away = self._away.pop(serial)
        del self._serial_of[id(away.order)]
        return away

    def _lose(self, serial: int) -> None:
        """End an order whose machine cannot be reached or has ended."""
        away = self._forget_away(serial)
        event = self._lost_event(away.order, away.peer)
        deliver_event(away.order, away.receive, event)

    def _lost_event(self, order: DispatchOrder, name: str) -> Event:
        at_ms = self._now_ms()
        message = f"the dispatching process {name} ended before the reply"
        failure = Failure(NodeErrorCode.AGENT_ERROR, message, Verdict.LOST)
        return build_failed_event(order, failure, at_ms, at_ms)

    def _forget(self, name: str) -> None:
        """Remove a peer: its open orders are lost, its accepted ones are held here.

        Of its own orders here those that wait are dropped, because another member may have taken
        its shards by now; agents know the others already, and the peer may live on.
        """
        self._peers.pop(name).close()
        self._avoided.pop(name, None)
        for sending, foreign in list(self._foreign.items()):
            if sending[0] != name:
                continue
            if foreign.is_accepted:
                self._end_foreign(sending)
            elif self._local.withdraw(foreign.order):
                lost = self._lost_event(foreign.order, self._name)
                self._return_event(*sending, "", lost)
        for serial in [serial for serial, away in self._away.items() if away.peer == name]:
            away = self._away.get(serial)
            if away is None:
                continue  # aborted by the receiver of one before it
            if away.is_accepted:
                self._forget_away(serial)
                self._local.hold(away.order)
            else:
                self._lose(serial)
