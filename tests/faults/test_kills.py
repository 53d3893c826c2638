"""kill -9 of each kind of process, alone and in pairs, again and again, under load.

Goal: every accepted workflow ends, each node is paid once, the books balance, the chain holds.
Method: clients publish all the time; a process is killed, or two at the same time, progress is
awaited, the next is killed; then publishing stops and everything that was accepted must end in
success within a minute. `make soak` kills every kind and every pair; the usual run some.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import pytest

from tests.faults.books import market_totals
from tests.faults.checks import check
from tests.faults.load import Load
from tests.faults.victims import await_one, kill
from tests.platform.deployments import RunningDeployment

pytestmark = pytest.mark.slow

PROGRESS = 10
SOAK_KILLS = 5
# The usual run kills those that hold what must not be lost; `make soak` kills all.
KINDS = ("ledger", "workflows", "postgres")
# Some cost seconds of absence each: the cluster, or the way to it, is started anew.
MORE_KINDS = ("timekeeper", "replica", "backend", "agent", "controller", "proxy")
HEAVY_KINDS = ("proxy actor", "head", "raylet")
PAIRS = (("ledger", "workflows"),)
HEAVY_PAIRS = (
    ("postgres", "workflows"),
    ("timekeeper", "workflows"),
    ("replica", "ledger"),
    ("postgres", "ledger"),
    ("backend", "workflows"),
    ("ledger", "timekeeper"),
    ("agent", "workflows"),
    ("agent", "ledger"),
    ("controller", "replica"),
    ("proxy", "replica"),
    ("head", "postgres"),
    ("raylet", "backend"),
)


def strike(
    victim: RunningDeployment, load: Load, kinds: tuple[str, ...], last: dict[str, int]
) -> None:
    """Kill a process of each kind at the same time; `last` holds who was killed before."""
    found = {
        kind: await_one(victim, kind, after=last.get(kind)) for kind in kinds if kind != "agent"
    }
    if "agent" in kinds:
        load.restart_agent(0)
    for pid in found.values():
        with suppress(ProcessLookupError):  # the one before may have taken it along
            os.kill(pid, signal.SIGKILL)
    last.update(found)


def strike_again_and_again(
    victim: RunningDeployment, load: Load, kinds: tuple[str, ...], times: int
) -> None:
    """Kill under load, await progress after each time, and look at the books in the end."""
    last: dict[str, int] = {}
    for _ in range(times):
        load.wait_progress(PROGRESS)
        strike(victim, load, kinds, last)
    load.wait_progress(PROGRESS)
    check(load, victim)
    assert all(market_totals(victim).values()), "a part of the market was not in use"


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_process_loses_nothing(
    kind: str, victim: RunningDeployment, load: Load, kills: int
) -> None:
    times = max(1, kills // 4) if kind in ("postgres", "backend") else kills
    strike_again_and_again(victim, load, (kind,), times)


@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_two_processes_killed_at_once_lose_nothing(
    pair: tuple[str, ...], victim: RunningDeployment, load: Load
) -> None:
    strike_again_and_again(victim, load, pair, 1)


@pytest.mark.soak
@pytest.mark.parametrize("kind", [*KINDS, *MORE_KINDS, *HEAVY_KINDS])
def test_a_process_killed_many_times_loses_nothing(
    kind: str, victim: RunningDeployment, load: Load, kills: int
) -> None:
    strike_again_and_again(victim, load, (kind,), max(kills, SOAK_KILLS))


@pytest.mark.soak
@pytest.mark.parametrize("pair", [*PAIRS, *HEAVY_PAIRS], ids=" and ".join)
def test_two_processes_killed_at_once_many_times_lose_nothing(
    pair: tuple[str, ...], victim: RunningDeployment, load: Load, kills: int
) -> None:
    strike_again_and_again(victim, load, pair, kills)


def test_a_killed_supervisor_takes_all_down_and_up_finds_everything(
    victim: RunningDeployment, load: Load, kills: int
) -> None:
    for _ in range(max(1, kills // 4)):
        load.wait_progress(PROGRESS)
        kill(victim, "supervisor")
        victim.up_again()
    load.wait_progress(PROGRESS)
    check(load, victim)
