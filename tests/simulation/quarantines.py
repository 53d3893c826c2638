"""Quarantined workflows of a world: what the operator does with them, and what must hold.

A workflow is quarantined only for a defect that the world has planted. Its owner, and each owner
after that, drives it no further; it is resumed, cancelled, or ended by its deadline.
Decision ledger-writer.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from actors.transport.messages import CancelRequest, OwnerReply, ResumeReply, ResumeRequest
from core.errors import ServiceError
from ledger.commands import Command, Outcome
from ledger.features.workflow_commands import AdvanceWorkflow, ResumeWorkflow
from tests.simulation.faults import ends_workflow
from tests.simulation.violation import require

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

OPERATOR = "did:simulated:operator"
DELAY_MS_MAX = 20_000
AGAIN_MS, TRIES_MAX = 2_000, 30


class Quarantines:
    """Hears of every quarantine of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = random.Random(f"quarantines {world.seed}")
        self._since_ms: dict[str, int] = {}
        self.ever: set[str] = set()
        self.resumed = 0

    def began(self, workflow_id: str, code: str) -> None:
        """Hear that the ledger has quarantined a workflow; the operator sees it after a while."""
        world = self._world
        troubles = world.troubles
        causes = {"STEP_REFUSED": troubles.guilty, "STEP_FAILED": troubles.raising}
        require(causes.get(code, 0) > 0, "quarantined without a cause:", workflow_id, code)
        self.ever.add(workflow_id)
        world.disturbed.add(workflow_id)
        self._since_ms[workflow_id] = world.clock.now_ms()
        draw, delay_ms = self._chance.random(), self._chance.randint(0, DELAY_MS_MAX)
        if draw < 0.5:
            request = ResumeRequest(workflow_id=workflow_id, actor_did=OPERATOR)
            world.clock.call_in(delay_ms, self._ask, request, TRIES_MAX)
        elif draw < 0.65:
            cancel = CancelRequest(
                workflow_id=workflow_id, reason="user_request", details="", actor_did=OPERATOR
            )
            world.clock.call_in(delay_ms, self._ask, cancel, TRIES_MAX)

    def submitted(self, command: Command, process: Process) -> None:
        """Hear of a command as it leaves its owner."""
        if not isinstance(command, AdvanceWorkflow):
            return
        since_ms = self._since_ms.get(command.workflow_id)
        if since_ms is None:
            return
        is_known = command.workflow_id in process.quarantined or process.began_ms > since_ms
        is_step = command.is_fresh or bool(command.records)
        is_end = command.is_fresh and ends_workflow(command)
        require(not is_known or not is_step or is_end, "driven in its quarantine:", command)

    def answered(self, command: Command, outcome: Outcome, process: Process) -> None:
        """Hear of an outcome just before its owner does."""
        if "quarantined" in outcome.result:
            process.quarantined.add(command.workflow_id)  # type: ignore[union-attr]

    def applied(self, command: Command) -> None:
        """Hear of a commit."""
        if isinstance(command, ResumeWorkflow):
            self.resumed += 1
            self._forget(command.workflow_id)
        elif isinstance(command, AdvanceWorkflow) and ends_workflow(command):
            self._forget(command.workflow_id)

    def _forget(self, workflow_id: str) -> None:
        self._since_ms.pop(workflow_id, None)
        for process in self._world.all_processes:
            process.quarantined.discard(workflow_id)

    def _ask(self, request: ResumeRequest | CancelRequest, tries: int) -> None:
        """Ask the owner, again when it does not know or cannot tell."""
        world = self._world
        if tries == 0 or request.workflow_id not in self._since_ms:
            return
        process = world.holder_of(request.workflow_id)

        def done(replies: list[OwnerReply]) -> None:
            (reply,) = replies
            if isinstance(request, ResumeRequest) and isinstance(reply, ResumeReply):
                return
            if reply is None or isinstance(reply, ServiceError):
                world.clock.call_in(AGAIN_MS, self._ask, request, tries - 1)

        if process is not None and process.is_alive:
            process.ask([request], done)
        else:
            world.clock.call_in(AGAIN_MS, self._ask, request, tries - 1)
