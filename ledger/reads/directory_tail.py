"""Notices that cards, prices or revocations have changed: audit ids, for caches to refresh on.

Listens on a connection of its own and looks every 500 ms as well, so that it works where LISTEN
does not (poolers) and misses nothing over a reconnect. A notice says "something up to this id
changed", not what. design.md section 3 (Events).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, Final, Self

import psycopg

from ledger.agents.directory_reads import DIRECTORY_EVENTS
from ledger.connections.connecting import connect
from ledger.schema import READER_ROLE, driver_url, session_options

CHANNEL: Final = "callboard_directory"
POLL_S: Final = 0.5
RECONNECT_S: Final = 0.5

_EVENTS: Final = [event.value for event in DIRECTORY_EVENTS]
# One index look-up per event type.
_LATEST: Final = (
    "SELECT coalesce(max(latest), 0) FROM unnest(%s::text[]) AS kind, LATERAL ("
    " SELECT max(audit_id) AS latest FROM callboard.audit_event WHERE event_type = kind) AS found"
)

_log = logging.getLogger("callboard.ledger")


class DirectoryTail:
    """`async with DirectoryTail(url) as tail: async for audit_id in tail: …`; it never ends."""

    def __init__(self, url: str, *, poll_s: float = POLL_S) -> None:
        """Make it; the connection is opened on entering.

        Args:
            url: `postgresql://…` of a login that is a member of `ledger_reader`.
            poll_s: seconds between looks when no notice comes.
        """
        self._url = url
        self._poll_s = poll_s
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._seen = 0
        self.reconnects = 0

    def __repr__(self) -> str:
        return f"DirectoryTail(seen={self._seen}, reconnects={self.reconnects})"

    async def __aenter__(self) -> Self:
        try:
            self._connection = await self._connect()
            self._seen = await self._latest(self._connection)
        except psycopg.Error as error:
            # Not reachable yet: the iterator goes on trying.
            _log.warning("directory notices: %s", str(error).strip())
            await self._drop()
        except BaseException:
            await self._drop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._drop()

    async def __aiter__(self) -> AsyncIterator[int]:
        while True:
            try:
                if self._connection is None:
                    self._connection = await self._connect()
                    self.reconnects += 1
                latest = await self._wait_change(self._connection)
            except psycopg.Error as error:
                _log.warning("directory notices lost: %s", str(error).strip())
                await self._drop()
                await asyncio.sleep(RECONNECT_S)
                continue
            if latest > self._seen:
                self._seen = latest
                yield latest

    async def _wait_change(self, connection: psycopg.AsyncConnection[Any]) -> int:
        """Return the newest id of a change, after a notice or one polling interval."""
        async for notice in connection.notifies(timeout=self._poll_s, stop_after=1):
            if notice.payload.isdecimal():
                return int(notice.payload)
        return await self._latest(connection)

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        connection = await connect(
            driver_url(self._url),
            options=session_options(READER_ROLE),
            application_name="callboard-tail",
        )
        try:
            await connection.execute(f"LISTEN {CHANNEL}")
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _latest(self, connection: psycopg.AsyncConnection[Any]) -> int:
        cursor = await connection.execute(_LATEST, (_EVENTS,))
        row = await cursor.fetchone()
        assert row is not None
        return int(row[0])

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
