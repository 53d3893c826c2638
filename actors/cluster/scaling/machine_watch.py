"""Requests machines according to the members' load, and releases drained machines.

Steps, once a second:
1. Drain the members of machines that Ray drains.
2. Release the machines whose members are all drained. The timekeeper then ends the workflow actors
   of these machines, and Ray ends on these machines.
3. According to the load of all members, request more machines from the autoscaler, or drain a
   machine that is not needed.

A successor of this process reads all state again from the ledger and from Ray.
Decision cluster-and-releases.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable
from typing import Final

from actors.cluster.scaling import ray_machines
from actors.process.loop_clock import every, monotonic_ms
from actors.transport.ledger_route import LedgerRoute
from actors.transport.names import TIMEKEEPER
from core.settings import Settings
from core.shards.lease_messages import Lease, MemberState, Renewal
from core.shards.scaling import MachineCount, drained_machines, has_other_holder, least_loaded
from ledger.features.shards import ChangeMember

log = logging.getLogger("callboard.timekeeper")

ROUND_S: Final = 1.0
MAP_TIMEOUT_S: Final = 2.0
# Requests to the autoscaler are repeated at this interval: Ray's GCS holds them in memory, and a
# restarted GCS has lost them.
ASK_AGAIN_MS: Final = 10_000
COMMIT_TIMEOUT_S: Final = 5.0


class MachineWatch:
    """Follows the machines that Ray drains; with `workflows_per_machine`, scales the cluster.

    Args:
        settings: the deployment's settings.
        writers_machine: returns Ray's id of the machine of the ledger's writer; "": it is unknown.
            The writer's machine is never released, because the ledger would have to move.
    """

    def __init__(self, settings: Settings, writers_machine: Callable[[], str]) -> None:
        self._writers_machine = writers_machine
        route = LedgerRoute(settings)
        self._renew = route.renewals()
        self._ledger = route.client()
        self._is_cluster = settings.machines_max > 1
        self._count = _count(settings)
        self._asked = 0
        self._asked_ms = 0
        self.released: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Run rounds until cancelled; do nothing in a deployment of one machine."""
        if self._is_cluster:
            await every(ROUND_S, self._round, "round of machines")

    async def _round(self) -> None:
        draining = await asyncio.to_thread(ray_machines.draining_machines)
        if not draining and self._count is None:
            self.released = frozenset()
            return
        async with asyncio.timeout(MAP_TIMEOUT_S):
            lease = await self._renew(Renewal(member=""))
        await self._drain_members(lease, draining)
        # A released machine stays released: a new writer does not know at first which members
        # have drained.
        drained = drained_machines(lease.members, lease.shards, draining)
        released = drained | (self.released & draining)
        for machine in released - self.released:
            log.info("machine is drained and is released machine=%s", machine)
        self.released = released
        if self._count is not None:
            working = await asyncio.to_thread(ray_machines.working_machines)
            await self._scale(self._count, lease, working)

    async def _drain_members(self, lease: Lease, draining: Iterable[str]) -> None:
        """Drain the members of these machines: they give all their shards to other members (1)."""
        for machine in draining:
            members = [
                one.member
                for one in lease.members
                if one.machine == machine and one.state is MemberState.READY
            ]
            # If no other member can take the shards, the ledger would refuse the drain each second.
            if members and has_other_holder(lease.members, machine):
                log.info("machine is drained machine=%s members=%d", machine, len(members))
                await asyncio.gather(*(self._drain(member) for member in members))

    async def _drain(self, member: str) -> None:
        outcome = await self._ledger.commit(
            ChangeMember(
                key=f"member:{uuid.uuid4()}",
                actor_did=TIMEKEEPER,
                member=member,
                state=MemberState.DRAINING,
            ),
            timeout_s=COMMIT_TIMEOUT_S,
        )
        if outcome.error is not None:
            log.warning("member not drained member=%s outcome=%s", member, outcome)

    async def _scale(self, count: MachineCount, lease: Lease, working: list[str]) -> None:
        """Request machines, or drain a machine that is not needed (3)."""
        load = sum(one.load for one in lease.members if one.is_live)
        now_ms = monotonic_ms()
        known = max(self._asked, len(working))
        wanted = count.wanted(load, known, now_ms)
        if wanted != self._asked or now_ms - self._asked_ms > ASK_AGAIN_MS:
            if wanted != known:
                log.info("machines wanted=%d known=%d load=%d", wanted, known, load)
            await asyncio.to_thread(ray_machines.ask_for_machines, wanted)
            self._asked, self._asked_ms = wanted, now_ms
        kept = self._writers_machine()
        if kept and wanted < known and wanted < len(working):
            removable = await asyncio.to_thread(ray_machines.removable_machines)
            machine = least_loaded(lease.members, (removable & frozenset(working)) - {kept})
            if machine is not None:
                refusal = await asyncio.to_thread(ray_machines.drain_machine, machine)
                log.info("machine is given back machine=%s refusal=%s", machine, refusal)


def _count(settings: Settings) -> MachineCount | None:
    if not settings.workflows_per_machine:
        return None
    return MachineCount(
        workflows_per_machine=settings.workflows_per_machine,
        least=1,
        most=settings.machines_max,
        lower_ms=settings.machine_idle_ms,
    )
