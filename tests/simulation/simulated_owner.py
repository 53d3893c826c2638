"""The real `Owner` with parts that need no database, no network and no wall clock.

What runs is the product's: start, restore, handle, submit, runner, channel, ledger client. What is
made here reads rows from the model, sends to simulated agents and charges virtual CPU time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from actors.dispatch.remote_dispatch import OwnerCalls, RemoteDispatch
from actors.engine.outbox import Outboxes
from actors.engine.owner import Owner
from actors.engine.restorer import Restorer
from actors.engine.runner import Runner
from actors.process.at_work import AtWork
from actors.process.loop_clock import LoopClock, SteadyTime
from actors.shards.held_shards import HeldShards
from actors.shards.membership import Membership
from actors.shards.shard_ledger import ShardLedger
from actors.transport.ledger_client import LedgerClient
from actors.transport.messages import PublishRequest
from actors.transport.wire import answer_commands
from core.shards.agent_shares import AgentShares
from core.trust.deployment_keys import DeploymentKeys
from ledger.commands import Command, Outcome
from ledger.features import unfinished
from ledger.features.workflow_commands import AdvanceWorkflow, PublishWorkflow
from ledger.merged_runs import MergedRuns
from ledger.reads.stored import StoredWorkflow
from ledger.writer.group_commit import BATCH_MAX
from tests.simulation.costs import (
    COMMAND_US,
    OUTCOME_US,
    RECORD_US,
    ChargedDirectory,
    node_row,
    workflow_row,
)
from tests.simulation.ledger_service import unreachable
from tests.simulation.money_checks import stake_parts
from tests.simulation.simulated_agents import SimulatedDispatch
from tests.simulation.violation import require

if TYPE_CHECKING:
    from tests.simulation.process import Process

READ_MS_MAX = 30
READ_AS_WELL = 20


def key_of(stored: StoredWorkflow) -> unfinished.PageKey:
    """Return a workflow's place in the order of pages."""
    return unfinished.PageKey(stored.row["deadline_ms"], stored.id)


class SimulatedReader:
    """Reads rows of the model; they are a little old when they arrive."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self.rows_read = 0
        self._has_failed = False

    async def rows(self, statement: object, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """As `LedgerReader.rows`, for the statements that restoring needs."""
        world = self._world
        if world.ledger.is_away:
            self._has_failed = True
            raise unreachable()
        stored = self._answers(statement, values)
        await asyncio.sleep(world.chance.randint(0, READ_MS_MAX) / 1_000)
        return stored

    def _answers(self, statement: object, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        charge, model = self._process.loop.charge, self._world.model
        if statement is unfinished._NODES:
            found = [stored for i in values["ids"] if (stored := model.stored(i)) is not None]
            return [node_row(row, charge) for stored in found for row in stored.nodes]
        mine = sorted(model.unfinished(values["shards"]), key=key_of)
        if statement is unfinished._WORKFLOWS:
            rows = [stored.row for stored in mine if stored.id in values["ids"]]
            self.rows_read += len(rows)
            return [workflow_row(row, charge) for row in rows]
        assert statement is unfinished._SIZES, statement
        after = (values["after_ms"], values["after_id"])
        if after == unfinished._BEFORE_ALL:
            self._begin_scan(len(mine))
        page = [stored for stored in mine if key_of(stored) > after][: values["most"]]
        return [
            {
                "deadline_ms": one.row["deadline_ms"],
                "id": one.id,
                "nodes": len(one.nodes),
                "bytes": len(one.row["manifest"]),
            }
            for one in page
        ]

    def _begin_scan(self, unfinished_workflows: int) -> None:
        """A shard's workflows are read when it comes to be held, and again when that has failed."""
        process = self._process
        if process.scans_needed:
            process.scans_needed -= 1
            # What is published until the last page is read as well, and quarantined ones once more
            # at their ends.
            process.rows_needed += 2 * unfinished_workflows + READ_AS_WELL
        else:
            require(self._has_failed, process, "reads all workflows without need")
        self._has_failed = False


class SimulatedFeeds:
    """Tells an owner what the ledger says of agents, prices, stakes and revocations."""

    def __init__(self, process: Process, directory: ChargedDirectory) -> None:
        self._process = process
        self._directory = directory

    async def start(self) -> None:
        """Know all agents and stakes."""
        world = self._process.world
        self._directory.stakes.apply_parts(stake_parts(world.model, world.rows))
        self._directory.put(world.rows.values())
        self.poll()

    async def refresh(self) -> None:
        """Know what has changed."""
        if self._process.world.ledger.is_away:
            raise unreachable()
        self.poll()

    def is_known(self, request: PublishRequest) -> bool:
        """Say so: every agent is known from the start."""
        return True

    def poll(self) -> None:
        """Know who is revoked."""
        self._directory.revocations.apply_rows(self._process.world.revoking.rows())


