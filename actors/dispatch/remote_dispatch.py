"""Sends dispatch orders from this owner's event loop, or through other owners of the cluster.

Each owner has a share of each agent's concurrency, and a limit of open orders. If this owner has
used up its share or its limit, it offers waiting orders to other owners that have a share of the
agent. An owner takes an offered order only if it can send the order at once. A refused order waits
here until the next offer. An owner without a share of an agent sends all its orders for the agent
to owners with a share, and the orders wait there.

One batched call carries many orders to the other owner's `WorkflowActor`, so there is no call per
node. The other owner sends the orders from its own event loop and returns their events in the same
kind of call. If the call with an order fails, the order is lost. Messages about events, ends and
aborts are repeated until they are acknowledged, because duplicates are harmless. When a process
ends, the orders that it sends are lost, unless their agents have accepted them.

The process that sent an accepted order holds the order until the workflow's owner releases it. An
abort makes that process close the request, which frees the socket and the capacity of the agent. An
abort never overtakes its order, because there is one channel to each member. An order whose call
failed is not aborted.

Each sending of an order has a serial number, and all messages about the sending contain it.
Workflow, node and attempt would not distinguish two sendings: a restored workflow repeats an
aborted verification under the same id, and a late event of the first sending must not reach the
second. Each message is encoded separately when it is submitted. The length of the message is its
weight in a batch, and a receiver that cannot decode one message refuses only that message.
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
# The owner that was called gets no orders for this time after a failed call. A new attempt follows
# a lost attempt at once, and would be lost in the same way.
AVOIDED_MS = 1_000
# An owner that has refused an order for an agent gets no offer for that agent for this time. While
# all owners are busy, more frequent offers would cost more than the dispatches.
REFUSED_MS = 400
# The interval between two rounds of offers, and the time after which an unanswered offer counts as
# refused.
OFFER_MS, ANSWER_MS = 100, 1_600
# Maximum number of agents whose orders are offered in one turn of the event loop.
OFFERED_AGENTS_MAX = 500
# Maximum number of messages that wait for unreachable members. Each may contain a 64 KiB result.
UNTOLD_MAX = 10_000


class Send(Message, frozen=True):
    """A request to send an order.

    `origin`: the owner of the order, as a member id. `serial`: the serial number of this sending,
    unique per origin. `is_offer`: the receiver refuses the order if the order would have to wait.
    """

    serial: int
    origin: str
    order: DispatchOrder
    is_offer: bool = False


class End(Message, frozen=True):
    """The order has ended at its origin, so the receiver frees the agent's capacity.

    `is_abort`: the receiver also closes the order's request, or drops the unsent order.
    """

    serial: int
    origin: str
    is_abort: bool = False


class SentEvent(Message, frozen=True):
    """An event of an order that belongs to the receiver; the owner `origin` sent the order."""

    serial: int
    origin: str
    event: Event


OrderMessage = Send | End | SentEvent

ORDERS: Final = Wire[OrderMessage](OrderMessage)


@dataclass(frozen=True, slots=True)
class OwnerCalls:
    """The client for another owner's process.

    `send`: sends encoded messages; returns for each one whether it was taken. `close`: closes the
    connection.
    """

    send: Callable[[list[bytes]], Awaitable[Sequence[bool]]]
    close: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class _Notice:
    """A message that is repeated until member `name` acknowledges it.

    `refused`: called if the member cannot decode the message.
    """

    name: str
    body: bytes
    refused: Callable[[], None]


@dataclass(slots=True)
class _OrderElsewhere:
    """An order of this owner that the owner `peer` sends.

    `is_accepted`: the agent has accepted the order (202) and works on it.
    """

    peer: str
    order: DispatchOrder
    receive: Receive
    is_accepted: bool = False


@dataclass(slots=True)
class _OrderOfOther:
    """An order of another owner that is sent from here.

    `is_accepted`: the agent has accepted the order (202), so this process holds the order without
    an open request.
    """

    order: DispatchOrder
    is_accepted: bool = False


class RemoteDispatch:
    """Implements `DispatchPort` with the local dispatcher and the other owners' actors.

    Args:
        local: the dispatcher of this event loop.
        name: the id of this member, to which other owners return events.
        now_ms: wall time, Unix milliseconds.
        is_always: distribute orders over all owners round robin, even with capacity here
            (`CALLBOARD_DISPATCH=spread`).
        shares: the owners' shares of each agent; None: this owner makes no offers.
        may_send: says whether this process may send anything new now.
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
        # `give_up` is for orders to peers (other deployments), which this process always sends
        # itself. `hold` is for accepted orders of restored workflows, whichever process sent them.
        self.waiting_of, self.hold, self.give_up = local.waiting_of, local.hold, local.give_up
        self._name = name
        self._now_ms = now_ms
        self._is_always = is_always
        self._shares = shares
        # Agents with orders that wait here. By agent and owner: the time until which the owner gets
        # no offer of orders for the agent, Unix milliseconds.
        self._waiting: dict[str, dict[str, int]] = {}
        self._offers: asyncio.Handle | None = None
        local.on_waiting = self._note_waiting
        self._may_send = may_send
        self._peers: dict[str, Channel[bytes, bool]] = {}
        # Random, because events for a previous process at this address may still arrive.
        self._serials = itertools.count(int.from_bytes(os.urandom(5)) << 20)
        self._away: dict[int, _OrderElsewhere] = {}  # by serial number
        self._serial_of: dict[int, int] = {}  # by `id()` of the order that is away
        self._foreign: dict[tuple[str, int], _OrderOfOther] = {}  # by origin and serial number
        # The number of messages in flight, and the messages that wait for their next sending. They
        # wait if their member is not known here, if a call failed, or if this member had no lease.
        self._telling = 0
        self._unsent_notices: deque[_Notice] = deque(maxlen=UNTOLD_MAX)
        self._repeat: asyncio.Handle | None = None
        self._avoided: dict[str, int] = {}
        self._next_peer = itertools.count()

    @property
    def waiting(self) -> int:
        """Return the number of orders that wait here or in a channel to another owner."""
        return self._local.waiting + sum(peer.queued for peer in self._peers.values())

    @property
    def open_calls(self) -> int:
        """Return the number of calls that would be lost if this process ended.

        These are the open and waiting orders here, including orders of other owners; this owner's
        orders at other owners that no agent has accepted; and the unacknowledged messages to known
        members.
        """
        away = sum(not away.is_accepted for away in self._away.values())
        untold = self._telling + sum(told.name in self._peers for told in self._unsent_notices)
        return self._local.open_calls + away + untold

    def set_members(self, calls: Mapping[str, Callable[[], OwnerCalls]]) -> None:
        """Replace the set of known other members.

        Orders that a removed member sends for this owner fail at once as lost, except accepted
        orders, which are held here. A restarted process is a new member.

        Args:
            calls: functions that create the client of a member, by member id. Only the functions of
                new members are called.
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

    def _open_channel(self, name: str, calls: OwnerCalls) -> Channel[bytes, bool]:
        async def call(batch: list[bytes]) -> Sequence[bool]:
            # Without this check, the called member would send the orders under its own lease.
            if not self._may_send():
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
        """Send the order from here, or through another owner if `is_always` is set.

        An order that has to wait here is offered to other owners later.
        """
        if self._is_always and order.peer is None and self._may_send():
            takers = self._takers(order.agent_did)
            # "" stands for this owner: with n owners, each of them sends 1/n of the orders.
            names = takers if takers and not self._own_share(order.agent_did) else ["", *takers]
            if name := names[next(self._next_peer) % len(names)]:
                self._send_away(order, receive, name, is_offer=False)
                return
        self._local.send(order, receive)

    def _own_share(self, did: str) -> int:
        return 1 if self._shares is None else self._shares.own(did)

    def _takers(self, did: str) -> list[str]:
        """Return the other owners that may get orders of an agent now."""
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
        """Schedule offers of an agent's waiting orders to other owners."""
        # Orders to peers (other deployments) stay here: only the process that sends such an order
        # can give it up.
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
                    self._waiting[did] = paused_ms  # moves the agent behind the other agents
        if self._waiting:
            self._offer_in(0 if is_more else OFFER_MS)

    def _hand_out(self, did: str) -> bool:
        """Send an agent's waiting orders to other owners.

        If this owner has a share of the agent, it offers one order to each other owner. An owner
        that has taken its order gets the next offer at once. If this owner has no share, it sends
        all the orders, one batch at a time, because it may not send them to the agent.

        Returns:
            Whether to call this again at once for more orders of the agent.
        """
        takers, is_offer = self._takers(did), self._own_share(did) > 0
        if not takers:
            return False
        for number in range(len(takers) if is_offer else BATCH_SIZE):
            waiting = self._local.hand_out(did)
            if waiting is None:
                return False
            name = takers[(number if is_offer else next(self._next_peer)) % len(takers)]
            if is_offer:  # the next offer to this owner follows its answer, or this timeout
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
            # The channel is full, or the order cannot be encoded. The limit of dispatches at
            # publish bounds the local queue.
            self._local.send(order, receive)
        else:
            self._away[serial] = _OrderElsewhere(name, order, receive)
            self._serial_of[id(order)] = serial

    def _take_back(self, serial: int) -> None:
        """Queue an order here again after another owner has refused it."""
        away = self._forget_away(serial)
        paused_ms = self._waiting.setdefault(away.order.agent_did, {})
        paused_ms[away.peer] = self._now_ms() + REFUSED_MS
        self._local.send(away.order, away.receive)
        self._offer_in(OFFER_MS)

    def release(self, order: DispatchOrder) -> None:
        """Free the order's capacity, here or at the owner that sent it."""
        if not self._end_away(order):
            self._local.release(order)

    def abort(self, order: DispatchOrder, reason: str) -> None:
        """Abort an order, here or at the owner that sends it; send the agent a cancel notice."""
        if self._end_away(order, is_abort=True):
            self._local.notify(order, reason)
        else:
            self._local.abort(order, reason)

    def cancel(self, order: DispatchOrder) -> None:
        """Abort an order, here or at the owner that sends it, without a cancel notice."""
        if not self._end_away(order, is_abort=True):
            self._local.cancel(order)

    def accept(self, bodies: Sequence[bytes]) -> list[bool]:
        """Handle messages of another owner: orders to send, ends of orders, and events.

        An order that arrives twice is sent to its agent once. An order of a member that is not
        known here is refused, because other members may hold that member's shards.

        Args:
            bodies: encoded `OrderMessage`s.

        Returns:
            For each message, whether it was taken.
        """
        return [self._accept(body) for body in bodies]

    def _accept(self, body: bytes) -> bool:
        """Handle one message, possibly from another code version; return whether it was taken."""
        try:
            return self._take(ORDERS.decode(body))
        except Undecodable as error:  # the sender gets False; the other messages are handled
            log.error("undecodable message from another owner reason=%s", error)
        except Exception:
            # The edge to another process: an error here would make that process repeat the whole
            # batch without end.
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
        self._foreign[sending] = _OrderOfOther(order)
        if not is_offer:
            self._local.send(order, receive)
        return True

    def _take_event(self, message: SentEvent) -> None:
        serial, event = message.serial, message.event
        away = self._away.get(serial)
        if away is None:
            if isinstance(event, AttemptAccepted):
                # The order has ended here, or it belonged to a previous process at this address.
                self._send_end(message.origin, serial)
            return
        if away.is_accepted:
            return  # a repeated event
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
                self._end_foreign(sending)  # the origin may have ended and could never release it
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
            self._send_notice(_Notice(origin, body, failed))

    def _return_failure(self, origin: str, serial: int, order: DispatchOrder | None) -> None:
        """Fail an order whose event cannot be encoded, or not decoded by the owner of the order.

        Without this failure, the owner would wait without end. The failure uses up a retry, because
        the next attempt may end in the same way.
        """
        self._end_foreign((origin, serial), is_abort=True)
        if order is None:
            return
        at_ms = self._now_ms()
        message = "the result of the attempt cannot be sent to the workflow's owner process"
        failure = Failure(NodeErrorCode.AGENT_ERROR, message, is_spared=True)
        event = build_failed_event(order, failure, at_ms, at_ms)
        self._return_event(origin, serial, "", event)

    def _send_notice(self, told: _Notice) -> None:
        """Send a message to a member, and repeat it until the member acknowledges it.

        A message to an unknown member waits until this process knows the member. A process learns
        of new members when it renews its lease, so a new member may know this process first.
        """
        peer = self._peers.get(told.name)
        if peer is None:
            self._unsent_notices.append(told)
            return

        def answered(outcome: bool | BaseException) -> None:
            self._telling -= 1
            if isinstance(outcome, BaseException):
                self._avoid(told.name, outcome)
                self._unsent_notices.append(told)
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
        untold, self._unsent_notices = self._unsent_notices, deque(maxlen=UNTOLD_MAX)
        for told in untold:
            self._send_notice(told)

    def _avoid(self, name: str, error: BaseException) -> None:
        """Send no orders to another owner for `AVOIDED_MS`; log the first failed call."""
        now_ms = self._now_ms()
        if self._avoided.get(name, 0) <= now_ms:
            log.warning("calls to an owner fail to=%s", name, exc_info=error)
        self._avoided[name] = now_ms + AVOIDED_MS

    def _end_foreign(self, sending: tuple[str, int], *, is_abort: bool = False) -> None:
        foreign = self._foreign.pop(sending, None)
        if foreign is not None:
            (self.cancel if is_abort else self.release)(foreign.order)

    def _end_away(self, order: DispatchOrder, *, is_abort: bool = False) -> bool:
        """Forget an order that another owner sends, and end it there; False if there is none."""
        serial = self._serial_of.get(id(order))
        if serial is None:
            return False
        self._send_end(self._forget_away(serial).peer, serial, is_abort=is_abort)
        return True

    def _send_end(self, name: str, serial: int, *, is_abort: bool = False) -> None:
        if name in self._peers:
            body = ORDERS.encode(End(serial, self._name, is_abort))
            self._send_notice(_Notice(name, body, lambda: None))

    def _forget_away(self, serial: int) -> _OrderElsewhere:
        away = self._away.pop(serial)
        del self._serial_of[id(away.order)]
        return away

    def _lose(self, serial: int) -> None:
        """Fail an order because the owner that sends it has ended or cannot be reached."""
        away = self._forget_away(serial)
        event = self._lost_event(away.order, away.peer)
        deliver_event(away.order, away.receive, event)

    def _lost_event(self, order: DispatchOrder, name: str) -> Event:
        at_ms = self._now_ms()
        message = f"the dispatching process {name} ended before the reply"
        failure = Failure(NodeErrorCode.AGENT_ERROR, message, Verdict.LOST)
        return build_failed_event(order, failure, at_ms, at_ms)

    def _forget(self, name: str) -> None:
        """Remove another owner from the known members.

        This owner's orders at the removed owner are lost, except accepted orders, which are held
        here from then on. The removed owner's unsent orders here are dropped, because another
        member may hold its shards. Its accepted orders here are released. Its open requests go on:
        the agents have the orders already, and the removed owner may still run.
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
                continue  # the receiver of an earlier event in this loop has aborted the order
            if away.is_accepted:
                self._forget_away(serial)
                self._local.hold(away.order)
            else:
                self._lose(serial)
