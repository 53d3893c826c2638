"""Finding and ending the processes of one deployment, also those whose parents have ended.

Every process of a deployment carries its mark in the environment it was started with, and the
kernel shows that environment in `/proc`. So leftovers of a supervisor that was killed are found
by what they are, never by a process id that may belong to a stranger by now. Ray's agents overwrite
the beginning of their environment, and the mark with it where it stood there: whose beginning is
gone is found by its working folder. (So is the embedded Postgres, by `ledger/embedded/server.py`.)
Decision cluster-and-releases.
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
    """Return what tells people a line, after the seconds since now."""
    began = time.monotonic()

    def say(line: str) -> None:
        with suppress(BrokenPipeError):  # nobody reads any more; the deployment runs on
            sys.stdout.write(f"[{time.monotonic() - began:5.1f} s] {line}\n")
            sys.stdout.flush()

    return say


def marked_processes(mark: str, run_folder: Path | None = None) -> list[int]:
    """Return the ids of all processes that carry a mark, not the caller's own nor its parent's.

    Args:
        mark: a deployment's id, for all its runs, or `id.run` for one of them.
        run_folder: where processes work that are found although they have overwritten the
            beginning of their environment, whatever their run; None finds none of them.
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
                # Overwritten, not empty: `env -i` starts shells without any variable.
                and environment.startswith(b"\0")
                and os.readlink(f"/proc/{entry}/cwd")
                in (str(run_folder), f"{run_folder} (deleted)")
            ):
                found.append(int(entry))
        except OSError:
            continue  # it ended, or belongs to another user
    return found


def told_of(pid: int, file: str) -> str:
    """Return what the kernel tells of a process in a file of `/proc`, nothing when it is gone."""
    path = f"/proc/{pid}/{file}"
    with suppress(OSError), open(path, encoding="utf-8", errors="surrogateescape") as found:
        return found.read()
    return ""


def process_name(pid: int) -> str:
    """Return the name of a process as the kernel knows it, empty when it is gone."""
    return told_of(pid, "comm").strip()


def command_of(pid: int) -> list[str]:
    """Return the words of a process's command line."""
    return told_of(pid, "cmdline").split("\0")


def environment_of(pid: int) -> dict[str, str]:
    """Return the variables that a process was started with, none when it is gone."""
    pairs = (text.partition("=") for text in told_of(pid, "environ").split("\0"))
    return {name: value for name, _, value in pairs if name}


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes; those that have ended are passed over."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def end_marked(mark: str, run_folder: Path | None = None, *, grace_s: float) -> int:
    """End every marked process and return how many there were, when all are gone.

    Args:
        mark, run_folder: as for `marked_processes`.
        grace_s: seconds between asking (SIGTERM) and forcing (SIGKILL); 0 forces at once.
    """
    ended: set[int] = set()
    forced_at = time.monotonic() + grace_s
    asked: set[int] = set()
    # Started processes start others while they end, so this looks again until none is found.
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
    """Collect ended children that no caller waits for."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def wait_end(pids: Iterable[int], timeout_s: float | None) -> set[int]:
    """Wait until one of the processes ends and return those that have.

    Args:
        pids: process ids; one that is gone already counts as ended.
        timeout_s: seconds at most; None waits for ever.
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
