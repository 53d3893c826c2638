"""The way to the ledger: to the process that the head names, also after another has taken over.

Calls go to the writer that was last known. A call that fails, or has no answer after a second, lets
the head be read from Postgres, no more often than `LOOK_PAUSE_S`; when it names another process,
the calls to the one before end and are repeated there. Repeating is harmless: commands have keys,
renewals are idempotent. So a planned hand-over is no failure to those that call, and while nothing
fails nothing is read.

The head names an actor, and only the GCS knows where an actor of another machine runs. So both of
the ledger's actors are called every `WARM_S`, which leaves Ray connected to them: after that a
ledger that has moved is reached while there is no GCS.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from actors.transport.actor_calls import BatchCall, is_unknown_outcome
from actors.transport.ledger_client import LedgerClient
from actors.transport.names import LEDGER, LEDGERS
from actors.transport.wire import LEASES, RENEWALS
from core.errors import ErrorCode, ServiceError
from core.settings import Settings
from core.shards.lease_messages import Lease, Renewal
from ledger.features.head_row import HeadReader, LedgerHead
from ledger.writer.group_commit import BATCH_MAX, QUEUE_MAX

log = logging.getLogger("callboard.ledger_client")

# A call without an answer for so long lets the head be read.
SLOW_S: Final = 1.0
LOOK_PAUSE_S: Final = 0.25
WARM_S: Final = 10.0
# How often one call is repeated at another process before its failure is its caller's.
MOVES_MAX: Final = 3

Renew = Callable[[Renewal], Awaitable[Lease]]


class LedgerRoute:
    """Which process is the ledger, as one process knows it, and its calls there.

    Args:
        settings: the deployment's.
        read_head: reads the head; None: from the database of the settings.
        warm_s: the pause between two calls that keep the connections open.
    """

    def __init__(
        self,
        settings: Settings,
        read_head: Callable[[], Awaitable[LedgerHead]] | None = None,
        *,
        warm_s: float = WARM_S,
    ) -> None:
        self._warm_s = warm_s
        self._settings = settings
        self._reader = HeadReader(settings.database_url)
        self._read_head = read_head or self._reader.read
        # Before the head was ever read: where the first ledger of a cluster is.
        self.actor = LEDGER
        # How often the ledger was found to be another process.
        self.moves = 0
        self._calls: list[LedgerCall] = []
        self._looking: asyncio.Task[None] | None = None
        self._looked_s = -LOOK_PAUSE_S
        self._warming: asyncio.Task[None] | None = None

    def call(self, method: str) -> LedgerCall:
        """Return the way to a method of the ledger's actor."""
        calls = {name: BatchCall(self._settings, name, method) for name in LEDGERS}
        call = LedgerCall(self, calls)
        self._calls.append(call)
        return call

    def client(self, on_lost: Callable[[str], None] = log.critical) -> LedgerClient:
        """Return the client by which this process submits commands.

        Args:
            on_lost: as of `LedgerClient`.
        """
        return LedgerClient(
            self.call("submit"),
            is_unknown_outcome,
            on_lost=on_lost,
            capacity=QUEUE_MAX,
            batch_size=BATCH_MAX,
        )

    def renewals(self) -> Renew:
        """Return the way to the ledger's leases: one renewal out, one lease back.

        A renewal without a member gets the map alone. The caller has a deadline. Whatever keeps the
        ledger from acknowledging the renewal is raised; the member was renewed or not.
        """
        call = self.call("renew")

        async def renew(renewal: Renewal) -> Lease:
            (body,) = await call([RENEWALS.encode(renewal)])
            return LEASES.decode(body)

        return renew

    async def close(self) -> None:
        """Close the connections; calls under way get a ConnectionError."""
        for task in (self._looking, self._warming):
            if task is not None:
                task.cancel()
        for call in self._calls:
            call.close()
        await self._reader.close()

    async def follow(self, moves: int) -> bool:
        """Return whether the ledger is another process by now than when it had moved so often."""
        if self.moves == moves:
            if self._looking is None:
                self._looking = asyncio.create_task(self._look())
                self._looking.add_done_callback(self._end_look)
            # Shared: a caller that leaves leaves it to the others.
            await asyncio.wait([self._looking])
        return self.moves != moves

    def keep_warm(self) -> None:
        """Call both of the ledger's actors every `WARM_S`, until this route is closed."""
        if self._warming is None:
            self._warming = asyncio.create_task(self._warm())

    async def _warm(self) -> None:
        while True:
            await asyncio.sleep(self._warm_s)
            await asyncio.gather(*(call.warm() for call in self._calls))

    def _end_look(self, task: asyncio.Task[None]) -> None:
        self._looking = None

    async def _look(self) -> None:
        pause_s = self._looked_s + LOOK_PAUSE_S - time.monotonic()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        self._looked_s = time.monotonic()
        try:
            head = await self._read_head()
        except Exception as error:  # the edge to Postgres: the ledger stays where it was
            log.info("head not read error=%s", error)
            return
        if head.actor == self.actor or head.actor not in LEDGERS:
            return
        log.info("the ledger is now actor=%s epoch=%d", head.actor, head.epoch)
        self.actor = head.actor
        self.moves += 1


class LedgerCall:
    """Sends batches to one method of whichever process is the ledger. Made by a `LedgerRoute`.

    Args:
        route: knows where the ledger is.
        calls: to a method of each of the ledger's actors, by name.
    """

    def __init__(self, route: LedgerRoute, calls: Mapping[str, BatchCall]) -> None:
        self._route = route
        self._calls = calls

    async def __call__(self, *arguments: Any) -> Any:
        """Make one call; when its outcome is unknown, repeat it where the ledger is by then.

        Raises: as `BatchCall`, and what the ledger has refused it with.
        """
        self._route.keep_warm()
        for _ in range(MOVES_MAX):
            moves = self._route.moves
            try:
                return await self._ask(arguments, moves)
            except Exception as error:  # the edge to another process
                if not _may_have_moved(error) or not await self._route.follow(moves):
                    raise
        return await self._ask(arguments, self._route.moves)

    async def _ask(self, arguments: tuple[Any, ...], moves: int) -> Any:
        """Make one call; end it, its outcome unknown, when it is late and the ledger has moved."""
        watching: list[asyncio.Task[None]] = []

        async def cut_when_moved() -> None:
            while not await self._route.follow(moves):
                pass  # looks at the head have pauses between them
            cut.reschedule(asyncio.get_running_loop().time())

        def watch() -> None:
            watching.append(asyncio.create_task(cut_when_moved()))

        late = asyncio.get_running_loop().call_later(SLOW_S, watch)
        try:
            async with asyncio.timeout(None) as cut:
                return await self._calls[self._route.actor](*arguments)
        finally:
            late.cancel()
            for task in watching:
                task.cancel()

    async def warm(self) -> None:
        """Call each of the ledger's actors with an empty batch, whatever they answer."""
        await asyncio.gather(*(call([]) for call in self._calls.values()), return_exceptions=True)

    def close(self) -> None:
        """Close the connections."""
        for call in self._calls.values():
            call.close()


def _may_have_moved(error: Exception) -> bool:
    """Say whether a failure may be that of a process that is not the ledger any more."""
    if isinstance(error, ServiceError):
        return error.code is ErrorCode.LEDGER_UNAVAILABLE
    return is_unknown_outcome(error)
