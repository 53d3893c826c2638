"""What a machine needs before it joins a cluster, each missing thing in one sentence.

1. Settings that all machines share: deployment key, Ray's token, a Postgres that all reach.
2. The node address is this machine's own; the secrets are readable by this user only.
3. Postgres answers with the service's login; the head's port answers.
4. The head runs the same Ray and the same Python, and takes the token.

1 and 2 are wrong for good and refused at once; 3 may be late, as after a power cut, and is waited
for. Decision 0207.
"""

from __future__ import annotations

import errno
import json
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from core.settings import Settings
from ledger.code_version import CODE_VERSION
from ledger.connections.reaching import EMBEDDED_HOSTS, why_unreachable
from serve_app.settings_from_env import child_environment
from serve_app.supervisor.deployment import Deployment, DeploymentError
from serve_app.supervisor.ray_node import Place

REACH_TIMEOUT_S = 60.0
_CONNECT_TIMEOUT_S = 5.0
_PROBE_TIMEOUT_S = 60.0
_PAUSE_S = 1.0
_ROOT = Path(__file__).resolve().parent.parent.parent.parent


def check_machine(settings: Settings, place: Place) -> None:
    """Check what this machine alone decides (1 and 2).

    Args:
        settings: the machine's.
        place: where it stands in the cluster.

    Raises:
        DeploymentError: something is missing; the text says what.
    """
    missing = (
        _missing_setting(settings)
        or _wrong_database(settings, place)
        or _wrong_address(place.node_address)
    )
    if missing:
        raise DeploymentError(missing)


def check_reachable(
    settings: Settings, deployment: Deployment, place: Place, say: Callable[[str], None]
) -> None:
    """Wait for what this machine needs of others, then compare versions (3 and 4).

    Args:
        settings: the machine's.
        deployment: whose token file exists.
        place: where the machine stands.
        say: gets a line when something is waited for, and for differences that do not matter.

    Raises:
        DeploymentError: it was not reachable within 60 s, or is of other versions.
    """
    deadline = time.monotonic() + REACH_TIMEOUT_S
    said = ""
    while missing := _unreachable(settings, place):
        if time.monotonic() > deadline:
            raise DeploymentError(missing)
        if missing != said:
            said = missing
            say(f"waiting: {missing}")
        time.sleep(_PAUSE_S)
    if not place.is_head:
        _compare_with_head(settings, deployment, place.head, say)


def facts(settings: Settings) -> dict[str, str]:
    """Return what machines of a cluster compare: versions, and where the sockets are."""
    return {
        "ray": version("ray"),
        "python": platform.python_version(),
        "code": f"{version('callboard')} (schema {CODE_VERSION})",
        "run_folder": settings.run_folder,
    }


def split_address(address: str) -> tuple[str, int]:
    """Return the host and the port of `host:port`.

    Raises:
        DeploymentError: it is not of this form.
    """
    host, mark, port = address.rpartition(":")
    if not mark or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise DeploymentError(f"got the head's address {address!r}, expected host or host:port")
    return host.strip("[]"), int(port)


def _missing_setting(settings: Settings) -> str | None:
    for name, value in (
        ("deployment_key", settings.deployment_key),
        ("ray_token", settings.ray_token),
        ("database_url", settings.database_url),
    ):
        if not value:
            return (
                f"{name} is not set: a cluster's machines need the same one, in"
                f" {settings.home}/callboard.toml or as CALLBOARD_{name.upper()}"
            )
    secrets = Path(settings.home, "callboard.toml")
    if secrets.exists() and secrets.stat().st_mode & 0o077:
        return f"{secrets} holds secrets and other users may read it: chmod 600 {secrets}"
    return None


def _wrong_database(settings: Settings, place: Place) -> str | None:
    # On loopback all machines of the cluster are this one.
    if place.node_address.startswith("127."):
        return None
    if any(mark in settings.database_url for mark in EMBEDDED_HOSTS):
        return (
            "database_url names an address of this machine only: give one that every machine of"
            " the cluster reaches"
        )
    return None


def _wrong_address(address: str) -> str | None:
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            return f"{address} is not an address of this machine: say which with --node-address"
        return f"the node address {address!r} cannot be used: {error}"
    return None


def _unreachable(settings: Settings, place: Place) -> str | None:
    reason = why_unreachable(settings.database_url, timeout_s=_CONNECT_TIMEOUT_S)
    if reason:
        return f"the Postgres of database_url does not answer this machine: {reason}"
    if place.is_head:
        return None
    host, port = split_address(place.head)
    try:
        socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return (
            f"the head does not answer at {place.head} ({error}): is it up, and does a firewall"
            " let this machine through?"
        )
    return None


def _compare_with_head(
    settings: Settings, deployment: Deployment, head: str, say: Callable[[str], None]
) -> None:
    environment = child_environment(
        {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(deployment.ray_token_file)}
    )
    command = [sys.executable, "-m", "serve_app.supervisor.machines.head_probe", head]
    try:
        probe = subprocess.run(
            command, cwd=_ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=_PROBE_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise DeploymentError(
            f"the head at {head} did not say its versions within {_PROBE_TIMEOUT_S:.0f} s"
        ) from None
    if probe.returncode != 0:
        lines = probe.stdout.strip().splitlines() or probe.stderr.strip().splitlines() or [""]
        raise DeploymentError(f"the head at {head} refuses this machine: {lines[-1]}")
    for name, kind, got, wanted in differences(facts(settings), json.loads(probe.stdout)):
        text = f"this machine has {name} {got}, the head has {wanted}"
        if kind == "refused":
            raise DeploymentError(f"{text}: install the same on both")
        say(text)


def differences(own: dict[str, str], heads: dict[str, str]) -> list[tuple[str, str, str, str]]:
    """Return (name, `refused` or `told`, own value, head's) of each fact that differs.

    Ray and Python must be the same; other code is told only, for machines change their code one
    after the other. A fact that the head has not published yet is left out.
    """
    names = {"ray": "Ray", "python": "Python", "code": "code", "run_folder": "the run folder"}
    return [
        (text, "refused" if name in ("ray", "python") else "told", own[name], heads[name])
        for name, text in names.items()
        if name in heads and heads[name] != own[name]
    ]
