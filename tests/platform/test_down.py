"""`down` ends every process of a deployment and leaves its home. The shared one ends here."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from serve_app.supervisor.deployment import Deployment, run_folder_of
from serve_app.supervisor.processes import marked_processes
from tests.platform.deployments import RunningDeployment, processes_below, supervisor

pytestmark = pytest.mark.slow


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
