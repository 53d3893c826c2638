"""The lease of a workflow's own process, which works under its parent's membership.

A dedicated process writes under its parent's member id and the epoch of one shard. It asks the
ledger for the map, not for a lease: its renewals must not keep a silent parent alive. It may send
for as long as its parent might after its last renewal, and while the map says that the parent holds
that shard under that epoch; when it does not any more, the process ends. It has no share of agents:
it sends its dispatches to its parent. Has the interface of `Membership` that an owner needs.
shards.md (Dedicated workflows). Decision 0200.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from actors.shards.membership import RENEWAL_TIMEOUT_S, ShardWork
from actors.shards.renewal_times import RenewalTimes
from actors.shards.self_fence import SelfFence
from core.shards.cluster_version import FIRST_VERSION
from core.shards.lease_messages import HeldShard, Lease, Renewal

log = logging.getLogger("callboard.membership")


class Parentage(NamedTuple):
    """Under which member, shard and epoch a process works; `child`: its name at its parent."""

    member: str
    shard: int
    epoch: int
    child: str


class ChildLease:
    """Follows the parent's lease and shard.

    Args:
        of: what this process works under.
        work: hears of the parent, which sends this process's dispatches.
        renew: asks the ledger for the map.
        boot_ms: a monotonic clock that runs while the process is suspended.
        on_ended: receives the reason when the shard is not the parent's any more.
        on_unfenced: sends what has waited for an answer of the ledger.
    """

    def __init__(
        self,
        of: Parentage,
        work: ShardWork,
        *,
        renew: Callable[[Renewal], Awaitable[Lease]],
        boot_ms: Callable[[], int],
        on_ended: Callable[[str], None],
        on_unfenced: Callable[[], None],
    ) -> None:
        self._of = of
        self._work = work
        self._renew = renew
        self._boot_ms = boot_ms
        self._on_ended = on_ended
        self._on_unfenced = on_unfenced
        self._fence = SelfFence(boot_ms)
        self._map_version = 0
        self._times = RenewalTimes()
        self.cluster_version = FIRST_VERSION
        self._loop: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<ChildLease {self._of} {self._fence!r}>"

    def may_send(self) -> bool:
        """Say whether this process may send anything new to agents."""
        return self._fence.may_send()

    def offer(self, shard: int) -> bool:
        """Return False: the parent holds the shard."""
        return False

    def note_stale(self, shard: int, epoch: int) -> None:
        """Note that the ledger refused a command: the shard is another member's."""
        self._on_ended(f"{self._of} holds shard {shard} no longer under epoch {epoch}")

    def start(self) -> None:
        """Follow from now on, until `close`."""
        self._loop = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """End the task."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)

    def renew_soon(self) -> None:
        """Let the next question be soon."""
        self._times.soon()

    async def _run(self) -> None:
        while True:
            try:
                await self.follow_once()
            except Exception as error:  # the edge to another process: the next question is soon
                log.info("no map member=%s error=%s", self._of.member, type(error).__name__)
            await self._times.pause()

    async def follow_once(self) -> None:
        """Ask for the map and act on what it says of the parent."""
        sent_ms = self._boot_ms()
        renewal = Renewal(member="", map_version=self._map_version)
        async with asyncio.timeout(RENEWAL_TIMEOUT_S):
            lease = await self._renew(renewal)
        self._map_version = lease.map_version
        self.cluster_version = lease.cluster_version
        parent = next((one for one in lease.members if one.member == self._of.member), None)
        wanted = HeldShard(self._of.member, self._of.epoch)
        if lease.shards and lease.shards[self._of.shard] != wanted:
            self._on_ended(f"{self._of} is not what the map says")
        elif parent is not None and parent.is_live:
            self._work.members_changed([parent])
            # Its parent's last renewal counts, not this question: the parent's lease ends with it.
            self._fence.acknowledge(sent_ms - parent.silent_ms)
            if self._fence.has_ended():
                self._on_unfenced()
