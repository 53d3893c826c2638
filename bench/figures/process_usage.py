"""CPU time and memory of a deployment's processes, by kind, from the system's process table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import psutil

AGENTS = "agents"
POSTGRES = "postgres"
OWNER = "workflow actor"
# The first match names the kind; the order goes from special to general.
KINDS = (
    ("LedgerActor", "ledger actor"),
    ("WorkflowActor", OWNER),
    ("Timekeeper", "timekeeper"),
    ("ServeReplica", "serve replica"),
    ("haproxy", "haproxy"),
    ("ProxyActor", "serve proxy"),
    ("ServeController", "serve controller"),
    ("postgres", POSTGRES),
    ("raylet", "raylet"),
    ("gcs_server", "gcs"),
    ("stub_agent", AGENTS),
)


def members(home: Path) -> Iterator[tuple[psutil.Process, str]]:
    """Yield every process of the deployment in `home` with its kind.

    Args:
        home: the deployment's folder; its processes are the descendants of the pids named in it and
            every process whose environment or command line carries the folder's path.
    """
    postmaster = _postmaster(home)
    for process in psutil.process_iter(["pid", "ppid", "cmdline", "name"]):
        try:
            line = " ".join(process.info["cmdline"] or [process.info["name"] or ""])
            is_postgres = postmaster in (process.info["pid"], process.info["ppid"])
            if not is_postgres and not _is_of(process, home):
                continue
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        yield process, POSTGRES if is_postgres else kind_of(line)


def cpu_seconds(home: Path) -> dict[str, float]:
    """Return user + system seconds by kind of process of the deployment in `home`."""
    seconds: dict[str, float] = defaultdict(float)
    for process, kind in members(home):
        try:
            times = process.cpu_times()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        seconds[kind] += times.user + times.system
    return dict(seconds)


def owner_of(home: Path) -> psutil.Process | None:
    """Return the process of the deployment's workflow owner, None when there is none now."""
    for process, kind in members(home):
        if kind == OWNER:
            return process
    return None


def _is_of(process: psutil.Process, home: Path) -> bool:
    return any(str(home) in value for value in process.environ().values())


def kind_of(line: str) -> str:
    """Return the kind of the process with this command line."""
    for mark, kind in KINDS:
        if mark in line:
            return kind
    return "other"


def _postmaster(home: Path) -> int:
    try:
        return int((home / "postgres" / "postmaster.pid").read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return -1
