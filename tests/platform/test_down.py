"""`down` ends every process of a deployment and leaves its home. The shared one ends here."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from serve_app.supervisor.deployment import Deployment, run_folder_of
from serve_app.supervisor.processes import command_of, marked_processes
from tests.platform.deployments import RunningDeployment, processes_below, supervisor

pytestmark = pytest.mark.slow


def test_no_process_runs_that_nothing_asks(deployment: RunningDeployment) -> None:
    """Ray's servers for its page and for remote drivers took 120 MB, and two percent of a core."""
    run_folder = run_folder_of(deployment.home)
    pids = marked_processes(Deployment(deployment.home, Path()).id, run_folder)
    commands = [" ".join(command_of(pid)) for pid in pids]
    assert any("gcs_server" in command for command in commands)
    unused = ("dashboard.py", "ray.util.client")
    assert [command for command in commands if any(name in command for name in unused)] == []
    assert list(run_folder.glob("h/*/haproxy.cfg")) != []
    assert list(run_folder.glob("h/*/m")) == [], "where Serve would count HAProxy's requests"


def test_down_leaves_nothing_but_the_home(deployment: RunningDeployment) -> None:
    home = deployment.home
    assert processes_below(home) != []
    deployment.down()
    assert processes_below(home) == []
    assert marked_processes(Deployment(home, Path()).id, run_folder_of(home)) == []
    assert not run_folder_of(home).exists()
    assert not (home / "url").exists()
    assert (home / "postgres" / "PG_VERSION").exists()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{deployment.url}/health")


def test_down_of_what_is_down_says_so(short_folder: Path) -> None:
    ended = supervisor("down", "--home", str(short_folder / "never"))
    assert ended.returncode == 0
    assert "is down" in ended.stdout
    assert not (short_folder / "never").exists()
