"""Begins an upgrade on the head: finds what runs, and starts `upgrade.py` in the other release.

Knows processes, not Ray. What the deployment's own processes were told, they have in their
environment: the program that replaces them is told the same, but for the release. Decision
cluster-and-releases.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from serve_app.settings_from_env import LoadedSettings
from serve_app.supervisor.deployment import Deployment, DeploymentError, take_lock
from serve_app.supervisor.processes import environment_of, marked_processes, process_name
from serve_app.supervisor.releases.release import Release

_HEAD: Final = "gcs_server"
_LOCK: Final = "upgrade.lock"


def upgrade(loaded: LoadedSettings, to: Path | None) -> int:
    """Replace a running deployment's processes by those of a release; return the exit status.

    Args:
        loaded: of the deployment's home.
        to: the folder of the release, the same on every machine; None: the caller's own.
    """
    deployment = loaded.deployment
    generation = secrets.token_hex(3)
    try:
        release = replace(Release.own(), generation=generation)
        if to is not None:
            release = Release.in_folder(to.absolute(), generation)
        turn = take_turn(deployment, _LOCK)
        try:
            return _upgrade(deployment, release.by_plain_path(deployment.run_folder), turn)
        finally:
            os.close(turn)
    except DeploymentError as refusal:
        print(f"callboard: {refusal}", file=sys.stderr)
        return 1


def _upgrade(deployment: Deployment, release: Release, turn: int) -> int:
    environment = running_environment(deployment) | release.environment()
    print(f"upgrading {deployment.home} to {release.folder}", flush=True)
    command = [release.python, "-m", "serve_app.supervisor.releases.upgrade"]
    # Not in the folder of the release: `Keeper._step` says why.
    # It keeps the turn, should this process be killed.
    return subprocess.run(
        command, env=environment, cwd=deployment.run_folder, pass_fds=(turn,)
    ).returncode


def take_turn(deployment: Deployment, lock: str) -> int:
    """Keep others away while the file returned is open: each would end what others start.

    Args:
        lock: the file's name.

    Raises:
        DeploymentError: another one is at it.
    """
    descriptor = take_lock(deployment.home / lock)
    if descriptor is None:
        raise DeploymentError(f"{deployment.home} is being upgraded: wait for its end")
    return descriptor


def running_environment(deployment: Deployment) -> dict[str, str]:
    """Return the variables of the head of Ray, from which every process has its own.

    Raises:
        DeploymentError: there is none on this machine.
    """
    for pid in marked_processes(deployment.id):
        if process_name(pid) == _HEAD:
            return environment_of(pid)
    raise DeploymentError(
        f"{deployment.home} is not up on this machine, or not as the head of its cluster"
    )
