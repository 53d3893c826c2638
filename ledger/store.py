"""The one writer: plans a batch of commands on what it remembers and commits it in one round trip.

Procedure of a commit: (1) what planning needs and the books lack is read, (2) every command is
planned in order, repeats get their first outcome, (3) one call of `commit_batch`, which is one
transaction. Keys are looked up only after a conflict: then the batch starts again, knowing them.
Not a commit → the books are dropped.

It must not know who waits for the outcomes (group_commit.py). design.md section 3; money.md 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.errors import UniqueViolation

from core.errors import ErrorCode
from core.money import CENTS_PER_CREDIT, CURRENCY, MICRO_PER_CREDIT
from core.records.audit import AuditEventType
from core.workflow.events import NodeChanged, NodePaid
from ledger.commands import (
    AdvanceWorkflow,
    Command,
    Outcome,
    OutcomeStatus,
    RegisterOwner,
)
from ledger.errors import LedgerFenced, LedgerIntegrityError, LedgerUnavailable
from ledger.loading.books import read_books
from ledger.loading.load import has_stored, load_needs, load_settled, load_suspects, stored_commands
from ledger.patience import cut_after
from ledger.planning.batch import Batch, Refusal
from ledger.planning.books import Books
from ledger.planning.plan import is_alone, is_stale, needs, plan, repeated, request_hash_of
from ledger.schema import WRITER_ROLE, driver_url, session_options

Connection = psycopg.AsyncConnection[Any]
# By key: the request hash and the outcome of the first command that had it.
Known = dict[str, tuple[bytes | None, Outcome]]

# Plans are pinned: tables without statistics once gave sequential scans (design.md section 3).
_SESSION: Final = session_options(
    WRITER_ROLE, enable_seqscan="off", plan_cache_mode="force_generic_plan"
)
_COMMIT: Final = (
    "SELECT callboard.commit_batch(%s::bigint, %s::json, %s::json, %s::json, %s::json, %s::json,"
    " %s::json, %s::json, %s::json, %s::text, %s::uuid[], %s::json, %s::json, %s::json,"
    " %s::bigint)"
)
_TAKE_OVER: Final = (
    "UPDATE callboard.head SET epoch = epoch + 1 RETURNING epoch, entry_seq, audit_seq, hash"
)
_OPEN_TIMEOUT_S: Final = 10
# Longer than any batch needs whose disk is only slow.
COMMIT_PATIENCE_S: Final = 10.0

# What the server says when it could not do the work now, as opposed to refusing it: connection,
# resources, shutdown, deadlock.
_TRANSIENT_CLASSES: Final = ("08", "40", "53", "55", "57", "58")


@dataclass(frozen=True, slots=True)
class Genesis:
    """What the first audit record fixes for ever. `public_key`: base64 of the raw key, or ""."""

    origin: str
    fee_bps: int
    public_key: str = ""


class _KeyConflict(Exception):
    """A key of the batch was used before."""


class _SettledConflict(Exception):
    """A node of the batch was settled before, under another key."""


class LedgerStore:
    """One connection, one epoch. Not for concurrent use: one commit at a time."""

    def __init__(
        self, connection: Connection, books: Books, *, patience_s: float = COMMIT_PATIENCE_S
    ) -> None:
        self._connection = connection
        self._patience_s = patience_s
        self._books: Books | None = books
        self.epoch = books.head.epoch
        self.round_trips = 0

    def __repr__(self) -> str:
        return f"LedgerStore(epoch={self.epoch}, round_trips={self.round_trips})"

    @classmethod
    async def open(
        cls, url: str, *, genesis: Genesis, now_ms: int, patience_s: float = COMMIT_PATIENCE_S
    ) -> LedgerStore:
        """Connect, fence every earlier writer off, and write audit record #1 if there is none.

        Args:
            patience_s: how long a commit waits for a server that says nothing.
        Raises: LedgerUnavailable when the database cannot be reached or is not migrated;
        LedgerFenced when yet another writer came between.
        """
        try:
            connection = await psycopg.AsyncConnection.connect(
                driver_url(url),
                autocommit=True,
                options=_SESSION,
                application_name="callboard-ledger",
                connect_timeout=_OPEN_TIMEOUT_S,
                prepare_threshold=0,
            )
        except psycopg.Error as error:
            raise LedgerUnavailable(str(error)) from error
        try:
            with cut_after(connection, _OPEN_TIMEOUT_S):
                store = cls(connection, await _take_over(connection), patience_s=patience_s)
                if store.books.head.audit_seq == 0:
                    await store._write_genesis(genesis, now_ms)
        except psycopg.Error as error:
            # Whatever it is (no schema yet, no right yet), nothing was planned: it may pass.
            await connection.close()
            raise LedgerUnavailable(str(error).strip()) from error
        except BaseException:
            await connection.close()
            raise
        return store

    async def close(self) -> None:
        """Close the connection; what was acknowledged is committed."""
        await self._connection.close()

    @property
    def backend_pid(self) -> int:
        """The process id of the server's side of the connection, for benchmarks and faults."""
        return self._connection.info.backend_pid

    @property
    def books(self) -> Books:
        """The committed state that planning looks at."""
        assert self._books is not None, "a store is not used after a commit that failed"
        return self._books

    async def commit(self, commands: Sequence[Command], now_ms: int) -> list[Outcome]:
        """Commit the commands in order, in as few transactions as possible: one without claims.

        Args:
            now_ms: the time the rows carry, milliseconds.
        Returns: one outcome per command. Raises: LedgerUnavailable, LedgerFenced,
        LedgerIntegrityError; the store is not used after that.
        """
        outcomes: list[Outcome] = []
        with cut_after(self._connection, self._patience_s):
            for segment in _segments(commands):
                outcomes += await self._commit_segment(segment, now_ms)
        return outcomes

    async def refuse(self, command: Command, now_ms: int) -> Outcome:
        """Store the rejection INTERNAL_ERROR under a command's key: it stopped the writer twice."""
        known = (await self._lookup([command])).get(command.key)
        if known is not None:
            return repeated(command, *known)
        batch = Batch(self.books, now_ms)
        refusal = Refusal(
            ErrorCode.INTERNAL_ERROR, "the command violates an invariant", is_audited=True
        )
        outcome = batch.refused(command.key, request_hash_of(command), refusal)
        await self._run(batch, (command.key,))
        return outcome

    async def suspects(self) -> dict[str, int]:
        """Return the keys of commands from batches that stopped a writer, and how often."""
        try:
            return await load_suspects(self._connection)
        except psycopg.Error as error:
            raise _translated(error, ()) from error

    async def note_stop(self, keys: Sequence[str], now_ms: int) -> None:
        """Remember, past the end of this process, that a batch of these keys stopped the writer."""
        try:
            await self._connection.execute(
                "INSERT INTO callboard.suspect AS s (command_id, stops, stopped_ms)"
                " SELECT key, 1, %s FROM unnest(%s::text[]) AS key"
                " ON CONFLICT (command_id) DO UPDATE"
                " SET stops = s.stops + 1, stopped_ms = excluded.stopped_ms",
                (now_ms, list(dict.fromkeys(keys))),
            )
        except psycopg.Error as error:
            raise _translated(error, ()) from error

    async def clear_suspects(self, keys: Sequence[str]) -> None:
        """Forget suspicions that were settled."""
        try:
            await self._connection.execute(
                "DELETE FROM callboard.suspect WHERE command_id = ANY(%s)", (list(keys),)
            )
        except psycopg.Error as error:
            raise _translated(error, ()) from error

    async def _commit_segment(self, commands: Sequence[Command], now_ms: int) -> list[Outcome]:
        known: Known = {}
        while True:
            try:
                return await self._attempt(commands, now_ms, known)
            except _KeyConflict:
                found = await self._lookup(commands)
                if found.keys() <= known.keys():
                    reason = "a key conflict without a stored key"
                    keys = tuple(command.key for command in commands)
                    raise LedgerIntegrityError(reason, keys) from None
                known = found

    async def _attempt(
        self, commands: Sequence[Command], now_ms: int, known: Known
    ) -> list[Outcome]:
        keys = tuple(command.key for command in commands)
        for is_first in (True, False):
            try:
                await load_needs(self._connection, self.books, needs(commands))  # (1)
                batch = Batch(self.books, now_ms)
                outcomes = _plan_all(commands, batch, dict(known))  # (2)
                # What left no trace meets no conflict: whether its key was used is asked.
                is_known = await has_stored(self._connection, batch.untraced - known.keys())
            except psycopg.Error as error:
                raise self._failed(error, keys) from error
            except Exception as error:
                # A defect of ours half way through planning: the books are wrong from here on, and
                # the caller must stop the writer, not go on without an answer.
                self._books = None
                raise LedgerIntegrityError(f"planning: {error!r}", keys) from error
            if is_known:
                await self._reload()
                raise _KeyConflict
            try:
                if is_first and any(one.error is ErrorCode.INTERNAL_ERROR for one in outcomes):
                    raise _SettledConflict  # too dear because it was paid before, perhaps
                if not batch.is_empty:
                    await self._run(batch, keys)  # (3)
            except _SettledConflict:
                await self._reload()
                try:
                    found = await load_settled(self._connection, _settling(commands))
                except psycopg.Error as error:
                    raise self._failed(error, keys) from error
                self.books.settled |= found
                continue
            self.books.end_batch()
            return outcomes
        self._books = None
        raise LedgerIntegrityError("a node would be settled twice", keys)

    async def _run(self, batch: Batch, keys: tuple[str, ...]) -> None:
        self.round_trips += 1
        try:
            await self._connection.execute(_COMMIT, batch.parameters(), prepare=True)
        except UniqueViolation as error:
            constraint = error.diag.constraint_name
            if constraint == "command_pkey":
                await self._reload()
                raise _KeyConflict from error
            if constraint == "entry_node_payment":
                raise _SettledConflict from error
            raise self._failed(error, keys) from error
        except psycopg.Error as error:
            if error.sqlstate == "CB004":
                raise _SettledConflict from error
            raise self._failed(error, keys) from error
        except BaseException:
            # Cancelled while the statement was under way: nobody knows what became of it.
            self._books = None
            raise

    def _failed(self, error: psycopg.Error, keys: tuple[str, ...]) -> Exception:
        self._books = None
        if self._connection.closed:
            return LedgerUnavailable(str(error).strip())
        return _translated(error, keys)

    async def _reload(self) -> None:
        """Read the head again after a batch that was rolled back; the epoch stays ours."""
        self._books = None
        try:
            self._books = await read_books(self._connection, self.epoch)
        except psycopg.Error as error:
            raise _translated(error, ()) from error

    async def _lookup(self, commands: Sequence[Command]) -> Known:
        try:
            return await stored_commands(self._connection, commands)
        except psycopg.Error as error:
            raise self._failed(error, ()) from error

    async def _write_genesis(self, genesis: Genesis, now_ms: int) -> None:
        batch = Batch(self.books, now_ms)
        batch.record(
            AuditEventType.LEDGER_CREATED,
            actor_did="",
            target=("ledger", genesis.origin),
            payload={
                "origin": genesis.origin,
                "currency": CURRENCY,
                "microPerCredit": MICRO_PER_CREDIT,
                "centsPerCredit": CENTS_PER_CREDIT,
                "feeBps": genesis.fee_bps,
                "publicKey": genesis.public_key,
            },
        )
        await self._run(batch, ())


