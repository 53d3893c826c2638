"""CPU time of a deployment's processes, by kind, out of the system's process table."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import psutil

# The first match names the kind; the order goes from special to general.
KINDS = (
    ("LedgerActor", "ledger actor"),
    ("WorkflowActor", "workflow actor"),
    ("Timekeeper", "timekeeper"),
    ("ServeReplica", "serve replica"),
    ("haproxy", "haproxy"),
    ("ProxyActor", "serve proxy"),
    ("ServeController", "serve controller"),
    ("postgres", "postgres"),
    ("raylet", "raylet"),
    ("gcs_server", "gcs"),
    ("stub_agent", "agents"),
)


def cpu_seconds(home: Path) -> dict[str, float]:
    """Return user + system seconds by kind of process of the deployment in `home`.

    Args:
        home: the deployment's folder; its processes are the descendants of the pids named in it and
            every process whose environment or command line carries the folder's path.
    """
    seconds: dict[str, float] = defaultdict(float)
    postmaster = _postmaster(home)
    for process in psutil.process_iter(["pid", "ppid", "cmdline", "name"]):
        try:
            line = " ".join(process.info["cmdline"] or [process.info["name"] or ""])
            is_postgres = postmaster in (process.info["pid"], process.info["ppid"])
            if not is_postgres and not _is_of(process, home):
                continue
            times = process.cpu_times()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        kind = "postgres" if is_postgres else _kind(line)
        seconds[kind] += times.user + times.system
    return dict(seconds)


def _is_of(process: psutil.Process, home: Path) -> bool:
    return any(str(home) in value for value in process.environ().values())


def _kind(line: str) -> str:
    for mark, kind in KINDS:
        if mark in line:
            return kind
    return "other"


def _postmaster(home: Path) -> int:
    try:
        return int((home / "postgres" / "postmaster.pid").read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return -1
