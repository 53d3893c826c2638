"""Keeps the nodes of one owner that wait for an agent, and retries the selection for each.

Theory of operation: each capability has a queue of waiting nodes. When an agent of a capability
becomes available, the nodes in that queue retry their selection, oldest first: 20 nodes per turn of
the event loop, round robin over the capabilities. A node that still finds no agent goes to the end
of its queue. In addition, once a second, up to 64 queues retry their oldest node, because circuits
and probes expire without a signal. Decision agent-health-and-waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import islice
from typing import Final

from actors.directory.peer_directory import PeerDirectory
from actors.ports import Clock, Timer
from core.workflow.actions import AwaitAgent
from core.workflow.events import Event, RetryDue

# Nodes that retry in one turn of the loop, about 50 us each, and the pause between two turns.
RETRIES_PER_TURN_MAX: Final = 20
TURN_MS: Final = 10
# Maximum number of queues in one poll, which retries one node per queue, and the poll interval.
POLLED_MAX: Final = 64
POLL_MS: Final = 1_000


class AgentWaits:
    """The nodes of an owner that wait for an agent, by capability.

    Args:
        directory: calls `on_changed` for each agent that has changed.
        receive: receives (workflow id, event); a retry is the event `RetryDue`.
    """

    def __init__(
        self, directory: PeerDirectory, clock: Clock, receive: Callable[[str, Event], None]
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._receive = receive
        self._waits: dict[str, dict[_Wait, None]] = {}
        # Changes since the last turn: pairs of a changed agent and a capability with waiting nodes.
        self._changed: dict[tuple[str, str], None] = {}
        # By capability: how many of its nodes still have to retry.
        self._due: dict[str, int] = {}
        self._has_turn = False
        self._has_poll = False
        directory.on_changed = self._note_changed

    def __len__(self) -> int:
        return sum(map(len, self._waits.values()))

    def add(self, workflow_id: str, action: AwaitAgent) -> Timer:
        """Add a waiting node; return a timer whose `cancel` removes the node."""
        wait = _Wait(self._waits, workflow_id, action)
        wait.timer = self._clock.call_at(action.until_ms, self._ask, wait, action.until_ms)
        self._waits.setdefault(action.capability_id, {})[wait] = None
        if not self._has_poll:
            self._has_poll = True
            self._clock.call_at(self._clock.now_ms() + POLL_MS, self._poll)
        return wait

    def _note_changed(self, did: str, offered: Collection[str]) -> None:
        if not self._waits:
            return
        changed = [(did, one) for one in offered if one in self._waits]
        self._changed.update(dict.fromkeys(changed))
        if changed:
            self._plan_turn(0)

    def _plan_turn(self, delay_ms: int) -> None:
        if not self._has_turn:
            self._has_turn = True
            self._clock.call_at(self._clock.now_ms() + delay_ms, self._take_turn)

    def _take_turn(self) -> None:
        self._has_turn = False
        changed, self._changed = self._changed, {}
        for did, one in changed:
            if self._directory.may_end_wait(did, one, self._clock.now_ms()):
                self._due[one] = len(self._waits.get(one, ()))
        for _ in range(RETRIES_PER_TURN_MAX):
            if not self._due:
                return
            capability_id = next(iter(self._due))
            left = self._due.pop(capability_id)
            waiting = self._waits.get(capability_id)
            if not waiting:
                continue
            if left > 1:
                self._due[capability_id] = left - 1
            self._ask(next(iter(waiting)), self._clock.now_ms())
        self._plan_turn(TURN_MS)

    def _poll(self) -> None:
        self._has_poll = bool(self._waits)
        if not self._has_poll:
            return
        for capability_id in list(islice(self._waits, POLLED_MAX)):
            waiting = self._waits.pop(capability_id, None)
            if waiting is None:
                continue
            self._waits[capability_id] = waiting  # at the end
            before = len(waiting)
            self._ask(next(iter(waiting)), self._clock.now_ms())
            left = len(self._waits.get(capability_id, ()))
            if left and left < before:
                self._due[capability_id] = left
                self._plan_turn(0)
        self._clock.call_at(self._clock.now_ms() + POLL_MS, self._poll)

    def _ask(self, wait: _Wait, at_ms: int) -> None:
        wait.cancel()
        self._receive(wait.workflow_id, RetryDue(wait.node, at_ms))


class _Wait:
    """One waiting node. Implements `Timer`.

    Args:
        waits: all waiting nodes, by capability.
    """

    __slots__ = ("_capability_id", "_waits", "node", "timer", "workflow_id")

    def __init__(
        self, waits: dict[str, dict[_Wait, None]], workflow_id: str, action: AwaitAgent
    ) -> None:
        self._waits = waits
        self._capability_id = action.capability_id
        self.workflow_id = workflow_id
        self.node = action.node
        self.timer: Timer | None = None

    def cancel(self) -> None:
        """Remove the node from the queue and cancel its timeout."""
        assert self.timer is not None
        self.timer.cancel()
        waiting = self._waits.get(self._capability_id, {})
        waiting.pop(self, None)
        if not waiting:
            self._waits.pop(self._capability_id, None)
