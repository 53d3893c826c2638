"""Agents of a simulated world that are revoked for a while, and what must hold of them.

Has a chance of its own, so that worlds without it run as they always have. Owners hear of it late,
as by a notice; the ledger has the last word meanwhile. Reference: features.md (Revocation),
money.md (Settlement).
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from core.workflow.events import NodeChanged
from core.workflow.transitions import NodeStatus
from ledger.commands import Command
from ledger.features.trust import RevokeAgent, UnrevokeAgent
from ledger.features.workflow_commands import AdvanceWorkflow, PublishWorkflow

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

SECONDS = 30
TOLD_MS_MAX = 900
# Work is taken from the revoked in slices.
HEARD_S = 0.5
ADMIN = "did:simulated:admin"
Place = tuple[str, str, int, str | None]


class Revoking:
    """Revocations of one world. `is_on`: whether there are any."""

    def __init__(self, world: World, *, is_on: bool) -> None:
        self._world = world
        self._is_on = is_on
        self._chance = random.Random(f"revoking {world.seed}")
        self._numbers = 0
        self._given: set[Place] = set()

    def begin(self) -> None:
        """Let some agents be revoked within the first half minute."""
        for second in range(SECONDS if self._is_on else 0):
            if self._chance.random() < 0.3:
                at_ms = 1_000 * second + self._chance.randint(0, 999)
                self._world.clock.call_in(at_ms, self._revoke)

    def rows(self) -> list[dict[str, Any]]:
        """Return what an owner that reads now is told."""
        revoked = self._world.model.trust.revoked
        return [
            {"did": did, "expires_ms": revoked[did][1] if did in revoked else None,
             "ended_ms": None if did in revoked else 1}
            for did in self._world.rows
        ]  # fmt: skip

    def applied(self, command: PublishWorkflow | AdvanceWorkflow) -> None:
        """Hear of a commit: attempts that were given to revoked agents must never leave."""
        for record in command.records:
            if not isinstance(record, NodeChanged) or record.status is not NodeStatus.DISPATCHED:
                continue
            if self._is_revoked(record.agent_did):
                place = (command.workflow_id, record.node, record.attempt, record.agent_did)
                self._given.add(place)

    def is_mistrusted(self, place: Place) -> bool:
        """Say whether an attempt was stored after its agent's revocation."""
        return place in self._given

    def tell(self, process: Process) -> None:
        """Let an owner know what there is, and take what revoked agents have there."""
        process.owner.told_of_revocations()
        known = {did for did in self._world.rows if self._is_revoked(did)}
        process.loop.call_later(HEARD_S, self._check_told, process, known)

    def _check_told(self, process: Process, known: set[str]) -> None:
        """Look whether those who were revoked then, and still are, have anything to do."""
        at_ms = self._world.model.now_ms() + self._world.faults.skew_ms
        still = {did for did in known if self._world.model.trust.is_revoked(did, at_ms)}
        self._world.checks.told(process, is_revoked=still.__contains__)

    def _is_revoked(self, did: str | None) -> bool:
        world = self._world
        return world.model.trust.is_revoked(did, world.model.now_ms())

    def _revoke(self) -> None:
        world, did = self._world, self._chance.choice(list(self._world.rows))
        is_for_a_time = self._chance.random() < 0.3
        for_ms = self._chance.randint(10, 20_000)
        self._commit(
            RevokeAgent(
                key=self._key(), request_hash=b"", actor_did=ADMIN, is_admin=True, did=did,
                reason="it lies", evidence_json="{}",
                expires_ms=world.clock.now_ms() + for_ms if is_for_a_time else None,
            )
        )  # fmt: skip
        if not is_for_a_time:
            world.clock.call_in(for_ms, self._take_back, did)

    def _take_back(self, did: str) -> None:
        back = UnrevokeAgent(key=self._key(), actor_did=ADMIN, is_admin=True, did=did)
        self._commit(back)

    def _key(self) -> str:
        self._numbers += 1
        return f"trust:{self._numbers}"

    def _commit(self, command: Command) -> None:
        self._world.model.commit([command])
        told_ms = self._chance.choice((0, self._chance.randint(0, TOLD_MS_MAX)))
        self._world.clock.call_in(told_ms, self._tell_all)

    def _tell_all(self) -> None:
        for process in self._world.processes.values():
            process.loop.call_soon(self.tell, process)
