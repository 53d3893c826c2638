"""The real `Owner` with parts that need no database, no network and no wall clock.

What runs is the product's: start, restore, handle, submit, runner, channel, ledger client. What is
made here reads rows from the model, sends to simulated agents and charges virtual CPU time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from actors.ledger_client import LedgerClient
from actors.messages import PublishRequest
from actors.outbox import Outboxes
from actors.owner import Owner
from actors.ports import Timer
from actors.runner import Runner
from ledger.commands import AdvanceWorkflow, Command, Outcome, PublishWorkflow
from ledger.queries.stored import StoredOwner, StoredWorkflow
from tests.simulation.agents import SimulatedDispatch
from tests.simulation.costs import (
    COMMAND_US,
    OUTCOME_US,
    RECORD_US,
    ChargedDirectory,
    node_row,
    workflow_row,
)
from tests.simulation.ledger_service import unreachable
from tests.simulation.money import stake_rows

if TYPE_CHECKING:
    from tests.simulation.process import Process

READ_MS_MAX = 30


class ProcessClock:
    """Implements `actors.ports.Clock` with the wall clock of the process's machine.

    As `actors/clock.py`: what is due at a time waits for as long as it is until then by now; the
    wall clock may step meanwhile.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._loop = process.loop

    def now_ms(self) -> int:
        """Return the machine's time."""
        return int(self._loop.time() * 1_000 + 1e-3) + self._process.offset_ms

    def call_at(self, at_ms: int, callback: Callable[..., None], *arguments: Any) -> Timer:
        """Implement `Clock`."""
        delay_s = max(0, at_ms - self.now_ms()) / 1_000
        return self._loop.call_later(delay_s, callback, *arguments)


class SimulatedReader:
    """Reads rows of the model; they are a little old when they arrive."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self.rows_read = 0

    async def unfinished(self, owner_name: str) -> list[StoredWorkflow]:
        """As `LedgerReader.unfinished`."""
        found = [self._charged(stored) for stored in self._model_rows(owner_name)]
        self.rows_read += len(found)
        await self._arrive()
        return found

    async def owners(self) -> list[StoredOwner]:
        """As `LedgerReader.owners`."""
        found = [StoredOwner(name, epoch, name, 0) for name, epoch in self._owners()]
        await self._arrive()
        return found

    def _owners(self) -> list[tuple[str, int]]:
        return list(self._world.model.owners.items())

    def _model_rows(self, owner_name: str) -> list[StoredWorkflow]:
        return self._world.model.unfinished(owner_name)

    def _charged(self, stored: StoredWorkflow) -> StoredWorkflow:
        charge = self._process.loop.charge
        nodes: list[dict[str, Any]] = [node_row(row, charge) for row in stored.nodes]
        return StoredWorkflow(workflow_row(stored.row, charge), nodes)

    async def _arrive(self) -> None:
        if self._world.ledger.is_away:
            raise unreachable()
        await asyncio.sleep(self._world.chance.randint(0, READ_MS_MAX) / 1_000)


class SimulatedFeeds:
    """Tells an owner what the ledger says of agents, prices, stakes and revocations."""

    def __init__(self, process: Process, directory: ChargedDirectory) -> None:
        self._process = process
        self._directory = directory

    async def start(self) -> None:
        """Know all agents and stakes."""
        world = self._process.world
        self._directory.stakes.know(stake_rows(world.model, world.rows))
        self._directory.put(world.rows.values())
        self.look()

    async def refresh(self) -> None:
        """Know what has changed."""
        if self._process.world.ledger.is_away:
            raise unreachable()
        self.look()

    async def ensure_known(self, requests: Sequence[PublishRequest]) -> None:
        """Do nothing: every agent is known from the start."""

    def look(self) -> None:
        """Know who is revoked."""
        self._directory.revocations.know(self._process.world.revoking.rows())


class SimulatedOwner(Owner):
    """An owner without a database and a network.

    Made without the product's constructor, which opens both.
    """

    def __init__(self, process: Process) -> None:
        world = process.world
        self._process = process
        self._name = process.name
        self._settings = world.settings
        self.clock = ProcessClock(process)
        self._clock = self.clock  # type: ignore[assignment]
        self._ledger = LedgerClient(
            partial(world.ledger.call, process),
            lambda error: not isinstance(error, AssertionError),
            capacity=world.settings.ledger_queue_max,
            batch_size=world.settings.batch_commands_max,
        )
        self._on_lost = process.lost
        self.directory = self._directory = ChargedDirectory(
            process.loop.charge,
            world.faults.may_raise,
            service="callboard",
            deployment_key=bytes(32),
            default_secret=None,
            max_concurrency=32,
            stake_bps=world.market.stake_bps,
        )
        self.reader = self._reader = SimulatedReader(process)  # type: ignore[assignment]
        self._feeds = SimulatedFeeds(process, self.directory)  # type: ignore[assignment]
        self.dispatch = SimulatedDispatch(process)
        self.spread = self.dispatch  # type: ignore[assignment]
        self.outboxes = Outboxes()
        self._runner: Runner | None = None
        self._epoch = 0
        self._restoring: set[asyncio.Task[int]] = set()

    @property
    def runner(self) -> Runner | None:
        """The runner, once the owner has begun to restore."""
        return self._runner

    @property
    def epoch(self) -> int:
        """The epoch, 0 before the ledger has given one."""
        return self._epoch

    def submit(self, command: Command, done: Callable[[Outcome], None]) -> None:
        """As the product's; may be the step at which the process dies."""
        process = self._process
        process.step("submit")
        if not process.is_alive:
            return
        is_step = isinstance(command, PublishWorkflow | AdvanceWorkflow)
        records = len(command.records) if is_step else 0
        process.loop.charge(COMMAND_US + RECORD_US * records)

        def heard(outcome: Outcome) -> None:
            if process.is_alive:
                process.loop.charge(OUTCOME_US)
                process.world.checks.answered_commit(command, outcome, process)
                done(outcome)

        super().submit(command, heard)

    def told_of_revocations(self) -> None:
        """Know who is revoked, as by a notice."""
        self._feeds.look()  # type: ignore[attr-defined]
        self._end_revoked_work()
