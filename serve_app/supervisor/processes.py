"""Finds and ends the processes of one deployment, also those whose parents have ended.

Every process of a deployment has the deployment's mark in its environment, which the kernel shows
in `/proc`. So the processes of a killed supervisor are found by the mark. Process ids are not
stored, because the kernel may reuse the id of an ended process. Ray's agents overwrite the
beginning of their environment, and perhaps the mark. A process with an overwritten environment is
found by its working folder. The embedded Postgres is also found by its folder
(`ledger/embedded/server.py`). Decision cluster-and-releases.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from serve_app.settings_from_env import DEPLOYMENT_MARK

_POLL_S = 0.02


def saying() -> Callable[[str], None]:
    """Return a function that prints a line, preceded by the seconds since the call of `saying`."""
    began = time.monotonic()

    def say(line: str) -> None:
        with suppress(BrokenPipeError):  # the reader has ended, but the deployment continues
            sys.stdout.write(f"[{time.monotonic() - began:5.1f} s] {line}\n")
            sys.stdout.flush()

    return say


def marked_processes(mark: str, run_folder: Path | None = None) -> list[int]:
    """Return the ids of all processes with a mark, except this process and its parent.

    Args:
        mark: a deployment's id, for all its runs; or `id.run`, for one run.
        run_folder: the deployment's run folder. The processes of all runs that have this working
            folder and an overwritten environment are found too. None: they are not found.
    """
    wanted = f"{DEPLOYMENT_MARK}={mark}".encode()
    own = {os.getpid(), os.getppid()}
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in own:
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                environment = file.read()
            variables = environment.split(b"\0")
            if any(text == wanted or text.startswith(wanted + b".") for text in variables) or (
                run_folder is not None
                # An overwritten environment begins with a zero byte. An empty environment is not an
                # overwritten one: `env -i` starts processes without variables.
                and environment.startswith(b"\0")
                and os.readlink(f"/proc/{entry}/cwd")
                in (str(run_folder), f"{run_folder} (deleted)")
            ):
                found.append(int(entry))
        except OSError:
            continue  # the process has ended, or belongs to another user
    return found


def told_of(pid: int, file: str) -> str:
    """Return the text of a process's file in `/proc`, empty if the process has ended."""
    path = f"/proc/{pid}/{file}"
    with suppress(OSError), open(path, encoding="utf-8", errors="surrogateescape") as found:
        return found.read()
    return ""


def process_name(pid: int) -> str:
    """Return the kernel's name of a process, empty if the process has ended."""
    return told_of(pid, "comm").strip()


def command_of(pid: int) -> list[str]:
    """Return the arguments of a process's command line."""
    return told_of(pid, "cmdline").split("\0")


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with, empty if it has ended."""
    pairs = (text.partition("=") for text in told_of(pid, "environ").split("\0"))
    return {name: value for name, _, value in pairs if name}


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes. Processes that have ended are skipped."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def end_marked(mark: str, run_folder: Path | None = None, *, grace_s: float) -> int:
    """End all processes with a mark, wait until they have ended, and return their number.

    Args:
        mark, run_folder: see `marked_processes`.
        grace_s: seconds between SIGTERM and SIGKILL; 0 sends SIGKILL at once.
    """
    ended: set[int] = set()
    forced_at = time.monotonic() + grace_s
    asked: set[int] = set()
    # Ending processes may start others, so the search is repeated until it finds none.
    while pids := marked_processes(mark, run_folder):
        ended.update(pids)
        if time.monotonic() >= forced_at:
            send(pids, signal.SIGKILL)
        else:
            send(set(pids) - asked, signal.SIGTERM)
            asked.update(pids)
        reap()
        time.sleep(_POLL_S)
    return len(ended)


def reap() -> None:
    """Reap ended children that no other code waits for."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def wait_end(pids: Iterable[int], timeout_s: float | None) -> set[int]:
    """Wait until one of the processes ends, and return the processes that have ended.

    Args:
        pids: process ids; a process that does not exist counts as ended.
        timeout_s: the longest wait in seconds; None waits without a limit.
    """
    poller = select.poll()
    watched: dict[int, int] = {}
    ended: set[int] = set()
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            ended.add(pid)
            continue
        watched[descriptor] = pid
        poller.register(descriptor, select.POLLIN)
    timeout_ms = None if timeout_s is None else timeout_s * 1_000
    try:
        if not ended:
            ended = {watched[descriptor] for descriptor, _ in poller.poll(timeout_ms)}
    finally:
        for descriptor in watched:
            os.close(descriptor)
    return ended
