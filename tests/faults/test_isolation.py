"""A deployment with `CALLBOARD_ISOLATION=dedicated`: processes come and go with workflows.

One of them is killed in the middle of its workflow, another frozen for good: the pooled owner then
drives these to their ends.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.checks import check
from tests.faults.load import Load
from tests.faults.market_load import chain
from tests.faults.test_outages import is_running
from tests.faults.victims import find_all, frozen, wait
from tests.platform.deployments import RunningDeployment, deployed

pytestmark = [pytest.mark.slow, pytest.mark.soak]

WORKFLOWS = 3
AGENT_DELAY_S = 4.0


@pytest.fixture
def isolated(short_folder: Path) -> Iterator[RunningDeployment]:
    """A deployment that gives each workflow a process."""
    settings = 'isolation = "dedicated"\nowner_silence_ms = 1000\n'
    with deployed(short_folder, settings) as running:
        yield running


def test_each_workflow_has_a_process_and_a_killed_or_frozen_one_loses_nothing(
    isolated: RunningDeployment, tmp_path: Path
) -> None:
    load = Load(isolated, tmp_path, clients=0)
    load.start()
    try:
        (pooled,) = find_all(isolated, "workflows")
        slow = [load.publish(chain(delay_s=AGENT_DELAY_S)) for _ in range(WORKFLOWS)]
        wait(lambda: set(slow) <= load.workflows_seen(), "dispatches")
        children = [pid for pid in find_all(isolated, "workflows") if pid != pooled]
        assert len(children) == WORKFLOWS
        os.kill(children[0], signal.SIGKILL)
        load.publish(chain())
        with frozen([children[1]]):
            wait(lambda: not is_running(children[1]), "the end of the frozen one")
        check(load, isolated)
        assert any(times > 1 for times in load.dispatched().values()), "nothing was interrupted"
        wait(lambda: find_all(isolated, "workflows") == [pooled], "the end of the children")
    finally:
        load.stop()
