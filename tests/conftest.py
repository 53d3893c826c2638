"""What tests stand on: one real Postgres and three real deployments, made when first used.

`database` gives each test a database of its own, copied from a migrated template. A deployment ends
with the last test that uses it: an idle one takes a fifth of a core. Folders have short paths: a
Unix socket's path holds 107 bytes. When the session ends, nothing of it is left.
"""

from __future__ import annotations

import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from hypothesis import HealthCheck, settings
from psycopg import sql

from ledger.embedded.server import OWNER, SERVICE, SUPERUSER, EmbeddedPostgres
from tests.contract.credentials import credential_settings
from tests.contract.models import model_settings
from tests.faults.market_load import SETTINGS
from tests.platform.deployments import (
    RunningDeployment,
    copy_code,
    deployed,
    end_with_this_process,
    free_port,
    start_deployment,
)
from tests.workers import SHARED, LongestFirst, place_in_unit, unit_of

ROOT = Path(__file__).resolve().parent.parent
_TEMPLATE = "callboard_template"
_SEEDS_PER_RUN = 100_000
# A folder in memory, and what must be free in it: Postgres keeps up to 2 GiB of log, of two
# deployments and of each worker.
_MEMORY = Path("/dev/shm")
_MEMORY_BYTES_MIN = 8 * 1024**3
# There are three such tests, and two workers.
_LONG_SHARE = 0.2
# No test kills a part of these. One that a busy machine keeps from answering is not to be replaced.
_PATIENT = "".join(
    f"{part}_silence_ms = 60_000\n" for part in ("owner", "ledger", "timekeeper", "serve")
)
US, US_SEED = "us", bytes(range(32))
_LAST_USERS: pytest.StashKey[dict[tuple[str, str], str]] = pytest.StashKey()
_ENDS: pytest.StashKey[dict[str, Callable[[], None]]] = pytest.StashKey()


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
    parser.addoption("--minutes", type=float, help="no test begins later than this")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep together what shares a deployment, in its order.

    The seed decides what a run with a bound begins with: it does not come to its end.
    """
    if config.getoption("--minutes") is not None:
        random.Random(config.getoption("--hypothesis-seed")).shuffle(items)
    units: dict[str, int] = {}
    for item in items:
        units.setdefault(unit_of(item.nodeid), len(units))
    items.sort(key=lambda item: (units[unit_of(item.nodeid)], place_in_unit(item.nodeid)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note the last test that uses each shared deployment; of several workers, in each unit."""
    is_worker = hasattr(session.config, "workerinput")
    for item in session.items:
        for name in SHARED:
            if name in getattr(item, "fixturenames", ()):
                unit = unit_of(item.nodeid) if is_worker else ""
                session.stash.setdefault(_LAST_USERS, {})[name, unit] = item.nodeid


_began_s = time.monotonic()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what would begin after the bound, or takes longer than all of it by its `takes` mark."""
    minutes = item.config.getoption("--minutes")
    if minutes is None:
        return
    if time.monotonic() > _began_s + minutes * 60:
        pytest.skip(f"{minutes:g} minutes are over")
    takes = item.get_closest_marker("takes")
    if takes is not None and takes.args[0] > minutes:
        pytest.skip(f"takes {takes.args[0]} minutes, more than the {minutes:g} that there are")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Note how each shared deployment is ended."""
    if fixturedef.argname in SHARED:
        request.session.stash.setdefault(_ENDS, {})[fixturedef.argname] = partial(
            fixturedef.finish, request
        )
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """End a shared deployment, and what depends on it, with the last test that uses it."""
    yield
    ends = item.session.stash.get(_ENDS, {})
    for (name, _), last in item.session.stash.get(_LAST_USERS, {}).items():
        if item.nodeid == last and name in ends:
            ends.pop(name)()


