"""The number of kills per kind, and a deployment of its own for the tests that break one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import RunningDeployment, free_port, start_deployment
from tests.faults.load import Load


@pytest.fixture
def kills(request: pytest.FixtureRequest) -> int:
    """How often each process is killed: few in the usual run, many with `--kills`."""
    return int(request.config.getoption("--kills"))


@pytest.fixture(scope="package")
def victim(short_folder: Path) -> Iterator[RunningDeployment]:
    """A deployment that tests may break, apart from the one that the contract tests use."""
    running = start_deployment(short_folder / "victim", port=free_port())
    yield running
    running.down()


@pytest.fixture
def load(victim: RunningDeployment, tmp_path: Path) -> Iterator[Load]:
    """Clients that publish without pause until they are told to stop."""
    running = Load(victim, tmp_path)
    running.start()
    yield running
    running.stop()
