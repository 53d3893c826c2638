"""Queues of dispatch orders: one queue per agent, round robin over payers, limits over all agents.

An order is one attempt that this process sends to an agent. Each agent has a concurrency limit.
Orders beyond it wait in the agent's own queue and delay no other agent. Agents with waiting orders
and free capacity are served round robin.

An open order has been sent and occupies a socket. `open_max` limits the open orders of all agents.
The lower `fresh_max` bounds the CPU load: it counts only fresh orders. An order without a reply for
`AGED_MS` is no longer fresh: its agent is slow, and waiting for it costs little CPU. Each payer may
use a share of the sockets that other payers do not use. So an agent that never replies delays only
the payers that use it.

An accepted order (the agent replied 202) is held: it has no socket, but counts against its agent's
concurrency until it ends. A starved agent has free capacity, but its waiting orders belong to
payers that may not open another order now. The caller passes the current time. Decision dispatch.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

from msgspec import Struct

from core.market.sharing.fair_queue import FairQueue
from core.market.sharing.fair_share import Held

Order = TypeVar("Order", bound=Hashable)

AGED_MS = 100
# Only replies slower than this raise `fresh_max`: with faster agents, more open orders would not
# raise the throughput.
SLOW_REPLY_MS = 20
# Maximum number of starved agents that are examined by one retry, or when one order closes.
STARVED_RETRIES_MAX = 500


@dataclass(slots=True)
class _AgentQueue(Generic[Order]):
    """One agent's waiting orders as (payer, order); `taken`: its number of open and held orders."""

    waiting: FairQueue[Order, tuple[str, Order]]
    taken: int = 0


class _Open(Struct):
    """An open order.

    `opened_ms`: when it was opened. `is_fresh`: it counts against the limit of fresh orders.
    """

    did: str
    payer: str
    opened_ms: int
    is_fresh: bool = True


