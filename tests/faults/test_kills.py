"""kill -9 of each kind of process, again and again, under load.

Goal: every accepted workflow ends, each node is paid once, the books balance, the chain holds.
Method: clients publish without pause; a process is killed, progress is awaited, the next is killed;
then publishing stops and everything that was accepted must end in success.
"""

from __future__ import annotations

import sys

import pytest

from tests.conftest import RunningDeployment, start_deployment
from tests.faults.books import books_problems
from tests.faults.load import Load
from tests.faults.victims import kill

pytestmark = pytest.mark.slow

PROGRESS = 20


def check(load: Load, victim: RunningDeployment) -> None:
    """Everything accepted has ended well, and the books balance."""
    records = load.finish()
    failed = [record for record in records if record["status"] != "success"]
    assert not failed, failed[:3]
    assert not (problems := books_problems(victim)), problems
    dispatched = load.dispatched()
    assert len(dispatched) >= 3 * len(records), "an agent did not write down a dispatch it answered"
    repeats = sum(times > 1 for times in dispatched.values())
    sys.stdout.write(f"{len(records)} workflows ended, {repeats} dispatches arrived repeatedly\n")


@pytest.mark.parametrize("kind", ["ledger", "workflows", "timekeeper", "replica", "postgres"])
def test_a_killed_process_loses_nothing(
    kind: str, victim: RunningDeployment, load: Load, kills: int
) -> None:
    pid: int | None = None
    for _ in range(kills if kind != "postgres" else max(1, kills // 4)):
        load.wait_progress(PROGRESS)
        pid = kill(victim, kind, after=pid)
    load.wait_progress(PROGRESS)
    check(load, victim)


def test_a_killed_supervisor_takes_all_down_and_up_finds_everything(
    victim: RunningDeployment, load: Load, kills: int
) -> None:
    port = int(victim.url.rsplit(":", 1)[1])
    for _ in range(max(1, kills // 4)):
        load.wait_progress(PROGRESS)
        kill(victim, "supervisor")
        again = start_deployment(victim.home, port=port)
        assert again.admin_key == victim.admin_key
    load.wait_progress(PROGRESS)
    check(load, victim)
