"""Two machines in one, of which one is drained under load, killed, and taken back.

Goal: a drained machine ends with nothing, no agent is called twice on the way, and it stays drained
when its processes are started again. Method: a raylet beside the head's; the real command line.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.conftest import _keep_replies, answer, client, refusal
from tests.faults.checks import check
from tests.faults.load import PAUSE_S, Load
from tests.faults.market_load import chain
from tests.faults.raylets import add_machine
from tests.faults.victims import wait
from tests.platform.deployments import (
    ROOT,
    RunningDeployment,
    deployed,
)

__all__ = ["_keep_replies"]

pytestmark = pytest.mark.slow

Json = dict[str, Any]
CLUSTER = "/v1/cluster"
PROGRESS = 30
# Workflows with calls that are open while their machine drains, and how long each of their three
# calls takes: together less than `shard_drain_ms`, after which open calls are tried again.
SLOW, SLOW_S = 8, 2.0


@pytest.fixture
def cluster(short_folder: Path) -> Iterator[RunningDeployment]:
    """A deployment on two raylets."""
    with deployed(short_folder) as running:
        add_machine(running)
        yield running


@pytest.fixture
def load(cluster: RunningDeployment, tmp_path: Path) -> Iterator[Load]:
    """Clients that publish until they are told to stop."""
    running = Load(cluster, tmp_path, pause_s=PAUSE_S)
    running.start()
    yield running
    running.stop()


def drain(deployment: RunningDeployment, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `callboard drain` on a deployment."""
    command = [sys.executable, "-m", "callboard.cli", "drain", *arguments]
    return subprocess.run(
        [*command, "--home", str(deployment.home)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
    )


def called_twice(load: Load) -> list[tuple[str, str]]:
    """Return the nodes, and their verifications, for which agents were called more than once.

    But for a node that an agent fails, as it was told, and that has one retry.
    """
    called = load.dispatched()
    doomed = {(workflow_id, "c") for workflow_id in load.doomed}
    return [place for place, times in called.items() if times > 1 + (place in doomed)]


def test_a_drained_machine_ends_with_nothing_and_stays_drained(
    cluster: RunningDeployment, load: Load
) -> None:
    """1. drain the busier one; 2. no agent was called twice; 3. kill its owner; 4. resume it."""
    with client(cluster.url, cluster.admin_key) as http:

        def members() -> list[Json]:
            found: list[Json] = answer(http.get(CLUSTER))["members"]
            return found

        def is_shared_out() -> bool:
            return sorted(one["shards"] > 0 for one in members()) == [True, True]

        wait(is_shared_out, "two members that hold shards")
        load.wait_progress(PROGRESS)
        slow = [load.publish(chain(delay_s=SLOW_S)) for _ in range(SLOW)]
        wait(lambda: any(one["openCalls"] for one in members()), "calls that are open")
        busiest = max(members(), key=lambda one: one["openCalls"])
        machine = busiest["machine"]

        def drained() -> list[Json]:
            return [one for one in members() if one["machine"] == machine]

        # 1.
        done = drain(cluster, machine[:10])
        assert done.returncode == 0, done.stdout + done.stderr
        assert "open calls are left" in done.stdout
        assert done.stdout.splitlines()[-1].startswith("drained: ")
        (empty,) = drained()
        assert (empty["state"], empty["shards"], empty["isDrained"]) == ("draining", 0, True)
        (other,) = (one for one in members() if one["machine"] != machine)
        refusal(http.post(f"{CLUSTER}/machines/{other['machine']}/drain"), 409, "CONFLICT")
        answer(http.post(f"{CLUSTER}/machines/{machine}/drain"))
        # 2.
        load.wait_progress(PROGRESS)
        assert set(slow) <= load.workflows_seen()
        assert called_twice(load) == []
        # 3.
        os.kill(pid_of(cluster, empty["id"]), signal.SIGKILL)

        def is_started_anew() -> bool:
            return [one["isLive"] for one in drained() if one["id"] != empty["id"]] == [True]

        wait(is_started_anew, "its owner")
        load.wait_progress(PROGRESS)
        (newer,) = drained()
        assert (newer["state"], newer["shards"]) == ("draining", 0)
        # 4.
        resumed = drain(cluster, machine, "--resume")
        assert resumed.returncode == 0, resumed.stderr
        wait(is_shared_out, "its shards")
    load.wait_progress(PROGRESS)
    check(load, cluster)
    assert called_twice(load) == []


def pid_of(deployment: RunningDeployment, member: str) -> int:
    """Return the pid of a member's process, by what it said when it started."""
    lines = (deployment.home / "logs" / "workflows.jsonl").read_text(encoding="utf-8").splitlines()
    said = [json.loads(line) for line in lines]
    started = f"owner started member={member} "
    (pid,) = {line["pid"] for line in said if str(line["event"]).startswith(started)}
    return int(pid)
