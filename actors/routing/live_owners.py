"""The live owners that one process can call: the map of shards, and a channel to each owner.

The map is read from the ledger once a second. It is also read when an owner answers that a shard
has moved, or when a call has failed. While the ledger is unreachable, the last map stays in use.
A request about a workflow goes to the live member that holds its shard, even if the member is
DRAINING. One long poll per owner reports all ended workflows, so a waiting request costs no call of
its own. Decision workflow-owners-and-shards.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from actors.routing.owner_channels import OwnerChannels
from actors.routing.placement import Placement
from actors.routing.shard_map import ShardMap
from actors.transport.actor_calls import BatchCall, is_unknown_outcome
from actors.transport.ledger_client import ledger_unavailable_error
from actors.transport.messages import (
    Moved,
    NotYet,
    OwnerAnswer,
    OwnerRequest,
    PackedPublish,
    WorkflowEnd,
)
from actors.transport.wire import ENDS, Undecodable
from core.errors import ErrorCode, ServiceError
from core.settings import Settings
from core.shards.lease_messages import Lease, MemberView, Renewal
from core.shards.shard import SHARDS

log = logging.getLogger("callboard.gateway")

RETRY_DELAY_S: Final = 0.1
MAP_REFRESH_S: Final = 1.0
MAP_TIMEOUT_S: Final = 2.0
# The shortest pause between two reads of the map, however many requests need a new one.
MAP_PAUSE_S: Final = 0.05
# The timeout of a refresh. An owner that does not answer in this time has lost its lease, and its
# successor reads all rows.
REFRESH_TIMEOUT_S: Final = 10.0


class LiveOwners:
    """The live owners, the channels to them, and the map of shards.

    Args:
        settings: the deployment's settings.
        on_finished: receives the id of each ended workflow that an owner reports, and its end.
        ask_map: reads the map of shards from the ledger; raises while the ledger is unreachable.
        machine: Ray's id of the machine of this process.
        map_refresh_s: the interval at which the map is read.
        on_moved: receives the shards that a live member now holds and did not hold before.
    """

    def __init__(
        self,
        settings: Settings,
        on_finished: Callable[[str, WorkflowEnd | None], None],
        ask_map: Callable[[Renewal], Awaitable[Lease]],
        *,
        machine: str,
        map_refresh_s: float = MAP_REFRESH_S,
        on_moved: Callable[[Collection[int]], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._on_finished = on_finished
        self._ask_map = ask_map
        self._map_refresh_s = map_refresh_s
        self._on_moved = on_moved
        self.watcher = os.urandom(8).hex()
        self.map = ShardMap()
        self._map_version = 0
        self._placement = Placement(machine)
        self._channels: dict[str, OwnerChannels] = {}
        self._polls: dict[str, asyncio.Task[None]] = {}
        self._is_map_wanted = asyncio.Event()
        self._has_changed = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    def follow(self) -> None:
        """Start the task that keeps the map up to date until `close`."""
        self._following = asyncio.create_task(self._follow())

    def close(self) -> None:
        """Cancel every task and close every channel."""
        for task in [self._following, *self._polls.values()]:
            if task is not None:
                task.cancel()
        for channels in self._channels.values():
            channels.close()
        self._channels.clear()
        self._polls.clear()

    # -- asking -----------------------------------------------------------------------------------

    def place(self, workflow_id: str, refused: Collection[str] = ()) -> str | None:
        """Return the new workflow's id, changed so that it is in the chosen shard.

        See `Placement.place`.
        """
        return self._placement.place(workflow_id, refused, now_s=time.monotonic())

    def holder(self, workflow_id: str) -> MemberView | None:
        """Return the live member that holds a workflow's shard, None if no live member does."""
        return self.map.holder(workflow_id)

    async def ask(
        self, request: OwnerRequest | PackedPublish, payer: str, deadline: float
    ) -> OwnerAnswer:
        """Send a request once to the holder of the workflow's shard.

        Args:
            request: the request.
            payer: the payer in whose queue the request waits; "" for requests of the service.
            deadline: a time of `time.monotonic()`.

        Returns: the owner's answer; None when the owner does not drive the workflow.

        Raises:
            Moved: nothing was done. No known live member holds the shard, or the owner refused the
                request because it does not hold the shard.
            NotYet: the outcome is unknown. Only the same request may be sent again.
            ServiceError: the owner's refusal.
        """
        holder = self.map.holder(request.workflow_id)
        if holder is None:
            self._is_map_wanted.set()
            raise Moved(
                ErrorCode.LEDGER_UNAVAILABLE,
                "no live process drives the workflow's shard: repeat the request soon",
                retry_after_s=1,
            )
        try:
            async with asyncio.timeout(max(0.01, deadline - time.monotonic())):
                return await self._channels[holder.address].request(request, payer)
        except ServiceError as refusal:
            if isinstance(refusal, Moved):
                self._is_map_wanted.set()
            raise
        except Exception as error:  # the edge to another process
            if not (is_unknown_outcome(error) or isinstance(error, TimeoutError)):
                raise
            log.info("call failed owner=%s error=%s", holder.address, type(error).__name__)
            self._is_map_wanted.set()
            self._note_failed(holder.address)
            raise _unknown_outcome() from None

    def _note_failed(self, address: str) -> None:
        now_s = time.monotonic()
        for one in self.map.live.values():
            if one.address == address:
                self._placement.note_failed(one.member, now_s)

    async def wait_change(self, timeout_s: float) -> None:
        """Return when the map has changed, or after the timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._has_changed.wait()

    async def refresh(self) -> None:
        """Make every owner read the changes of agents, health, prices and stakes.

        So a client that registers an agent can publish at once: every owner knows the agent, even
        if the notice of the change has not reached the owner yet. An owner that does not answer
        reads the change at its next poll.
        """
        asked = [channels.refresh() for channels in self._channels.values()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REFRESH_TIMEOUT_S):
                await asyncio.gather(*asked, return_exceptions=True)

    # -- the map ----------------------------------------------------------------------------------

    def use_lease(self, lease: Lease) -> None:
        """Use the members and the shards of a lease; a lease without shards changes no shard."""
        if lease.shards:
            if len(lease.shards) != SHARDS:
                raise ValueError(f"got a map of {len(lease.shards)} shards, expected {SHARDS}")
            self._map_version = lease.map_version
        elif lease.map_version != self._map_version:
            # The known map belongs to another writer's history: the next read requests all shards.
            self._map_version = 0
        before, shard_map = self.map, ShardMap(lease.members, lease.shards or self.map.shards)
        has_changed = bool(lease.shards) or shard_map.states() != before.states()
        self.map = shard_map
        self._placement.use_map(shard_map)
        addresses = shard_map.addresses()
        for address in set(self._channels) - addresses:
            self._channels.pop(address).close()
            self._polls.pop(address).cancel()
        for address in addresses - set(self._channels):
            self._channels[address] = OwnerChannels(address, self._settings)
            self._polls[address] = asyncio.create_task(self._poll(address))
        if has_changed:
            self._has_changed.set()
            self._has_changed = asyncio.Event()
            self._on_moved(shard_map.moved_since(before))

    async def _follow(self) -> None:
        while True:
            self._is_map_wanted.clear()
            pause_s = MAP_PAUSE_S
            try:
                async with asyncio.timeout(MAP_TIMEOUT_S):
                    lease = await self._ask_map(Renewal(member="", map_version=self._map_version))
                self.use_lease(lease)
            except Exception as error:  # the edge to another process; the last map stays in use
                log.info("no map of shards error=%s", type(error).__name__)
                pause_s = RETRY_DELAY_S
            await asyncio.sleep(pause_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._map_refresh_s):
                    await self._is_map_wanted.wait()

    async def _poll(self, address: str) -> None:
        """Long-poll one owner for the watched workflows that have ended."""
        with contextlib.closing(BatchCall(self._settings, address, "finished")) as call:
            while True:
                try:
                    finished = await call(self.watcher)
                except Exception as error:  # the edge to another process; waiters read the rows
                    log.info("poll failed owner=%s error=%s", address, type(error).__name__)
                    # A poll is always in flight, so the end of an owner first makes the poll fail.
                    self._note_failed(address)
                    await asyncio.sleep(RETRY_DELAY_S)
                    continue
                for workflow_id, body in finished.items():
                    self._on_finished(workflow_id, None if body is None else _told(body))


class Tries:
    """The pauses between the retries of one request, up to its deadline.

    Args:
        owners: the live owners. A change of their map ends a pause early.
        deadline: a time of `time.monotonic()`.
        delay_s_max: the longest pause, seconds.
    """

    def __init__(self, owners: LiveOwners, deadline: float, delay_s_max: float) -> None:
        self._owners = owners
        self.deadline = deadline
        self._delay_s_max = delay_s_max
        self._delay_s = RETRY_DELAY_S

    async def pause(self, refusal: ServiceError) -> None:
        """Wait before the next retry.

        Raises:
            ServiceError: `refusal`, when no time is left for another retry.
        """
        if time.monotonic() + self._delay_s >= self.deadline:
            raise refusal
        await self._owners.wait_change(self._delay_s)
        self._delay_s = min(2 * self._delay_s, self._delay_s_max)


def _unknown_outcome() -> NotYet:
    known = ledger_unavailable_error()
    return NotYet(known.code, known.detail, retry_after_s=known.retry_after_s)


def _told(body: bytes) -> WorkflowEnd | None:
    try:
        return ENDS.decode(body)
    except Undecodable as error:  # written by another version: the caller reads the rows instead
        log.info("got an end that cannot be read reason=%s", error)
        return None
