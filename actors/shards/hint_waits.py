"""Waiting for the hints of shards that were given to this member.

A giver sends its hint as soon as it knows that its Give is committed. On a busy machine that may
take seconds, and a shard that is restored before it repeats the calls that are open at agents. So
the hint is waited for as long as its giver lives: when its lease expires its calls are lost. A
giver that lives and cannot reach this process is waited for `HINT_TIMEOUT_S`.

shards.md (Hand-over). Decision 0200.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Set
from typing import Final, NamedTuple

from actors.shards.held_shards import HeldShards

log = logging.getLogger("callboard.membership")

HINT_TIMEOUT_S: Final = 10.0


class _Wait(NamedTuple):
    """`givers`: of whom one has given the shard; `is_over`: done when it need not be waited for."""

    givers: frozenset[str]
    is_over: asyncio.Future[None]


class HintWaits:
    """The shards whose hints are waited for.

    Args:
        held: the shards of this member; knows who has given them.
    """

    def __init__(self, held: HeldShards) -> None:
        self._held = held
        self._live: frozenset[str] = frozenset()
        self._waits: dict[int, _Wait] = {}

    def __repr__(self) -> str:
        return f"<HintWaits {sorted(self._waits)}>"

    async def wait(self, shard: int) -> None:
        """Return when a held shard's hint has come, or will not come, or the shard is lost.

        Where the giver is not known, because two moves came between two maps, it is one of all
        members that live now.
        """
        giver = self._held.giver(shard)
        givers = frozenset((giver,)) if giver else self._live
        if not givers or not givers <= self._live:
            return
        self._waits[shard] = wait = _Wait(givers, asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(HINT_TIMEOUT_S):
                await wait.is_over
        except TimeoutError:
            log.warning("no hint came shard=%d givers=%s", shard, ",".join(sorted(givers)))
        finally:
            if self._waits.get(shard) is wait:
                del self._waits[shard]

    def end(self, shard: int) -> None:
        """End the wait for a shard's hint: it has come, or the shard is lost."""
        wait = self._waits.pop(shard, None)
        if wait is not None and not wait.is_over.done():
            wait.is_over.set_result(None)

    def set_live(self, members: Set[str]) -> None:
        """Know the other members that live; the hints of those that do not will not come."""
        self._live = frozenset(members)
        for shard in [s for s, wait in self._waits.items() if not wait.givers <= self._live]:
            self.end(shard)
