"""The number of kills per kind, load on the deployment that tests may break, and a scene."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from core.settings import Settings
from ledger.writer.group_commit import GroupCommit
from tests.conftest import Database
from tests.faults.load import PAUSE_S, Load
from tests.faults.scene import Scene, agent, registration
from tests.ledger.checking import Auditor
from tests.ledger.making import CREDIT, GENESIS, deposit
from tests.platform.deployments import RunningDeployment


@pytest.fixture
def kills(request: pytest.FixtureRequest) -> int:
    """How often each process is killed: few in the usual run, many with `--kills`."""
    return int(request.config.getoption("--kills"))


@pytest.fixture
def load(
    victim: RunningDeployment, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Load]:
    """Clients that publish until they are told to stop; in the soak without a pause."""
    is_soak = request.node.get_closest_marker("soak") is not None
    running = Load(victim, tmp_path, pause_s=0 if is_soak else PAUSE_S)
    running.start()
    yield running
    running.stop()


@pytest.fixture
async def scene(database: Database) -> AsyncIterator[Scene]:
    """A writer, an agent that takes 50 ms, a payer with money; the books are checked in the end."""
    auditor = Auditor(database.superuser_url)
    commits = GroupCommit(database.service_url, genesis=GENESIS, on_fatal=lambda _: None)
    await commits.start()
    settings = Settings(database_url=database.service_url, deployment_key="11" * 32)
    made = Scene(commits, settings, auditor)
    made.gate.set()
    async with agent(0.05, made.gate, made.calls) as url:
        await commits.submit([deposit(1_000 * CREDIT), registration(url)])
        yield made
        made.gate.set()
        for owner in made.owners:
            await owner.close()
    await commits.stop()
    auditor.check()
    auditor.close()
