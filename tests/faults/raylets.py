"""More machines for a deployment: raylets beside the head's, on this machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from serve_app.supervisor.deployment import run_folder_of
from tests.faults.victims import await_one, find_all, wait
from tests.platform.deployments import RunningDeployment, free_port

# Ray gives a machine up that has not joined after 30 s, which is too little on a busy one.
TRIES = 3


def add_machine(deployment: RunningDeployment, *, within: Sequence[str] = ()) -> None:
    """Start one more raylet, which ends with the deployment: it carries its mark.

    Args:
        within: the start of a command that runs the rest of its line, as in namespaces of its own.
    """
    known = set(find_all(deployment, "raylet"))
    environment = psutil.Process(await_one(deployment, "raylet")).environ()
    command = [*within, sys.executable, str(Path(sys.executable).parent / "ray"), "start"]
    command += [f"--address={environment['RAY_ADDRESS']}", "--node-ip-address=127.0.0.1"]
    command += ["--min-worker-port=0", "--max-worker-port=0", "--num-cpus=1"]
    command += [f"--dashboard-agent-listen-port={free_port()}"]
    command += [f"--metrics-export-port={free_port()}", f"--object-store-memory={80 * 1024 * 1024}"]
    command += ["--disable-usage-stats", "--log-color=false"]
    log = deployment.home / "logs" / "machines.log"
    for _ in range(TRIES):
        with log.open("ab") as file:
            # `down` finds agents that have overwritten their environment by their folder.
            folder = run_folder_of(deployment.home)
            done = subprocess.run(command, env=environment, stdout=file, stderr=file, cwd=folder)
        if done.returncode == 0:
            break
    assert done.returncode == 0, log.read_text(encoding="utf-8")[-2_000:]
    wait(lambda: set(find_all(deployment, "raylet")) > known, "the raylet")
