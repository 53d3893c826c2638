"""`up` and `down` of whole deployments: kills, restarts, two side by side, nothing left behind.

One deployment goes through its life in order, for each start costs many seconds of CPU; the
session's `deployment` runs beside it the whole time.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from serve_app.supervisor.deployment import Deployment, run_folder_of
from serve_app.supervisor.processes import marked_processes, process_name
from tests.platform.deployments import (
    ROOT,
    RunningDeployment,
    free_port,
    processes_below,
    start_deployment,
    supervisor,
)

pytestmark = pytest.mark.slow


def wait_until(condition: Callable[[], bool], deadline_s: float = 120.0) -> None:
    """Wait for a condition; the deadline is for a broken program, not for a slow machine."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.05)


def is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def postgres_pid(home: Path) -> int:
    return int((home / "postgres" / "postmaster.pid").read_text(encoding="ascii").split()[0])


@pytest.fixture(scope="module")
def life(short_folder: Path) -> Iterator[RunningDeployment]:
    """A deployment that the tests below kill and start again."""
    running = start_deployment(short_folder / "life", port=free_port())
    yield running
    running.down()


def test_two_deployments_answer_side_by_side(
    deployment: RunningDeployment, life: RunningDeployment
) -> None:
    wait_until(lambda: is_healthy(deployment.url) and is_healthy(life.url))
    assert deployment.admin_key != life.admin_key


def test_second_up_of_a_running_home_is_refused(life: RunningDeployment) -> None:
    for flags in ((), ("--detach",)):
        second = supervisor("up", "--home", str(life.home), *flags)
        assert second.returncode == 3
        assert f"{life.home} is already up" in second.stderr


def test_killed_postgres_comes_back(life: RunningDeployment) -> None:
    killed = postgres_pid(life.home)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: postgres_pid_or_none(life.home) not in {None, killed})
    wait_until(lambda: is_healthy(life.url))


def postgres_pid_or_none(home: Path) -> int | None:
    try:
        return postgres_pid(home)
    except (FileNotFoundError, IndexError):
        return None


def test_killed_head_is_replaced(life: RunningDeployment) -> None:
    def heads() -> set[int]:
        marked = marked_processes(Deployment(life.home, Path()).id)
        return {pid for pid in marked if process_name(pid) == "gcs_server"}

    [killed] = heads()
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: bool(heads() - {killed}))
    wait_until(lambda: is_healthy(life.url))


def test_killed_supervisor_takes_all_with_it_and_up_finds_what_was_stored(
    life: RunningDeployment,
) -> None:
    supervising = Deployment(life.home, Path()).holder()
    assert supervising is not None
    os.kill(supervising, signal.SIGKILL)
    wait_until(lambda: processes_below(life.home) == [])
    port = int(life.url.rsplit(":", 1)[1])
    again = start_deployment(life.home, port=port)
    assert again == life  # the same URL and the same admin key
    request = urllib.request.Request(f"{life.url}/v1/keys", headers={"x-api-key": life.admin_key})
    with urllib.request.urlopen(request, timeout=30) as reply:
        assert reply.status == 200


def test_deployment_ends_with_a_test_process_that_was_killed(short_folder: Path) -> None:
    """Also one whose `up` is on its way. Else a crashed worker leaves its deployments running."""
    home = short_folder / "left"
    script = (
        "import sys; from pathlib import Path; from tests.platform.deployments import *;"
        "start_deployment(Path(sys.argv[1]), port=int(sys.argv[2]))"
    )
    command = [sys.executable, "-c", script, str(home), str(free_port())]
    with subprocess.Popen(command, cwd=ROOT) as worker:
        wait_until(lambda: postgres_pid_or_none(home) is not None)
        worker.kill()
    wait_until(lambda: processes_below(home) == [])
    assert marked_processes(Deployment(home, Path()).id, run_folder_of(home)) == []


def test_taken_port_is_named(short_folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = supervisor("up", "--home", str(short_folder / "taken"), "--port", str(port))
    assert refused.returncode == 1
    assert f"port {port} is in use: choose another with --port" in refused.stderr
    assert processes_below(short_folder / "taken") == []


def test_database_that_does_not_answer_is_named_with_what_to_do(short_folder: Path) -> None:
    home = short_folder / "nodb"
    home.mkdir()
    toml = 'database_url = "postgresql://nobody@127.0.0.1:1/none"\n'
    (home / "callboard.toml").write_text(toml, encoding="utf-8")
    refused = supervisor("up", "--home", str(home), "--port", str(free_port()), "--detach")
    assert refused.returncode == 1
    assert "does the database of CALLBOARD_DATABASE_URL answer" in refused.stderr
    assert "port 1 failed: Connection refused" in refused.stderr
    assert processes_below(home) == []
    assert not run_folder_of(home).exists()


def test_down_leaves_nothing_but_the_home(life: RunningDeployment) -> None:
    life.down()
    assert processes_below(life.home) == []
    assert marked_processes(Deployment(life.home, Path()).id, run_folder_of(life.home)) == []
    assert not run_folder_of(life.home).exists()
    assert not (life.home / "url").exists()
    assert (life.home / "postgres" / "PG_VERSION").exists()
    assert not is_healthy(life.url)


def test_down_of_what_is_down_says_so(short_folder: Path) -> None:
    ended = supervisor("down", "--home", str(short_folder / "never"))
    assert ended.returncode == 0
    assert "is down" in ended.stdout
    assert not (short_folder / "never").exists()
