"""The workflow actor: an owner process that drives many workflows from one event loop.

Each machine has one or more workflow actors. This module only wraps `actors/engine/owner.py` for
Ray. When the ledger no longer knows the member, the process ends. Ray starts a new process, which
is a new member and restores the workflows of its shards from stored rows.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.cluster.child import ActorChild
from actors.cluster.dedicated import Dedicated
from actors.dispatch.remote_dispatch import OwnerCalls
from actors.engine.owner import Owner
from actors.process.at_work import AtWork
from actors.process.loop_watchdog import TurnTrace
from actors.process.metrics import start_loop_watchdog
from actors.process.slices import answer_in_slices
from actors.process.startup import (
    collect_rarely,
    configure_logging,
    parse_settings_argument,
    raise_file_limit,
    settings_argument,
)
from actors.shards.child_lease import Parentage
from actors.transport.actor_calls import BatchCall, serve_batches
from actors.transport.late_replies import LateReplies
from actors.transport.ledger_route import LedgerRoute
from actors.transport.names import LIVENESS
from actors.transport.sockets import socket_path
from actors.transport.wire import answer_requests
from core.settings import Settings
from core.shards.machine_size import DEDICATED_ACTORS_MAX

log = logging.getLogger("callboard.workflows")

# The timeout of a long poll for ended workflows. It is short, so that a poll to a dead process ends
# soon.
FINISHED_POLL_S = 10.0


@ray.remote(concurrency_groups=LIVENESS)  # type: ignore[call-overload]
class WorkflowActor:
    """Owns workflows: publishes, drives, dispatches, restores."""

    async def __init__(  # type: ignore[misc]
        self, name: str, values: Mapping[str, object], parent: Parentage | None = None
    ) -> None:
        settings = parse_settings_argument(values)
        configure_logging(settings, "workflows")
        raise_file_limit()
        collect_rarely()
        path = socket_path(settings.run_folder, name)
        if path is None:
            self._watchdog, at_work = start_loop_watchdog(name, "workflows"), AtWork()
        else:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            trace = TurnTrace(path.with_suffix(".trace"))
            if trace.former:
                log.error("the process before ended in a turn owner=%s\n%s", name, trace.former)
            at_work = AtWork(path.with_suffix(".work"), is_to_blame=bool(trace.former))
            self._watchdog = start_loop_watchdog(name, "workflows", trace)
            trace.start()
        route = LedgerRoute(settings)
        ledger = route.client(_stop)
        self._serve = partial(serve_batches, settings, name)
        self._owner = Owner(
            name,
            ray.get_runtime_context().get_node_id(),
            settings,
            ledger=ledger,
            renew=route.renewals(),
            owner_calls=partial(_peer_calls, settings),
            on_lost=_stop,
            at_work=at_work,
            parent=parent,
        )
        self._late = LateReplies()
        self._dedicated: Dedicated | None = None
        if settings.isolation == "dedicated":
            spawn = partial(_spawn, settings, name)
            slots, silence_ms = DEDICATED_ACTORS_MAX, settings.owner_silence_ms
            self._dedicated = Dedicated(self._owner, spawn, slots=slots, silence_ms_max=silence_ms)
        # Not awaited: while Postgres is down, the creation of the actor would hang.
        self._start = asyncio.create_task(self._begin())

    async def _begin(self) -> None:
        methods = {
            "handle": self.handle,
            "handle_bulk": self.handle_bulk,
            "late": self.late,
            "refresh": self.refresh,
            "finished": self.finished,
            "accept": self.accept,
        }
        await self._serve(methods)
        try:
            await self._owner.start()
        except Exception as error:  # the edge of the process: a new process repeats the start
            log.exception("owner did not start")
            _stop(repr(error))

    async def handle(self, bodies: list[bytes]) -> list[bytes]:
        """Answer requests, each after its commit. The answer to a slow request is a token.

        The caller passes the token to `late` to get the reply.
        """
        await asyncio.shield(self._start)
        handle = partial(self._owner.handle, late=self._late)
        return await answer_requests(self._dedicated.handle if self._dedicated else handle, bodies)

    async def handle_bulk(self, bodies: list[bytes]) -> list[bytes]:
        """Answer requests together, when all of them are committed; never answer with a token."""
        await asyncio.shield(self._start)
        return await answer_requests((self._dedicated or self._owner).handle, bodies)

    async def late(self, tokens: list[int]) -> list[bytes]:
        """Return for each token the late reply, or a note that the reply needs more time."""
        return await self._late.take(tokens)

    async def refresh(self, batch: list[None]) -> list[None]:
        """Refresh the directory of agents, prices and stakes from the ledger; then return."""
        await asyncio.shield(self._start)
        await self._owner.refresh()
        return batch

    async def finished(self, watcher: str) -> dict[str, bytes | None]:
        """Return the ended workflows that the watcher waits for.

        This is a long poll: it waits at most `FINISHED_POLL_S` for the first ended workflow.
        """
        return await self._owner.outboxes.take(watcher, FINISHED_POLL_S)

    async def accept(self, bodies: list[bytes]) -> list[bool]:
        """Accept another owner's messages: dispatches to send from here, events of sent dispatches.

        Returns: for each message whether it was accepted.
        """
        return await answer_in_slices(self._owner.remote_dispatch.accept, bodies)

    async def ping(self) -> dict[str, Any]:
        """Return the owner's counters and state.

        `isReady`: the owner accepts work. `isRestoring`: it still restores workflows.
        """
        return {
            "isReady": self._start.done(),
            "progress": self._steps(),
            **self._owner.statistics(),
        }

    @ray.method(concurrency_group="liveness")
    async def progress(self) -> int:
        """Return the progress counter of this process; a separate thread answers."""
        return self._steps()

    def _steps(self) -> int:
        return self._watchdog.turns + self._owner.steps

    async def process_id(self) -> int:
        """Return this process's id, for tests and operators."""
        return os.getpid()


def _peer_calls(settings: Settings, address: str) -> OwnerCalls:
    call = BatchCall(settings, address, "accept")
    return OwnerCalls(call, call.close)


def _spawn(settings: Settings, name: str, slot: int, parent: Parentage) -> ActorChild:
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0, "max_concurrency": 1_000}
    own = replace(settings, isolation="pooled")
    actor = WorkflowActor.options(**options, scheduling_strategy=here)  # type: ignore[attr-defined]
    return ActorChild(actor.remote(f"{name}.{slot}", settings_argument(own), parent))


def _stop(reason: str) -> None:
    """End this process without cleaning up, because its state differs from the stored rows."""
    log.critical("workflow owner stops reason=%s", reason)
    logging.shutdown()
    os._exit(1)
