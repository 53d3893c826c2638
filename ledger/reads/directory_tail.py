"""What has changed of what owners keep: looks at the ledger, and notices that it is time to look.

A look is one statement: it says which kinds of rows have changed since an earlier look. Notices
arrive on a connection of their own. Where they do not arrive (poolers), or the connection was
away, the follower looks twice a second anyway. Decisions postgres and agent-health-and-waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, Final

import psycopg

from ledger.agents.directory_reads import LIVE, LOOK, NOTHING_SEEN, SINCE_LIVE, Kept, Since
from ledger.connections.connecting import connect
from ledger.reads.prepared import PreparedReads
from ledger.reads.stored import RowDict
from ledger.schema import READER_ROLE, driver_url, session_options

CHANNEL: Final = "callboard_directory"
LOOK_TIMEOUT_S: Final = 5.0
RECONNECT_S: Final = 0.5


class Look:
    """What one look has found."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self._row = row

    def has_changed(self, kind: Kept) -> bool:
        """Say whether rows of a kind have changed since the earlier look."""
        return bool(self._row[kind.name])

    def since(self, kind: Kept) -> Since:
        """Return what this look has seen of a kind, for a later look."""
        if kind is not LIVE:
            return {kind.name: self._row["audit_seq"]}
        seen = (self._row["now_ms"], self._row["session"], self._row["unseen"])
        return dict(zip(SINCE_LIVE, seen, strict=True))


class DirectoryTail:
    """Two connections, opened when first needed and again after they were lost.

    For one task, which looks or waits for a notice; others may only `wake` it.

    Args:
        url: `postgresql://…` of a login that is a member of `ledger_reader`.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._reads = PreparedReads(url, timeout_s=LOOK_TIMEOUT_S)
        # Set by a notice, and by a `wake`, since the last look began.
        self._noticed = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"DirectoryTail({self._reads!r}, is_noticed={self.is_noticed})"

    @property
    def is_noticed(self) -> bool:
        """Whether there is a reason to look."""
        return self._noticed.is_set()

    async def close(self) -> None:
        """Close the connections."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
        await self._reads.close()

    async def look(self, since: Since) -> Look:
        """Return what has changed.

        Args:
            since: what was seen before; kinds that are not in it have not been seen at all.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
        """
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen())
        # What is noticed from here on may have been committed after the look.
        self._noticed.clear()
        (row,) = await self._reads.rows(LOOK, {**NOTHING_SEEN, **since})
        return Look(row)

    def pages(self, kind: Kept, since: Since | None) -> AsyncIterator[list[RowDict]]:
        """Yield the rows of a kind that have changed, None: all of them (`Kept.pages`)."""
        return kind.pages(self._reads, since)

    async def wait_notice(self, timeout_s: float) -> None:
        """Return after a notice that came since the last look began, a `wake`, or the timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._noticed.wait()

    def wake(self) -> None:
        """Let who waits for a notice wait no longer."""
        self._noticed.set()

    async def _listen(self) -> None:
        """Note each notice until cancelled, and after each connect that some may be missed."""
        while True:
            with suppress(psycopg.Error):  # looks say that the database is away
                async with await connect(
                    driver_url(self._url),
                    options=session_options(READER_ROLE),
                    application_name="callboard-tail",
                ) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    self.wake()
                    async for _ in connection.notifies():
                        self.wake()
            self.wake()
            await asyncio.sleep(RECONNECT_S)
