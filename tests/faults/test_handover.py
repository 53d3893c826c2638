"""The planned hand-over of the ledger to another process of the same machine, under load.

Goal: no request is refused by it, nothing is sent to agents twice, nothing is paid twice. Method:
the call that an upgrade makes, forward and back, from a process of the cluster.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest

from actors.transport.names import LEDGERS
from tests.faults.checks import check
from tests.faults.load import Load
from tests.faults.victims import await_one, find_all, wait
from tests.platform.deployments import RunningDeployment

pytestmark = pytest.mark.slow

PROGRESS = 10
_HAND_OVER = """
import asyncio
import sys

sys.path.insert(0, sys.argv[1])
import ray
from actors.cluster.ledgers.ledger_handover import hand_over_ledger
from actors.transport.names import NAMESPACE
from serve_app.settings_from_env import read_settings

ray.init(namespace=NAMESPACE, log_to_driver=False)
print(asyncio.run(hand_over_ledger(read_settings())))
"""


def hand_over(deployment: RunningDeployment) -> str:
    """Hand the ledger over; return the name of the actor that has it."""
    environment = psutil.Process(await_one(deployment, "raylet")).environ()
    command = [sys.executable, "-c", _HAND_OVER, str(deployment.code)]
    done = subprocess.run(
        command, env=environment, cwd=Path("/"), capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout.strip()


def has_ended(deployment: RunningDeployment, ledger: int) -> bool:
    """Whether a process of the ledger is no more."""
    return ledger not in find_all(deployment, "ledger")


def test_planned_hand_over_refuses_no_request(victim: RunningDeployment, load: Load) -> None:
    """Forward and back; one process is left each time, on the one machine."""
    load.wait_progress(PROGRESS)
    refused = load.refused
    for name in reversed(LEDGERS):
        before = await_one(victim, "ledger")
        assert hand_over(victim) == name
        wait(partial(has_ended, victim, before), "the end of the old one")
        load.wait_progress(PROGRESS)
        assert len(find_all(victim, "ledger")) == 1
    assert load.refused == refused
    check(load, victim)
    dispatched = load.dispatched()
    doomed = {(workflow_id, "c") for workflow_id in load.doomed}
    again = [place for place, times in dispatched.items() if times > 1 + (place in doomed)]
    assert not again, "an agent was asked twice"
