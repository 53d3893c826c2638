"""Begins an upgrade on the head: runs `upgrade.py` in the environment of the new release.

This file knows processes, not Ray. The running processes have their settings in their environment.
`upgrade.py` gets the same environment, but with the variables of the new release. Decision
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
        loaded: the settings of the deployment's home.
        to: the folder of the release, the same on every machine; None: the release of this process.
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
    # `Supervisor._step` says why the working folder is not the folder of the release. The child
    # inherits the file lock. So it keeps the lock even if this process is killed.
    return subprocess.run(
        command, env=environment, cwd=deployment.run_folder, pass_fds=(turn,)
    ).returncode


def take_turn(deployment: Deployment, lock: str) -> int:
    """Take a file lock, so that concurrent upgrades or rotations do not end each other's processes.

    Args:
        deployment: the deployment.
        lock: the name of the lock file in the deployment's home.

    Returns: the descriptor of the lock file; closing it releases the lock.

    Raises:
        DeploymentError: another process holds the lock.
    """
    descriptor = take_lock(deployment.home / lock)
    if descriptor is None:
        raise DeploymentError(f"{deployment.home} is being upgraded: wait for its end")
    return descriptor


def running_environment(deployment: Deployment) -> dict[str, str]:
    """Return the environment of Ray's head process, which all other processes inherit.

    Raises:
        DeploymentError: the head does not run on this machine.
    """
    for pid in marked_processes(deployment.id):
        if process_name(pid) == _HEAD:
            return environment_of(pid)
    raise DeploymentError(
        f"{deployment.home} is not up on this machine, or not as the head of its cluster"
    )
