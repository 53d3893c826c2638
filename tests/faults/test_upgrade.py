"""A deployment is upgraded to a newer release and back again while clients publish.

Goal: no publish fails, no agent is called twice, each node is paid once, and in the end no process
of the release before is left. Method: two folders with an environment each, the real command line.
Run with `pytest -s` it prints how long publishes took before and during each roll.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest

from ledger.code_version import CODE_VERSION
from tests.contract.conftest import _keep_replies, answer, client
from tests.faults.checks import check
from tests.faults.load import Load
from tests.faults.raylets import add_machine
from tests.faults.releases import (
    NEWER_EVENT,
    NEWER_VALUE,
    NEWER_VERSION,
    make_newer_release,
    make_release,
)
from tests.faults.test_drain import called_twice
from tests.faults.victims import find_all, kill, superuser_url, wait
from tests.platform.deployments import RunningDeployment, deployed

__all__ = ["_keep_replies"]

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.takes(10)]

Json = dict[str, Any]
PROGRESS = 60
# Together they publish about 40 workflows a second.
CLIENTS, PAUSE_S = 6, 0.1
ERRORS_MAX = 3
MACHINES = 3
KINDS = ("workflows", "ledger", "timekeeper", "replica")


@pytest.fixture(scope="module")
def older(short_folder: Path) -> Path:
    """The release that the deployment is started with."""
    return make_release(short_folder / "older")


@pytest.fixture(scope="module")
def newer(short_folder: Path) -> Path:
    """A later release."""
    return make_newer_release(short_folder / "newer")


@pytest.fixture
def deployment(short_folder: Path, older: Path) -> Iterator[RunningDeployment]:
    """A deployment of the older release."""
    with deployed(short_folder, code=older) as running:
        yield running


@pytest.fixture
def machines(deployment: RunningDeployment) -> RunningDeployment:
    """The deployment on three machines in one."""
    for _ in range(MACHINES - 1):
        add_machine(deployment)
    wait(lambda: len(find_all(deployment, "workflows")) == MACHINES, "an owner on every machine")
    return deployment


@pytest.fixture
def load(deployment: RunningDeployment, tmp_path: Path) -> Iterator[Load]:
    """Clients that publish until they are told to stop."""
    running = Load(deployment, tmp_path, pause_s=PAUSE_S, clients=CLIENTS)
    running.start()
    yield running
    running.stop()


def upgrade(deployment: RunningDeployment, to: Path) -> subprocess.CompletedProcess[str]:
    """Run `callboard upgrade` on a deployment."""
    command = [sys.executable, "-m", "callboard.cli", "upgrade", "--to", str(to)]
    return subprocess.run(
        [*command, "--home", str(deployment.home)],
        cwd=deployment.code,
        capture_output=True,
        text=True,
        timeout=400,
    )


def folders_of(deployment: RunningDeployment, kind: str) -> set[str]:
    """Return the folders of the releases that the processes of a kind are of."""
    found = set()
    for pid in find_all(deployment, kind):
        try:
            found.add(psutil.Process(pid).environ().get("PYTHONPATH", ""))
        except psutil.NoSuchProcess:
            continue
    return found


def errors_in(deployment: RunningDeployment) -> str:
    """Return the newest lines of level error in the logs of a deployment."""
    lines = [
        line
        for log in (deployment.home / "logs").glob("*.jsonl")
        for line in log.read_text(encoding="utf-8").splitlines()
        if '"level": "error"' in line or '"level":"error"' in line
    ]
    return "\n".join(lines[-ERRORS_MAX:])


def cluster(http: httpx.Client) -> Json:
    """Return the cluster as an administrator sees it."""
    found: Json = answer(http.get("/v1/cluster"))
    return found


def rolled(deployment: RunningDeployment, load: Load, to: Path) -> None:
    """Upgrade under load; all processes are of that release then."""
    load.wait_progress(PROGRESS)
    before, at = sorted(load.publish_s), len(load.publish_s)
    began = time.monotonic()
    done = upgrade(deployment, to)
    took_s = time.monotonic() - began
    assert done.returncode == 0, done.stdout + done.stderr
    wait(
        lambda: all(folders_of(deployment, kind) == {str(to)} for kind in KINDS),
        lambda: f"processes of {to} alone: {[folders_of(deployment, kind) for kind in KINDS]}",
    )
    during = sorted(load.publish_s[at:])
    sys.stdout.write(
        f"{done.stdout}rolled in {took_s:.1f} s; publishes took, p50 and p99:"
        f" before {_part(before, 0.5):.3f} and {_part(before, 0.99):.3f} s,"
        f" during {_part(during, 0.5):.3f} and {_part(during, 0.99):.3f} s"
        f" ({len(during)}, the longest {during[-1]:.3f} s)\n"
        f"publishes that failed: {len(load.failures)}\n"
    )
    assert load.failures == [], errors_in(deployment)


def _part(times: list[float], share: float) -> float:
    return times[min(len(times) - 1, int(share * len(times)))]


def test_an_upgrade_and_the_way_back_fail_no_publish_and_call_no_agent_twice(
    deployment: RunningDeployment, load: Load, older: Path, newer: Path
) -> None:
    with client(deployment.url, deployment.admin_key) as http:
        assert cluster(http)["version"] == CODE_VERSION
        rolled(deployment, load, newer)
        now = cluster(http)
        assert now["version"] == NEWER_VERSION
        assert [one["version"] for one in now["members"]] == [str(NEWER_VERSION)]
        load.wait_progress(PROGRESS)
        with psycopg.connect(superuser_url(deployment)) as connection:
            query = "SELECT count(*) FROM callboard.node WHERE shade = %s"
            assert connection.execute(query, (NEWER_VALUE,)).fetchone() != (0,)
        rolled(deployment, load, older)
        now = cluster(http)
        assert now["version"] == CODE_VERSION
        assert [one["version"] for one in now["members"]] == [str(CODE_VERSION)]
        load.wait_progress(PROGRESS)
        found = answer(http.get("/v1/audit", params={"eventType": NEWER_EVENT}))
        assert found["entries"], found
    assert load.failures == []
    check(load, deployment)
    assert called_twice(load) == []


def test_three_machines_are_upgraded_one_after_the_other(
    machines: RunningDeployment, load: Load, newer: Path
) -> None:
    with client(machines.url, machines.admin_key) as http:
        rolled(machines, load, newer)
        now = cluster(http)
        assert [one["version"] for one in now["members"]] == [str(NEWER_VERSION)] * MACHINES
        assert now["unheldShards"] == 0
        load.wait_progress(PROGRESS)
    assert load.failures == []
    check(load, machines)
    assert called_twice(load) == []


def test_what_ends_after_an_upgrade_is_started_in_its_release(
    deployment: RunningDeployment, newer: Path
) -> None:
    """The supervisor is of the release before, and starts Ray with everything on it anew."""
    done = upgrade(deployment, newer)
    assert done.returncode == 0, done.stdout + done.stderr
    before = set(find_all(deployment, "workflows"))
    kill(deployment, "head")

    def is_newer() -> bool:
        is_other = before.isdisjoint(find_all(deployment, "workflows"))
        return is_other and all(folders_of(deployment, kind) == {str(newer)} for kind in KINDS)

    wait(is_newer, "processes of the newer release")


def test_a_folder_without_a_release_is_refused_before_anything(
    deployment: RunningDeployment, tmp_path: Path, older: Path
) -> None:
    refused = upgrade(deployment, tmp_path)
    assert refused.returncode == 1
    assert f"there is no release in {tmp_path}" in refused.stderr
    assert folders_of(deployment, "timekeeper") == {str(older)}
