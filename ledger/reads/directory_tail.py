"""What has changed of what owners know, by one small statement: for caches to read what is new.

Listens on a connection of its own for notices of cards, prices and revocations, and looks every
500 ms as well, so that it works where LISTEN does not (poolers) and misses nothing over a
reconnect. The same look says whether the rows without notices, heartbeats, reputations and stakes,
have changed since the last: an idle owner reads nothing else. A look says "something changed", not
what. design.md section 3 (Events). Decision 0194.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, NamedTuple, Self

import psycopg

from ledger.agents.directory_reads import DIRECTORY_EVENTS
from ledger.connections.connecting import connect
from ledger.connections.timeouts import cut_after
from ledger.schema import READER_ROLE, driver_url, session_options

CHANNEL: Final = "callboard_directory"
POLL_S: Final = 0.5
RECONNECT_S: Final = 0.5
LOOK_TIMEOUT_S: Final = 5.0
# The tables whose rows carry the time of their change.
DATED: Final = ("agent_live", "reputation", "stake")

_EVENTS: Final = [event.value for event in DIRECTORY_EVENTS]
# One index look-up per event type.
_LATEST: Final = (
    "SELECT coalesce(max(latest), 0) FROM unnest(%(events)s::text[]) AS kind, LATERAL ("
    " SELECT max(audit_id) AS latest FROM callboard.audit_event WHERE event_type = kind) AS found"
)
# Any row that is added or written anew changes it, also one that is dated before others.
_MARK: Final = (
    "(SELECT count(*) || ' ' || coalesce(sum(t.xmin::text::bigint), 0) FROM callboard.{table} t"
    " WHERE t.updated_ms >= (%(since)s::bigint[])[{place}])"
)
_MARKS: Final = ", ".join(
    _MARK.format(table=table, place=place) for place, table in enumerate(DATED, 1)
)
_LOOK: Final = f"SELECT ({_LATEST}), ARRAY[{_MARKS}]"


class Look(NamedTuple):
    """What one look has found.

    Attributes:
        audit_id: of the newest change of a card, a price or a revocation.
        is_new: whether it came after the look before.
        marks: for each of `DATED` a text that differs when rows of its window have changed.
    """

    audit_id: int
    is_new: bool
    marks: tuple[str, ...]


_log = logging.getLogger("callboard.ledger")


class DirectoryTail:
    """`async with DirectoryTail(url, since) as tail: async for look in tail: …`; it never ends."""

    def __init__(
        self, url: str, since: Callable[[], Sequence[int]], *, poll_s: float = POLL_S
    ) -> None:
        """Make it; the connection is opened on entering.

        Args:
            url: `postgresql://…` of a login that is a member of `ledger_reader`.
            since: for each of `DATED`, from which time on rows are looked at, Unix milliseconds.
            poll_s: seconds between looks when no notice comes.
        """
        self._url = url
        self._since = since
        self._poll_s = poll_s
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._seen = 0
        self.reconnects = 0

    def __repr__(self) -> str:
        return f"DirectoryTail(seen={self._seen}, reconnects={self.reconnects})"

    async def __aenter__(self) -> Self:
        try:
            self._connection = await self._connect()
            self._seen = (await self._look(self._connection)).audit_id
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

    async def __aiter__(self) -> AsyncIterator[Look]:
        while True:
            try:
                if self._connection is None:
                    self._connection = await self._connect()
                    self.reconnects += 1
                else:
                    await self._wait(self._connection)
                look = await self._look(self._connection)
            except psycopg.Error as error:
                _log.warning("directory notices lost: %s", str(error).strip())
                await self._drop()
                await asyncio.sleep(RECONNECT_S)
                continue
            self._seen = max(self._seen, look.audit_id)
            yield look

    async def _wait(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Return after a notice or one polling interval."""
        async for _ in connection.notifies(timeout=self._poll_s, stop_after=1):
            return

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

    async def _look(self, connection: psycopg.AsyncConnection[Any]) -> Look:
        values = {"events": _EVENTS, "since": list(self._since())}
        with cut_after(connection, LOOK_TIMEOUT_S):
            cursor = await connection.execute(_LOOK, values, prepare=True)
            row = await cursor.fetchone()
        assert row is not None
        return Look(row[0], row[0] > self._seen, tuple(row[1]))

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
