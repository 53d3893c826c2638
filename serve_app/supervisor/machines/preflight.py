"""Checks what a machine needs before it joins a cluster.

1. The settings that all machines share are set: deployment key, Ray's token, a Postgres that all
   machines reach.
2. The node address belongs to this machine, and only this user can read the secrets.
3. Postgres accepts the service's login, and the head's port accepts connections.

A machine that fails check 1 or 2 is refused at once. Check 3 is repeated for 60 s, because the
other machines may start later, for example after a power cut. Ray itself refuses a machine whose
version of Ray, version of Python or token differs from the head's.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable
from pathlib import Path

from core.settings import Settings
from ledger.connections.connect import EMBEDDED_HOSTS, why_unreachable
from serve_app.supervisor.deployment import DeploymentError
from serve_app.supervisor.ray_node import Place

REACH_TIMEOUT_S = 60.0
_CONNECT_TIMEOUT_S = 5.0
_PAUSE_S = 1.0


def check_machine(settings: Settings, place: Place) -> None:
    """Check the settings, the address and the secrets of this machine (1 and 2).

    Args:
        settings: the machine's settings.
        place: the machine's place in the cluster.

    Raises:
        DeploymentError: a check failed; the message says which.
    """
    missing = (
        _missing_setting(settings)
        or _wrong_database(settings, place)
        or _wrong_address(place.node_address)
    )
    if missing:
        raise DeploymentError(missing)


def check_reachable(settings: Settings, place: Place, say: Callable[[str], None]) -> None:
    """Wait until this machine can reach Postgres and the head (3).

    Args:
        settings: the machine's settings.
        place: the machine's place in the cluster.
        say: prints a line that says what cannot be reached.

    Raises:
        DeploymentError: Postgres or the head was not reachable within 60 s.
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


def split_address(address: str) -> tuple[str, int]:
    """Return the host and the port of `host:port`.

    Raises:
        DeploymentError: the address does not have this form.
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
    # On loopback, all "machines" of the cluster run on this machine, for tests.
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
