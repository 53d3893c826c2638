"""The writer's store: plans a batch of commands on the state cache and commits it.

Procedure of a commit, usually one round trip:
(1) Look up the keys that may have been used before.
(2) Load the rows that are in the read set and not in the state cache.
(3) Plan every command in order. Repeats get their first outcome.
(4) Call the commit function once; the call is one transaction.

If a key was used before and (1) did not look it up, (4) fails with a conflict. The store then looks
up all keys and starts again. After any failure the state cache is dropped and read again. If the
database refuses a batch, a command of the batch is at fault. There are three exceptions: the
connection is gone, the server cannot work now, or the writer's memory is wrong (`_translated`).
This file must not know the callers that wait for outcomes (`group_commit.py`). Decision
ledger-writer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, LiteralString

import psycopg
from psycopg.errors import UniqueViolation

from core.errors import ErrorCode, QuarantineCode
from core.money import CENTS_PER_CREDIT, CURRENCY, MICRO_PER_CREDIT
from core.workflow.events import NodeChanged, NodePaid
from ledger.authority import AuthorizedCommand
from ledger.code_version import CODE_VERSION
from ledger.commands import Command, Outcome, OutcomeStatus, request_hash_of
from ledger.connections.connect import connect, fetch
from ledger.connections.timeouts import cut_after
from ledger.errors import (
    BatchRefused,
    LedgerFenced,
    LedgerIntegrityError,
    LedgerUnavailable,
    SchemaTooNew,
)
from ledger.features.credentials import add_credential_reads
from ledger.features.head_row import (
    KEEPALIVES,
    SESSION_TIMEOUTS,
    hold_commit_function,
    take_head,
    wait_for_lock,
)
from ledger.features.member_leases import committed_cluster
from ledger.features.quarantine import quarantined
from ledger.features.signing_keys import add_signing_key
from ledger.features.workflow_commands import AdvanceWorkflow
from ledger.registry import kind_of
from ledger.schema import driver_url, session_options
from ledger.tables.table import Encoded, EncodedDumper
from ledger.tables.write_function import FUNCTION, PARAMETERS
from ledger.writer.batch import Batch, Refusal
from ledger.writer.cache_loading import (
    load_read_set,
    load_settled,
    read_state_cache,
    stored_commands,
)
from ledger.writer.plan import is_stale, plan, repeated
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import Leases, StateCache


def boot_time_ms() -> int:
    """Return the milliseconds since the machine started, including time in suspend.

    The clock is monotonic; leases and proofs are measured with it.
    """
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


_LOG = logging.getLogger("callboard.ledger")

Connection = psycopg.AsyncConnection[Any]
# By key: the request hash and the outcome of the first command with the key.
Known = dict[str, tuple[bytes | None, Outcome]]

# How long one statement of a batch may run. Postgres does not count the time in which the commit is
# written to disk, so a slow disk does not make a command fail.
STATEMENT_TIMEOUT_S: Final = 2.0
# A wait for a lock is caused by another session, so it has its own timeout.
_LOCK_TIMEOUT: Final = "1000"
# Query plans are fixed, because tables without statistics once led to sequential scans. The session
# takes the writer's role after it has locked the head.
_SESSION: Final = session_options(
    "none",
    enable_seqscan="off",
    plan_cache_mode="force_generic_plan",
    statement_timeout=f"{STATEMENT_TIMEOUT_S * 1000:.0f}",
    lock_timeout=_LOCK_TIMEOUT,
    **SESSION_TIMEOUTS,
)
_PLACES: Final = ", ".join(f"%s::{kind}" for _, kind in PARAMETERS)
_COMMIT: Final = f"SELECT {FUNCTION}({_PLACES})"
_key: Final = attrgetter("key")
_BEAT: Final = "SELECT epoch FROM callboard.head"
_OPEN_TIMEOUT_S: Final = 10
# The connection is closed if the server sends nothing for this long beyond the statement timeout.
COMMIT_TIMEOUT_S: Final = 10.0
# After this time planning yields to the event loop. The clock is read once per
# `_COMMANDS_BETWEEN_LOOKS` commands.
_TURN_S: Final = 0.005
_COMMANDS_BETWEEN_LOOKS: Final = 16

# A statement exceeded its timeout. The transaction is rolled back, the connection remains open.
_TOO_SLOW: Final = "57014"
# The writer's memory is wrong: its epoch (CB001), or its counters or the chain (CB005).
_FENCED, _WRONG_MEMORY = "CB001", "CB005"
_COUNTED_BY_THE_WRITER: Final = ("entry_pkey", "audit_pkey")
# SQLSTATE classes with which the connection is reopened, because the server cannot work for this
# writer now. Causes: the connection, rights or a schema that do not fit this code, a read-only
# standby, a deadlock, too few resources, locks, a shutdown, the disk.
_TRANSIENT_CLASSES: Final = (
    "08", "0A", "25", "28", "3D", "3F", "40", "42", "53", "55", "57", "58",
)  # fmt: skip
# The SQLSTATE codes among these that no command can cause, even if it is repeated: another
# session's lock, a full disk, too many connections, a standby, a shutdown.
_NEVER_A_COMMANDS: Final = ("08", "25", "28", "3D", "40", "53100", "53300", "55", "57", "58")


@dataclass(frozen=True, slots=True)
class Genesis:
    """The fixed content of the first audit entry.

    `public_key`: the deployment's first signing key, base64, or "" without one.
    `sealed_key`: the sealed private key.
    """

    origin: str
    fee_bps: int
    public_key: str = ""
    sealed_key: bytes = b""


class _KeyConflict(Exception):
    """A key of the batch was used before."""


class _SettledConflict(Exception):
    """A node of the batch was settled before, by a command with another key."""


class LedgerStore:
    """One connection with one epoch. It is not safe for concurrent use: one commit at a time."""

    def __init__(
        self,
        connection: Connection,
        cache: StateCache,
        *,
        proven_ms: int,
        timeout_s: float = COMMIT_TIMEOUT_S,
        boot_ms: Callable[[], int] = boot_time_ms,
    ) -> None:
        self._connection = connection
        self._boot_ms = boot_ms
        self._timeout_s = timeout_s
        self._statement_timeout_s = STATEMENT_TIMEOUT_S
        self._cache: StateCache | None = cache
        self._leases = cache.leases
        # The committed members and shards, which a batch that is being planned does not change.
        self.cluster = committed_cluster(cache)
        # The send time of the newest statement that got a reply. The session held the lock at that
        # time. The time of the reply proves nothing, because the lock may be lost before the reply
        # arrives.
        self.proven_ms = proven_ms
        # The id of the newest committed audit entry.
        self.audit_id = cache.head.audit_seq
        self._latest_ms = cache.head.latest_ms
        self.epoch = cache.head.epoch
        self.round_trips = 0

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        genesis: Genesis,
        now_ms: int,
        leases: Leases,
        actor: str = "",
        on_waiting: Callable[[], None] = lambda: None,
        timeout_s: float = COMMIT_TIMEOUT_S,
        boot_ms: Callable[[], int] = boot_time_ms,
    ) -> LedgerStore:
        """Open the store: wait until no other session is the writer, then take over.

        Writes the first audit entry if there is none.

        Args:
            leases: says which members are live.
            actor: the name of this process, stored in the ledger's head row.
            on_waiting: called several times a second while another session is the writer.
            timeout_s: how long a commit waits for a server that sends nothing.
            boot_ms: a monotonic clock in milliseconds that runs while the machine is suspended.
        Raises: LedgerUnavailable when the database cannot be reached or is not migrated;
        SchemaTooNew, a subclass, when the schema requires newer code.
        """
        try:
            connection = await connect(
                driver_url(url),
                timeout_s=_OPEN_TIMEOUT_S,
                options=_SESSION,
                application_name="callboard-ledger",
                prepare_threshold=0,
                **KEEPALIVES,
            )
        except psycopg.Error as error:
            raise LedgerUnavailable(str(error)) from error
        connection.adapters.register_dumper(Encoded, EncodedDumper)
        try:
            await hold_commit_function(connection)
            await wait_for_lock(connection, on_waiting)
            with cut_after(connection, _OPEN_TIMEOUT_S):
                asked_ms = boot_ms()
                cache = await _take_over(connection, leases, actor)
                store = cls(
                    connection, cache, proven_ms=asked_ms, timeout_s=timeout_s, boot_ms=boot_ms
                )
                if store.cache.head.audit_seq == 0:
                    await store._write_genesis(genesis, now_ms)
        except psycopg.Error as error:
            # Nothing was planned, so any error (no schema yet, no right yet) may pass by itself.
            await connection.close()
            raise LedgerUnavailable(str(error).strip()) from error
        except BaseException:
            await connection.close()
            raise
        return store

    async def close(self) -> None:
        """Close the connection; all acknowledged commands are committed."""
        await self._connection.close()

    @property
    def cache(self) -> StateCache:
        """The committed state that planning reads."""
        assert self._cache is not None, "a store is not used after a commit that failed"
        return self._cache

    async def commit(
        self,
        commands: Sequence[Command],
        now_ms: int,
        *,
        statement_timeout_s: float = STATEMENT_TIMEOUT_S,
    ) -> list[Outcome]:
        """Commit the commands in order, in one transaction.

        Args:
            commands: a command that reads rows which other commands may change (`is_barrier`) must
                be the only one.
            now_ms: the wall clock, Unix milliseconds. Rows get this time, or the newest committed
                time if that is later.
            statement_timeout_s: how long one statement may run.
        Returns: one outcome per command.
        Raises: BatchRefused: nothing is stored. LedgerUnavailable, LedgerFenced or
        LedgerIntegrityError: the store must not be used any more.
        """
        is_lone = len(commands) == 1
        has_barrier = any(kind_of(command).is_barrier(command) for command in commands)
        assert is_lone or not has_barrier, "a lone command is in a batch"
        if not commands:
            return []
        with cut_after(self._connection, statement_timeout_s + self._timeout_s):
            await self._set_timeout(statement_timeout_s)
            return await self._commit_batch(commands, now_ms)

    async def refuse(self, command: Command, now_ms: int, *, is_slow: bool) -> Outcome:
        """Refuse a command that failed alone, and store the refusal for its repeats.

        A refused step quarantines its workflow. Any other command gets the rejection
        INTERNAL_ERROR. The rejection is stored under the command's key, except for a command type
        with `reuses_key`. If it cannot be stored, the caller gets it nevertheless.
        """
        detail = "the ledger could not apply the command"
        code = QuarantineCode.STEP_TOO_SLOW if is_slow else QuarantineCode.STEP_REFUSED
        try:
            with cut_after(self._connection, STATEMENT_TIMEOUT_S + self._timeout_s):
                await self._set_timeout(STATEMENT_TIMEOUT_S)
                known = (await self._lookup([command.key])).get(command.key)
                if is_stale(command, self.cache):
                    return Outcome(OutcomeStatus.STALE)
                if known is not None:
                    return repeated(command, *known)
                batch = Batch(self.cache, self._not_before(now_ms), now_ms)
                if isinstance(command, AdvanceWorkflow):
                    read_set = ReadSet(workflow_ids={command.workflow_id})
                    await load_read_set(self._connection, self.cache, read_set)
                    error = ErrorCode.INTERNAL_ERROR
                    outcome = quarantined(command, code, error, detail, batch)
                elif kind_of(command).reuses_key:
                    # Later attempts use the same key. A stored refusal would outlast its cause, so
                    # it is not stored.
                    outcome = Outcome(OutcomeStatus.REJECTED, {}, ErrorCode.INTERNAL_ERROR, detail)
                else:
                    refusal = Refusal(ErrorCode.INTERNAL_ERROR, detail, is_audited=True)
                    outcome = batch.refused(command, refusal)
                batch.end_command()
                if not batch.is_empty:
                    await self._run(batch)
                self._end_batch()
        except (LedgerUnavailable, LedgerIntegrityError):
            raise
        except Exception:
            _LOG.exception("a refusal cannot be stored command=%s", type(command).__name__)
            await self._reload()
            return Outcome(OutcomeStatus.REJECTED, {}, ErrorCode.INTERNAL_ERROR, detail)
        return outcome

    async def beat(self) -> None:
        """Prove that this writer still holds the head, and keep the session alive.

        Call it only between two commits. Raises: LedgerFenced. After LedgerUnavailable the store
        must not be used any more.
        """
        asked_ms = self._boot_ms()
        try:
            with cut_after(self._connection, self._timeout_s):
                cursor = await self._connection.execute(_BEAT, prepare=True)
                ((epoch,),) = await cursor.fetchall()
        except psycopg.Error as error:
            raise LedgerUnavailable(str(error).strip()) from error
        if epoch != self.epoch:
            raise LedgerFenced(f"ledger writer fenced off: epoch {self.epoch} is over")
        self.proven_ms = asked_ms

    def _end_batch(self) -> None:
        """Note that a batch is committed, and drop the rows that were loaded only for it."""
        self.cache.end_batch()
        self.audit_id = self.cache.head.audit_seq
        if self.cluster.version != self.cache.map_version:
            self.cluster = committed_cluster(self.cache)

    def _not_before(self, now_ms: int) -> int:
        """Return the time of a batch. It never decreases, even if the clock is set back."""
        # Stored here, because the state cache may be dropped and read again.
        self._latest_ms = max(self._latest_ms, self.cache.head.latest_ms, now_ms)
        return self._latest_ms

    async def _set_timeout(self, seconds: float) -> None:
        if seconds == self._statement_timeout_s:
            return
        milliseconds = f"{seconds * 1000:.0f}"
        try:
            await self._connection.execute(
                "SELECT set_config('statement_timeout', %s, false)", (milliseconds,)
            )
        except psycopg.Error as error:
            raise await self._failed(error) from error
        self._statement_timeout_s = seconds

    async def _commit_batch(self, commands: Sequence[Command], now_ms: int) -> list[Outcome]:
        asked = [command for command in commands if kind_of(command).may_repeat(command)]
        known: Known = await self._lookup(map(_key, asked)) if asked else {}  # (1)
        while True:
            try:
                return await self._attempt(commands, now_ms, known)
            except _KeyConflict:
                found = await self._lookup(map(_key, commands))
                if found.keys() <= known.keys():
                    raise BatchRefused("a key conflict without a stored key") from None
                known = found

    async def _attempt(
        self, commands: Sequence[Command], now_ms: int, known: Known
    ) -> list[Outcome]:
        for is_first in (True, False):
            loaded = await self._read(commands)  # (2)
            batch = Batch(self.cache, self._not_before(now_ms), now_ms, loaded)
            outcomes = await self._plan_all(commands, batch, dict(known))  # (3)
            # An untraced command stores no row. So the commit cannot show by a conflict that its
            # key was used before.
            untraced = batch.untraced - known.keys()
            if untraced and await self._lookup(untraced):
                await self._reload()
                raise _KeyConflict
            try:
                if is_first and any(map(_may_be_settled_already, outcomes)):
                    await self._reload()
                    raise _SettledConflict  # a stored payment may have made the step too expensive
                if not batch.is_empty:
                    await self._run(batch)  # (4)
            except _SettledConflict:
                try:
                    found = await load_settled(self._connection, _settling(commands))
                except psycopg.Error as error:
                    raise await self._failed(error) from error
                self.cache.settled |= found
                continue
            self._end_batch()
            return outcomes
        raise BatchRefused("a node would be settled twice")

    async def _read(self, commands: Sequence[Command]) -> Any:
        """Load the rows that planning these commands reads into the state cache.

        Returns: the return value of a lone command's `load`, or None.
        """
        read_set, load, loaded = ReadSet(), None, None
        try:
            for command in commands:
                kind = kind_of(command)
                kind.reads(command, read_set)
                if kind.is_barrier(command):
                    load = kind.load
                if kind.outlives_credential and isinstance(command, AuthorizedCommand):
                    add_credential_reads(command.credential, read_set)
        except Exception as error:
            raise BatchRefused(f"planning: {error!r}") from error
        try:
            if load is not None:
                loaded = await load(self._connection, commands[0], read_set)
            await load_read_set(self._connection, self.cache, read_set)
            return loaded
        except psycopg.Error as error:
            raise await self._failed(error) from error
        except Exception as error:  # a value that cannot be sent to the server
            await self._reload()
            raise BatchRefused(f"reading: {error!r}") from error

    async def _plan_all(
        self, commands: Sequence[Command], batch: Batch, known: Known
    ) -> list[Outcome]:
        """Plan the commands in order, and yield to the event loop between them.

        A stale command is answered STALE even if its key is stored: a member that has lost a shard
        may send a key that its successor has used. It must not get the outcome of its successor's
        command.

        Raises:
            BatchRefused: planning failed for one of the commands.
        """
        outcomes: list[Outcome] = []
        began = time.perf_counter()
        try:
            for command in commands:
                if (
                    len(outcomes) % _COMMANDS_BETWEEN_LOOKS == 0
                    and time.perf_counter() - began > _TURN_S
                ):
                    await asyncio.sleep(0)
                    began = time.perf_counter()
                outcomes.append(_outcome(command, batch, known))
        except asyncio.CancelledError:
            self._cache = None
            raise
        except Exception as error:
            # A defect of a plan. The plan may have changed a part of the state cache, so it is read
            # again.
            _LOG.exception("planning failed command=%s", type(commands[len(outcomes)]).__name__)
            await self._reload()
            raise BatchRefused(f"planning: {error!r}") from error
        return outcomes

    async def _run(self, batch: Batch) -> None:
        self.round_trips += 1
        asked_ms = self._boot_ms()
        try:
            await self._connection.execute(*self._statement(batch), prepare=True)
            self.proven_ms = asked_ms
        except UniqueViolation as error:
            constraint = error.diag.constraint_name
            if constraint == "command_pkey":
                await self._reload()
                raise _KeyConflict from error
            if constraint == "entry_node_payment":
                await self._reload()
                raise _SettledConflict from error
            raise await self._failed(error) from error
        except psycopg.Error as error:
            if error.sqlstate == "CB004":
                await self._reload()
                raise _SettledConflict from error
            raise await self._failed(error) from error
        except Exception as error:  # rows that cannot be encoded
            await self._reload()
            raise BatchRefused(f"encoding: {error!r}") from error
        except BaseException:
            # Cancelled while the statement ran: it is unknown whether the batch was committed.
            self._cache = None
            raise

    def _statement(self, batch: Batch) -> tuple[LiteralString, Sequence[Any]]:
        """Return the statement that commits a batch, and its parameters."""
        return _COMMIT, batch.parameters()

    async def _failed(self, error: psycopg.Error) -> Exception:
        """Return the exception for a failed statement. If the batch was refused, read the state
        cache again."""
        self._cache = None
        if self._connection.closed:
            return LedgerUnavailable(str(error).strip())
        found = _translated(error)
        if isinstance(found, BatchRefused):
            await self._reload()
        return found

    async def _reload(self) -> None:
        """Read the state cache again after a batch that was rolled back; the epoch is unchanged."""
        self._cache = None
        try:
            self._cache = await read_state_cache(self._connection, self.epoch, self._leases)
        except psycopg.Error as error:
            raise LedgerUnavailable(str(error).strip()) from error

    async def _lookup(self, keys: Iterable[str]) -> Known:
        try:
            return await stored_commands(self._connection, keys)
        except psycopg.Error as error:
            raise await self._failed(error) from error
        except UnicodeError as error:
            raise BatchRefused(f"keys: {error!r}") from error

    async def _write_genesis(self, genesis: Genesis, now_ms: int) -> None:
        batch = Batch(self.cache, now_ms)
        batch.found(
            ("ledger", genesis.origin),
            {
                "origin": genesis.origin,
                "currency": CURRENCY,
                "microPerCredit": MICRO_PER_CREDIT,
                "centsPerCredit": CENTS_PER_CREDIT,
                "feeBps": genesis.fee_bps,
                "publicKey": genesis.public_key,
            },
        )
        if genesis.public_key:
            add_signing_key(batch, genesis.public_key, genesis.sealed_key, audit_id=1)
        await self._run(batch)


def _outcome(command: Command, batch: Batch, known: Known) -> Outcome:
    """Plan a command, or return the first outcome of its key."""
    first = known.get(command.key)
    if first is not None and not is_stale(command, batch.cache):
        return repeated(command, *first)
    batch.untraced.discard(command.key)
    outcome = plan(command, batch)
    # An untraced command leaves its key to the next command that uses it, even in the same batch.
    is_traced = outcome.status is not OutcomeStatus.STALE
    if is_traced and command.key not in batch.untraced:
        known[command.key] = (request_hash_of(command), outcome)
    return outcome


def _may_be_settled_already(outcome: Outcome) -> bool:
    """Say whether a rejection may have the cause that payments of the step were stored before.

    Repeats of a stored rejection do not count. Otherwise each repeat by a caller would drop the
    state cache.
    """
    is_new = outcome.status is OutcomeStatus.REJECTED
    return is_new and outcome.error is ErrorCode.INTERNAL_ERROR


def _settling(commands: Sequence[Command]) -> list[tuple[str, str]]:
    """Return the (workflow, node or line) pairs that these commands change or pay."""
    return [
        (command.workflow_id, record.line if isinstance(record, NodePaid) else record.node)
        for command in commands
        if isinstance(command, AdvanceWorkflow)
        for record in command.records
        if isinstance(record, NodePaid | NodeChanged)
    ]


async def _take_over(connection: Connection, leases: Leases, actor: str) -> StateCache:
    ((needed,),) = await fetch(connection, "SELECT min_code_version FROM callboard.compatibility")
    if needed > CODE_VERSION:
        raise SchemaTooNew(needed, CODE_VERSION)
    if not await hold_commit_function(connection):
        raise LedgerUnavailable(f"the schema is not migrated: it has no {FUNCTION}")
    epoch = await take_head(connection, actor)
    await connection.execute("SELECT set_config('callboard.epoch', %s, false)", (str(epoch),))
    return await read_state_cache(connection, epoch, leases)


def _translated(error: psycopg.Error) -> Exception:
    """Return the exception for a failed statement on an open connection. Its class depends on the
    cause."""
    reason = str(error).strip()
    state = error.sqlstate
    if state is None:  # the driver refused a value before anything was sent
        return BatchRefused(reason)
    if state == _FENCED:
        return LedgerFenced(reason)
    if state == _WRONG_MEMORY or error.diag.constraint_name in _COUNTED_BY_THE_WRITER:
        return LedgerIntegrityError(f"{state} {reason}")
    if state == _TOO_SLOW:
        return BatchRefused(reason, is_slow=True)
    if state.startswith(_TRANSIENT_CLASSES):
        return LedgerUnavailable(reason, is_servers=state.startswith(_NEVER_A_COMMANDS))
    return BatchRefused(f"{state} {reason}")
