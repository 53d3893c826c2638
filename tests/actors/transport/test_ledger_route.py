"""Calls find the ledger that the head names, over real sockets; without Ray and Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from actors.transport.ledger_client import ledger_unavailable_error
from actors.transport.ledger_route import SLOW_S, LedgerRoute
from actors.transport.names import LEDGERS
from actors.transport.sockets import SocketServer
from core.errors import ErrorCode, ServiceError
from core.settings import Settings
from ledger.errors import LedgerUnavailable
from ledger.features.head_row import LedgerHead
from tests.actors.transport.listening import listening
from tests.platform.waiting import until

DEADLINE_S = 20.0
FIRST, SECOND = LEDGERS


class Head:
    """The head as it is read; None: Postgres is away."""

    def __init__(self, actor: str) -> None:
        self.actor: str | None = actor
        self.reads = 0

    async def read(self) -> LedgerHead:
        """Return it."""
        self.reads += 1
        if self.actor is None:
            raise LedgerUnavailable("away")
        return LedgerHead(1, self.actor)


class Ledger:
    """A process of the ledger, which answers with its name, refuses, or says nothing."""

    def __init__(self, name: str, error: Exception | None = None) -> None:
        self.name = name
        self.error = error
        self.is_frozen = False
        self.calls: list[list[bytes]] = []
        self._server: SocketServer | None = None

    async def submit(self, bodies: list[bytes]) -> list[bytes]:
        """Answer a call."""
        self.calls.append(bodies)
        if self.is_frozen:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        return [self.name.encode()] * len(bodies)

    @asynccontextmanager
    async def listening(self, folder: Path) -> AsyncIterator[Ledger]:
        """Listen in a run folder, until `close`."""
        self._server = await listening(folder, self.name, {"submit": self.submit})
        try:
            yield self
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the connections, as a process that has handed over does."""
        if self._server is not None:
            await self._server.close()


class Scene:
    """Two ledgers, the head, and the way of one process."""

    def __init__(self, folder: Path) -> None:
        self.first, self.second = Ledger(LEDGERS[0]), Ledger(LEDGERS[1])
        self.head = Head(FIRST)
        self.settings = Settings(run_folder=str(folder), database_url="postgresql://")
        self.route = LedgerRoute(self.settings, self.head.read)
        self.call = self.route.call("submit")


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(tmp_path)
    async with AsyncExitStack() as stack, asyncio.timeout(DEADLINE_S):
        for ledger in (made.first, made.second):
            await stack.enter_async_context(ledger.listening(tmp_path))
        yield made
        await made.route.close()


async def test_head_is_not_read_while_nothing_fails(scene: Scene) -> None:
    for _ in range(3):
        assert await scene.call([b"x"]) == [LEDGERS[0].encode()]
    assert scene.head.reads == 0


async def test_call_whose_connection_ends_is_repeated_where_the_ledger_is_now(
    scene: Scene,
) -> None:
    """A planned hand-over: the old one holds the call, the head moves, its connections close."""
    assert await scene.call([b"x"]) == [LEDGERS[0].encode()]
    scene.first.is_frozen = True
    held = asyncio.create_task(scene.call([b"held"]))
    await until(lambda: scene.first.calls[-1] == [b"held"])
    scene.head.actor = SECOND
    await scene.first.close()
    assert await held == [LEDGERS[1].encode()]
    assert scene.second.calls == [[b"held"]]
    reads = scene.head.reads
    assert await scene.call([b"y"]) == [LEDGERS[1].encode()]
    assert scene.head.reads == reads


async def test_every_method_follows(scene: Scene) -> None:
    other = scene.route.call("submit")
    await scene.call([b"x"])
    scene.head.actor = SECOND
    await scene.first.close()
    await scene.call([b"x"])
    scene.head.actor = None
    assert await other([b"z"]) == [LEDGERS[1].encode()]


async def test_standby_refuses_and_its_caller_finds_the_writer(scene: Scene) -> None:
    """A process that has just started knows the first name alone."""
    scene.first.error = ledger_unavailable_error()
    scene.head.actor = SECOND
    assert await scene.call([b"x"]) == [LEDGERS[1].encode()]
    assert scene.route.actor == SECOND


async def test_call_without_an_answer_is_repeated_when_the_head_has_moved(scene: Scene) -> None:
    """The ledger's machine is frozen or cut off: no connection ends."""
    scene.first.is_frozen = True
    held = asyncio.create_task(scene.call([b"x"]))
    await until(lambda: bool(scene.first.calls))
    scene.head.actor = SECOND
    began_s = asyncio.get_running_loop().time()
    assert await held == [LEDGERS[1].encode()]
    assert asyncio.get_running_loop().time() - began_s > SLOW_S / 2, "not before it was late"


async def test_call_without_an_answer_goes_on_while_the_head_stays(scene: Scene) -> None:
    """Postgres is slow: the same commands twice in its queue would make it slower."""
    scene.first.is_frozen = True
    held = asyncio.create_task(scene.call([b"x"]))
    await until(lambda: scene.head.reads > 2)
    assert not held.done()
    assert len(scene.first.calls) == 1
    held.cancel()


@pytest.mark.parametrize("actor", [FIRST, None], ids=["head stays", "Postgres is away"])
async def test_failure_is_the_callers_when_no_other_process_is_the_ledger(
    scene: Scene, actor: str | None
) -> None:
    scene.head.actor = actor
    await scene.first.close()
    with pytest.raises(ConnectionError):
        await scene.call([b"x"])


async def test_refusal_by_the_writer_is_no_reason_to_look(scene: Scene) -> None:
    scene.first.error = ServiceError(ErrorCode.OVERLOADED, "full", retry_after_s=1)
    with pytest.raises(ServiceError):
        await scene.call([b"x"])
    assert scene.head.reads == 0


async def test_caller_that_leaves_leaves_the_look_to_the_others(scene: Scene) -> None:
    scene.first.error = ledger_unavailable_error()
    going = asyncio.Event()

    async def slowly() -> LedgerHead:
        await going.wait()
        return LedgerHead(1, SECOND)

    scene.route._read_head = slowly
    first, second = (asyncio.create_task(scene.call([b"x"])) for _ in range(2))
    await until(lambda: scene.route._looking is not None and len(scene.first.calls) == 2)
    first.cancel()
    await asyncio.wait([first])
    going.set()
    assert await second == [LEDGERS[1].encode()]


async def test_both_ledgers_are_called_although_one_is_the_writer(scene: Scene) -> None:
    """Ray finds an actor of another machine by the GCS alone, which may be away when it moves."""
    route = LedgerRoute(scene.settings, scene.head.read, warm_s=0.01)
    await route.call("submit")([b"x"])
    await until(lambda: [] in scene.first.calls and [] in scene.second.calls)
    await route.close()
