"""One owner's process in the simulation: a real runner and directory behind breakable ports.

A killed process is deaf and dumb at once, in the middle of whatever it was doing: nothing it still
calls has an effect, no callback reaches it. What follows a start is what `actors/owner.py` does:
new epoch, directory, restore. design.md section 3 (Recovery).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from actors.bidding import AuctioningDirectory
from actors.ports import Timer
from actors.runner import Runner
from core.settings import Settings
from ledger.commands import Command, Outcome, RegisterOwner
from tests.simulation.agents import SimulatedDispatch
from tests.simulation.money import stake_rows

if TYPE_CHECKING:
    from tests.simulation.world import World

SETTINGS = Settings()
RETRY_DELAY_MS_MAX = 2_000


class ProcessClock:
    """The world's clock; callbacks of a dead process do not come."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.now_ms = process.world.clock.now_ms

    def call_at(self, at_ms: int, callback: Callable[..., None], *arguments: Any) -> Timer:
        """Implement `Clock`."""
        return self._process.world.clock.call_at(at_ms, self._fire, callback, arguments)

    def _fire(self, callback: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if self._process.is_alive:
            callback(*arguments)


class LedgerLink:
    """Commands of one process to the ledger: batched, in order, repeated until the answer is known.

    As `actors/ledger_client.py`: a batch is lost or its answer is, the same batch goes again.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self._waiting: list[tuple[Command, Callable[[Outcome], None]]] = []
        self._is_busy = False
        self.is_full = False

    def submit(self, command: Command, done: Callable[[Outcome], None]) -> None:
        """Implement `LedgerPort`."""
        self._process.step("submit")
        if not self._process.is_alive:
            return
        self._waiting.append((command, done))
        if not self._is_busy:
            self._send_next()

    def _send_next(self) -> None:
        batch, self._waiting = self._waiting, []
        self._is_busy = True
        self._world.clock.call_in(self._world.chance.randint(0, 3), self._arrive, batch, 50)

    def _arrive(
        self, batch: list[tuple[Command, Callable[[Outcome], None]]], retry_ms: int
    ) -> None:
        world, troubles = self._world, self._world.troubles
        # What a dead process had sent may arrive after its death, even after its successor began.
        if not self._process.is_alive and world.chance.random() < 0.5:
            return
        draw = world.chance.random()
        again_ms = min(2 * retry_ms, RETRY_DELAY_MS_MAX)
        if draw < troubles.commit_lost or world.is_ledger_away:
            world.clock.call_in(retry_ms, self._arrive, batch, again_ms)
            return
        self._process.step("commit")
        if not self._process.is_alive and world.crash_point is not None:
            return
        outcomes = world.model.commit([command for command, _ in batch])
        world.market.moved([command for command, _ in batch])
        if draw < troubles.commit_lost + troubles.answer_lost:
            world.clock.call_in(retry_ms, self._arrive, batch, again_ms)
            return
        world.clock.call_in(world.chance.randint(0, 2), self._answer, batch, outcomes)

    def _answer(
        self, batch: list[tuple[Command, Callable[[Outcome], None]]], outcomes: list[Outcome]
    ) -> None:
        process = self._process
        process.step("committed")
        self._is_busy = False
        for (command, done), outcome in zip(batch, outcomes, strict=True):
            if not process.is_alive:
                return
            self._world.checks.answered_commit(command, outcome, process)
            done(outcome)
        if self._waiting and not self._is_busy and process.is_alive:
            self._send_next()


class Process:
    """A workflow owner's process, alive from its making until it is killed."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_alive = True
        self.refused: set[str] = set()  # workflows of which a commit of this process was refused
        self.on_death: list[Callable[[], None]] = []
        self.directory = AuctioningDirectory(
            service="callboard",
            deployment_key=bytes(32),
            default_secret=None,
            max_concurrency=32,
            stake_bps=world.market.stake_bps,
        )
        self.directory.stakes.know(stake_rows(world.model, world.rows))
        self.directory.put(world.rows.values())
        self.directory.revocations.know(world.revoking.rows())
        clock = ProcessClock(self)
        start = RegisterOwner(key=f"owner:{name}", owner=name, address="")
        self.epoch = int(world.model.commit([start])[0].result["epoch"])
        self.dispatch = SimulatedDispatch(self)
        self.runner = Runner(
            name,
            self.epoch,
            SETTINGS,
            ledger=LedgerLink(self),
            directory=self.directory,
            dispatcher=self.dispatch,
            clock=clock,
            on_finished=world.finished,
            on_lost=self.lost,
            on_unsure=self._unsure,
        )
        self.restore()

    def __repr__(self) -> str:
        return f"<Process {self.name}#{self.epoch} {'alive' if self.is_alive else 'dead'}>"

    def step(self, what: str) -> None:
        """Pass a point at which the world may kill this process."""
        if self.world.crash_point is not None and self.is_alive:
            self.world.pass_point(self, what)

    def restore(self) -> None:
        """Restore every unfinished workflow that is owned but not running here."""
        self._take_up(self.world.model.unfinished(self.name), self.runner.begin_read())

    def restore_later(self) -> None:
        """Read the rows now and restore from them a little later, as a real read would."""
        stored, touched = self.world.model.unfinished(self.name), self.runner.begin_read()
        delay_ms = self.world.chance.randint(0, 30)
        self.world.clock.call_in(delay_ms, self._take_up, stored, touched)

    def kill(self) -> None:
        """End at once; whoever waits for an answer of this process learns that it ended."""
        if self.is_alive:
            self.is_alive = False
            for callback in self.on_death:
                callback()

    def lost(self, reason: str) -> None:
        """Hear that the runner cannot go on: this process ends, and only a fence may be why."""
        if self.is_alive:
            self.world.checks.lost(self, reason)
            self.kill()
            self.world.restart_later(self)

    def _unsure(self, _: str) -> None:
        self.directory.revocations.know(self.world.revoking.rows())
        self.restore_later()

    def _take_up(self, rows: list[Any], touched: set[str]) -> None:
        """Restore what is not driven, of rows that are not out of date."""
        for stored in rows:
            if self.is_alive:
                self.runner.take_up(stored, touched)
        self.runner.end_read(touched)
        if self.is_alive:
            self.world.revoking.tell(self)
