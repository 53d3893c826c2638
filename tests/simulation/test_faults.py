"""What the simulation could not see before issue 8: slow ledgers, defects, clocks, full queues.

Each defect has worlds of its own, and each row of the issue that a world can express its seed. A
failing run prints its seed; `pytest tests/simulation/test_faults.py --seed N` repeats it in every
kind of world.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable

import pytest

from tests.simulation.skewed_clock import START_MS
from tests.simulation.test_simulation import RUN_WORKFLOWS, few_collections, market_of
from tests.simulation.troubles import KINDS, faults_of
from tests.simulation.violation import Violation
from tests.simulation.world import World

RUNS_PER_KIND = 8
# The soak gives a sign of life after so many worlds.
SOAK_WORLDS_TOLD = 100

# Seeds that were red on the code before issue 8 (commit 027fef9), with what was said then.
# Decision tests-and-benchmarks has the messages.
FOUND_FAULTS = {
    ("guilty", 2): "row 3: a step that the ledger refuses ends its owner, again and again",
    ("clocks", 2): "a span is below 0 after a clock has stepped back",
    ("queue", 0): "a full queue raises after the machine has taken a step",
    ("queue", 4): "as before: the workflow is stuck with its money held",
    ("raising", 5): "a callback that raises ends the channel, and workflows are stuck",
    ("raising", 11): "as before: a stake is locked for ever",
    ("raising", 13): "as before: a child is sent before its parent's result is stored",
    ("slow", 8): "each refused step reads all workflows again",
    ("slow", 38): "a step refused for a revoked agent keeps its key for ever",
    ("slow", 11): "everything is restored in one loop turn",
    ("watch", 13): "every repeated publish reads all workflows again",
    # Found by the soak later.
    ("slow", 11403): "work taken from the revoked ends before it began",
    ("clocks", 502): "an accepted attempt was discarded by a successor whose clock was behind",
    ("", 2200176): "what is sent after its workflow was stopped keeps its place",
    ("", 2300227): "a result for a repeated publish leaves a stake locked",
    ("clocks", 11128): "a verification is sent and refused again and again while clocks differ",
}


def fault_world(seed: int, kind: str) -> World:
    """Return the world of a seed in which this kind of defect occurs, and any other trouble."""
    troubles = faults_of(random.Random(f"{kind} {seed}"), kind)
    market = market_of(seed)
    return World(seed, workflows=RUN_WORKFLOWS, troubles=troubles, **market)


def run_faults(kind: str, seeds: Iterable[int]) -> None:
    """Run worlds with one kind of defect, or with any of them (`kind` empty)."""
    with few_collections():
        for seed in seeds:
            fault_world(seed, kind).run()


@pytest.mark.parametrize(("kind", "seed"), FOUND_FAULTS, ids=lambda part: str(part))
def test_defect_that_was_found_does_not_come_back(kind: str, seed: int) -> None:
    fault_world(seed, kind).run()


@pytest.mark.parametrize("kind", KINDS)
def test_every_promise_is_kept_when_processes_are_defective(
    kind: str, only_seed: int | None
) -> None:
    run_faults(kind, range(RUNS_PER_KIND) if only_seed is None else (only_seed,))


def test_every_promise_is_kept_with_all_defects_at_once(only_seed: int | None) -> None:
    run_faults("", range(RUNS_PER_KIND) if only_seed is None else (only_seed,))


@pytest.mark.soak
def test_soak_with_every_kind_of_defect_keeps_every_promise(
    soak_workflows: int,
    drawn_from: int,
    has_time: Callable[[], bool],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Worlds with each kind of defect, and with any of them, by turns; every bad seed is told.

    `--workflows N` says how many are published at least, if there is time; prints what it took.
    """
    kinds = (*KINDS, "")
    began_s, seed, workflows, virtual_s = time.process_time(), drawn_from, 0, 0.0
    bad: list[str] = []

    def tell() -> None:
        took_s = time.process_time() - began_s
        with capsys.disabled():
            print(  # noqa: T201
                f"seeds {drawn_from}-{seed - 1}: {workflows} workflows, {virtual_s:.0f} virtual s,"
                f" {took_s:.1f} CPU-s, {len(bad)} violations {bad}",
                flush=True,
            )

    with few_collections():
        while workflows < soak_workflows and has_time():
            kind = kinds[seed % len(kinds)]
            world = fault_world(seed, kind)
            try:
                world.run()
            except (Violation, Exception) as error:
                bad.append(f"({kind!r}, {seed}): {error}")
            workflows += len(world.clients)
            virtual_s += (world.clock.now_ms() - START_MS) / 1000
            seed += 1
            if (seed - drawn_from) % SOAK_WORLDS_TOLD == 0:
                tell()
    tell()
    assert not bad
