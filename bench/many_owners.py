"""Nodes a second of 1 to 64 owners and 1 to 16 ledgers, by a model fed with measured costs.

Run as `python -m bench.many_owners [--kind bulk|callers] [--ahead]`. A discrete simulation in
virtual time; nothing of the service runs. It has: owners, each one core, that drive chains of three
nodes, a fixed number of workflows at once; agents that take a constant time; ledgers, each one
writer that plans a batch of what waits and one backend of Postgres that commits it, one after the
other, as the group commit does; one call under way from each owner to each ledger, as channels have
it. `--ahead`: the writer plans a batch while the one before is committed, which the service does
not do. Every process has a core of its own: the model says what processes are bound by, not what a
small machine can hold.

Several ledgers stand for a split by payers. A payment whose agent's wallet is at another ledger
(`1 - 1/ledgers` of them) takes a further command there, which credits what the first one has
debited; the node goes on after the first.

The costs are parameters below, with where each was measured. Prints a table and, for each row, how
busy owners, writers and backends are. Decision 0216.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

# Milliseconds. docs/performance.md, chain of 3, CPU by kind of process: bulk of 1,000 and 32
# callers. A chain of three is four commands: its publish and three ends of nodes.
NODES, COMMANDS = 3, 4
OWNER_MS: Final = {"bulk": 0.240 * NODES / COMMANDS, "callers": 0.267 * NODES / COMMANDS}
# Of a batch and of each command in it. docs/performance.md: a commit of one command costs Postgres
# 1.0 to 1.25 ms and the writer 0.7, one of 32 0.15 and 0.1 a command.
WRITER_BATCH_MS, WRITER_MS = 0.62, 0.081
BACKEND_BATCH_MS, BACKEND_MS = 0.98, 0.119
# A call between machines and back, beside the CPU above: `bench.transport`.
HOP_MS: Final = 0.1
AGENT_MS: Final = 20.0
# In one call (128 KiB of 1.2 KiB each), and in one batch.
CALL_MAX, BATCH_MAX = 100, 1_000
# Workflows at once for each ledger, shared out over the owners: enough to keep all of them busy.
AT_ONCE: Final = 1_500
WARM_MS, MEASURED_MS = 3_000.0, 4_000.0
OWNERS: Final = (1, 2, 3, 4, 6, 8, 16, 32, 64)
LEDGERS: Final = (1, 2, 4, 8, 16)


@dataclass(slots=True)
class Command:
    """Of a workflow's step; `then` is called when its owner hears that it is committed."""

    then: Callable[[], None]


@dataclass(slots=True)
class World:
    """Virtual time and what is due in it."""

    now_ms: float = 0.0
    due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    nodes: int = 0

    def after(self, ms: float, what: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self.due, (self.now_ms + ms, next(self.numbers), what))

    def run_until(self, ms: float) -> None:
        """Pass the time up to then."""
        while self.due and self.due[0][0] <= ms:
            self.now_ms, _, what = heapq.heappop(self.due)
            what()
        self.now_ms = ms


class Ledger:
    """One writer with its backend: a batch is planned, then committed, then the next begins."""

    def __init__(self, world: World, *, is_ahead: bool) -> None:
        self._world = world
        self._is_ahead = is_ahead
        self._calls: list[tuple[list[Command], Callable[[], None]]] = []
        self._is_busy = False
        self._backend_free_ms = 0.0
        self.writer_ms = self.backend_ms = 0.0

    def call(self, commands: list[Command], answered: Callable[[], None]) -> None:
        """Take a call; `answered` when all of its commands are committed."""
        self._calls.append((commands, answered))
        if not self._is_busy:
            self._begin()

    def _begin(self) -> None:
        taken: list[Callable[[], None]] = []
        size = 0
        while self._calls and (not taken or size + len(self._calls[0][0]) <= BATCH_MAX):
            commands, answered = self._calls.pop(0)
            size += len(commands)
            taken.append(answered)
        writer_ms = WRITER_BATCH_MS + size * WRITER_MS
        backend_ms = BACKEND_BATCH_MS + size * BACKEND_MS
        self.writer_ms += writer_ms
        self.backend_ms += backend_ms
        self._is_busy = True
        planned_ms = self._world.now_ms + writer_ms
        commit_ms = max(planned_ms, self._backend_free_ms)
        self._backend_free_ms = commit_ms + backend_ms

        def free() -> None:
            self._is_busy = False
            if self._calls:
                self._begin()

        def committed() -> None:
            for answered in taken:
                answered()
            if not self._is_ahead:
                free()

        self._world.after(self._backend_free_ms - self._world.now_ms, committed)
        if self._is_ahead:  # at most one planned batch waits for the backend
            self._world.after(commit_ms - self._world.now_ms, free)