def _segments(commands: Sequence[Command]) -> list[Sequence[Command]]:
    """Split before and after each command that must see what those before it have committed."""
    if not any(is_alone(command) for command in commands):
        return [commands] if commands else []
    segments: list[list[Command]] = [[]]
    for command in commands:
        if is_alone(command):
            segments += [[command], []]
        else:
            segments[-1].append(command)
    return [segment for segment in segments if segment]


def _plan_all(commands: Sequence[Command], batch: Batch, known: Known) -> list[Outcome]:
    """Plan each command that is no repeat, in order.

    The fence comes before the key: an owner that was replaced may send what its successor has sent
    under the same key, and must not take the stored outcome for its own.
    """
    outcomes = []
    for command in commands:
        first = known.get(command.key)
        # Each registration of an owner is a new start, not a repeat.
        is_start = isinstance(command, RegisterOwner)
        if first is None or is_start or is_stale(command, batch.books):
            batch.untraced.discard(command.key)
            outcome = plan(command, batch)
            # A refusal without a trace leaves the key to whoever uses it next, in this batch too.
            is_traced = outcome.status is not OutcomeStatus.STALE
            if not is_start and is_traced and command.key not in batch.untraced:
                known[command.key] = (request_hash_of(command), outcome)
        else:
            outcome = repeated(command, *first)
        outcomes.append(outcome)
    return outcomes


def _settling(commands: Sequence[Command]) -> list[tuple[str, str]]:
    """Return the (workflow, node or line) pairs that these commands change or pay."""
    return [
        (command.workflow_id, record.line if isinstance(record, NodePaid) else record.node)
        for command in commands
        if isinstance(command, AdvanceWorkflow)
        for record in command.records
        if isinstance(record, NodePaid | NodeChanged)
    ]


async def _take_over(connection: Connection) -> Books:
    cursor = await connection.execute(_TAKE_OVER)
    row = await cursor.fetchone()
    assert row is not None, "the head row exists since migration 0001"
    await connection.execute("SELECT set_config('callboard.epoch', %s, false)", (str(row[0]),))
    return await read_books(connection, row[0])


def _translated(error: psycopg.Error, keys: tuple[str, ...]) -> Exception:
    reason = str(error).strip()
    state = error.sqlstate
    if state == "CB001":
        return LedgerFenced(reason, keys)
    if state is None or state.startswith(_TRANSIENT_CLASSES):
        return LedgerUnavailable(reason)
    return LedgerIntegrityError(f"{state} {reason}", keys)
