"""Finds the processes of one deployment by what they are, and kills or freezes them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil
import psycopg

from ledger.embedded.server import DATABASE, SUPERUSER, EmbeddedPostgres
from serve_app.supervisor.deployment import run_folder_of
from tests.platform.deployments import RunningDeployment

DEADLINE_S = 180.0
# A look at all processes takes 5 ms of CPU and more, and for a successor a test waits for seconds.
POLL_S = 0.1

# What the command line of a process carries.
MARKS = {
    "ledger": "ray::LedgerActor",
    "workflows": "ray::WorkflowActor",
    "timekeeper": "ray::Timekeeper",
    "replica": "ray::ServeReplica",
    "controller": "ray::ServeController",
    "proxy actor": "ray::HAProxyManager",
    "proxy": "haproxy",
    "head": "gcs_server",
    "raylet": "raylet/raylet",
    "supervisor": "serve_app.supervisor",
}


def find_all(deployment: RunningDeployment, kind: str) -> list[int]:
    """Return the pids of the deployment's processes of this kind."""
    home = str(deployment.home)
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if MARKS[kind] not in line:
            continue
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if home in line or any(home in value for value in process.environ().values()):
                found.append(int(process.pid))
    return found


def find(deployment: RunningDeployment, kind: str) -> int | None:
    """Return the pid of the deployment's process of this kind, None when there is none now."""
    if kind == "postgres":
        return _postmaster(deployment)
    if kind == "backend":
        return _writers_backend(deployment)
    found = find_all(deployment, kind)
    return found[0] if found else None


def await_one(deployment: RunningDeployment, kind: str, *, after: int | None = None) -> int:
    """Return the pid of the process of this kind, waiting until there is one other than `after`."""
    deadline = time.monotonic() + DEADLINE_S
    while (pid := find(deployment, kind)) is None or pid == after:
        assert time.monotonic() < deadline, f"no process: {kind}"
        time.sleep(POLL_S)
    return pid


def wait(condition: Callable[[], bool], what: str | Callable[[], str]) -> None:
    """Return when the condition holds.

    Args:
        what: is waited for; a function says at the end of the wait what there is instead.
    """
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain for {what if isinstance(what, str) else what()}")
        time.sleep(POLL_S)


def kill(deployment: RunningDeployment, kind: str, *, after: int | None = None) -> int:
    """Kill -9 the process of this kind, waiting until there is one other than `after`."""
    pid = await_one(deployment, kind, after=after)
    # It may have ended by itself meanwhile, with another that was killed before it.
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return pid


@contextmanager
def frozen(pids: list[int]) -> Iterator[None]:
    """Stop processes (SIGSTOP) for the length of the block; those that ended are passed over."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@contextmanager
def postgres_frozen(deployment: RunningDeployment) -> Iterator[None]:
    """Stop the postmaster, then every process under it, for the length of the block."""
    postmaster = psutil.Process(await_one(deployment, "postgres"))
    with (
        frozen([postmaster.pid]),  # from here on it makes no more of them
        frozen([child.pid for child in postmaster.children(recursive=True)]),
    ):
        yield


def superuser_url(deployment: RunningDeployment) -> str:
    """Return the URL under which a test sees everything in the deployment's database."""
    server = EmbeddedPostgres(deployment.home, run_folder_of(deployment.home))
    return server.url_for(SUPERUSER, DATABASE)


def _postmaster(deployment: RunningDeployment) -> int | None:
    try:
        pid = int((deployment.home / "postgres" / "postmaster.pid").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return pid if psutil.pid_exists(pid) else None


def _writers_backend(deployment: RunningDeployment) -> int | None:
    """Return the server's side of the ledger writer's connection."""
    with suppress(psycopg.Error), psycopg.connect(superuser_url(deployment)) as connection:
        row = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'callboard-ledger'"
        ).fetchone()
        return None if row is None else int(row[0])
    return None