def pytest_configure(config: pytest.Config) -> None:
    """Draw the same examples in every run, unless `--hypothesis-seed` asks for others.

    Whether a run is green may depend on what is tested alone, neither on luck nor on how busy the
    machine is; `make soak` looks at other examples (decision tests-and-benchmarks).
    """
    is_same_each_time = config.getoption("--hypothesis-seed") is None
    settings.register_profile(
        "usual",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=is_same_each_time,
    )
    settings.load_profile("usual")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LongestFirst:
    """Hand tests out to several workers (`-n`) by units."""
    config.option.loadscopereorder = False
    return LongestFirst(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Escape what UTF-8 cannot encode: a worker that is to send it (a logged half of a surrogate
    pair, say) ends, and takes the run with it.
    """
    return _encodable((yield))


def _encodable(part: Any) -> Any:
    """Return a part of a report with every lone surrogate escaped."""
    if isinstance(part, str):
        return part.encode("utf-8", "backslashreplace").decode()
    if isinstance(part, dict):
        return {_encodable(name): _encodable(value) for name, value in part.items()}
    if isinstance(part, list | tuple):
        return type(part)(_encodable(item) for item in part)
    return part


@pytest.fixture
def has_time(request: pytest.FixtureRequest) -> Callable[[], bool]:
    """Say whether a test without an end of its own may go on: always, or for its share of
    `--minutes`.
    """
    minutes = request.config.getoption("--minutes")
    ends_s = math.inf if minutes is None else time.monotonic() + minutes * 60 * _LONG_SHARE
    return lambda: time.monotonic() < ends_s


@pytest.fixture
def drawn_from(request: pytest.FixtureRequest) -> int:
    """The first of the seeds that a soak may use: none of the usual run's, none of another's."""
    return (1 + int(request.config.getoption("--hypothesis-seed") or 0)) * _SEEDS_PER_RUN


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio, which is what the service runs on."""
    return "asyncio"


@pytest.fixture(scope="session")
def short_folder() -> Iterator[Path]:
    """A session's folder with a short path, in memory if there is room.

    A database costs 0.03 s of CPU to copy there, on a disk up to 0.5; no test cuts the power.
    """
    for left in _MEMORY.glob("cbt-*-*"):
        # A session that was killed: what lies in memory would stay until the machine restarts.
        if not psutil.pid_exists(int(left.name.split("-")[1])):
            shutil.rmtree(left, ignore_errors=True)
    has_room = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES_MIN
    prefix = f"cbt-{os.getpid()}-"
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=_MEMORY if has_room else None))
    folder.chmod(0o711)  # where root runs the tests, another user runs Postgres
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
    with psycopg.connect(server.superuser_url, autocommit=True) as connection:
        # No test cuts the power: what a killed process has written is in the kernel's memory.
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("SELECT pg_reload_conf()")
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


@contextmanager
def copied_database(server: EmbeddedPostgres, template: str, name: str) -> Iterator[Database]:
    """Make a copy of a database for the length of a block."""
    names = [sql.Identifier(part) for part in (name, template, OWNER)]
    with psycopg.connect(server.superuser_url, autocommit=True) as connection:
        # Files are copied as such, not page by page through the log: a third of the CPU.
        copy = sql.SQL("CREATE DATABASE {} TEMPLATE {} OWNER {} STRATEGY FILE_COPY")
        connection.execute(copy.format(*names))
    yield Database(
        name=name,
        service_url=server.url_for(SERVICE, name),
        owner_url=server.url_for(OWNER, name),
        superuser_url=server.url_for(SUPERUSER, name),
    )
    with psycopg.connect(server.superuser_url, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(names[0]))


_numbers = count(1)


@pytest.fixture
def database(postgres: EmbeddedPostgres, migrated_template: str) -> Iterator[Database]:
    """A migrated database of its own for one test."""
    with copied_database(postgres, migrated_template, f"test_{next(_numbers)}") as made:
        yield made


@pytest.fixture(scope="session")
def deployment(short_folder: Path) -> Iterator[RunningDeployment]:
    """A whole deployment that many tests use: `callboard up` in a folder of its own, over real
    HTTP.
    """
    home = Path(tempfile.mkdtemp(prefix="up-", dir=short_folder))
    (home / "callboard.toml").write_text(
        _PATIENT + credential_settings(home) + model_settings(free_port()), encoding="utf-8"
    )
    running = start_deployment(home, port=free_port())
    yield running
    running.down()


@dataclass(frozen=True, slots=True)
class Demonstration:
    """What `callboard demo --keep` has printed, and the deployment that it left running."""

    printed: str
    deployment: RunningDeployment


@pytest.fixture(scope="session")
def demonstration(short_folder: Path) -> Iterator[Demonstration]:
    """The demonstration from a cold start, whose deployment is the second region of other tests.

    It listens on all interfaces. A start of its own would cost each of these tests 30 s of CPU.
    """
    home = short_folder / US
    home.mkdir()
    (home / "callboard.toml").write_text(
        f'{_PATIENT}region = "{US}"\nsigning_key = "{US_SEED.hex()}"\nhost = "0.0.0.0"\n',
        encoding="utf-8",
    )
    end_with_this_process(home)
    command = [sys.executable, "-m", "callboard.cli", "demo", "--keep", "--home", str(home)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    running = RunningDeployment.of(home)
    yield Demonstration(done.stdout, running)
    running.down()


@pytest.fixture(scope="session")
def second_region(demonstration: Demonstration) -> RunningDeployment:
    """The region `us`. Its only agents are those of the demonstration, which have ended."""
    return demonstration.deployment


@pytest.fixture(scope="session")
def victim(short_folder: Path) -> Iterator[RunningDeployment]:
    """A deployment that tests may break, with stakes at risk; its code is a copy to change."""
    with deployed(short_folder, SETTINGS, code=copy_code(short_folder / "code")) as running:
        yield running