class SimulatedClient(LedgerClient):
    """A client of the simulated ledger; what it is given and hears costs virtual CPU time."""

    def __init__(self, process: Process) -> None:
        world = process.world
        super().__init__(
            partial(answer_commands, partial(world.ledger.call, process)),
            lambda error: not isinstance(error, AssertionError),
            on_lost=process.lost,
            capacity=world.queue_max,
            batch_size=BATCH_MAX,
        )
        self._process = process

    def submit(self, command: Command, done: Callable[[Outcome], None], payer: str = "") -> None:
        """As the product's; may be the step at which the process dies."""
        process = self._process
        process.step("submit")
        if not process.is_alive:
            return
        process.loop.charge(COMMAND_US)
        if isinstance(command, PublishWorkflow | AdvanceWorkflow):
            process.loop.charge(RECORD_US * len(command.records))
        process.world.quarantines.submitted(command, process)

        def heard(outcome: Outcome) -> None:
            if process.is_alive:
                process.loop.charge(OUTCOME_US)
                process.world.quarantines.answered(command, outcome, process)
                process.world.checks.answered_commit(command, outcome, process)
                done(outcome)

        super().submit(command, heard, payer)


class SimulatedOwner(Owner):
    """An owner without a database and a network.

    Made without the product's constructor, which opens both.
    """

    def __init__(self, process: Process) -> None:
        world = process.world
        self._process = process
        self._address = process.name
        self._machine = process.name
        self._settings = world.settings
        self.children = None
        # No chance of its own: a run is decided by its seed.
        self.held = HeldShards(f"{process.name}~{len(world.all_processes)}")
        self.membership = Membership(
            self.held,
            self,
            renew=partial(world.ledger.renew, process),
            commit=self._commit,
            boot_ms=world.clock.now_ms,
            on_ended=process.lost,
        )
        steady = SteadyTime(process.wall_ns, process.loop.monotonic_ns)
        self.clock = self._clock = LoopClock(steady)
        self._ledger = SimulatedClient(process)
        self.directory = self._directory = ChargedDirectory(
            process.loop.charge,
            world.faults.may_raise,
            service="callboard",
            deployment_keys=DeploymentKeys(),
            default_secret=None,
            max_concurrency=32,
            stake_bps=world.market.stake_bps,
        )
        self.reader = self._reader = SimulatedReader(process)  # type: ignore[assignment]
        self._directory_sync = SimulatedFeeds(process, self.directory)  # type: ignore[assignment]
        self._shares = AgentShares(self.held.member, self._concurrency)
        self.dispatch = SimulatedDispatch(process)
        self._dispatcher = self.dispatch  # type: ignore[assignment]
        self.remote_dispatch = RemoteDispatch(
            self.dispatch,  # type: ignore[arg-type]
            self.held.member,
            now_ms=self.clock.now_ms,
            is_always=False,
            shares=self._shares,
            may_send=self.may_send,
        )
        self.outboxes = Outboxes()
        self._runner: Runner | None = None
        self._shard_ledger = ShardLedger(self._ledger, self.membership.note_stale)
        self._tasks: set[asyncio.Task[None]] = set()
        self._drops = 0
        self._others: dict[str, str] = {}
        self._children: dict[str, str] = {}
        self._at_work = AtWork()
        self._restorer: Restorer | None = None
        self._revoked_work = MergedRuns("work of revoked agents", self._end_revoked_work)

    @property
    def is_restoring(self) -> bool:
        """Whether workflows may be unfinished and not driven yet."""
        return self._restorer is None or self._restorer.is_scanning

    @property
    def runner(self) -> Runner | None:
        """The runner, once the owner has begun to restore."""
        return self._runner

    def taken(self, shards: Sequence[int]) -> None:
        """As the product's; their rows may be read once."""
        self._process.scans_needed += 1
        super().taken(shards)
        assert self._restorer is not None
        self._restorer._scanned[-1].add_done_callback(self._restored)

    def _restored(self, done: asyncio.Future[None]) -> None:
        if not done.cancelled():
            self._process.note_restored()

    def _peer_calls(self, address: str) -> OwnerCalls:  # type: ignore[override]
        return self._process.owner_calls(address)

    def told_of_revocations(self) -> None:
        """Know who is revoked, as by a notice."""
        self._directory_sync.poll()  # type: ignore[attr-defined]
        self._revoked_work.soon()
