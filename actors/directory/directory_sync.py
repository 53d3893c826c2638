"""Keeps an owner's directory of agents, prices, versions and stakes in sync with the ledger.

The sync reads all rows once at the start, page by page, then, by looks at the ledger, what has
changed (`ledger/reads/directory_tail.py`): on request, after a notice, and twice a second. What
registers an agent, sets a price, stakes, or changes an agent's health by a heartbeat is answered
after every owner has read the change (`refresh`); what changes without such a request, a load or a
reputation, is read within 100 ms after its notice. Looks have a pace, so that changes cost an owner
the same however many there are, but for the reading of their rows. Decisions
agent-health-and-waiting, prices-and-budgets, fairness-and-long-work and postgres.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from actors.directory.agent_directory import Directory
from actors.process.slices import Slices
from actors.transport.messages import PublishRequest
from ledger.accounts.account_reads import stake_pages
from ledger.agents.agent_live import live_pages, liveness_of
from ledger.agents.directory_reads import (
    CHANGES_MAX,
    directory_changes,
    directory_pages,
    newest_change,
)
from ledger.agents.reputation import reputation_pages, tally_of
from ledger.prices.price_reads import price_of_row
from ledger.reads.directory_tail import Asked, DatedRow, DirectoryTail, Look
from ledger.reads.reader import LedgerReader, RowDict

log = logging.getLogger("callboard.owner")

RETRY_S: Final = 0.5
POLL_S: Final = 0.5
# Between a notice and the look: a request for what it is about mostly comes meanwhile.
NOTICE_DELAY_S: Final = 0.025
# Between two looks on notices: 1,000 changes a second may cost an owner 1 % of a core, and to wake
# up for a look takes as long as to read what has changed since the one before (decision
# agent-health-and-waiting).
LOOK_PAUSE_S: Final = 0.085
# Looks on request that may follow each other at once; then they have the same pace. Requests that
# arrive meanwhile share one.
LOOKS_SAVED_MAX: Final = 50
# A statement that began before the last read may have been committed after it.
OVERLAP_MS = 2_000
# Between two reads of heartbeats. After a longer pause the database, or this process, was away, and
# with it, perhaps, what stores the heartbeats.
HEARD_PAUSE_MS_MAX = 5_000
# What no read has found: beyond it all of it is read again.
MISSING_MAX = 10_000


class DirectorySync:
    """Fills a directory from the ledger and keeps it fresh.

    Args:
        directory: the directory to fill.
        reader: of the ledger's rows.
        tail: looks at what has changed.
        owner: the owner's name, for the log.
        on_revoked: called when revocations were added or ended.
        now_ms: wall time.
    """

    def __init__(
        self,
        directory: Directory,
        reader: LedgerReader,
        *,
        tail: DirectoryTail,
        owner: str,
        on_revoked: Callable[[], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._directory = directory
        self._reader = reader
        self._tail = tail
        self._owner = owner
        self._on_revoked = on_revoked
        self._now_ms = now_ms
        self._heard_ms = 0
        # In the order of `CHAINED`: the audit id of the last change that was read.
        self._read_ids = [0, 0, 0, 0]
        # Capabilities and agents that a read has not found, until cards change.
        self._missing: set[tuple[str, str | None]] = set()
        # In the order of `DATED`.
        self._dated = (
            _Dated(self._live_pages, _live_row, directory.apply_liveness),
            _Dated(self._reputation_pages, _tally_row, directory.standings.apply_tallies),
            _Dated(self._stake_pages, _stake_row, directory.stakes.apply_parts),
        )
        self._pace = _Pace()
        # Of the requests that the next look answers; those that arrive during a look share it.
        self._asked: asyncio.Future[None] | None = None
        # The pause between a notice and its look, which a request ends.
        self._pause: asyncio.Future[None] | None = None
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read everything, then keep it fresh in the background.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE; the caller may call again, which reads from the start.
        """
        # First, so that a change between the two reads is read again and not missed.
        self._read_ids = [await newest_change(self._reader), 0, 0, 0]
        async for rows in directory_pages(self._reader):
            await self._put(rows)
        for dated in self._dated:
            await dated.read_changes()
        await self._read_new()
        self._following = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """End the following; the reader has all of its connections again then."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        await self._tail.close()

    async def refresh(self) -> None:
        """Read the current agents, their health, revocations, prices and stakes.

        Between `start` and `close`.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE when the ledger cannot be read.
            ConnectionError: the sync is closed.
        """
        if self._following is None or self._following.done():
            raise ConnectionError("the directory is not followed")
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
            self._tail.wake()
            _end(self._pause)
        await asyncio.shield(self._asked)

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

    async def _follow(self) -> None:
        """Look on request, after notices, and twice a second, until cancelled."""
        asked: asyncio.Future[None] | None = None
        try:
            while True:
                if self._asked is None:
                    await self._wait_reason()
                await self._pace.wait_turn()
                asked, self._asked = self._asked, None
                try:
                    await self._read_new()
                except Exception as error:  # the edge to Postgres, which may be unavailable
                    log.warning("changes not followed owner=%s", self._owner, exc_info=True)
                    _fail(asked, error)
                    if asked is None:
                        await self._wait_asked(RETRY_S)
                else:
                    _end(asked)
        finally:
            closed = ConnectionError("the directory is not followed any more")
            _fail(asked, closed)
            _fail(self._asked, closed)

    async def _wait_reason(self) -> None:
        """Return when there is a reason to look: a request, a notice, or half a second."""
        await self._tail.wait_notice(POLL_S)
        if self._asked is None:
            await self._wait_asked(self._pace.notice_pause_s())

    async def _wait_asked(self, seconds: float) -> None:
        """Return after a request, or so many seconds."""
        loop = asyncio.get_running_loop()
        pause = self._pause = loop.create_future()
        timer = loop.call_later(seconds, _end, pause)
        try:
            await pause
        finally:
            timer.cancel()
            self._pause = None

    async def _read_new(self) -> None:
        """Look until nothing more has changed, and use what was found.

        What fails keeps nothing else from being used, and is read again by the next look.
        """
        self._directory.forget_departed(self._now_ms())
        failed: list[Exception] = []
        is_whole = False
        while not is_whole and not failed:
            look = await self._tail.look(
                Asked(
                    self._read_ids,
                    [dated.since_ms for dated in self._dated],
                    [dated.unseen for dated in self._dated],
                )
            )
            is_whole = look.is_whole
            for use in self._uses(look):
                try:
                    await use
                except Exception as error:  # the edge of one kind: a row that cannot be read
                    failed.append(error)
        if failed:
            raise failed[0]

    def _uses(self, look: Look) -> Iterator[Awaitable[None]]:
        """Yield what makes use of each kind that a look has found changed."""
        agents, prices, versions, revocations = look.chained
        if agents:
            yield self._use_agents(agents)
        if prices:
            yield self._use_chained(1, prices, self._apply_prices)
        if versions:
            yield self._use_chained(2, versions, self._apply_versions)
        live, *dated = look.dated
        yield self._hear(live, look.unseen)
        for one, changed in zip(self._dated[1:], dated, strict=True):
            yield one.take(changed, look.unseen)
        # Last: it ends the work of the revoked, which who was found here may take over.
        if revocations:
            yield self._use_chained(3, revocations, self._apply_revocations)

    async def _use_agents(self, rows: Sequence[RowDict]) -> None:
        if any(row["status"] == "active" for row in rows):
            await self._read_agents()
            return
        # The directory keeps the last card of a deregistered agent for 60 s.
        self._directory.put(rows, at_ms=self._now_ms())
        self._note_agents_read(rows)

    async def _read_agents(self) -> None:
        is_last = False
        while not is_last:
            rows = await directory_changes(self._reader, after=self._read_ids[0])
            await self._put(rows)
            is_last = len(rows) < CHANGES_MAX
            if rows:
                self._note_agents_read(rows)

    def _note_agents_read(self, rows: Sequence[RowDict]) -> None:
        self._missing.clear()
        self._read_ids[0] = rows[-1]["changed_id"]

    async def _put(self, rows: Sequence[RowDict]) -> None:
        slices = Slices()
        for row in rows:
            self._directory.put([row], at_ms=self._now_ms())
            await slices.pause()

    async def _use_chained(
        self, place: int, rows: Sequence[RowDict], apply: Callable[[Sequence[RowDict]], None]
    ) -> None:
        apply(rows)
        self._read_ids[place] = rows[-1]["changed_id"]

    def _apply_prices(self, rows: Sequence[RowDict]) -> None:
        self._directory.apply_prices({row["capability_id"]: price_of_row(row) for row in rows})

    def _apply_versions(self, rows: Sequence[RowDict]) -> None:
        self._directory.published.apply_rows(rows)

    def _apply_revocations(self, rows: Sequence[RowDict]) -> None:
        self._directory.revocations.apply_rows(rows)
        self._on_revoked()

    async def _hear(self, rows: Sequence[DatedRow] | None, unseen: str) -> None:
        """Use heartbeats and probes.

        After the first time, or a long pause, agents get the time of a heartbeat to be heard of: as
        long as the service was away, none of theirs was stored.
        """
        await self._dated[0].take(rows, unseen)
        now_ms = self._now_ms()
        if now_ms - self._heard_ms > HEARD_PAUSE_MS_MAX:
            self._directory.count_silence_from(now_ms)
        self._heard_ms = now_ms

    def _live_pages(self, since_ms: int | None) -> AsyncIterator[list[RowDict]]:
        return live_pages(self._reader, since_ms=since_ms)

    def _reputation_pages(self, since_ms: int | None) -> AsyncIterator[list[RowDict]]:
        return reputation_pages(self._reader, since_ms=since_ms)

    def _stake_pages(self, since_ms: int | None) -> AsyncIterator[list[RowDict]]:
        return stake_pages(self._reader, since_ms=since_ms)


def _live_row(row: RowDict) -> DatedRow:
    return row["did"], liveness_of(row), row["updated_ms"]


def _tally_row(row: RowDict) -> DatedRow:
    return row["agent_did"], tally_of(row), row["updated_ms"]


def _stake_row(row: RowDict) -> DatedRow:
    return row["agent_did"], (row["free_micro"], row["locked_micro"]), row["updated_ms"]


class _Dated:
    """Follows rows by the time of their change, from the watermark of the last read on.

    Args:
        pages: yields the rows that changed at a time or later, None: all of them.
        build_row: makes of one of these what a look finds of it.
        apply: makes use of what is known of agents, by DID.
        now_ms: the wall clock, which bounds the watermark: rows dated by a clock that is ahead
            would hide later changes once that clock is corrected.
    """

    def __init__(
        self,
        pages: Callable[[int | None], AsyncIterator[list[RowDict]]],
        build_row: Callable[[RowDict], DatedRow],
        apply: Callable[[Mapping[str, Any]], None],
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._pages = pages
        self._build_row = build_row
        self._apply = apply
        self._now_ms = now_ms
        self._newest_ms: int | None = None
        # Of the last look that was made use of, None before the first.
        self.unseen: str | None = None

    @property
    def since_ms(self) -> int:
        """The time from which on the next read looks at rows, 0 before the first."""
        if self._newest_ms is None:
            return 0
        return max(0, min(self._newest_ms, self._now_ms()) - OVERLAP_MS)

    async def take(self, rows: Sequence[DatedRow] | None, unseen: str) -> None:
        """Use what a look has found; None: read the changes page by page.

        Raises:
            Exception: nothing is known of the look, so that the next one finds it again.
        """
        if rows is None:
            await self.read_changes()
        elif rows:
            self._newest_ms = max(self._newest_ms or 0, self._use(rows))
        self.unseen = unseen

    async def read_changes(self) -> None:
        """Read the changes once; a failed read leaves the watermark as it is."""
        since_ms = None if self._newest_ms is None else self.since_ms
        newest_ms = self._newest_ms or 0
        async for rows in self._pages(since_ms):
            newest_ms = max(newest_ms, self._use([self._build_row(row) for row in rows]))
        self._newest_ms = newest_ms

    def _use(self, rows: Sequence[DatedRow]) -> int:
        """Use rows; return the time of the newest one."""
        self._apply({did: known for did, known, _ in rows})
        return max((changed_ms for _, _, changed_ms in rows), default=0)


def _end(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


def _fail(waiting: asyncio.Future[None] | None, error: Exception) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_exception(error)
        waiting.exception()  # known, even if all who asked have left


class _Pace:
    """When to look next: some looks may follow each other at once, many have a rate."""

    def __init__(self) -> None:
        self._saved = float(LOOKS_SAVED_MAX)
        self._counted_s = -math.inf
        # When the last look began.
        self._looked_s = -math.inf

    def notice_pause_s(self) -> float:
        """Return how long to wait between a notice and its look."""
        now_s = asyncio.get_running_loop().time()
        return max(NOTICE_DELAY_S, self._looked_s + LOOK_PAUSE_S - now_s)

    async def wait_turn(self) -> None:
        """Wait until a look may begin, and count it."""
        self._count()
        if self._saved < 1:
            await asyncio.sleep((1 - self._saved) * LOOK_PAUSE_S)
            self._count()
        self._saved = max(0.0, self._saved - 1)
        self._looked_s = self._counted_s

    def _count(self) -> None:
        now_s = asyncio.get_running_loop().time()
        gained = (now_s - self._counted_s) / LOOK_PAUSE_S
        self._saved = min(float(LOOKS_SAVED_MAX), self._saved + gained)
        self._counted_s = now_s
