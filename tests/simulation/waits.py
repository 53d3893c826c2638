"""Nodes that wait for an agent in a simulated run: how long they do, and for whom.

What must hold: no wait lasts longer than its node allows, and its end never moves; no node that had
no attempt fails for want of an agent while one that offers its capability is there, or was a moment
ago.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from core.errors import NodeErrorCode
from core.workflow.events import NodeChanged
from core.workflow.transitions import NodeStatus
from core.workflow.workflow_state import is_wait_record
from tests.simulation.violation import require

if TYPE_CHECKING:
    from tests.simulation.world import World

# An agent that has come back takes the nodes that wait for it within this time, even if the owner
# is just being replaced and reads its rows.
TAKEN_MS = 10_000


class Waits:
    """Hears of every wait that is stored and of every agent that goes and comes back."""

    def __init__(self, world: World) -> None:
        self._world = world
        # By node, the start and the end of its open wait, and whether it is for a verifier.
        self._open: dict[tuple[str, str], tuple[int, int, bool]] = {}
        # When each agent came back; those that are away are not in it.
        self.back_ms = dict.fromkeys(world.rows, 0)
        self.count = 0
        self.ends_ms: dict[tuple[str, str], int] = {}  # of the last wait of each node

    def is_wait(self, record: NodeChanged) -> bool:
        """Say whether a stored row waits for an agent."""
        return record.retry_at_ms is not None and is_wait_record(record.selection_json)

    def stored(self, workflow_id: str, record: NodeChanged, at_ms: int) -> None:
        """Hear of a node's row."""
        key = (workflow_id, record.node)
        before = self._open.pop(key, None)
        if self.is_wait(record):
            self._began(key, record, before)
        elif before is not None:
            late_ms = at_ms - before[1]
            patience_ms = 0 if self._world.is_calm_but_for_agents else 60_000
            is_halted = workflow_id in self._world.quarantines.ever  # nothing drives it for a while
            is_in_time = late_ms <= patience_ms + TAKEN_MS or is_halted
            require(is_in_time, "waited", late_ms, "too long:", record)
        code = (record.error or {}).get("code")
        if record.status is NodeStatus.FAILED and code == NodeErrorCode.NO_CANDIDATE:
            self._failed(workflow_id, record, at_ms)

    def _began(
        self, key: tuple[str, str], record: NodeChanged, before: tuple[int, int, bool] | None
    ) -> None:
        assert record.selection_json is not None and record.retry_at_ms is not None
        since_ms = orjson.loads(record.selection_json)["waitingFor"]["sinceMs"]
        wait = (since_ms, record.retry_at_ms, record.status is NodeStatus.RUNNING)
        # A wait for a verifier ends with its attempt; then one for another agent may begin.
        is_another = before is None or (before[2] and not wait[2])
        require(is_another or before == wait, "a wait was moved:", before, "to", wait)
        node = self._world.shapes[key[0]].compiled.nodes[record.node]
        deadline_ms = self._world.model.workflows[key[0]]["deadline_ms"]
        most_ms = min(since_ms + node.wait_for_agent_ms, deadline_ms)
        require(since_ms < record.retry_at_ms <= most_ms, "a wait of", wait, "for", record)
        require(record.status in (NodeStatus.READY, NodeStatus.RUNNING), "waits:", record)
        self._open[key] = wait
        self.ends_ms[key] = record.retry_at_ms
        self.count += 1

    def _failed(self, workflow_id: str, record: NodeChanged, at_ms: int) -> None:
        world = self._world
        has_market = world.market.is_whole or world.market.stake_bps > 0
        if record.attempt or has_market or not world.is_calm_but_for_agents:
            return  # in a market, others may be too dear or without a stake
        node = world.shapes[workflow_id].compiled.nodes[record.node]
        there = [  # each at a price that the estimate has reserved
            did
            for did, back_ms in self.back_ms.items()
            if back_ms + TAKEN_MS < at_ms
            and node.capability_id in world.prices_seen[did]
            and not world.model.trust.is_revoked(did, at_ms)
        ]
        require(not there, "no agent, but there were", there, "for", record)
