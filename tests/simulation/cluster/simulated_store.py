"""The store of a simulated ledger: the real plans of members and the lock, without Postgres.

In the place of `LedgerStore` in the real `GroupCommit`. A step of a workflow stores no more than
its number. `tests/ledger/test_shards.py` holds the plans to the real store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from core.shards.lease_messages import HeldShard
from ledger.commands import Command, Outcome, OutcomeStatus
from ledger.errors import LedgerUnavailable
from ledger.features.head_row import WAIT_S
from ledger.features.member_leases import committed_cluster
from ledger.features.shards import TakeShards
from ledger.features.workflow_commands import AdvanceWorkflow
from ledger.writer.batch import Batch
from ledger.writer.plan import is_stale, plan
from ledger.writer.state_cache import Leases, StateCache
from tests.simulation.cluster.simulated_database import ClusterRows, SessionEnded

if TYPE_CHECKING:
    from tests.simulation.cluster.ledger_process import LedgerProcess


@dataclass(frozen=True, slots=True)
class Moved:
    """A shard has another member. `before`: who held it; `is_take`: else it was given."""

    shard: int
    before: str
    member: str
    epoch: int
    is_take: bool


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step was stored by a member under an epoch."""

    command: AdvanceWorkflow
    step: int


ClusterEvent = Moved | Stepped


class SimulatedStore:
    """What one open connection of a ledger plans on and commits with."""

    round_trips = 0

    def __init__(
        self,
        process: LedgerProcess,
        session: str,
        epoch: int,
        rows: ClusterRows,
        leases: Leases,
        *,
        proven_ms: int,
    ) -> None:
        self._process = process
        self._session = session
        self._rows = rows
        self.epoch = epoch
        self.audit_id = rows.head.audit_seq
        self.proven_ms = proven_ms
        self._cache = StateCache(
            replace(rows.head, epoch=epoch),
            leases,
            members=dict(rows.members),
            shards=list(rows.shards),
            map_version=rows.version,
        )
        self.cluster = committed_cluster(self._cache)

    @classmethod
    async def open(
        cls,
        process: LedgerProcess,
        url: str,
        *,
        leases: Leases,
        on_waiting: Callable[[], None],
        boot_ms: Callable[[], int],
        **others: Any,
    ) -> SimulatedStore:
        """Become the head; as `LedgerStore.open`."""
        database, session = process.world.database, process.new_session()
        while not await _ask(process, partial(database.lock, session)):
            on_waiting()
            await asyncio.sleep(WAIT_S)
        asked_ms = boot_ms()
        epoch, rows = await _ask(process, partial(database.take_head, session))
        process.world.ledger_opened(process)
        return cls(process, session, epoch, rows, leases, proven_ms=asked_ms)

    async def close(self) -> None:
        """End the session."""
        self._process.end_session()

    async def beat(self) -> None:
        """As `LedgerStore.beat`."""
        asked_ms = self._process.boot_ms()
        await _ask(self._process, partial(self._process.world.database.check_lock, self._session))
        self.proven_ms = asked_ms

    async def commit(
        self, commands: Sequence[Command], now_ms: int, *, statement_timeout_s: float
    ) -> list[Outcome]:
        """As `LedgerStore.commit`."""
        asked_ms, cache = self._process.boot_ms(), self._cache
        batch = Batch(cache, now_ms)
        cache.gone_members |= self._rows.gone
        rows = self._rows
        self._rows = replace(
            rows, steps=dict(rows.steps), forms=dict(rows.forms), known=dict(rows.known)
        )
        events: list[ClusterEvent] = []
        outcomes = [self._plan(command, batch, events) for command in commands]
        rows = self._rows = self._rows.after(cache)

        def store() -> None:
            self._process.world.database.commit(self._session, rows)
            self._process.world.checks.committed(events, self._process)

        await _ask(self._process, store)
        self.proven_ms = asked_ms
        self.audit_id = cache.head.audit_seq
        cache.end_batch()
        if self.cluster.version != cache.map_version:
            self.cluster = committed_cluster(cache)
        return outcomes

    def _plan(self, command: Command, batch: Batch, events: list[ClusterEvent]) -> Outcome:
        known = self._rows.known
        if is_stale(command, batch.cache) if isinstance(command, AdvanceWorkflow) else False:
            return Outcome(OutcomeStatus.STALE)
        if (first := known.get(command.key)) is not None:
            return Outcome(OutcomeStatus.REPEATED, first.result, first.error, first.detail)
        before = list(batch.cache.shards)
        if isinstance(command, AdvanceWorkflow):
            outcome = self._step(command, events)
        else:
            outcome = plan(command, batch)
            is_take = isinstance(command, TakeShards)
            events += _moves(before, batch.cache.shards, is_take=is_take)
        if command.key not in batch.untraced:
            known[command.key] = outcome
        return outcome

    def _step(self, command: AdvanceWorkflow, events: list[ClusterEvent]) -> Outcome:
        step = self._rows.steps[command.workflow_id] = step_of(command)
        self._rows.forms[command.workflow_id] = form_of(command)
        events.append(Stepped(command, step))
        self._cache.head.audit_seq += 1
        return Outcome(OutcomeStatus.APPLIED, {})


def step_command(
    workflow_id: str, step: int, form: int, *, member: str, shard_epoch: int
) -> AdvanceWorkflow:
    """Return the command by which a workflow's step opens the attempt of this number.

    Args:
        form: the version of the code that the workflow's rows need from then on.
    """
    return AdvanceWorkflow(
        key=f"{workflow_id}:{step}",
        member=member,
        shard_epoch=shard_epoch,
        workflow_id=workflow_id,
        actor_did=str(form),
        records=(),
    )


def step_of(command: AdvanceWorkflow) -> int:
    """Return the number of the attempt that a step opens."""
    return int(command.key.rpartition(":")[2])


def form_of(command: AdvanceWorkflow) -> int:
    """Return the version of the code that a workflow's rows need after a step."""
    return int(command.actor_did)


def _moves(
    before: Sequence[HeldShard], after: Sequence[HeldShard], *, is_take: bool
) -> list[ClusterEvent]:
    return [
        Moved(shard, one.member, other.member, other.epoch, is_take)
        for shard, (one, other) in enumerate(zip(before, after, strict=True))
        if one != other
    ]


async def _ask(process: LedgerProcess, statement: Callable[[], Any]) -> Any:
    try:
        return await process.ask_database(statement)
    except (SessionEnded, ConnectionError, TimeoutError) as error:
        raise LedgerUnavailable(str(error)) from error
