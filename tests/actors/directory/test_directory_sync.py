"""How an owner follows rows that carry the time of their change."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import pytest

from actors.directory import directory_sync
from actors.directory.agent_directory import Directory
from actors.directory.directory_sync import (
    HEARD_PAUSE_MS_MAX,
    OVERLAP_MS,
    DirectorySync,
    _Dated,
)
from core.errors import ErrorCode, ServiceError
from core.market.agent_liveness import HEARTBEAT_TTL_MS, Liveness
from core.market.reputation import Tally
from core.trust.deployment_keys import DeploymentKeys
from core.workflow.actions import SelectAgent
from core.workflow.events import AgentSelected
from ledger.reads.directory_tail import CHAINED, DATED, Asked, DatedRow, DirectoryTail, Look
from ledger.reads.reader import LedgerReader
from ledger.reads.stored import RowDict
from tests.conftest import Database
from tests.ledger.checking import connect
from tests.ledger.making import AGENT, card, open_store

pytestmark = pytest.mark.anyio

AT = 1_700_000_000_000
YEAR_MS = 365 * 86_400_000


def as_found(row: RowDict) -> DatedRow:
    """Return a row of a page as a look finds it."""
    return row["did"], row["updated_ms"], row["updated_ms"]


async def test_row_dated_by_a_clock_that_was_ahead_hides_no_later_change() -> None:
    """Else no heartbeat is seen for a year, however often it is sent."""
    rows = {"did:test:first": AT + YEAR_MS}
    seen: list[str] = []

    async def pages(since_ms: int | None) -> AsyncIterator[list[RowDict]]:
        yield [
            {"did": did, "updated_ms": at}
            for did, at in rows.items()
            if since_ms is None or at >= since_ms
        ]

    dated = _Dated(pages, as_found, seen.extend, lambda: AT)
    await dated.read_changes()
    rows["did:test:second"] = AT
    await dated.read_changes()
    assert "did:test:second" in seen


async def test_what_a_look_has_found_is_used_or_found_again() -> None:
    used: list[int] = []
    pages_read: list[int | None] = []

    async def pages(since_ms: int | None) -> AsyncIterator[list[RowDict]]:
        pages_read.append(since_ms)
        yield [{"did": AGENT, "updated_ms": AT}]

    def use(known: Mapping[str, int]) -> None:
        used.extend(100 // one for one in known.values())

    dated = _Dated(pages, as_found, use, lambda: AT)
    await dated.read_changes()
    assert (dated.since_ms, dated.unseen) == (AT - OVERLAP_MS, None)
    await dated.take([(AGENT, AT, AT)], "5")
    assert dated.unseen == "5"
    with pytest.raises(ZeroDivisionError):
        await dated.take([(AGENT, 0, AT)], "6")
    assert dated.unseen == "5"
    await dated.take(None, "7")
    assert pages_read == [None, AT - OVERLAP_MS], "too many for one look"
    assert dated.unseen == "7"


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
            tail=DirectoryTail(database.service_url),
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


async def test_a_refresh_under_way_has_ended_when_the_sync_is_closed(database: Database) -> None:
    """Its connection was open until it was collected."""
    tail = DirectoryTail(database.service_url)
    async with LedgerReader(database.service_url, pool_size=1) as reader:
        sync = DirectorySync(
            empty_directory(), reader, tail=tail, owner="o", on_revoked=lambda: None,
            now_ms=lambda: AT,
        )  # fmt: skip
        await sync.start()
        with connect(database.superuser_url) as connection:
            connection.autocommit = False
            connection.execute("LOCK TABLE agent IN ACCESS EXCLUSIVE MODE")
            refresh = asyncio.create_task(sync.refresh())
            async with asyncio.timeout(PATIENCE_S):
                while not connection.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone():
                    await asyncio.sleep(0)
            await sync.close()
            assert "is_open=False" in repr(tail)
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
    """Stands for looks at the ledger: a test says what they find."""

    def __init__(self) -> None:
        self.found: dict[str, list[Any]] = {}
        self.looks = 0
        self.is_away = False
        self.notice = asyncio.Event()

    async def look(self, asked: Asked) -> Look:
        """Return what the test says, until it was made use of."""
        if self.is_away:
            raise ServiceError(ErrorCode.LEDGER_UNAVAILABLE, "away")
        self.looks += 1
        chained = tuple(
            [row for row in self.found.get(name, ()) if row["changed_id"] > known]
            for name, known in zip(CHAINED, asked.after, strict=True)
        )
        dated = tuple(
            self.found.get(name, []) if unseen != "all" else []
            for name, unseen in zip(DATED, asked.unseen, strict=True)
        )
        return Look(chained, dated, "all")

    async def wait_notice(self, timeout_s: float) -> None:
        """Return when the test has something to say."""
        await self.notice.wait()
        self.notice.clear()

    def wake(self) -> None:
        """Let who waits for a notice wait no longer."""
        self.notice.set()

    async def close(self) -> None:
        """Do nothing."""


FOUND: Final[dict[str, Any]] = {
    "agents": {"did": AGENT, "status": "inactive", "changed_id": 1},
    "prices": {"capability_id": "c", "price_cents": 1, "changed_id": 1},
    "versions": {
        "capability_id": "c", "version": "1.0.0", "status": "active", "changed_id": 1,
    },
    "revocations": {"did": AGENT, "expires_ms": None, "ended_ms": None, "changed_id": 1},
    "live": (AGENT, Liveness("healthy", 0.1, AT), AT),
    "reputations": (AGENT, Tally(1, 0, 0, 1), AT),
    "stakes": (AGENT, (1, 0), AT),
}  # fmt: skip
# Where a directory takes them in.
TAKEN: Final = {
    "agents": "put",
    "prices": "apply_prices",
    "versions": "published.apply_rows",
    "revocations": "revocations.apply_rows",
    "live": "apply_liveness",
    "reputations": "standings.apply_tallies",
    "stakes": "stakes.apply_parts",
}


class Taking:
    """Stands for a directory: counts what it is given, and refuses one kind of it."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.failing = ""
        self.heard_from: list[int] = []
        for name, path in TAKEN.items():
            *inside, method = path.split(".")
            where: Any = self
            for part in inside:
                where = self.__dict__.setdefault(part, SimpleNamespace())
            setattr(where, method, partial(self._take, name))

    def _take(self, name: str, rows: Sequence[RowDict], *, at_ms: int = 0) -> None:
        if name == self.failing:
            raise ValueError("a row that cannot be read")
        if rows:
            self.taken.append(name)

    def forget_departed(self, at_ms: int) -> None:
        """There is nothing to forget."""

    def count_silence_from(self, at_ms: int) -> None:
        """Note it."""
        self.heard_from.append(at_ms)


