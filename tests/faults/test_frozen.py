"""Processes that freeze and stay frozen: the watcher of each replaces it, and work goes on.

Goal: none of them has to wake up for publishes to succeed again. Method: SIGSTOP under load, until
another process is in its place. Owners, the ledger and Postgres: `test_outages.py`; how a process
that does not run is told from a busy one: `tests/platform/test_frozen_processes.py`.
"""

from __future__ import annotations

import psutil
import pytest

from actors.transport.names import LEDGER
from tests.faults.checks import check
from tests.faults.load import Load
from tests.faults.test_lost_actors import kill_for_good
from tests.faults.test_outages import is_running
from tests.faults.victims import await_one, find_all, frozen, wait
from tests.platform.deployments import RunningDeployment

pytestmark = pytest.mark.slow

PROGRESS = 10


def test_a_frozen_timekeeper_is_replaced(victim: RunningDeployment, load: Load) -> None:
    """Nothing else would notice that a ledger has died for good."""
    load.wait_progress(PROGRESS)
    old = await_one(victim, "timekeeper")
    with frozen([old]):
        wait(lambda: any(p != old for p in find_all(victim, "timekeeper")), "its successor")
        ledger = await_one(victim, "ledger")
        kill_for_good(victim, LEDGER)
        await_one(victim, "ledger", after=ledger)
        load.wait_progress(PROGRESS)
    wait(lambda: not is_running(old), "the end of the one that was replaced")
    check(load, victim)


# Two watches: the controller's, which the timekeeper replaces, replaces the other parts.
@pytest.mark.parametrize(
    "kind",
    [
        "replica",
        "controller",
        pytest.param("proxy", marks=pytest.mark.soak),
        pytest.param("proxy actor", marks=pytest.mark.soak),
    ],
)
def test_a_frozen_part_of_serve_is_replaced(
    kind: str, victim: RunningDeployment, load: Load
) -> None:
    load.wait_progress(PROGRESS)
    # HAProxy in the order of their starts: the newest serves, others end their connections.
    old = max(find_all(victim, kind), key=lambda pid: psutil.Process(pid).create_time())
    with frozen([old]):
        wait(lambda: not is_running(old), f"the end of the frozen {kind}")
        load.wait_progress(PROGRESS)
    check(load, victim)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["head", "raylet"])
def test_a_frozen_gcs_or_raylet_is_replaced(
    kind: str, victim: RunningDeployment, load: Load
) -> None:
    """By the supervisor, which starts Ray anew; the rows are all that its successor needs."""
    load.wait_progress(PROGRESS)
    old = await_one(victim, kind)
    with frozen([old]):
        wait(lambda: not is_running(old), f"the end of the frozen {kind}")
        await_one(victim, kind, after=old)
        load.wait_progress(PROGRESS)
    check(load, victim)
