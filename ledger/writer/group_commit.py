"""Group commit without timers: commands that arrive during a commit form the next batch.

With one client, each batch has one command. With a thousand clients, a batch has up to a thousand
commands. A command never waits for a batch to fill. This file also controls when the store is
opened and closed:

- It opens the store. While another process is the writer, opening waits, and this process is a
  standby.
- When the connection is lost, it reopens the store with a new epoch (backoff 0.1 to 2 s).
- It stops for good when its memory of the ledger proves wrong.
- It sends a statement when the newest proof is a second old. The reply keeps the session alive and
  proves that this process is still the writer. Leases of members are renewed from memory, but only
  while the newest proof is at most 2 s old.
- In a planned hand-over it closes its session and lets new commands wait. After `HOLD_S` it refuses
  them. Their callers find the next writer and repeat them.

An error belongs to one command. If the store refuses a batch, its commands are tried one by one,
with a longer timeout. Between two such commands a batch of other commands is committed. A command
that is refused alone stays refused, and the refusal is stored. A command is also tried alone after
its batches have lost the connection twice. After `LOSSES_MAX` lost connections it is refused.
Reference: money.md (Rules that the database enforces); decisions ledger-writer and
workflow-owners-and-shards.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from core.errors import ErrorCode, ServiceError
from core.shards.lease_messages import Lease, Renewal
from core.shards.leases import PROOF_MS
from ledger.commands import Command, Outcome
from ledger.errors import BatchRefused, LedgerFenced, LedgerIntegrityError, LedgerUnavailable
from ledger.features.member_leases import CommittedCluster, MemberLeases
from ledger.registry import kind_of
from ledger.writer.step_counts import StepCounts
from ledger.writer.store import (
    COMMIT_TIMEOUT_S,
    STATEMENT_TIMEOUT_S,
    Genesis,
    LedgerStore,
    boot_time_ms,
)

BATCH_MAX: Final = 1000
BATCH_BYTES_MAX: Final = 1024 * 1024
# The bytes of a command's stored key, audit entry and entries, which a batch has besides the
# command itself.
_COMMAND_BYTES: Final = 1_600
QUEUE_MAX: Final = 50_000
REOPEN_DELAY_MIN_S: Final = 0.1
REOPEN_DELAY_MAX_S: Final = 2.0
# The timeout of a command that is tried alone, as a multiple of the usual timeout.
TIMEOUTS_ALONE: Final = 3
# After LOSSES_TOGETHER lost connections a command is tried alone, after LOSSES_MAX it is refused.
LOSSES_TOGETHER: Final = 2
LOSSES_MAX: Final = 8
_LOSSES_KEPT_MAX: Final = 20_000
# The age at which the proof that this process is the writer is renewed.
PROOF_REFRESH_MS: Final = 1_000
# How long new commands wait after the session was closed for a hand-over.
HOLD_S: Final = 3.0

_log = logging.getLogger("callboard.ledger")


@dataclass(slots=True)
class CommitStatistics:
    """Counters of the writer since it was made. Times in milliseconds.

    `lag_ms`: the age of the current commit; all other commands wait for it. `divided`: the number
    of refused batches. `refused`: the number of commands that the ledger could not apply.
    """

    epoch: int = 0
    is_open: bool = False
    queued: int = 0
    lag_ms: float = 0.0
    batches: int = 0
    commands: int = 0
    batch_max: int = 0
    commit_ms_total: float = 0.0
    reopened: int = 0
    divided: int = 0
    refused: int = 0


class _Submission:
    """The commands of one `submit` call. They get one reply, and are committed in one batch or
    several."""

    __slots__ = ("begun", "command_bytes", "commands", "outcomes", "reply", "unsettled")

    def __init__(
        self,
        commands: Sequence[Command],
        reply: asyncio.Future[list[Outcome]],
        encoded_bytes: int,
    ) -> None:
        self.commands = commands
        # The average size per command, because the caller states one size for all commands.
        self.command_bytes = _COMMAND_BYTES + encoded_bytes // len(commands)
        self.reply = reply
        self.outcomes: list[Outcome | None] = [None] * len(commands)
        self.unsettled = len(commands)
        self.begun = 0  # number of commands that are or were in a batch

    def settle(self, position: int, outcome: Outcome) -> None:
        self.outcomes[position] = outcome
        self.unsettled -= 1
        if self.unsettled == 0 and not self.reply.done():
            self.reply.set_result([one for one in self.outcomes if one is not None])


_Place = tuple[_Submission, int]


@dataclass(slots=True)
class _Batch:
    """Commands that go into one transaction. `is_retry`: the command was in a refused batch."""

    places: list[_Place]
    is_retry: bool = False

    def commands(self) -> list[Command]:
        return [submission.commands[position] for submission, position in self.places]

    def submissions(self) -> Iterable[_Submission]:
        return {id(submission): submission for submission, _ in self.places}.values()


@dataclass(slots=True)
class _Queue:
    """The queue of commands that were not committed yet.

    `waiting`: submissions with commands that were in no batch yet. `alone`: batches of one command
    each: barriers (`is_barrier`) and the commands of refused batches, in order. `commands`: the
    number of commands in both.
    """

    waiting: deque[_Submission] = field(default_factory=deque)
    alone: deque[_Batch] = field(default_factory=deque)
    commands: int = 0
    is_turn_of_alone: bool = True


class GroupCommit:
    """The queue of commands in front of the writer."""

    def __init__(
        self,
        url: str,
        *,
        genesis: Genesis,
        on_fatal: Callable[[LedgerIntegrityError], None],
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        boot_ms: Callable[[], int] = boot_time_ms,
        open_store: Callable[..., Awaitable[LedgerStore]] = LedgerStore.open,
    ) -> None:
        """Make the queue; `start` opens the ledger.

        Args:
            on_fatal: called once when the writer stops for good: it is fenced off, its memory is
                wrong, or an unforeseen error has occurred. It ends the process.
            boot_ms: a monotonic clock in milliseconds that runs while the machine is suspended;
                leases are measured with it.
            open_store: opens the writer's store; a simulation passes a store without a database.
        """
        self._url = url
        self._genesis = genesis
        self._on_fatal = on_fatal
        self._now_ms = now_ms
        self._queue = _Queue()
        self._counts = CommitStatistics()
        self.step_counts = StepCounts()
        # When the commit of the current batch began; None without a batch.
        self._began_s: float | None = None
        self._store: LedgerStore | None = None
        self._boot_ms = boot_ms
        self._open_store = open_store
        self._leases = MemberLeases(boot_ms)
        # Values of the newest store, which stay known when its connection is lost. `_proven_ms`:
        # the time of the newest proof that this process is the writer.
        self._cluster: CommittedCluster | None = None
        self._epoch: int | None = None
        self._audit_id = 0
        self._proven_ms = 0
        # By command key: the number of connections that were lost while the command was in the
        # batch.
        self._losses: dict[str, int] = {}
        self._work = asyncio.Event()
        self._actor = ""
        # True while opening the store waits because another process is the writer.
        self.is_standby = False
        # Set when the session is closed for a planned hand-over; None: no hand-over is planned.
        self._left: asyncio.Event | None = None
        self._loop_task: asyncio.Task[None] | None = None
        self._fatal: LedgerIntegrityError | None = None

    async def start(self, actor: str = "") -> None:
        """Open the ledger and begin to commit; wait while another process is the writer.

        Args:
            actor: the name of this process, stored in the ledger's head row.

        Raises:
            LedgerUnavailable: the database cannot be reached now.
        """
        self._actor = actor
        await self._open()
        self._loop_task = asyncio.create_task(self._run(), name="group-commit")

    async def stop(self) -> None:
        """Stop. Waiting callers get LEDGER_UNAVAILABLE; all acknowledged commands are committed."""
        task, self._loop_task = self._loop_task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self._refuse_waiting("the ledger is stopping")
        await self._close()

    async def hand_over(self) -> None:
        """Close the session after the current batch, so that a standby becomes the writer.

        New commands wait for `HOLD_S`. Then this process refuses them and becomes a standby.
        """
        if self._store is not None and self._left is None:
            self._left = asyncio.Event()
            self._work.set()
        if self._left is not None:
            await self._left.wait()

    async def submit(
        self, commands: Sequence[Command], encoded_bytes: int | None = None
    ) -> list[Outcome]:
        """Commit these commands, together with other commands that wait.

        They are committed in order, except barriers (`is_barrier`): a barrier is a batch of its
        own, and may be committed later.

        Args:
            encoded_bytes: the total encoded size of the commands; None: the length of their text.

        Returns: one outcome per command.
        Raises: ServiceError(OVERLOADED) when the queue is full, ServiceError(LEDGER_UNAVAILABLE)
        when the outcome is unknown: the caller must repeat the commands with the same keys.
        """
        if not commands:
            return []
        if self._fatal is not None or self._loop_task is None:
            raise _unavailable("the ledger writer has stopped")
        if self._store is None and self._left is None:
            raise _unavailable("the ledger is being reopened")
        if self._queue.commands + len(commands) > QUEUE_MAX:
            raise ServiceError(
                ErrorCode.OVERLOADED,
                f"ledger queue is full: {self._queue.commands} commands wait, the limit is"
                f" {QUEUE_MAX}",
                retry_after_s=1,
            )
        reply: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        size = len(repr(commands)) if encoded_bytes is None else encoded_bytes
        self._queue.waiting.append(_Submission(commands, reply, size))
        self._queue.commands += len(commands)
        self._work.set()
        return await reply

    def renew(self, renewals: Sequence[Renewal]) -> list[Lease]:
        """Renew the leases of members, and return one lease per renewal.

        The leases come from the writer's memory of committed shards. Each renewal is noted even if
        this call then fails, because a member that sends a renewal is alive.

        The writer stops for good if a member knows a later epoch or audit entry than the writer
        has: then another writer has taken over, or the database has lost acknowledged commands.

        Raises: ServiceError(LEDGER_UNAVAILABLE) if the newest proof is older than 2 s, because
        another process may be the writer. Also while a `TakeShards` of the shards of one of these
        members may be committed.
        """
        asked = [(renewal, self._leases.renew(renewal)) for renewal in renewals]
        store = self._store
        if store is not None:
            self._proven_ms = store.proven_ms
            self._audit_id = store.audit_id
            for renewal in renewals:
                self._stop_when_behind(renewal)
        if self._fatal is not None or self._loop_task is None or self._cluster is None:
            raise _unavailable("the ledger writer has stopped")
        if self._boot_ms() - self._proven_ms > PROOF_MS:
            raise _unavailable("the database has not answered for 2 s")
        if not all(self._leases.may_acknowledge(renewal.member) for renewal in renewals):
            raise _unavailable("shards of this member are being taken")
        return self._leases.answers(
            asked,
            self._cluster,
            epoch=self._epoch or 0,
            audit_id=self._audit_id,
        )

    def _stop_when_behind(self, renewal: Renewal) -> None:
        """Stop for good if a member knows a later epoch or audit entry than this writer has."""
        assert self._epoch is not None
        error: LedgerIntegrityError
        if renewal.seen_epoch > self._epoch:
            error = LedgerFenced(
                f"epoch {self._epoch}, but {renewal.member} knows {renewal.seen_epoch}"
            )
        elif renewal.seen_audit_id > self._audit_id:
            error = LedgerIntegrityError(
                f"the database has lost what was acknowledged: it ends with audit entry"
                f" {self._audit_id}, {renewal.member} knows {renewal.seen_audit_id}"
            )
        else:
            return
        if self._fatal is None:
            _log.error("ledger stops: %s", error)
            self._fatal = error
            self._refuse_waiting("the ledger writer has stopped")
            self._work.set()  # wakes the writer's loop, which then ends
            self._on_fatal(error)

    def statistics(self) -> CommitStatistics:
        """Return the counters, and the current state of the queue and the store."""
        store, began_s = self._store, self._began_s
        return replace(
            self._counts,
            epoch=store.epoch if store is not None else 0,
            is_open=store is not None,
            queued=self._queue.commands,
            lag_ms=0.0 if began_s is None else (time.perf_counter() - began_s) * 1_000,
        )

    async def _run(self) -> None:
        while self._fatal is None:
            if self._store is None:
                try:
                    await self._reopen()
                except LedgerIntegrityError as error:
                    await self._stop_for_good(error, None)
                except Exception as error:
                    # The edge of the process: after this error nothing would reopen the ledger.
                    _log.exception("ledger stops")
                    await self._stop_for_good(LedgerIntegrityError(f"opening: {error!r}"), None)
                continue
            batch = None
            try:
                await self._keep_proof(self._store)
                if self._left is not None:
                    await self._leave(self._left)
                    continue
                batch = self._next_batch()
                if batch is None:
                    self._work.clear()
                    continue
                await self._try(self._store, batch)
                self._leases.end_takes()
            except LedgerUnavailable as error:
                _log.error("ledger lost, outcome unknown: %s", error.reason)
                if batch is not None:
                    self._note_losses(batch, error)
                    lost = _unavailable("the connection to the database was lost")
                    _fail(batch.submissions(), lost)
                self._refuse_waiting("the ledger is being reopened")
                await self._close()
            except LedgerIntegrityError as error:
                await self._stop_for_good(error, batch)
            except Exception as error:
                # The edge of the process: an error in this file must not leave callers waiting.
                _log.exception("ledger stops")
                await self._stop_for_good(LedgerIntegrityError(f"writer: {error!r}"), batch)
            except BaseException:
                if batch is not None:
                    _fail(batch.submissions(), _unavailable("the ledger writer has stopped"))
                raise
        await self._close()

    async def _leave(self, left: asyncio.Event) -> None:
        await self._close()
        left.set()
        await asyncio.sleep(HOLD_S)
        self._left = None
        self._refuse_waiting("the ledger is another process")

    async def _keep_proof(self, store: LedgerStore) -> None:
        """Wait for work. Renew the proof whenever it is a second old."""
        while True:
            is_idle = False
            try:
                async with asyncio.timeout(PROOF_REFRESH_MS / 1_000):
                    await self._work.wait()
            except TimeoutError:
                is_idle = True
            if is_idle or self._boot_ms() - store.proven_ms >= PROOF_REFRESH_MS:
                await store.beat()
            if not is_idle:
                return

    # -- what is next -----------------------------------------------------------------------------

    def _next_batch(self) -> _Batch | None:
        """Return the next batch, None if no command waits.

        Batches of waiting commands alternate with the batches in `alone`.
        """
        queue = self._queue
        queue.is_turn_of_alone = not queue.is_turn_of_alone
        if queue.is_turn_of_alone:
            return self._next_alone() or self._drain() or self._next_alone()
        return self._drain() or self._next_alone()

    def _next_alone(self) -> _Batch | None:
        queue = self._queue
        while queue.alone:
            batch = queue.alone.popleft()
            queue.commands -= 1
            if not batch.places[0][0].reply.done():  # a caller without an outcome repeats
                return batch
        return None

    def _drain(self) -> _Batch | None:
        """Take the next commands for one batch, up to the maximum size of a batch.

        A barrier moves to the queue `alone`, so that it does not end the batch. A command that has
        lost connections does end it.
        """
        queue, size = self._queue, 0
        places: list[_Place] = []
        while queue.waiting and len(places) < BATCH_MAX:
            submission = queue.waiting[0]
            if submission.reply.done():  # its caller no longer waits
                queue.commands -= len(submission.commands) - submission.begun
                queue.waiting.popleft()
                continue
            command = submission.commands[submission.begun]
            is_barrier = kind_of(command).is_barrier(command)
            is_alone = not is_barrier and self._has_lost(command)
            if not is_barrier:
                size += submission.command_bytes
                if places and (is_alone or size > BATCH_BYTES_MAX):
                    break
            place = (submission, submission.begun)
            submission.begun += 1
            if submission.begun == len(submission.commands):
                queue.waiting.popleft()
            if is_barrier:
                queue.alone.append(_Batch([place]))
                continue
            places.append(place)
            queue.commands -= 1
            if is_alone:
                break
        return _Batch(places) if places else None

    # -- committing -------------------------------------------------------------------------------

    async def _try(self, store: LedgerStore, batch: _Batch) -> None:
        """Commit a batch. If the store refuses it, queue its commands to be tried alone. A command
        that has failed alone is refused instead."""
        commands = batch.commands()
        if len(commands) == 1 and self._losses.get(commands[0].key, 0) >= LOSSES_MAX:
            await self._refuse(store, batch, is_slow=False)
            return
        timeouts = TIMEOUTS_ALONE if batch.is_retry else 1
        began = self._began_s = time.perf_counter()
        try:
            outcomes = await store.commit(
                commands,
                self._now_ms(),
                statement_timeout_s=timeouts * STATEMENT_TIMEOUT_S,
            )
        except BatchRefused as error:
            self._counts.divided += 1
            if batch.is_retry or (len(commands) == 1 and not error.is_slow):
                await self._refuse(store, batch, is_slow=error.is_slow)
            else:
                _log.warning("batch refused commands=%d reason=%s", len(commands), error.reason)
                self._retry_alone(batch)
            return
        finally:
            self._began_s = None
        took_ms = (time.perf_counter() - began) * 1000
        self._follow(store)
        counts = self._counts
        counts.batches += 1
        counts.commands += len(commands)
        counts.batch_max = max(counts.batch_max, len(commands))
        counts.commit_ms_total += took_ms
        self.step_counts.note(commands, outcomes, self._now_ms())
        for (submission, position), outcome in zip(batch.places, outcomes, strict=True):
            submission.settle(position, outcome)
        if self._losses:
            for command in commands:
                self._losses.pop(command.key, None)

    async def _refuse(self, store: LedgerStore, batch: _Batch, *, is_slow: bool) -> None:
        ((submission, position),) = batch.places
        command = submission.commands[position]
        _log.error("command refused type=%s key=%s", type(command).__name__, command.key)
        outcome = await store.refuse(command, self._now_ms(), is_slow=is_slow)
        self._counts.refused += 1
        self._losses.pop(command.key, None)
        submission.settle(position, outcome)

    def _retry_alone(self, batch: _Batch) -> None:
        """Queue the commands of a refused batch to be tried alone.

        If a part of a submission was in a batch, its remaining commands are queued too, so that its
        order is kept.
        """
        queue = self._queue
        places = list(batch.places)
        queue.commands += len(places)
        if queue.waiting and queue.waiting[0].begun > 0:
            rest = queue.waiting.popleft()
            places += [(rest, at) for at in range(rest.begun, len(rest.commands))]
        queue.alone.extend(_Batch([place], is_retry=True) for place in places)
        self._work.set()

    def _has_lost(self, command: Command) -> bool:
        """Say whether a command has lost the connection so often that it is tried alone."""
        return bool(self._losses) and self._losses.get(command.key, 0) >= LOSSES_TOGETHER

    def _note_losses(self, batch: _Batch, error: LedgerUnavailable) -> None:
        """Count a lost connection for each command of its batch.

        From LOSSES_TOGETHER on, a loss counts only if the command was alone in the batch and the
        cause may be the command, not the server.
        """
        for command in batch.commands():
            losses = self._losses.get(command.key, 0)
            if losses >= LOSSES_MAX:
                # Storing the command's refusal has failed too. The command is tried again, because
                # the server may be unable to commit any command.
                losses = LOSSES_MAX - 1
            elif losses < LOSSES_TOGETHER or (len(batch.places) == 1 and not error.is_servers):
                losses += 1
            self._losses[command.key] = losses
        while len(self._losses) > _LOSSES_KEPT_MAX:
            del self._losses[next(iter(self._losses))]

    # -- the writer's life ------------------------------------------------------------------------

    async def _stop_for_good(self, error: LedgerIntegrityError, batch: _Batch | None) -> None:
        _log.error("ledger stops: %s", error)
        self._fatal = error
        if batch is not None:
            _fail(batch.submissions(), _unavailable("the ledger writer has stopped"))
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
        self._store = store = await self._open_store(
            self._url,
            genesis=self._genesis,
            now_ms=self._now_ms(),
            leases=self._leases,
            actor=self._actor,
            on_waiting=self._note_waiting,
            timeout_s=COMMIT_TIMEOUT_S,
            boot_ms=self._boot_ms,
        )
        self.is_standby = False
        # The previous writer, which may be this process, may have renewed leases until now.
        self._leases.begin(store.cluster)
        self._epoch, self._audit_id = store.epoch, store.audit_id
        self._follow(store)
        self._leases.end_takes()

    def _note_waiting(self) -> None:
        self.is_standby = True

    def _follow(self, store: LedgerStore) -> None:
        """Use the committed members and shards of a store, and adjust the leases to them."""
        if self._cluster is not store.cluster:
            self._cluster = store.cluster
            self._leases.follow(store.cluster)

    async def _close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            self._proven_ms = store.proven_ms
            await store.close()

    def _refuse_waiting(self, reason: str) -> None:
        queue, self._queue = self._queue, _Queue()
        error = _unavailable(reason)
        _fail(queue.waiting, error)
        _fail((batch.places[0][0] for batch in queue.alone), error)


def _fail(submissions: Iterable[_Submission], error: ServiceError) -> None:
    for submission in submissions:
        if not submission.reply.done():
            submission.reply.set_exception(error)


def _unavailable(reason: str) -> ServiceError:
    return ServiceError(ErrorCode.LEDGER_UNAVAILABLE, reason, retry_after_s=1)
