"""Keeps an owner's directory of agents, prices, versions and stakes in sync with the ledger.

The sync reads all rows once at the start, page by page, then the changes: on request, and when a
look at the ledger, twice a second and on each notice, has found some. A request that registers an
agent, sets a price, stakes, or changes an agent's health by a heartbeat is answered after every
owner has read the change (`refresh`). Decisions 0003, 0067, 0091, 0098 and 0194; design.md section
3 (Events).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial

from actors.directory.agent_directory import Directory
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
    version_changes,
)
from ledger.agents.reputation import reputation_pages, tally_of
from ledger.prices.price_reads import price_of_row
from ledger.reads.directory_tail import DirectoryTail, Look
from ledger.reads.reader import LedgerReader, RowDict

log = logging.getLogger("callboard.owner")

RETRY_S = 0.5
# A statement that began before the last read may have been committed after it.
OVERLAP_MS = 2_000
# Between two reads of heartbeats. After a longer pause the database, or this process, was away, and
# with it, perhaps, what stores the heartbeats.
HEARD_PAUSE_MS_MAX = 5_000
# Requests that may share one refresh: more than an owner receives at once.
WAITING_MAX = 100_000
# What no read has found: beyond it all of it is read again.
MISSING_MAX = 10_000


class DirectorySync:
    """Fills a directory from the ledger and keeps it fresh.

    Args:
        directory: the directory to fill.
        reader: of the ledger's rows.
        database_url: for the connection that receives notices.
        owner: the owner's name, for the log.
        on_revoked: called when revocations were added or ended.
        now_ms: wall time.
    """

    def __init__(
        self,
        directory: Directory,
        reader: LedgerReader,
        *,
        database_url: str,
        owner: str,
        on_revoked: Callable[[], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._directory = directory
        self._reader = reader
        self._database_url = database_url
        self._owner = owner
        self._on_revoked = on_revoked
        self._now_ms = now_ms
        self._heard_ms = 0
        self._agents_id = 0
        # Capabilities and agents that a read has not found, until cards change.
        self._missing: set[tuple[str, str | None]] = set()
        self._prices_id = 0
        self._versions_id = 0
        self._revocations_id = 0
        self._stakes = _Poll(self._read_stakes)
        self._live = _Poll(self._read_live)
        self._reputations = _Poll(self._read_reputations)
        # In the order of `DATED`.
        self._polls = (self._live, self._reputations, self._stakes)
        # Whether something with notices has changed that was not read since.
        self._is_stale = False
        # Requests that arrive during a refresh share the next one.
        self._refreshes: Channel[None, None] = Channel(
            "the directory", self._refresh, capacity=WAITING_MAX, batch_size=WAITING_MAX
        )
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read everything, then keep it fresh in the background.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE; the caller may call again, which reads from the start.
        """
        # First, so that a change between the two reads is read again and not missed.
        self._agents_id = await newest_change(self._reader)
        async for rows in directory_pages(self._reader):
            await self._put(rows)
        await self._read_prices()
        await self._read_versions()
        await self._read_revocations()
        for poll in self._polls:
            await poll.read_changes()
        self._following = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """End every task; the reader has all of its connections again then."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        await self._refreshes.end()

    async def refresh(self) -> None:
        """Read the current agents, their health, revocations, prices and stakes.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE when the ledger cannot be read.
        """
        await self._refreshes.request(None)

    def is_known(self, request: PublishRequest) -> bool:
        """Whether no read can find a capability or an agent that is missing for a workflow.

        The replica that registered an agent may not have known this owner yet: what is missing is
        read once (`learn`), and again when cards have changed.
        """
        return all(asked in self._missing for asked in self._missing_for(request))

    async def learn(self, request: PublishRequest) -> None:
        """Read what is missing for a workflow.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE when the ledger cannot be read.
        """
        await self.refresh()
        missing = list(self._missing_for(request))
        if len(self._missing) + len(missing) > MISSING_MAX:
            self._missing.clear()
        self._missing.update(missing[:MISSING_MAX])

    def _missing_for(self, request: PublishRequest) -> Iterator[tuple[str, str | None]]:
        for node in request.compiled.nodes.values():
            asked = [(node.capability_id, node.target_agent_id)]
            if node.requires_verification:
                asked.append((node.verifier_capability_id, None))
            yield from (one for one in asked if self._directory.is_missing(*one))

    async def _refresh(self, waiting: list[None]) -> list[None]:
        # Who takes over a revoked agent's work may have been registered with the revocation: it is
        # read after that, and before the work is ended. Else it is failed for want of candidates.
        is_changed = await self._read_revocations()
        try:
            await self._read_agents()
            await self._read_prices()
            await self._read_versions()
            await self._stakes.read_changes()
            await self._live.read_changes()
        finally:
            if is_changed:
                self._on_revoked()
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
                self._missing.clear()
                self._agents_id = rows[-1]["changed_id"]

    async def _read_prices(self) -> None:
        is_last = False
        while not is_last:
            rows = await price_changes(self._reader, after=self._prices_id)
            self._directory.apply_prices({row["capability_id"]: price_of_row(row) for row in rows})
            is_last = len(rows) < CHANGES_MAX
            if rows:
                self._prices_id = rows[-1]["changed_id"]

    async def _read_versions(self) -> None:
        is_last = False
        while not is_last:
            rows = await version_changes(self._reader, after=self._versions_id)
            self._directory.published.apply_rows(rows)
            is_last = len(rows) < CHANGES_MAX
            if rows:
                self._versions_id = rows[-1]["changed_id"]

    async def _read_revocations(self) -> bool:
        """Read new revocations; return whether there are any, of which `on_revoked` is to hear."""
        is_last, is_changed = False, False
        while not is_last:
            rows = await revocation_changes(self._reader, after=self._revocations_id)
            self._directory.revocations.apply_rows(rows)
            is_last = len(rows) < CHANGES_MAX
            if rows:
                self._revocations_id = rows[-1]["changed_id"]
                is_changed = True
        return is_changed

    async def _read_live(self, since_ms: int | None) -> AsyncIterator[list[int]]:
        async for rows in live_pages(self._reader, since_ms=since_ms):
            self._directory.apply_liveness({row["did"]: liveness_of(row) for row in rows})
            yield [row["updated_ms"] for row in rows]
        self._note_heard(self._now_ms())

    def _note_heard(self, now_ms: int) -> None:
        """Note a read of heartbeats.

        After the first one, or a long pause, agents get the time of a heartbeat to be heard of: as
        long as the service was away, none of theirs was stored.
        """
        if now_ms - self._heard_ms > HEARD_PAUSE_MS_MAX:
            self._directory.count_silence_from(now_ms)
        self._heard_ms = now_ms

    async def _read_reputations(self, since_ms: int | None) -> AsyncIterator[list[int]]:
        async for rows in reputation_pages(self._reader, since_ms=since_ms):
            self._directory.apply_tallies({row["agent_did"]: tally_of(row) for row in rows})
            yield [row["updated_ms"] for row in rows]

    async def _read_stakes(self, since_ms: int | None) -> AsyncIterator[list[int]]:
        async for rows in stake_pages(self._reader, since_ms=since_ms):
            self._directory.stakes.apply_rows(rows)
            yield [row["updated_ms"] for row in rows]

    async def _follow(self) -> None:
        """Read what looks at the ledger find changed, until cancelled; retry after a failure."""
        while True:
            try:
                async with DirectoryTail(
                    self._database_url, lambda: [poll.since_ms for poll in self._polls]
                ) as tail:
                    # Changes from before the subscription have no notice.
                    self._is_stale = True
                    await self._try(self._refresh_stale)
                    async for look in tail:
                        await self._read_new(look)
            except Exception:  # the edge to Postgres, which may be unavailable
                log.warning("changes not followed owner=%s", self._owner, exc_info=True)
                await asyncio.sleep(RETRY_S)

    async def _read_new(self, look: Look) -> None:
        """Read what a look has found changed; what fails is repeated after the next look."""
        self._is_stale = self._is_stale or look.is_new
        live, reputations, stakes = look.marks
        await self._try(self._refresh_stale)
        await self._try(partial(self._hear, live))
        await self._try(partial(self._reputations.read_if_new, reputations))
        await self._try(partial(self._stakes.read_if_new, stakes))

    async def _try(self, read: Callable[[], Awaitable[None]]) -> None:
        """Read; what fails keeps nothing else from being read."""
        try:
            await read()
        except Exception:  # the edge of one read: a slow statement, or a row that cannot be read
            log.warning("changes not read owner=%s", self._owner, exc_info=True)

    async def _refresh_stale(self) -> None:
        if self._is_stale:
            await self.refresh()
            self._is_stale = False

    async def _hear(self, mark: str) -> None:
        await self._live.read_if_new(mark)
        self._note_heard(self._now_ms())


class _Poll:
    """Reads rows by the time of their change, from the watermark of the last read on.

    Args:
        read: applies the rows that changed at a time or later, None: all of them, page by page;
            yields the times of each page.
        now_ms: the wall clock, which bounds the watermark: rows dated by a clock that is ahead
            would hide later changes once that clock is corrected.
    """

    def __init__(
        self,
        read: Callable[[int | None], AsyncIterator[list[int]]],
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._read = read
        self._now_ms = now_ms
        self._newest_ms: int | None = None
        self._lock = asyncio.Lock()
        self._seen: tuple[int, str] | None = None

    @property
    def since_ms(self) -> int:
        """The time from which on the next read looks at rows, 0 before the first."""
        if self._newest_ms is None:
            return 0
        return max(0, min(self._newest_ms, self._now_ms()) - OVERLAP_MS)

    async def read_if_new(self, mark: str) -> None:
        """Read the changes unless the same rows were looked at before the last such read.

        Args:
            mark: of the rows since `since_ms`, by `DirectoryTail`.
        """
        seen, self._seen = self._seen, None  # a failed read is repeated
        now = (self.since_ms, mark)
        if now != seen:
            await self.read_changes()
        self._seen = now

    async def read_changes(self) -> None:
        """Read the changes once; a failed read leaves the watermark as it is."""
        # One read at a time: an older one must not overwrite a newer one.
        async with self._lock:
            since_ms = None if self._newest_ms is None else self.since_ms
            newest_ms = self._newest_ms or 0
            async for times in self._read(since_ms):
                newest_ms = max([newest_ms, *times])
            self._newest_ms = newest_ms
