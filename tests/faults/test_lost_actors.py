"""An actor that has died for good, which Ray starts no more, is made anew by those who need it.

Goal: without a restart of anything else publishes work again, and no money is lost or made.
Method: `ray.kill` without a restart under load, of each actor of which there is one per cluster.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from actors.transport.names import LEDGER, NAMESPACE, TIMEKEEPER
from tests.faults.checks import check
from tests.faults.load import Load
from tests.faults.victims import await_one
from tests.platform.deployments import RunningDeployment

pytestmark = pytest.mark.slow

PROGRESS = 10
_KILL = """
import sys
import ray

ray.init(namespace=sys.argv[1], log_to_driver=False)
ray.kill(ray.get_actor(sys.argv[2]), no_restart=True)
"""


def kill_for_good(deployment: RunningDeployment, name: str) -> None:
    """End an actor so that Ray starts no other."""
    environment = psutil.Process(await_one(deployment, "raylet")).environ()
    command = [sys.executable, "-c", _KILL, NAMESPACE, name]
    done = subprocess.run(
        command, env=environment, cwd=Path("/"), capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr[-2_000:]


def test_an_owner_that_has_died_for_good_is_made_anew(
    victim: RunningDeployment, load: Load
) -> None:
    """As after a constructor that has failed: Ray starts it no more, the timekeeper makes it."""
    load.wait_progress(PROGRESS)
    owner = await_one(victim, "workflows")
    with load.client() as http:
        (member,) = [one for one in http.get("/v1/cluster").json()["members"] if one["isLive"]]
    kill_for_good(victim, member["address"])
    await_one(victim, "workflows", after=owner)
    load.wait_progress(PROGRESS)
    check(load, victim)


def test_ledger_and_timekeeper_that_have_died_for_good_are_made_anew(
    victim: RunningDeployment, load: Load
) -> None:
    load.wait_progress(PROGRESS)
    ledger = await_one(victim, "ledger")
    kill_for_good(victim, LEDGER)
    await_one(victim, "ledger", after=ledger)
    load.wait_progress(PROGRESS)
    timekeeper = await_one(victim, "timekeeper")
    kill_for_good(victim, TIMEKEEPER)
    await_one(victim, "timekeeper", after=timekeeper)
    # What only a timekeeper does.
    ledger = await_one(victim, "ledger")
    kill_for_good(victim, LEDGER)
    await_one(victim, "ledger", after=ledger)
    load.wait_progress(PROGRESS)
    check(load, victim)
