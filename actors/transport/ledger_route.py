"""Routes calls to the ledger's writer, also after another process has become the writer.

Calls go to the last known writer. If a call fails, or has no reply after `SLOW_S`, the ledger's
head row is read from Postgres, at most once per `POLL_PAUSE_S`. The head row names the writer. If
it names another process, the calls to the previous writer are cut off and repeated at the new
writer. Repeating is harmless: commands have keys, and renewals are idempotent. Callers therefore
see no failure in a planned hand-over. The head row is not read while calls succeed.

The head row contains the name of an actor. Only Ray's GCS can find an actor of another machine by
name. Both ledger actors are called every `WARM_S`, which keeps Ray connected to them. Therefore the
new writer can be reached even while the GCS is down.
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

# If a call has no reply after this time, the head row is read.
SLOW_S: Final = 1.0
POLL_PAUSE_S: Final = 0.25
WARM_S: Final = 10.0
# Maximum number of times that one call is repeated at another process.
MOVES_MAX: Final = 3

Renew = Callable[[Renewal], Awaitable[Lease]]


class LedgerRoute:
    """Knows which actor is the ledger's writer, and creates the calls to it.

    Args:
        settings: the deployment's settings.
        read_head: reads the head row; None: reads it from the database of the settings.
        warm_s: the pause between two calls that keep the connections open, seconds.
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
        # The name of the last known writer. Before the first read, the first ledger actor's name.
        self.actor = LEDGER
        # The number of changes of the writer that were found.
        self.moves = 0
        self._calls: list[LedgerCall] = []
        self._looking: asyncio.Task[None] | None = None
        self._looked_s = -POLL_PAUSE_S
        self._warming: asyncio.Task[None] | None = None

    def call(self, method: str) -> LedgerCall:
        """Return a call to a method of the ledger's actor."""
        calls = {name: BatchCall(self._settings, name, method) for name in LEDGERS}
        call = LedgerCall(self, calls)
        self._calls.append(call)
        return call

    def client(self, on_lost: Callable[[str], None] = log.critical) -> LedgerClient:
        """Return a client that submits commands to the ledger.

        Args:
            on_lost: see `LedgerClient`.
        """
        return LedgerClient(
            self.call("submit"),
            is_unknown_outcome,
            on_lost=on_lost,
            capacity=QUEUE_MAX,
            batch_size=BATCH_MAX,
        )

    def renewals(self) -> Renew:
        """Return a function that sends one renewal to the ledger and returns the lease.

        For a renewal without a member, the lease contains only the map. The function has no timeout
        of its own. If it raises an exception, it is unknown whether the lease was renewed.
        """
        call = self.call("renew")

        async def renew(renewal: Renewal) -> Lease:
            (body,) = await call([RENEWALS.encode(renewal)])
            return LEASES.decode(body)

        return renew

    async def close(self) -> None:
        """Close the connections; unfinished calls get a ConnectionError."""
        for task in (self._looking, self._warming):
            if task is not None:
                task.cancel()
        for call in self._calls:
            call.close()
        await self._reader.close()

    async def follow(self, moves: int) -> bool:
        """Say whether the writer has changed since `self.moves` was `moves`.

        Reads the head row if no change is known yet.
        """
        if self.moves == moves:
            if self._looking is None:
                self._looking = asyncio.create_task(self._look())
                self._looking.add_done_callback(self._end_look)
            # Shared by all callers, so it is not cancelled with one of them.
            await asyncio.wait([self._looking])
        return self.moves != moves

    def keep_warm(self) -> None:
        """Start to call both ledger actors periodically, until this route is closed."""
        if self._warming is None:
            self._warming = asyncio.create_task(self._warm())

    async def _warm(self) -> None:
        while True:
            await asyncio.sleep(self._warm_s)
            await asyncio.gather(*(call.warm() for call in self._calls))

    def _end_look(self, task: asyncio.Task[None]) -> None:
        self._looking = None

    async def _look(self) -> None:
        pause_s = self._looked_s + POLL_PAUSE_S - time.monotonic()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        self._looked_s = time.monotonic()
        try:
            head = await self._read_head()
        except Exception as error:  # the edge to Postgres: the last known writer stays in use
            log.info("head not read error=%s", error)
            return
        if head.actor == self.actor or head.actor not in LEDGERS:
            return
        log.info("the ledger is now actor=%s epoch=%d", head.actor, head.epoch)
        self.actor = head.actor
        self.moves += 1


class LedgerCall:
    """Sends batches to one method of the ledger's writer. Created by `LedgerRoute.call`.

    Args:
        route: knows which actor is the writer.
        calls: the calls to the method of each ledger actor, by the actor's name.
    """

    def __init__(self, route: LedgerRoute, calls: Mapping[str, BatchCall]) -> None:
        self._route = route
        self._calls = calls

    async def __call__(self, *arguments: Any) -> Any:
        """Call the writer; if the outcome is unknown and the writer has changed, repeat the call.

        Raises: the errors of `BatchCall`, and the ledger's refusal.
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
        """Call the writer once; raise TimeoutError if the reply is late and the writer changes."""
        watching: list[asyncio.Task[None]] = []

        async def cut_when_moved() -> None:
            while not await self._route.follow(moves):
                pass  # `follow` itself pauses between two reads of the head row
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
        """Call each ledger actor with an empty batch; ignore the replies."""
        await asyncio.gather(*(call([]) for call in self._calls.values()), return_exceptions=True)

    def close(self) -> None:
        """Close the connections."""
        for call in self._calls.values():
            call.close()


def _may_have_moved(error: Exception) -> bool:
    """Say whether a call may have failed because its process is no longer the writer."""
    if isinstance(error, ServiceError):
        return error.code is ErrorCode.LEDGER_UNAVAILABLE
    return is_unknown_outcome(error)
