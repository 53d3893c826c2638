"""`up` of whole deployments: what it refuses, what it replaces, what ends with it.

The victim comes to its end here, in order, for each start costs many seconds of CPU. That `up`
finds what was stored is seen in test_kills.py, and `down` in tests/platform/test_down.py.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from serve_app.supervisor.deployment import Deployment, run_folder_of
from serve_app.supervisor.processes import marked_processes, process_name
from tests.platform.deployments import (
    ROOT,
    RunningDeployment,
    free_port,
    is_healthy,
    processes_below,
    supervisor,
)
from tests.platform.waiting import wait_until

pytestmark = pytest.mark.slow


def postgres_pid(home: Path) -> int:
    return int((home / "postgres" / "postmaster.pid").read_text(encoding="ascii").split()[0])


def test_second_up_of_a_running_home_is_refused(victim: RunningDeployment) -> None:
    for flags in ((), ("--detach",)):
        second = supervisor("up", "--home", str(victim.home), *flags)
        assert second.returncode == 3
        assert f"{victim.home} is already up" in second.stderr


def test_killed_postgres_comes_back(victim: RunningDeployment) -> None:
    killed = postgres_pid(victim.home)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: postgres_pid_or_none(victim.home) not in {None, killed})
    wait_until(lambda: is_healthy(victim.url))


def postgres_pid_or_none(home: Path) -> int | None:
    try:
        return postgres_pid(home)
    except (FileNotFoundError, IndexError):
        return None


def heads(home: Path) -> set[int]:
    marked = marked_processes(Deployment(home, Path()).id)
    return {pid for pid in marked if process_name(pid) == "gcs_server"}


def test_killed_head_is_replaced(victim: RunningDeployment) -> None:
    [killed] = heads(victim.home)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: bool(heads(victim.home) - {killed}))
    wait_until(lambda: is_healthy(victim.url))


def test_api_that_cannot_be_deployed_is_deployed_later(victim: RunningDeployment) -> None:
    program = victim.code / "serve_app" / "supervisor" / "deploy.py"
    text, log = program.read_text(encoding="utf-8"), victim.home / "logs" / "supervisor.log"
    program.write_text("raise SystemExit(1)\n", encoding="utf-8")
    [killed] = heads(victim.home)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: "the API did not start" in log.read_text(encoding="utf-8"))
    program.write_text(text, encoding="utf-8")
    wait_until(lambda: is_healthy(victim.url))


def test_killed_supervisor_takes_all_with_it(victim: RunningDeployment) -> None:
    supervising = Deployment(victim.home, Path()).holder()
    assert supervising is not None
    os.kill(supervising, signal.SIGKILL)
    wait_until(lambda: processes_below(victim.home) == [])
    wait_until(lambda: marked_processes(Deployment(victim.home, Path()).id) == [])


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
