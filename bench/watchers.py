"""Measures how soon each process is replaced that has ended or does not run any more.

Run as `python -m bench.watchers [--checkout DIR] [--kinds NAME…]`: starts a deployment of its own,
ends each kind of process by SIGKILL, then stops it by SIGSTOP, and prints a row of Markdown with
the seconds to its successor's start and to a healthy reply of the API. Asserts nothing. The figures
of docs/operations.md (Who watches whom) come of it.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.checkouts import Checkout
from bench.figures.process_usage import members
from tests.platform.deployments import is_healthy

# What is in the command line of each kind, in the order of the table.
KINDS = {
    "WorkflowActor": "ray::WorkflowActor",
    "LedgerActor": "ray::LedgerActor",
    "Timekeeper": "ray::Timekeeper",
    "Serve replica": "ray::ServeReplica",
    "HAProxy": "bin/haproxy",
    "Serve's proxy actor": "ray::HAProxyManager",
    "Serve's controller": "ray::ServeController",
    "GCS": "gcs_server",
    "raylet": "raylet/raylet",
}
TIMEOUT_S = 240.0
# A process that has just started is not judged yet by all who watch it.
SETTLE_S = 20.0
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Figure:
    """Seconds from the last sign of life; None: not within the timeout.

    Attributes:
        successor_s: to the start of another process in its place.
        healthy_s: to a healthy reply of the API after that.
    """

    successor_s: float | None
    healthy_s: float | None

    def __str__(self) -> str:
        return f"{_text(self.successor_s)} ({_text(self.healthy_s)})"


def find(home: Path, kind: str) -> psutil.Process | None:
    """Return the newest process of a kind, None when there is none."""
    found = [process for process, _ in members(home) if KINDS[kind] in _command(process)]
    return max(found, key=lambda process: process.create_time(), default=None)


def measure(home: Path, kind: str, number: signal.Signals) -> Figure:
    """End or stop the process of a kind; wait for its successor, then for the API."""
    url = (home / "url").read_text(encoding="utf-8").strip()
    old: list[psutil.Process] = []

    def is_there() -> bool:
        old[:] = [one for one in [find(home, kind)] if one is not None]
        return bool(old)

    def is_replaced() -> bool:
        new = find(home, kind)
        return new is not None and new.create_time() > old[0].create_time()

    if wait_s(is_there) is None:
        return Figure(None, None)
    began_s = time.monotonic()
    os.kill(old[0].pid, number)
    is_followed = wait_s(is_replaced) is not None
    successor_s = time.monotonic() - began_s if is_followed else None
    is_well = wait_s(lambda: is_healthy(url)) is not None
    healthy_s = time.monotonic() - began_s if is_well else None
    if not is_followed and old[0].is_running():
        os.kill(old[0].pid, signal.SIGCONT)
    return Figure(successor_s, healthy_s)


def wait_s(condition: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> float | None:
    """Return after how many seconds a condition holds, None when the time is over."""
    began_s = time.monotonic()
    while not condition():
        if time.monotonic() - began_s > timeout_s:
            return None
        time.sleep(_LOOK_S)
    return time.monotonic() - began_s


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return ""


def _text(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.1f} s"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.watchers", description=__doc__)
    parser.add_argument("--checkout", help="of which a deployment is started; default: this one")
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    arguments = parser.parse_args()
    print("seconds to the successor's start (to a healthy API)")
    print("| Process | ended | frozen |\n|---|---|---|")
    with Checkout.at(arguments.checkout).deployment() as home:
        for kind in arguments.kinds:
            figures = []
            for number in (signal.SIGKILL, signal.SIGSTOP):
                time.sleep(SETTLE_S)
                figures.append(measure(home, kind, number))
            print(f"| {kind} | {figures[0]} | {figures[1]} |", flush=True)


if __name__ == "__main__":
    main()
