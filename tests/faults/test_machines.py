"""Three machines in one: raylets beside the head's, each with its own workflow owner.

Goal: dispatches leave from all of them (`CALLBOARD_DISPATCH=spread`); a killed machine takes
nothing with it, because the others take its shards.
Method: `ray start --address` with the environment of the deployment's own raylet.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from actors.transport.sockets import SOCKETS_FOLDER
from serve_app.supervisor.deployment import run_folder_of
from tests.faults.checks import check
from tests.faults.load import Load
from tests.faults.raylets import add_machine
from tests.faults.victims import await_one, find_all, wait
from tests.platform.deployments import RunningDeployment, free_port, start_deployment

pytestmark = [pytest.mark.slow, pytest.mark.soak]

MACHINES = 3
PROGRESS = 40


@pytest.fixture(scope="module")
def cluster(short_folder: Path) -> Iterator[RunningDeployment]:
    """A deployment that spreads its dispatches, over three raylets."""
    home = short_folder / "cluster"
    home.mkdir()
    (home / "callboard.toml").write_text('dispatch = "spread"\n', encoding="utf-8")
    running = start_deployment(home, port=free_port())
    try:
        for _ in range(MACHINES - 1):
            add_machine(running)
        await_owners(running)
        yield running
    finally:
        running.down()


@pytest.fixture
def cluster_load(cluster: RunningDeployment, tmp_path: Path) -> Iterator[Load]:
    """Clients that publish without pause until they are told to stop."""
    running = Load(cluster, tmp_path)
    running.start()
    yield running
    running.stop()


def await_owners(deployment: RunningDeployment) -> None:
    """Return when every machine has its owner."""
    wait(lambda: len(find_all(deployment, "workflows")) == MACHINES, "an owner on every machine")


def dispatching(deployment: RunningDeployment, ports: set[int]) -> set[int]:
    """Return the pids of the owners that hold a connection to an agent."""
    found = set()
    for pid in find_all(deployment, "workflows"):
        connections = psutil.Process(pid).net_connections("tcp4")
        if any(item.raddr and item.raddr.port in ports for item in connections):
            found.add(pid)
    return found


def test_dispatches_leave_from_every_machine(
    cluster: RunningDeployment, cluster_load: Load
) -> None:
    cluster_load.wait_progress(PROGRESS)
    ports = cluster_load.agent_ports()

    def seen() -> str:
        owners = find_all(cluster, "workflows")
        return (
            f"dispatches from every machine: from {dispatching(cluster, ports)} of {owners},"
            f" {len(find_all(cluster, 'raylet'))} raylets, {len(cluster_load.accepted)} accepted,"
            f" {cluster_load.problems[:3]}"
        )

    wait(lambda: len(dispatching(cluster, ports)) == MACHINES, seen)
    check(cluster_load, cluster)


def test_a_killed_machine_loses_nothing(cluster: RunningDeployment, cluster_load: Load) -> None:
    """Its shards are taken by others; orders it held for others are sent again.

    Another machine takes its place, also for the tests that come after this one.
    """
    cluster_load.wait_progress(PROGRESS)
    heads = min(find_all(cluster, "raylet"), key=lambda pid: psutil.Process(pid).create_time())
    doomed = next(pid for pid in find_all(cluster, "raylet") if pid != heads)
    os.kill(doomed, signal.SIGKILL)
    wait(lambda: len(find_all(cluster, "workflows")) == MACHINES - 1, "the end of its owner")
    cluster_load.wait_progress(PROGRESS)
    add_machine(cluster)
    await_owners(cluster)
    cluster_load.wait_progress(PROGRESS)
    check(cluster_load, cluster)


def test_batches_go_by_ray_where_there_is_no_unix_socket(
    cluster: RunningDeployment, cluster_load: Load
) -> None:
    """As between machines; here they share a run folder, so its sockets are removed."""
    cluster_load.wait_progress(PROGRESS)
    for file in (run_folder_of(cluster.home) / SOCKETS_FOLDER).iterdir():
        if file.is_socket():
            file.unlink()
    former = await_one(cluster, "replica")
    os.kill(former, signal.SIGKILL)
    wait(lambda: bool(set(find_all(cluster, "replica")) - {former}), "another replica")
    cluster_load.wait_progress(PROGRESS)
    check(cluster_load, cluster)
