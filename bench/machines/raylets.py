"""The raylets of a deployment and the processes that each of them has started."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.figures.process_usage import OWNER, kind_of, members
from bench.load.clients import Target
from tests.faults.raylets import add_machine
from tests.platform.deployments import RunningDeployment

RAYLET = "raylet"
# A machine with one of these has more than work to lose.
SINGLE = {"ledger actor", "timekeeper", "serve replica", "serve controller"}


@dataclass(frozen=True, slots=True)
class Machine:
    """A raylet with its processes by kind, as `bench.figures.process_usage` names kinds."""

    raylet: psutil.Process
    kinds: dict[int, str]

    @property
    def owner_pid(self) -> int:
        """Return the process id of its workflow owner, 0 when there is none."""
        return next((pid for pid, kind in self.kinds.items() if kind == OWNER), 0)

    def kill(self) -> None:
        """Kill -9 every process of it."""
        for pid in (self.raylet.pid, *self.kinds):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def add_raylets(home: Path, count: int) -> None:
    """Start so many more raylets for the deployment in a folder."""
    target = Target.at(home)
    for _ in range(count):
        add_machine(RunningDeployment(home, target.url, target.admin_key))


def machines_of(home: Path) -> list[Machine]:
    """Return the deployment's raylets, the oldest first."""
    raylets = [process for process, kind in members(home) if kind == RAYLET]
    raylets.sort(key=lambda process: process.create_time())
    return [
        Machine(raylet, {child.pid: _kind(child) for child in raylet.children(recursive=True)})
        for raylet in raylets
    ]


def _kind(process: psutil.Process) -> str:
    try:
        return kind_of(" ".join(process.cmdline()))
    except psutil.Error:
        return kind_of("")
