"""The handles of all workflow actors: creates, pings and ends them.

This module only calls Ray and makes no decisions. Decision process-liveness-and-standby.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import ActorDiedError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.cluster.health_check import Answer, check_health
from actors.cluster.workflow_actor import WorkflowActor
from actors.process.startup import settings_argument
from actors.transport.names import ensure_actor, workflow_actor
from core.settings import Settings

log = logging.getLogger("callboard.timekeeper")


def cores_of_machines() -> dict[str, int]:
    """Return the number of cores of each live machine, at least 1, by Ray's id; blocks."""
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    # A machine that runs no Ray tasks (`--num-cpus=0`) has no resource `CPU`.
    return {
        one["NodeID"]: max(1, int(one["Resources"].get("CPU", 1))) for one in nodes if one["Alive"]
    }


def owner_names(settings: Settings, machines: Mapping[str, int]) -> dict[str, str]:
    """Return the names of the owners that should run, each with its machine.

    Args:
        machines: the cores of the live machines, by Ray's id.
    """
    return {
        workflow_actor(node_id, index, settings.generation): node_id
        for node_id, cores in machines.items()
        for index in range(settings.wanted_size.size(cores).owners)
    }


class OwnerActors:
    """The workflow actors of all machines, by owner name."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._handles: dict[str, Any] = {}

    def names(self) -> list[str]:
        """Return the names of the owners that have an actor."""
        return list(self._handles)

    def ensure_actors(self, machines: Mapping[str, int]) -> tuple[list[str], list[str]]:
        """Create the actors of new machines, and end the actors of lost machines.

        Args:
            machines: the cores of the live machines, by Ray's id.

        Returns: the names of the created owners, and the names of the ended owners.
        """
        wanted = owner_names(self._settings, machines)
        gone = sorted(set(self._handles) - set(wanted))
        for name in gone:
            log.warning("machine is gone owner=%s", name)
            ray.kill(self._handles.pop(name))
        made = sorted(set(wanted) - set(self._handles))
        for name in made:
            own = self._settings.on_machine(machines[wanted[name]])
            self._handles[name] = ensure_actor(
                WorkflowActor,
                name,
                name,
                settings_argument(own),
                scheduling_strategy=NodeAffinitySchedulingStrategy(wanted[name], soft=False),
            )
        return made, gone

    async def ping(self, name: str) -> Answer:
        """Return an owner's answer to a health check.

        Raises:
            RayError: the owner's process has ended or is starting.
        """
        handle = self._handles[name]
        try:
            return await check_health(handle.ping.remote, handle.progress.remote)
        except ActorDiedError:
            # Ray does not restart this actor, for example because its constructor failed. The next
            # call of `ensure_actors` creates a new actor.
            log.exception("owner is gone and is created again owner=%s", name)
            self._handles.pop(name, None)
            raise

    def restart(self, name: str) -> None:
        """End an owner's process; Ray starts a new process."""
        handle = self._handles.get(name)
        if handle is not None:
            ray.kill(handle, no_restart=False)
