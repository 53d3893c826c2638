"""Group commit without timers: what waits while a batch is being committed is the next batch.

One client → batches of one; a thousand clients → batches of a thousand; no delay is ever added.
This file owns the writer's life: it opens the store, reopens it when the connection is lost (new
epoch, backoff 0.1 → 2 s), and stops for good when memory and database disagree. A batch that
stopped a writer twice is split: its commands are then tried alone, and the guilty one is refused
for ever. design.md section 3; money.md sections 0 (4) and 4.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from core.errors import ErrorCode, ServiceError
from ledger.commands import Command, Outcome
from ledger.errors import LedgerFenced, LedgerIntegrityError, LedgerUnavailable
from ledger.store import COMMIT_PATIENCE_S, Genesis, LedgerStore

BATCH_MAX: Final = 1000
QUEUE_MAX: Final = 20_000
REOPEN_DELAY_MIN_S: Final = 0.1
REOPEN_DELAY_MAX_S: Final = 2.0
# After so many stops the commands of a batch are tried one by one.
STOPS_BEFORE_SPLIT: Final = 2

_log = logging.getLogger("callboard.ledger")


@dataclass(frozen=True, slots=True)
class CommitStatistics:
    """What the writer did since it was made. Times in milliseconds."""

    epoch: int
    is_open: bool
    queued: int
    batches: int
    commands: int
    round_trips: int
    batch_max: int
    commit_ms_total: float
    commit_ms_max: float
    reopened: int


@dataclass(slots=True)
class _Waiting:
    commands: Sequence[Command]
    reply: asyncio.Future[list[Outcome]]


@dataclass(slots=True)
class _Counts:
    batches: int = 0
    commands: int = 0
    round_trips: int = 0
    batch_max: int = 0
    commit_ms_total: float = 0.0
    commit_ms_max: float = 0.0
    reopened: int = 0


@dataclass(slots=True)
class _Queue:
    waiting: deque[_Waiting] = field(default_factory=deque)
    commands: int = 0


class GroupCommit:
    """The queue in front of the one writer."""

    def __init__(
        self,
        url: str,
        *,
        genesis: Genesis,
        on_fatal: Callable[[LedgerIntegrityError], None],
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        batch_max: int = BATCH_MAX,
        queue_max: int = QUEUE_MAX,
        patience_s: float = COMMIT_PATIENCE_S,
    ) -> None:
        """Make it; `start` opens the ledger.

        Args:
            on_fatal: called once after an integrity error or when fenced off; ends the process.
            queue_max: commands waiting at most; beyond it `submit` raises OVERLOADED.
            patience_s: how long a commit waits for a database that says nothing.
        """
        self._url = url
        self._genesis = genesis
        self._on_fatal = on_fatal
        self._now_ms = now_ms
        self._batch_max = batch_max
        self._queue_max = queue_max
        self._patience_s = patience_s
        self._queue = _Queue()
        self._counts = _Counts()
        self._store: LedgerStore | None = None
        self._suspects: dict[str, int] = {}
        self._work = asyncio.Event()
        self._loop_task: asyncio.Task[None] | None = None
        self._fatal: LedgerIntegrityError | None = None

    def __repr__(self) -> str:
        return f"GroupCommit({self.statistics()})"

    async def start(self) -> None:
        """Open the ledger, fencing earlier writers off, and begin to commit.

        Raises: LedgerUnavailable when the database cannot be reached now.
        """
        await self._open()
        self._loop_task = asyncio.create_task(self._run(), name="group-commit")

    async def stop(self) -> None:
        """Stop: whoever waits gets LEDGER_UNAVAILABLE; what was acknowledged is committed."""
        task, self._loop_task = self._loop_task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self._refuse_waiting("the ledger is stopping")
        await self._close()

    async def submit(self, commands: Sequence[Command]) -> list[Outcome]:
        """Commit these commands, in order, together with whatever else waits.

        Returns: one outcome per command. Raises: ServiceError(OVERLOADED) when the queue is full,
        ServiceError(LEDGER_UNAVAILABLE) when the outcome is unknown: repeat with the same keys.
        """
        if not commands:
            return []
        if self._fatal is not None or self._loop_task is None:
            raise _unavailable("the ledger writer has stopped")
        if self._store is None:
            raise _unavailable("the ledger is being reopened")
        if self._queue.commands + len(commands) > self._queue_max:
            raise ServiceError(
                ErrorCode.OVERLOADED,
                f"{self._queue.commands} commands are waiting, at most {self._queue_max} may",
                retry_after_s=1,
            )
        reply: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        self._queue.waiting.append(_Waiting(commands, reply))
        self._queue.commands += len(commands)
        self._work.set()
        return await reply

    def statistics(self) -> CommitStatistics:
        """Return what was done so far."""
        counts, store = self._counts, self._store
        return CommitStatistics(
            epoch=store.epoch if store is not None else 0,
            is_open=store is not None,
            queued=self._queue.commands,
            batches=counts.batches,
            commands=counts.commands,
            round_trips=counts.round_trips + (store.round_trips if store is not None else 0),
            batch_max=counts.batch_max,
            commit_ms_total=counts.commit_ms_total,
            commit_ms_max=counts.commit_ms_max,
            reopened=counts.reopened,
        )

    async def _run(self) -> None:
        while self._fatal is None:
            if self._store is None:
                try:
                    await self._reopen()
                except LedgerIntegrityError as error:
                    await self._stop_for_good(error, [])
                continue
            await self._work.wait()
            batch = self._drain()
            if not batch:
                self._work.clear()
                continue
            try:
                await self._commit(self._store, batch)
            except LedgerUnavailable as error:
                _log.error("ledger lost, outcome unknown: %s", error.reason)
                _fail(batch, _unavailable("the connection to the database was lost"))
                self._refuse_waiting("the ledger is being reopened")
                await self._close()
            except LedgerIntegrityError as error:
                await self._stop_for_good(error, batch)
            except Exception as error:
                # The edge of the process: a defect nobody foresaw must not leave callers waiting.
                _log.exception("ledger stops")
                await self._stop_for_good(LedgerIntegrityError(f"writer: {error!r}"), batch)
            except BaseException:
                _fail(batch, _unavailable("the ledger writer has stopped"))
                raise

    def _drain(self) -> list[_Waiting]:
        """Take what waits, up to the batch limit; a submission is never divided."""
        batch: list[_Waiting] = []
        total = 0
        queue = self._queue
        while queue.waiting and (
            not batch or total + len(queue.waiting[0].commands) <= self._batch_max
        ):
            waiting = queue.waiting.popleft()
            total += len(waiting.commands)
            # Whoever left (cancelled) before its batch began is not served.
            if not waiting.reply.cancelled():
                batch.append(waiting)
        queue.commands -= total
        return batch

    async def _commit(self, store: LedgerStore, batch: list[_Waiting]) -> None:
        commands = [command for waiting in batch for command in waiting.commands]
        began = time.perf_counter()
        if self._suspects and any(
            self._suspects.get(command.key, 0) >= STOPS_BEFORE_SPLIT for command in commands
        ):
            outcomes = await self._commit_singly(store, commands)
        else:
            outcomes = await store.commit(commands, self._now_ms())
        took_ms = (time.perf_counter() - began) * 1000
        counts = self._counts
        counts.batches += 1
        counts.commands += len(commands)
        counts.batch_max = max(counts.batch_max, len(commands))
        counts.commit_ms_total += took_ms
        counts.commit_ms_max = max(counts.commit_ms_max, took_ms)
        first = 0
        for waiting in batch:
            after = first + len(waiting.commands)
            if not waiting.reply.done():
                waiting.reply.set_result(outcomes[first:after])
            first = after

    async def _commit_singly(self, store: LedgerStore, commands: list[Command]) -> list[Outcome]:
        """Commit a batch that contains suspects one by one.

        A suspect that has stopped the writer once more than the whole batch did is the guilty one:
        it is refused and the refusal stored, so that its repeats are harmless.
        """
        outcomes: list[Outcome] = []
        for command in commands:
            stops = self._suspects.get(command.key, 0)
            if stops > STOPS_BEFORE_SPLIT:
                outcomes.append(await store.refuse(command, self._now_ms()))
            else:
                try:
                    outcomes += await store.commit([command], self._now_ms())
                except LedgerIntegrityError as error:
                    # Only this command is noted: the others of the batch are cleared of suspicion.
                    raise LedgerIntegrityError(error.reason, (command.key,)) from error
            if stops:
                await store.clear_suspects([command.key])
                self._suspects.pop(command.key, None)
        return outcomes

    async def _stop_for_good(self, error: LedgerIntegrityError, batch: list[_Waiting]) -> None:
        _log.error("ledger stops: %s", error)
        self._fatal = error
        # Being fenced off is nobody's fault; otherwise some command of the batch is guilty.
        if not isinstance(error, LedgerFenced) and error.keys and self._store is not None:
            try:
                await self._store.note_stop(error.keys, self._now_ms())
            except (LedgerUnavailable, LedgerIntegrityError) as unnoted:
                _log.error("the stop could not be noted: %s", unnoted)
        _fail(batch, _unavailable("the ledger writer has stopped"))
        self._refuse_waiting("the ledger writer has stopped")
        await self._close()
        self._on_fatal(error)

    async def _reopen(self) -> None:
        delay_s = REOPEN_DELAY_MIN_S
        while True:
            try:
                await self._open()
            except LedgerUnavailable as error:
                _log.warning("ledger not reachable, next try in %.1f s: %s", delay_s, error.reason)
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, REOPEN_DELAY_MAX_S)
            else:
                self._counts.reopened += 1
                return

    async def _open(self) -> None:
        store = await LedgerStore.open(
            self._url,
            genesis=self._genesis,
            now_ms=self._now_ms(),
            patience_s=self._patience_s,
        )
        try:
            self._suspects = await store.suspects()
        except BaseException:
            await store.close()
            raise
        self._store = store

    async def _close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            self._counts.round_trips += store.round_trips
            await store.close()

    def _refuse_waiting(self, reason: str) -> None:
        waiting = list(self._queue.waiting)
        self._queue = _Queue()
        _fail(waiting, _unavailable(reason))


def _fail(batch: list[_Waiting], error: ServiceError) -> None:
    for waiting in batch:
        if not waiting.reply.done():
            waiting.reply.set_exception(error)


def _unavailable(reason: str) -> ServiceError:
    return ServiceError(ErrorCode.LEDGER_UNAVAILABLE, reason, retry_after_s=1)
