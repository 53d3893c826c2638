"""What an owner knows of agents, prices and stakes, kept as the ledger has it.

Everything is read once at start, page by page; then only what has changed: when a notice says so,
when a request asks for it, and by looking again and again for what has no notice. A request that
registers an agent, sets a price, stakes, or changes an agent's health by a heartbeat is answered
when every owner has read it (`refresh`). Decisions 0003, 0067, 0091 and 0098; design.md section 3
(Events).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence

from actors.directory.directory import Directory
from actors.process.slices import Slices
from actors.transport.channel import Channel
from actors.transport.messages import PublishRequest
from ledger.accounts.account_reads import stake_pages
from ledger.agents.agent_live import live_pages, liveness_of
from ledger.agents.directory_reads import (
    CHANGES_MAX,
    directory_changes,
    directory_pages,
    newest_change,
    price_changes,
    revocation_changes,
)
from ledger.agents.reputation import reputation_pages, tally_of
from ledger.prices.price_reads import price_of_row
from ledger.reads.directory_tail import DirectoryTail
from ledger.reads.reader import LedgerReader, RowDict

log = logging.getLogger("callboard.owner")

RETRY_S = 0.5
LOOK_S = 0.5
# A statement that began before the last look may have been committed after it.
OVERLAP_MS = 2_000
# Requests that may wait for one refresh: more than an owner is asked at once.
WAITING_MAX = 100_000


class DirectorySync:
    """Fills a directory from the ledger and keeps it fresh.

    Args:
        directory: what is filled.
        reader: of the ledger's rows.
        database_url: for the connection that notices come on.
        owner: whose feeds these are, for the log.
        on_revoked: called when agents were revoked, or taken back.
    """

    def __init__(
        self,
        directory: Directory,
        reader: LedgerReader,
        *,
        database_url: str,
        owner: str,
        on_revoked: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._reader = reader
        self._database_url = database_url
        self._owner = owner
        self._on_revoked = on_revoked
        self._agents_id = 0
        self._prices_id = 0
        self._revocations_id = 0
        self._stakes = _Look(self._read_stakes)
        self._live = _Look(self._read_live)
        self._looks = (self._live, _Look(self._read_reputations), self._stakes)
        # Who asks while a refresh is under way shares the next one.
        self._refreshes: Channel[None, None] = Channel(
            "the directory", self._refresh, capacity=WAITING_MAX, batch_size=WAITING_MAX
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Read everything, then keep it fresh in the background.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE; to be called again, what was read is read again.
        """
        # What changes between the two reads is read again, not missed.
        self._agents_id = await newest_change(self._reader)
        async for rows in directory_pages(self._reader):
            await self._put(rows)
        await self._read_prices()
        await self._read_revocations()
        for look in self._looks:
            await look.now()
        following = [self._repeat(look) for look in self._looks] + [self._follow_notices()]
        self._tasks = [asyncio.create_task(task) for task in following]

    async def close(self) -> None:
        """End every task."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._refreshes.close()

    async def refresh(self) -> None:
        """Know what is stored of agents, their health, revocations, prices and stakes now.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE when it cannot be read.
        """
        await self._refreshes.request(None)

    async def ensure_known(self, requests: Sequence[PublishRequest]) -> None:
        """Refresh once if these workflows name a capability or an agent that is not known here.

        Who registered it was answered by another replica, which may not have known this owner yet.
        """
        if any(
            self._directory.lacks(node.capability_id, node.target_agent_id)
            or (
                node.requires_verification
                and self._directory.lacks(node.verifier_capability_id, None)
            )
            for request in requests
            for node in request.compiled.nodes.values()
        ):
            await self.refresh()

    async def _refresh(self, waiting: list[None]) -> list[None]:
        await self._read_agents()
        await self._read_revocations()
        await self._read_prices()
        await self._stakes.now()
        await self._live.now()
        return waiting

    async def _put(self, rows: Sequence[RowDict]) -> None:
        slices = Slices()
        for row in rows:
            self._directory.put([row])
            await slices.pause()

    async def _read_agents(self) -> None:
        is_last = False
        while not is_last:
            rows = await directory_changes(self._reader, after=self._agents_id)
            await self._put(rows)
            is_last = len(rows) < CHANGES_MAX
            if rows:
                self._agents_id = rows[-1]["changed_id"]

    async def _read_prices(self) -> None:
        is_last = False
        while not is_last:
            rows = await price_changes(self._reader, after=self._prices_id)
            self._directory.know_prices({row["capability_id"]: price_of_row(row) for row in rows})
            is_last = len(rows) < CHANGES_MAX
            if rows:
                self._prices_id = rows[-1]["changed_id"]

    async def _read_revocations(self) -> None:
        is_last, is_changed = False, False
        while not is_last:
            rows = await revocation_changes(self._reader, after=self._revocations_id)
            self._directory.revocations.know(rows)
            is_last = len(rows) < CHANGES_MAX
            if rows:
                self._revocations_id = rows[-1]["changed_id"]
                is_changed = True
        if is_changed:
            self._on_revoked()

    async def _read_live(self, since_ms: int | None) -> AsyncIterator[list[int]]:
        async for rows in live_pages(self._reader, since_ms=since_ms):
            self._directory.know_live({row["did"]: liveness_of(row) for row in rows})
            yield [row["updated_ms"] for row in rows]

    async def _read_reputations(self, since_ms: int | None) -> AsyncIterator[list[int]]:
        async for rows in reputation_pages(self._reader, since_ms=since_ms):
            self._directory.know_standings({row["agent_did"]: tally_of(row) for row in rows})
            yield [row["updated_ms"] for row in rows]

    async def _read_stakes(self, since_ms: int | None) -> AsyncIterator[list[int]]:
        async for rows in stake_pages(self._reader, since_ms=since_ms):
            self._directory.stakes.know(rows)
            yield [row["updated_ms"] for row in rows]

    async def _follow_notices(self) -> None:
        """Refresh whenever a card or a price has changed; a failed refresh is tried again."""
        while True:
            try:
                async with DirectoryTail(self._database_url) as tail:
                    # What changed before the tail was there is not in its notices.
                    await self.refresh()
                    async for _ in tail:
                        await self.refresh()
            except Exception:  # the edge to Postgres, which may be away for a while
                log.warning("directory not followed owner=%s", self._owner, exc_info=True)
                await asyncio.sleep(RETRY_S)

    async def _repeat(self, look: _Look) -> None:
        """Look for what is new again and again, with one query each time."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await look.now()
            except Exception:  # the edge to Postgres, which may be away for a while
                log.warning("not followed owner=%s", self._owner, exc_info=True)


class _Look:
    """Reads rows that carry the time of their change, from where the last reading ended.

    Args:
        read: takes over the rows that changed at a time or later, None: all of them, page by page;
            yields the times of each page.
        now_ms: the wall clock. Rows that a clock ahead of it has dated do not say how far this was
            read: whatever changes after that clock is put right is dated before them.
    """

    def __init__(
        self,
        read: Callable[[int | None], AsyncIterator[list[int]]],
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._read = read
        self._now_ms = now_ms
        self._newest_ms: int | None = None
        self._turn = asyncio.Lock()

    async def now(self) -> None:
        """Read once; what a reading that failed has taken over is read again."""
        # One after the other: an older reading must not be taken over after a newer one.
        async with self._turn:
            since_ms = None
            if self._newest_ms is not None:
                since_ms = min(self._newest_ms, self._now_ms()) - OVERLAP_MS
            newest_ms = self._newest_ms or 0
            async for times in self._read(since_ms):
                newest_ms = max([newest_ms, *times])
            self._newest_ms = newest_ms