def sync_of(directory: Any, tail: Any, now_ms: Callable[[], int] = lambda: AT) -> DirectorySync:
    """Return a sync of a directory that has been filled."""
    made = DirectorySync(
        directory, Any, tail=tail, owner="o", on_revoked=lambda: None, now_ms=now_ms
    )  # type: ignore[arg-type]
    made._following = asyncio.create_task(made._follow())
    return made


@pytest.mark.parametrize("failing", FOUND)
async def test_what_cannot_be_used_is_found_again_and_takes_nothing_else_with_it(
    failing: str,
) -> None:
    """It ended the subscription, each half second anew, and what followed it was not read."""
    tail, directory = Tail(), Taking()
    tail.found = {name: [row] for name, row in FOUND.items()}
    directory.failing = failing
    async with asyncio.timeout(PATIENCE_S):
        sync = sync_of(directory, tail)
        with pytest.raises(ValueError, match="cannot be read"):
            await sync.refresh()
        assert sorted(directory.taken) == sorted({*FOUND} - {failing})
        directory.failing = ""
        directory.taken.clear()
        await sync.refresh()
        assert directory.taken == [failing]
        await sync.refresh()
        assert directory.taken == [failing]
        await sync.close()


async def test_a_notice_is_followed_also_after_the_ledger_was_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(directory_sync, "RETRY_S", 0.0)
    tail, directory = Tail(), Taking()
    tail.found = {"live": [FOUND["live"]]}
    tail.is_away = True
    async with asyncio.timeout(PATIENCE_S):
        sync = sync_of(directory, tail)
        tail.notice.set()
        while tail.notice.is_set():
            await asyncio.sleep(0)
        tail.is_away = False
        while not directory.taken:
            tail.notice.set()
            await asyncio.sleep(0.001)
        await sync.close()


async def test_looks_have_a_pace_and_requests_meanwhile_share_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand changes a second would cost each owner a look for each of them."""
    monkeypatch.setattr(directory_sync, "LOOKS_SAVED_MAX", 2)
    tail = Tail()
    async with asyncio.timeout(PATIENCE_S):
        sync = sync_of(Taking(), tail)
        for _ in range(2):
            await sync.refresh()
        began_s = asyncio.get_running_loop().time()
        await asyncio.gather(*(sync.refresh() for _ in range(100)))
        await asyncio.gather(*(sync.refresh() for _ in range(100)))
        assert tail.looks <= 2 + 4
        took_s = asyncio.get_running_loop().time() - began_s
        assert took_s >= directory_sync.LOOK_PAUSE_S, "not a speed: it waits at least so long"
        await sync.close()


async def test_agents_that_cannot_be_heard_of_get_time_when_they_can() -> None:
    """Looks that find heartbeats, but cannot use them, do not count as having heard of any."""
    tail, directory = Tail(), Taking()
    now_ms = AT
    async with asyncio.timeout(PATIENCE_S):
        sync = sync_of(directory, tail, lambda: now_ms)
        await sync.refresh()
        assert directory.heard_from == [AT]
        directory.failing = "live"
        for number in range(3):
            now_ms += HEARD_PAUSE_MS_MAX - 1
            with pytest.raises(ValueError, match="cannot be read"):
                await sync._hear([FOUND["live"]], str(number))
        assert directory.heard_from == [AT]
        directory.failing = ""
        await sync.refresh()
        assert directory.heard_from == [AT, now_ms]
        await sync.close()


async def test_work_of_the_revoked_is_ended_when_all_that_may_take_it_over_is_known() -> None:
    """An agent that was registered with the revocation was not known yet, and workflows failed."""
    tail, directory = Tail(), Taking()
    tail.found = {name: [row] for name, row in FOUND.items()}
    async with asyncio.timeout(PATIENCE_S):
        sync = sync_of(directory, tail)
        await sync.refresh()
        assert sorted(directory.taken) == sorted(FOUND)
        assert directory.taken[-1] == "revocations"
        await sync.close()