class Owner:
    """One core that drives workflows, and a channel to each ledger."""

    def __init__(
        self, world: World, ledgers: list[Ledger], chance: random.Random, step_ms: float
    ) -> None:
        self._world = world
        self._ledgers = ledgers
        self._chance = chance
        self._step_ms = step_ms
        self._free_ms = 0.0
        self._waiting: list[list[Command]] = [[] for _ in ledgers]
        self._is_called = [False for _ in ledgers]
        self.busy_ms = 0.0

    def start(self, at_once: int) -> None:
        """Drive so many workflows at once, for ever."""
        for _ in range(at_once):
            # Not all in one turn: payers publish when they want.
            self._world.after(self._chance.uniform(0, AGENT_MS * NODES), self._publish)

    def _publish(self) -> None:
        self._work(lambda place: self._submit(place, lambda: self._dispatch(place, 1)))

    def _dispatch(self, place: int, node: int) -> None:
        self._world.after(AGENT_MS, lambda: self._end(place, node))

    def _end(self, place: int, node: int) -> None:
        def submit(_: int) -> None:
            self._submit(place, lambda: self._ended(place, node))
            other = self._chance.randrange(len(self._ledgers))
            if other != place:
                self._submit(other, lambda: None)

        self._work(submit)

    def _ended(self, place: int, node: int) -> None:
        self._world.nodes += 1
        if node < NODES:
            self._dispatch(place, node + 1)
        else:
            self._publish()

    def _work(self, what: Callable[[int], None]) -> None:
        """Do a step when the core is free, with a place for a new workflow."""
        self._free_ms = max(self._free_ms, self._world.now_ms) + self._step_ms
        self.busy_ms += self._step_ms
        place = self._chance.randrange(len(self._ledgers))
        self._world.after(self._free_ms - self._world.now_ms, lambda: what(place))

    def _submit(self, place: int, then: Callable[[], None]) -> None:
        self._waiting[place].append(Command(then))
        if not self._is_called[place]:
            self._call(place)

    def _call(self, place: int) -> None:
        commands = self._waiting[place][:CALL_MAX]
        del self._waiting[place][:CALL_MAX]
        self._is_called[place] = True

        def answered() -> None:
            self._world.after(HOP_MS / 2, heard)

        def heard() -> None:
            self._is_called[place] = False
            for command in commands:
                command.then()
            if self._waiting[place] and not self._is_called[place]:
                self._call(place)

        ledger = self._ledgers[place]
        self._world.after(HOP_MS / 2, lambda: ledger.call(commands, answered))


@dataclass(frozen=True, slots=True)
class Rate:
    """Nodes a second, and how much of the time processes work, 0 to 1."""

    nodes_s: float
    owners: float
    writers: float
    backends: float


def simulate(owner_count: int, ledger_count: int, kind: str, *, is_ahead: bool = False) -> Rate:
    """Return what so many owners and ledgers do."""
    world, chance = World(), random.Random(owner_count * 100 + ledger_count)
    ledgers = [Ledger(world, is_ahead=is_ahead) for _ in range(ledger_count)]
    owners = [Owner(world, ledgers, chance, OWNER_MS[kind]) for _ in range(owner_count)]
    for owner in owners:
        owner.start(AT_ONCE * ledger_count // owner_count)
    world.run_until(WARM_MS)
    nodes = world.nodes
    spent = [sum(one.busy_ms for one in owners), *_ledgers_ms(ledgers)]
    world.run_until(WARM_MS + MEASURED_MS)
    after = [sum(one.busy_ms for one in owners), *_ledgers_ms(ledgers)]
    parts = (owner_count, ledger_count, ledger_count)
    busy = [
        (late - early) / MEASURED_MS / count
        for early, late, count in zip(spent, after, parts, strict=True)
    ]
    return Rate(1_000 * (world.nodes - nodes) / MEASURED_MS, *busy)


def _ledgers_ms(ledgers: list[Ledger]) -> tuple[float, float]:
    return sum(one.writer_ms for one in ledgers), sum(one.backend_ms for one in ledgers)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=sorted(OWNER_MS), default="bulk")
    parser.add_argument("--owners", type=int, nargs="*", default=OWNERS)
    parser.add_argument("--ahead", action="store_true")
    options = parser.parse_args()
    print("| owners | ledgers | nodes/s | owners busy | writers busy | backends busy |")
    print("|---|---|---|---|---|---|")
    for ledger_count in LEDGERS:
        for owner_count in options.owners:
            if owner_count < ledger_count:
                continue  # the owners are what binds
            rate = simulate(owner_count, ledger_count, options.kind, is_ahead=options.ahead)
            shares = f"{rate.owners:.0%} | {rate.writers:.0%} | {rate.backends:.0%}"
            print(
                f"| {owner_count} | {ledger_count} | {rate.nodes_s:,.0f} | {shares} |", flush=True
            )


if __name__ == "__main__":
    main()
