"""How an owner follows rows that carry the time of their change."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

import pytest

from actors.directory import directory_sync
from actors.directory.agent_directory import Directory
from actors.directory.directory_sync import HEARD_PAUSE_MS_MAX, DirectorySync, _Poll
from core.market.agent_liveness import HEARTBEAT_TTL_MS
from core.trust.deployment_keys import DeploymentKeys
from core.workflow.actions import SelectAgent
from core.workflow.events import AgentSelected
from ledger.reads.directory_tail import Look
from ledger.reads.reader import LedgerReader
from tests.conftest import Database
from tests.ledger.checking import connect
from tests.ledger.making import AGENT, card, open_store

pytestmark = pytest.mark.anyio

AT = 1_700_000_000_000
YEAR_MS = 365 * 86_400_000


async def test_row_dated_by_a_clock_that_was_ahead_hides_no_later_change() -> None:
    """Else no heartbeat is seen for a year, however often it is sent."""
    rows = {"did:test:first": AT + YEAR_MS}
    seen: list[str] = []

    async def read(since_ms: int | None) -> AsyncIterator[list[int]]:
        found = {did: at for did, at in rows.items() if since_ms is None or at >= since_ms}
        seen.extend(found)
        yield list(found.values())

    poll = _Poll(read, now_ms=lambda: AT)
    await poll.read_changes()
    rows["did:test:second"] = AT
    await poll.read_changes()
    assert "did:test:second" in seen


async def test_rows_are_read_when_a_look_at_them_differs_and_after_a_failed_read() -> None:
    reads: list[int | None] = []
    newest_ms = AT
    is_away = False

    async def read(since_ms: int | None) -> AsyncIterator[list[int]]:
        if is_away:
            raise ConnectionError
        reads.append(since_ms)
        yield [newest_ms]

    poll = _Poll(read, now_ms=lambda: AT)
    await poll.read_changes()
    await poll.read_if_new("one")
    assert len(reads) == 2, "its window has changed with the first read"
    await poll.read_if_new("one")
    assert len(reads) == 2
    is_away = True
    with pytest.raises(ConnectionError):
        await poll.read_if_new("two")
    is_away = False
    await poll.read_if_new("two")
    assert len(reads) == 3
    newest_ms = AT - 1
    await poll.read_if_new("two")
    assert len(reads) == 3


async def test_agents_are_not_offline_for_a_time_in_which_nobody_stored_their_heartbeats(
    database: Database,
) -> None:
    """Else all running work fails, for want of agents, when a service comes back after a minute."""
    capability = {"id": "cap.test.echo.v1", "price_cents": 1}
    store = await open_store(database.service_url)
    await store.commit([card(card_json=json.dumps({"capabilities": [capability]}))], AT)
    await store.close()
    with connect(database.superuser_url) as connection:
        connection.execute(
            "INSERT INTO agent_live (did, status, heartbeat_ms, updated_ms)"
            " VALUES (%s, 'healthy', %s, %s)",
            (AGENT, AT, AT),
        )
    directory = empty_directory()
    action = SelectAgent("a", "cap.test.echo.v1", None, False, (), 10**9)
    now_ms = AT + 10 * HEARTBEAT_TTL_MS
    async with LedgerReader(database.service_url, pool_size=1) as reader:
        sync = DirectorySync(
            directory,
            reader,
            database_url=database.service_url,
            owner="owner-1",
            on_revoked=lambda: None,
            now_ms=lambda: now_ms,
        )

        def is_chosen() -> bool:
            return isinstance(directory.select(action, now_ms), AgentSelected)

        await sync.start()
        assert is_chosen(), "the owner has listened for no time"
        silent_until_ms = now_ms + HEARTBEAT_TTL_MS
        while now_ms <= silent_until_ms:
            now_ms += HEARD_PAUSE_MS_MAX
            await sync.refresh()
        assert not is_chosen(), "it has listened for the time of a heartbeat"
        now_ms += 2 * HEARTBEAT_TTL_MS
        await sync.refresh()
        assert is_chosen(), "the database was away"
        await sync.close()


PATIENCE_S = 60.0


async def test_a_refresh_under_way_has_given_its_connection_back_when_the_sync_is_closed(
    database: Database,
) -> None:
    """Its reader was closed meanwhile, and the connection was open until it was collected."""
    async with LedgerReader(database.service_url, pool_size=1) as reader:
        sync = DirectorySync(
            empty_directory(),
            reader,
            database_url=database.service_url,
            owner="owner-1",
            on_revoked=lambda: None,
            now_ms=lambda: AT,
        )
        await sync.start()
        with connect(database.superuser_url) as connection:
            connection.autocommit = False
            connection.execute("LOCK TABLE agent IN ACCESS EXCLUSIVE MODE")
            refresh = asyncio.create_task(sync.refresh())
            async with asyncio.timeout(PATIENCE_S):
                while "Checked out connections: 1" not in repr(reader):
                    await asyncio.sleep(0)
            await sync.close()
            assert "Checked out connections: 0" in repr(reader)
            with pytest.raises(ConnectionError):
                await refresh


def empty_directory() -> Directory:
    """Return the directory of an owner that knows no agent yet."""
    return Directory(
        service="callboard",
        deployment_keys=DeploymentKeys(),
        default_secret=None,
        max_concurrency=1,
    )


class Tail:
    """Stands for looks at the ledger: those that a test puts."""

    def __init__(self) -> None:
        self.entered = 0
        self._looks: asyncio.Queue[Look] = asyncio.Queue()
        self._is_waiting = asyncio.Event()

    def __call__(self, *_: object) -> Self:
        """Be entered anew, as a tail that is made."""
        return self

    async def __aenter__(self) -> Self:
        self.entered += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_waiting.set()

    async def __aiter__(self) -> AsyncIterator[Look]:
        while True:
            self._is_waiting.set()
            yield await self._looks.get()

    async def look(self, number: int, *, is_new: bool = False) -> None:
        """Let the rows be looked at; return when what is read after it has been."""
        await self._is_waiting.wait()
        self._is_waiting.clear()
        marks = (f"live {number}", f"reputation {number}", f"stake {number}")
        self._looks.put_nowait(Look(number, is_new, marks))
        await self._is_waiting.wait()


class Feeds:
    """Stands for the reads of an owner: counts them, and one of them fails."""

    NAMES = ("directory_changes", "revocation_changes", "price_changes", "version_changes")
    PAGES = ("live_pages", "reputation_pages", "stake_pages")

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.read: list[str] = []
        self.failing = ""
        # What is read by each name, by default nothing.
        self.rows: dict[str, Sequence[object]] = {}
        for name in self.NAMES:
            patch.setattr(directory_sync, name, self._changes(name))
        for name in self.PAGES:
            patch.setattr(directory_sync, name, self._pages(name))
        patch.setattr(directory_sync, "directory_pages", self._pages("directory_pages"))

        async def newest_change(_: object) -> int:
            return 0

        patch.setattr(directory_sync, "newest_change", newest_change)

    def _note(self, name: str) -> None:
        if name == self.failing:
            raise ValueError("a row that cannot be read")
        self.read.append(name)

    def _changes(self, name: str) -> Any:
        async def changes(_: object, *, after: int) -> Sequence[object]:
            self._note(name)
            return self.rows.get(name, ())

        return changes

    def _pages(self, name: str) -> Any:
        async def pages(_: object, *, since_ms: int | None = None) -> AsyncIterator[list[object]]:
            self._note(name)
            yield []

        return pages


@pytest.mark.parametrize("failing", [*Feeds.NAMES, *Feeds.PAGES])
async def test_a_read_that_fails_is_repeated_and_takes_no_other_with_it(
    monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """It ended the subscription, each half second anew, and what followed it was not read."""
    feeds, tail = Feeds(monkeypatch), Tail()
    monkeypatch.setattr(directory_sync, "DirectoryTail", tail)
    directory = empty_directory()
    sync = DirectorySync(
        directory, Any, database_url="", owner="o", on_revoked=lambda: None, now_ms=lambda: AT
    )  # type: ignore[arg-type]
    async with asyncio.timeout(PATIENCE_S):
        await sync.start()
        await tail.look(1)
        feeds.read.clear()
        feeds.failing = failing
        await tail.look(2, is_new=True)
        assert {"reputation_pages", "stake_pages", "live_pages"} - {failing} <= {*feeds.read}
        feeds.failing = ""
        feeds.read.clear()
        await tail.look(2)
        assert failing in feeds.read
        feeds.read.clear()
        await tail.look(2)
        assert not feeds.read
        assert tail.entered == 1
        await sync.close()


async def test_agents_that_cannot_be_heard_of_get_time_when_they_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Looks that find heartbeats, but cannot read them, do not count as having heard of any."""
    feeds, tail = Feeds(monkeypatch), Tail()
    monkeypatch.setattr(directory_sync, "DirectoryTail", tail)
    heard_from: list[int] = []
    directory = empty_directory()
    monkeypatch.setattr(directory, "count_silence_from", heard_from.append)
    now_ms = AT
    sync = DirectorySync(
        directory, Any, database_url="", owner="o", on_revoked=lambda: None, now_ms=lambda: now_ms
    )  # type: ignore[arg-type]
    async with asyncio.timeout(PATIENCE_S):
        await sync.start()
        await tail.look(1)
        assert heard_from == [AT]
        feeds.failing = "live_pages"
        for number in range(3):
            now_ms += HEARD_PAUSE_MS_MAX - 1
            await tail.look(2 + number)
        assert heard_from == [AT]
        feeds.failing = ""
        await tail.look(5)
        assert heard_from == [AT, now_ms]
        await sync.close()


async def test_work_of_the_revoked_is_ended_when_all_that_may_take_it_over_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An agent that was registered with the revocation was not known yet, and workflows failed."""
    feeds, tail = Feeds(monkeypatch), Tail()
    monkeypatch.setattr(directory_sync, "DirectoryTail", tail)
    sync = DirectorySync(
        empty_directory(),
        Any,  # type: ignore[arg-type]
        database_url="",
        owner="o",
        on_revoked=lambda: feeds.read.append("on_revoked"),
        now_ms=lambda: AT,
    )
    async with asyncio.timeout(PATIENCE_S):
        await sync.start()
        await tail.look(1)
        feeds.read.clear()
        revoked = {"did": AGENT, "expires_ms": None, "ended_ms": None, "changed_id": 1}
        feeds.rows["revocation_changes"] = [revoked]
        await sync.refresh()
        assert feeds.read[0] == "revocation_changes"
        assert feeds.read[-1] == "on_revoked"
        assert {"directory_changes", "price_changes", "stake_pages"} <= {*feeds.read[1:-1]}
        await sync.close()
