"""How an owner keeps its directory in sync with the ledger."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import pytest
from msgspec.structs import asdict

from actors.directory import directory_sync
from actors.directory.agent_directory import Directory
from actors.directory.directory_sync import HEARD_PAUSE_MS_MAX, DirectorySync
from core.errors import ErrorCode, ServiceError
from core.market.agent_liveness import HEARTBEAT_TTL_MS, Liveness
from core.market.reputation import Tally
from core.trust.deployment_keys import DeploymentKeys
from core.workflow.actions import SelectAgent
from core.workflow.events import AgentSelected
from ledger.features.directory import KINDS, LIVE, DirectoryChanges, DirectoryTail, Kept, Since
from ledger.reads.stored import RowDict
from tests.conftest import Database
from tests.ledger.checking import connect
from tests.ledger.making import AGENT, card, open_store
from tests.platform.waiting import until

AT = 1_700_000_000_000


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
    sync = DirectorySync(
        directory,
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
    sync = DirectorySync(
        empty_directory(), tail=tail, owner="o", on_revoked=lambda: None, now_ms=lambda: AT
    )
    await sync.start()
    with connect(database.superuser_url) as connection:
        connection.autocommit = False
        connection.execute("LOCK TABLE agent IN ACCESS EXCLUSIVE MODE")
        refresh = asyncio.create_task(sync.refresh())
        await until(
            lambda: connection.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone()
        )
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


class Found(DirectoryChanges):
    """A look that has found what a test says."""

    def __init__(self, rows: Mapping[str, Sequence[RowDict]], look: int) -> None:
        super().__init__({name: bool(found) for name, found in rows.items()} | SEEN)
        self._look = look

    def since(self, kind: Kept) -> Since:
        """Return the number of the look."""
        return {kind.name: self._look}


SEEN: Final = {"audit_seq": 1, "now_ms": AT, "session": "", "unseen": "3"}


class Tail:
    """Stands for looks at the ledger: a test says what they find until it was made use of."""

    def __init__(self) -> None:
        self.found: dict[str, list[RowDict]] = {}
        self.looks = 0
        self.is_away = False
        self.notice = asyncio.Event()

    async def poll(self, since: Since) -> DirectoryChanges:
        """Return what the test says, until it was made use of."""
        if self.is_away:
            raise ServiceError(ErrorCode.LEDGER_UNAVAILABLE, "away")
        self.looks += 1
        rows = {kind.name: self._rows(kind, since.get(kind.name, 0)) for kind in KINDS}
        return Found(rows, self.looks)

    async def pages(self, kind: Kept, since: Since | None) -> AsyncIterator[list[RowDict]]:
        """Yield what the test says."""
        rows = self._rows(kind, (since or {}).get(kind.name, 0))
        if rows:
            yield rows

    def _rows(self, kind: Kept, look: int | str) -> list[RowDict]:
        return [] if look else self.found.get(kind.name, [])

    async def wait_notice(self, timeout_s: float) -> None:
        """Return when the test has something to say."""
        await self.notice.wait()
        self.notice.clear()

    def wake(self) -> None:
        """Let who waits for a notice wait no longer."""
        self.notice.set()

    async def close(self) -> None:
        """Do nothing."""


LIVE_ROW: Final = {"did": AGENT, **asdict(Liveness("healthy", 0.1, AT)), "probe_ok": None}
FOUND: Final[dict[str, RowDict]] = {
    "agents": {"did": AGENT, "status": "inactive"},
    "prices": {"capability_id": "c", "price_cents": 1},
    "versions": {"capability_id": "c", "version": "1.0.0", "status": "active"},
    "revocations": {"did": AGENT, "expires_ms": None, "ended_ms": None},
    "live": LIVE_ROW,
    "reputations": {"agent_did": AGENT, **asdict(Tally(1, 0, 0, 1))},
    "stakes": {"agent_did": AGENT, "free_micro": 1, "locked_micro": 0},
}
# Where a directory takes them in.
TAKEN: Final = {
    "subnets": "subnets.apply_rows",
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
    made = DirectorySync(directory, tail=tail, owner="o", on_revoked=lambda: None, now_ms=now_ms)
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
        await until(lambda: not tail.notice.is_set())
        tail.is_away = False
        while not directory.taken:
            tail.notice.set()
            await asyncio.sleep(0.001)
        await sync.close()


async def test_looks_have_a_pace_and_requests_meanwhile_share_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand changes a second would cost each owner a look for each of them."""
    monkeypatch.setattr(directory_sync, "POLLS_SAVED_MAX", 2)
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
        assert took_s >= directory_sync.POLL_PAUSE_S, "not a speed: it waits at least so long"
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
        del sync._since[LIVE]
        tail.found = {"live": [FOUND["live"]]}
        for _ in range(3):
            now_ms += HEARD_PAUSE_MS_MAX - 1
            with pytest.raises(ValueError, match="cannot be read"):
                await sync.refresh()
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
