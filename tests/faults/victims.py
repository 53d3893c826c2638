"""Finds the processes of one deployment by what they are, and kills them."""

from __future__ import annotations

import os
import signal
import time

import psutil

from tests.conftest import RunningDeployment

DEADLINE_S = 60.0

# What the command line of a process carries.
MARKS = {
    "ledger": "ray::LedgerActor",
    "workflows": "ray::WorkflowActor",
    "timekeeper": "ray::Timekeeper",
    "replica": "ray::ServeReplica",
    "controller": "ray::ServeController",
    "supervisor": "serve_app.supervisor",
}


def find(deployment: RunningDeployment, kind: str) -> int | None:
    """Return the pid of the deployment's process of this kind, None when there is none now."""
    if kind == "postgres":
        return _postmaster(deployment)
    home = str(deployment.home)
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if MARKS[kind] not in line:
            continue
        try:
            if home in line or any(home in value for value in process.environ().values()):
                return int(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return None


def kill(deployment: RunningDeployment, kind: str, *, after: int | None = None) -> int:
    """Kill -9 the process of this kind, waiting until there is one other than `after`."""
    deadline = time.monotonic() + DEADLINE_S
    while (pid := find(deployment, kind)) is None or pid == after:
        assert time.monotonic() < deadline, f"no process: {kind}"
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    return pid


def _postmaster(deployment: RunningDeployment) -> int | None:
    try:
        pid = int((deployment.home / "postgres" / "postmaster.pid").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return pid if psutil.pid_exists(pid) else None
