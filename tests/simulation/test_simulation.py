"""Thousands of workflows through the real engine while everything around it goes wrong.

A failing run prints its seed; `pytest tests/simulation --seed N` repeats exactly that run.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.garbage import few_collections
from tests.simulation.skewed_clock import START_MS
from tests.simulation.troubles import Troubles, troubles_of
from tests.simulation.world import World

ROOT = Path(__file__).resolve().parents[2]
RUN_WORKFLOWS = 50
QUICK_WORKFLOWS = 2_000

# Each of these runs fails when a defect comes back that the simulation once found. Whatever changes
# how agents are chosen changes every run: then `mutants/hunt.py` says which seeds to put here.
FOUND = {
    13: "a node went to a fourth agent after two had failed for now and the third for good",
    25: "a workflow was started again, or left undriven, when its request was repeated",
    35: "rows older than a workflow's end were acted upon",
    189: "rows were adopted again under a key used before",
    227: "a late answer to an earlier attempt made the runner forget the open one's order",
    334: "a node went to a fourth agent after a crash",
    426: "a target that was away was given up when no agent could stand in",
}
# The same of worlds whose agents are revoked.
FOUND_REVOKING = {
    1107: "a revoked agent's attempt ended twice: its owner did not know yet that it was stored",
    5260: "as before, with a verifier",
}


def market_of(seed: int) -> dict[str, Any]:
    """Return what a world of the long run has: nothing, stakes, revocations, or everything."""
    whole: dict[str, Any] = {"stake_bps": 1_000, "has_market": True}
    revoking = {"has_revocations": True}
    return ({}, {"stake_bps": 5_000}, whole, revoking, {**whole, **revoking})[seed % 5]


def run_all(seeds: Iterable[int]) -> tuple[int, float]:
    """Run the worlds of these seeds; return how many workflows they had, and virtual seconds."""
    workflows, virtual_s = 0, 0.0
    with few_collections():
        for seed in seeds:
            world = World(seed, workflows=RUN_WORKFLOWS, **market_of(seed)).run()
            workflows += len(world.clients)
            virtual_s += (world.clock.now_ms() - START_MS) / 1000
    return workflows, virtual_s


@pytest.mark.parametrize("seed", FOUND, ids=lambda seed: f"seed{seed}")
def test_defect_once_found_does_not_come_back(seed: int, only_seed: int | None) -> None:
    World(seed if only_seed is None else only_seed, workflows=RUN_WORKFLOWS).run()


@pytest.mark.parametrize("seed", FOUND_REVOKING, ids=lambda seed: f"seed{seed}")
def test_defect_of_revoking_does_not_come_back(seed: int, only_seed: int | None) -> None:
    seed = seed if only_seed is None else only_seed
    World(seed, workflows=RUN_WORKFLOWS, has_revocations=True).run()


def test_two_thousand_workflows_keep_every_promise(only_seed: int | None) -> None:
    """The inner loop's share of the long run below: without and with stakes, a whole market and
    revocations, by `market_of`."""
    seeds = range(QUICK_WORKFLOWS // RUN_WORKFLOWS) if only_seed is None else (only_seed,)
    run_all(seeds)


def test_workflows_whose_payers_end_accepted_work_keep_every_promise(
    only_seed: int | None,
) -> None:
    """Who has accepted is paid once, by its result or by its payer, never more than was asked."""
    ended = 0
    with few_collections():
        for seed in range(12) if only_seed is None else (only_seed,):
            market: dict[str, Any] = {"stake_bps": 1_000, "has_market": True} if seed % 2 else {}
            chance = random.Random(seed)
            troubles = replace(troubles_of(chance), later=0.7)
            world = World(
                seed,
                workflows=RUN_WORKFLOWS,
                troubles=troubles,
                has_settlements=True,
                has_revocations=seed % 3 == 0,
                **market,
            ).run()
            ended += world.settling.count
    assert ended > 50, "the payers came too late for nearly all"


def test_workflows_whose_agents_go_and_come_back_lose_none_for_it(only_seed: int | None) -> None:
    """Who was deregistered a moment ago is waited for, and no longer than its node allows."""
    waits = 0
    with few_collections():
        for seed in range(12) if only_seed is None else (only_seed,):
            crash = 0.2 if seed % 3 == 2 else 0.0
            troubles = Troubles(gone=0.9, crash=crash)
            market: dict[str, Any] = {"has_market": True} if seed % 4 == 3 else {}
            world = World(seed, workflows=RUN_WORKFLOWS, troubles=troubles, **market).run()
            waits += world.waits.count
    assert waits > 50, "hardly a node had to wait"


@pytest.mark.slow
def test_run_is_decided_by_its_seed_in_every_process() -> None:
    """Goal: a failure of one process can be replayed in another. Method: sets of strings have
    another order for each hash seed; where one decides the order of events, the books differ."""
    told = (
        "import hashlib, logging, pprint\n"
        "from tests.simulation.test_faults import fault_world\n"
        "logging.disable(logging.CRITICAL)\n"
        "model = fault_world(11403, 'slow').run().model\n"
        "books = pprint.pformat((model.balances, model.nodes, model.attempts))\n"
        "print(hashlib.sha256(books.encode()).hexdigest())\n"
    )
    books = {
        subprocess.run(
            [sys.executable, "-c", told], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True, capture_output=True, text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }  # fmt: skip
    assert len(books) == 1
