"""What tests stand on: one real Postgres and one real deployment per session, made when first used.

`database` gives each test a database of its own, copied from a migrated template. Folders have
short paths: a Unix socket's path holds 107 bytes. When the session ends, nothing of it is left.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from psycopg import sql

from ledger.embedded.server import OWNER, SERVICE, SUPERUSER, EmbeddedPostgres
from tests.platform.deployments import RunningDeployment, free_port, start_deployment

ROOT = Path(__file__).resolve().parent.parent
_TEMPLATE = "callboard_template"


@dataclass(frozen=True, slots=True)
class Database:
    """A migrated database of one test, with a URL per login (no passwords in them)."""

    name: str
    service_url: str
    owner_url: str
    superuser_url: str


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let long runs ask for more of what the usual run does a little of."""
    parser.addoption("--kills", default="2", help="kill -9 per kind of process in tests/faults")
    parser.addoption("--keep-replies", help="a file that gets every exchange of tests/contract")


def pytest_configure(config: pytest.Config) -> None:
    """Draw the same examples in every run, unless `--hypothesis-seed` asks for others.

    Whether a run is green may depend on what is tested alone, neither on luck nor on how busy the
    machine is; `make soak` looks at other examples (decision 0088).
    """
    is_same_each_time = config.getoption("--hypothesis-seed") is None
    settings.register_profile(
        "usual",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=is_same_each_time,
    )
    settings.load_profile("usual")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio, which is what the service runs on."""
    return "asyncio"


@pytest.fixture(scope="session")
def short_folder() -> Iterator[Path]:
    """A session's folder with a short path."""
    folder = Path(tempfile.mkdtemp(prefix="cbt-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def postgres(short_folder: Path) -> Iterator[EmbeddedPostgres]:
    """The session's Postgres; ends with the test process even after `kill -9`."""
    home, run_folder = short_folder / "pg", short_folder / "run"
    home.mkdir()
    run_folder.mkdir(mode=0o700)
    server = EmbeddedPostgres(home, run_folder, shared_buffers_mib=64, max_connections=200)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def migrated_template(postgres: EmbeddedPostgres) -> str:
    """The name of a database with the whole schema, to copy."""
    with psycopg.connect(postgres.superuser_url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} OWNER {}").format(
                sql.Identifier(_TEMPLATE), sql.Identifier(OWNER)
            )
        )
    migrated = subprocess.run(
        [sys.executable, "-m", "ledger.migrate", "--url", postgres.url_for(OWNER, _TEMPLATE)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert migrated.returncode == 0, migrated.stdout + migrated.stderr
    return _TEMPLATE


_numbers = count(1)


@pytest.fixture
def database(postgres: EmbeddedPostgres, migrated_template: str) -> Iterator[Database]:
    """A migrated database of its own for one test."""
    name = f"test_{next(_numbers)}"
    with psycopg.connect(postgres.superuser_url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} OWNER {}").format(
                sql.Identifier(name), sql.Identifier(migrated_template), sql.Identifier(OWNER)
            )
        )
    yield Database(
        name=name,
        service_url=postgres.url_for(SERVICE, name),
        owner_url=postgres.url_for(OWNER, name),
        superuser_url=postgres.url_for(SUPERUSER, name),
    )
    with psycopg.connect(postgres.superuser_url, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture(scope="session")
def deployment(short_folder: Path) -> Iterator[RunningDeployment]:
    """The session's whole deployment: `callboard up` in a folder of its own, over real HTTP.

    Nobody kills a part of it. One that a busy machine keeps from answering is not to be replaced.
    """
    home = short_folder / "up"
    home.mkdir()
    (home / "callboard.toml").write_text(
        "owner_silence_ms = 60_000\nledger_silence_ms = 60_000\n", encoding="utf-8"
    )
    running = start_deployment(home, port=free_port())
    yield running
    running.down()
