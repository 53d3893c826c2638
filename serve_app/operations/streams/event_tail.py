"""The open event streams of a replica. Each stream sends its audit entries once and in order.

Theory of operation: while a stream is open, one task of the replica reads the new audit entries for
all streams every 200 ms, and caches the last pages. A stream stores only its position in the log.
The stream takes its next entries from the cached page that covers its position. If that page was
dropped, or was read before the stream was opened, the stream reads its entries from the database.
So a slow client uses no memory of the replica and delays no other client.
Reference: features.md (Streams).
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from core.errors import ServiceError
from ledger.features.audit_log import entry_text, newest_entry_id
from ledger.reads.event_entries import END_EVENTS, PAGE_ENTRIES, RequestedEntries, entries_between
from ledger.reads.reader import LedgerReader
from ledger.reads.stored import RowDict

POLL_S: Final = 0.2
# The wait after a failed read.
AWAY_S: Final = 1.0
COMMENT_S: Final = 15.0
# The most cached pages. A page has at most 256 KiB of entries, or one larger entry.
PAGES_MAX: Final = 32
# If more entries than this are new, the task skips them, and each stream reads its own entries.
BEHIND_MAX: Final = 10 * PAGE_ENTRIES
# The most streams that read from the database at the same time. Most connections to the database
# stay available for other reads.
READING_MAX: Final = 2
# The head has the id of the position at which the stream begins. A client that reconnects before
# its first event resumes there.
_HEAD: Final = b": callboard\nretry: 1000\nid: %d\n\n"
_COMMENT: Final = b":\n\n"

_LOG = logging.getLogger("callboard.api")


class _Page(NamedTuple):
    """The entries from `after` + 1 to `position` that streams with `asked` may show.

    `entries`: the rows by `EventStream.key`; under None all rows.
    """

    after: int
    position: int
    asked: frozenset[RequestedEntries]
    entries: Mapping[str | None, list[RowDict]]


class EventTail:
    """Follows the audit log for the open streams of one replica.

    Args:
        reader: returns the reader of the ledger's rows.
    """

    def __init__(self, reader: Callable[[], LedgerReader]) -> None:
        self.reader = reader
        # A stream acquires this semaphore while it reads from the database.
        self._reading = asyncio.Semaphore(READING_MAX)
        self._position = 0
        # The streams for which the task reads new entries.
        self.streams: set[EventStream] = set()
        self.is_stopped = False
        self._pages = deque[_Page](maxlen=PAGES_MAX)
        self._following: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """End all streams, including streams that are opened later."""
        self.is_stopped = True
        for stream in self.streams:
            stream.ready.set()

    async def next_of(self, stream: EventStream, until_s: float) -> tuple[list[RowDict], int]:
        """Return a stream's next entries, and the id of the entry up to which the log was read.

        Without new entries, wait until new entries may exist, at most until `until_s`. Then return
        no entries, so that the caller calls again.

        Args:
            stream: the stream.
            until_s: the time at which the wait ends, on the event loop's clock.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE, OVERLOADED.
        """
        for page in self._pages:
            if page.after <= stream.after < page.position and stream.asked in page.asked:
                return page.entries.get(stream.key, []), page.position
        if stream.after < self._position:
            async with self._reading:
                mine, last = {stream.asked}, self._position
                return await entries_between(self.reader(), stream.after, last, mine)
        stream.ready.clear()
        self.streams.add(stream)
        if self._following is None or self._following.done():
            self._following = asyncio.create_task(self._follow())
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until_s):
                await stream.ready.wait()
        return [], stream.after

    async def _follow(self) -> None:
        while self.streams:
            try:
                has_more = await self._read()
            except ServiceError as error:
                _LOG.warning("events are not read code=%s: %s", error.code, error.detail)
                has_more = await asyncio.sleep(AWAY_S, result=False)
            if not has_more:
                await asyncio.sleep(POLL_S)
        self._pages.clear()

    async def _read(self) -> bool:
        """Cache a page of new entries and wake their streams. Return whether more entries exist."""
        newest, after = await newest_entry_id(self.reader()), self._position
        if newest <= after:
            return False
        is_near = newest - after <= BEHIND_MAX
        asked = frozenset(stream.asked for stream in self.streams if is_near)
        rows, self._position = await entries_between(self.reader(), after, newest, asked)
        entries = defaultdict[str | None, list[RowDict]](list)
        for row in rows:
            for key in {None, row["workflow_id"], *row["parties"]}:
                entries[key].append(row)
        self._pages.append(_Page(after, self._position, asked, entries))
        for stream in self.streams:
            if stream.key in entries or stream.asked not in asked:
                stream.ready.set()
        return self._position < newest


@dataclass(eq=False, kw_only=True)
class EventStream:
    """One open stream.

    Attributes:
        tail: the replica's `EventTail`.
        after: the id of the last entry that the stream has read; at first, the id after which the
            stream begins.
        is_permitted: returns whether the caller's credential is still valid.
        asked: the workflow or the party whose entries the stream shows. With a workflow, the stream
            ends when the workflow ends.
        types: only entries with an event of one of these types are shown; None: all types.
        workflow_id: only entries of this workflow are shown; None: all entries.
        ready: set when new entries for the stream may exist, or the replica stops.
    """

    tail: EventTail
    after: int
    is_permitted: Callable[[], Awaitable[bool]]
    asked: RequestedEntries
    types: frozenset[str] | None = None
    workflow_id: str | None = None
    ready: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    @property
    def key(self) -> str | None:
        """The key of the stream's entries in a page: a workflow's id, a party's DID, or None."""
        return self.asked.workflow_id or self.asked.party

    async def sent(self) -> AsyncGenerator[bytes, None]:
        """Yield the head, then events. Yield a comment if nothing was sent for `COMMENT_S`.

        The generator ends when the workflow ends, the credential ends, or the replica stops.
        """
        yield _HEAD % self.after
        clock = asyncio.get_running_loop().time
        sent_s = clock()
        ends: list[int] = []
        try:
            while not ends and not self.tail.is_stopped:
                rows, position = await self.tail.next_of(self, sent_s + COMMENT_S)
                ends = [number for number, row in enumerate(rows, 1) if self._ends_with(row)]
                frames = b"".join(map(self._frame, rows[: ends[0] if ends else None]))
                self.after = position
                if frames or clock() >= sent_s + COMMENT_S:
                    if not await self.is_permitted():
                        return
                    yield frames or _COMMENT
                    sent_s = clock()
        finally:
            self.tail.streams.discard(self)

    def _frame(self, row: RowDict) -> bytes:
        """Return an entry as a server-sent event; empty if the stream does not show the entry.

        Agents may not see the entry of a workflow's end. They get only its id as the last event.
        """
        is_shown = (
            row["id"] > self.after
            and self.asked.party in (None, *row["parties"])
            and self.workflow_id in (None, row["workflow_id"])
            and (self.types is None or not self.types.isdisjoint(row["event_types"]))
        )
        if not is_shown:
            return b"id: %d\n\n" % row["id"] if self._ends_with(row) else b""
        if "frame" not in row:  # The frame is made once for all streams.
            head = f"id: {row['id']}\nevent: {row['event_types'][0]}\ndata: "
            row["frame"] = f"{head}{entry_text(row)}\n\n".encode()
        frame: bytes = row["frame"]
        return frame

    def _ends_with(self, row: RowDict) -> bool:
        is_own = self.asked.workflow_id == row["workflow_id"]
        return is_own and not END_EVENTS.isdisjoint(row["event_types"])