@dataclass(slots=True, eq=False, repr=False)
class AgentQueues(Generic[Order]):
    """The queues of one dispatcher.

    Args:
        fresh_max: initial limit of fresh orders. The limit grows while agents are slow and orders
            wait.
        open_max: limit of open orders.
        concurrency_of: returns how many orders this process may have open or held at an agent.
        weight_of: returns a payer's weight in the round robin.
        payer_share: a payer may use 1/payer_share of the sockets that other payers do not use.
        may_open: says whether a payer may open this order under limits other than sockets.
    """

    fresh_max: int
    open_max: int
    concurrency_of: Callable[[str], int]
    weight_of: Callable[[str], int]
    payer_share: int
    may_open: Callable[[str, Order], bool]
    _queues: dict[str, _AgentQueue[Order]] = field(default_factory=dict)
    _open: dict[Order, _Open] = field(default_factory=dict)
    _held: dict[Order, str] = field(default_factory=dict)
    # Agents with free capacity and waiting orders, in the order in which they are served.
    _ready: OrderedDict[str, None] = field(default_factory=OrderedDict)
    # Agents with free capacity whose waiting orders may not be opened now.
    _starved: OrderedDict[str, None] = field(default_factory=OrderedDict)
    # Counts by payer.
    _open_of: Held = field(default_factory=Held)
    _waiting: Held = field(default_factory=Held)
    # Fresh orders, the earliest opened first; also closed orders that are not removed yet.
    _fresh: deque[Order] = field(default_factory=deque)
    _fresh_count: int = 0

    @property
    def open_count(self) -> int:
        """Return the number of open orders."""
        return len(self._open)

    @property
    def held_count(self) -> int:
        """Return the number of held orders."""
        return len(self._held)

    @property
    def waiting(self) -> int:
        """Return the number of waiting orders."""
        return self._waiting.total

    def waiting_of(self, payer: str) -> int:
        """Return the number of a payer's waiting orders."""
        return self._waiting.of(payer)

    @property
    def is_blocked(self) -> bool:
        """Say whether an agent has free capacity, but its orders wait for another limit."""
        return bool(self._ready or self._starved)

    def retry_starved(self, payer: str | None = None, most: int = STARVED_RETRIES_MAX) -> None:
        """Make starved agents ready, the longest starved first, because limits may have changed.

        Args:
            payer: only agents with waiting orders of this payer; None: any agents.
            most: the most agents to make ready. At most `STARVED_RETRIES_MAX` are examined.
        """
        examined = islice(self._starved, STARVED_RETRIES_MAX)
        wanted = (
            did for did in examined if payer is None or self._queues[did].waiting.waiting_of(payer)
        )
        for did in list(islice(wanted, most)):
            del self._starved[did]
            self._ready[did] = None

    def waiting_agents(self) -> list[str]:
        """Return the DIDs of the agents that have waiting orders."""
        return [did for did, queue in self._queues.items() if queue.waiting]

    def is_full(self, did: str) -> bool:
        """Say whether an agent has waiting orders, and its capacity for this process is used up."""
        queue = self._queues.get(did)
        return queue is not None and bool(queue.waiting) and queue.taken >= self.concurrency_of(did)

    def wake(self, did: str) -> None:
        """Make an agent with waiting orders ready, because its concurrency may have grown."""
        queue = self._queues.get(did)
        if queue is not None and queue.waiting:
            self._starved.pop(did, None)
            self._ready[did] = None

    def put(self, did: str, payer: str, order: Order, now_ms: int) -> bool:
        """Open an order if it may be sent at once, else queue it; return whether it is open."""
        if self.open(did, payer, order, now_ms):
            return True
        queue = self._queue_of(did)
        has_room = queue.taken < self.concurrency_of(did)
        may_open = self._may_take(payer, (payer, order))
        queue.waiting.put(payer, order, (payer, order))
        self._waiting.add(payer)
        if has_room and may_open:
            self._ready[did] = None
        elif has_room and did not in self._ready:
            self._starved[did] = None
        return False

    def open(self, did: str, payer: str, order: Order, now_ms: int) -> bool:
        """Open an order if it may be sent at once; otherwise change nothing and return False."""
        assert order not in self._open, f"{order} is open already"
        queue = self._queues.get(did)
        taken, waiting = (0, 0) if queue is None else (queue.taken, len(queue.waiting))
        is_next = taken < self.concurrency_of(did) and not waiting and not self._ready
        if not (is_next and self._may_take(payer, (payer, order)) and self._has_capacity(now_ms)):
            return False
        self._mark_open(self._queue_of(did), did, payer, order, now_ms)
        return True

    def take(self, now_ms: int) -> Order | None:
        """Open and return the next waiting order that may be sent; None if there is none."""
        while self._ready and self._has_capacity(now_ms):
            did, _ = self._ready.popitem(last=False)
            queue = self._queues[did]
            concurrency = self.concurrency_of(did)
            if not queue.waiting or queue.taken >= concurrency:
                continue  # the agent's card may have changed since it became ready
            taken = queue.waiting.take(self._may_take)
            if taken is None:
                self._starved[did] = None
                continue
            payer, order = taken
            self._waiting.remove(payer)
            self._mark_open(queue, did, payer, order, now_ms)
            if queue.waiting and queue.taken < concurrency:
                self._ready[did] = None
            return order
        return None

    def close(self, order: Order, now_ms: int) -> None:
        """Close an open order that has got its reply or was cancelled."""
        self._free(self._remove_open(order, now_ms))

    def park(self, order: Order, now_ms: int) -> None:
        """Turn an open order that its agent has accepted into a held one."""
        self._held[order] = self._remove_open(order, now_ms)

    def hold(self, did: str, order: Order) -> None:
        """Add a held order that another process has sent, even beyond the agent's concurrency."""
        assert order not in self._held, f"{order} is held already"
        self._queue_of(did).taken += 1
        self._held[order] = did

    def release(self, order: Order) -> None:
        """Release a held order that has ended."""
        self._free(self._held.pop(order))

    def drop(self, did: str, order: Order) -> bool:
        """Remove a waiting order; return False if the order does not wait."""
        queue = self._queues.get(did)
        dropped = None if queue is None else queue.waiting.drop(order)
        if queue is None or dropped is None:
            return False
        self._waiting.remove(dropped[0])
        self._forget_empty(did, queue)
        return True

    def waiting_for(self, did: str, payer: str | None = None) -> int:
        """Return the number of an agent's waiting orders, of one payer or of all."""
        queue = self._queues.get(did)
        if queue is None:
            return 0
        return len(queue.waiting) if payer is None else queue.waiting.waiting_of(payer)

    def take_waiting(self, did: str, payer: str | None = None) -> Order | None:
        """Remove and return an agent's next waiting order; None if there is none.

        Args:
            payer: only orders of this payer; None: of any payer.
        """
        queue = self._queues.get(did)
        if queue is None:
            return None
        taken = queue.waiting.take() if payer is None else queue.waiting.take_of(payer)
        if taken is None:
            return None
        self._waiting.remove(taken[0])
        self._forget_empty(did, queue)
        return taken[1]

    def _queue_of(self, did: str) -> _AgentQueue[Order]:
        queue = self._queues.get(did)
        if queue is None:
            queue = self._queues[did] = _AgentQueue(FairQueue(self.weight_of))
        return queue

    def _remove_open(self, order: Order, now_ms: int) -> str:
        """Remove an open order from all counts but its agent's `taken`; return the agent's DID."""
        opened = self._open[order]
        # The share is checked before the removal: only a payer that has used up its share can have
        # starved orders, and the removal makes room for one of them.
        if self._starved and not self._is_below_share(opened.payer):
            self.retry_starved(opened.payer, most=1)
        del self._open[order]
        self._open_of.remove(opened.payer)
        if opened.is_fresh:
            self._fresh_count -= 1
        if self._ready and now_ms - opened.opened_ms > SLOW_REPLY_MS:
            self.fresh_max = min(self.fresh_max + 1, self.open_max)
        return opened.did

    def _free(self, did: str) -> None:
        queue = self._queues[did]
        queue.taken -= 1
        if queue.waiting:
            self._ready[did] = None
        elif queue.taken == 0:
            self._forget(did)

    def _has_capacity(self, now_ms: int) -> bool:
        while self._fresh:
            sent = self._open.get(self._fresh[0])
            if sent is not None and sent.is_fresh:
                if now_ms - sent.opened_ms < AGED_MS:
                    break
                sent.is_fresh = False
                self._fresh_count -= 1
            self._fresh.popleft()
        return self._fresh_count < self.fresh_max and len(self._open) < self.open_max

    def _may_take(self, payer: str, waiting: tuple[str, Order]) -> bool:
        return self._is_below_share(payer) and self.may_open(payer, waiting[1])

    def _is_below_share(self, payer: str) -> bool:
        """Say whether a payer's share of the sockets that other payers do not use has room."""
        own = self._open_of.of(payer)
        free = self.open_max - (len(self._open) - own)
        return own < max(1, free // self.payer_share)

    def _mark_open(
        self, queue: _AgentQueue[Order], did: str, payer: str, order: Order, now_ms: int
    ) -> None:
        queue.taken += 1
        self._open[order] = _Open(did, payer, now_ms)
        self._open_of.add(payer)
        self._fresh.append(order)
        self._fresh_count += 1

    def _forget_empty(self, did: str, queue: _AgentQueue[Order]) -> None:
        if not queue.waiting:
            self._ready.pop(did, None)
            self._starved.pop(did, None)
            if queue.taken == 0:
                self._forget(did)

    def _forget(self, did: str) -> None:
        self._ready.pop(did, None)
        self._starved.pop(did, None)
        del self._queues[did]
