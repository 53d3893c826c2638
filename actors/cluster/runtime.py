"""Creates the cluster's actors, and replaces them by those of another release.

Creating is idempotent, from any process. The Serve application's start-up does it, so that
`callboard up`, `serve deploy` and `ray up` all work.

A release is an interpreter and a folder of packages. Ray starts an actor in another one by a
runtime environment, which actors inherit from the job or the actor that makes them: what a
timekeeper starts is of the timekeeper's release, and what ends is started again in its own. So only
the process that begins an upgrade names a release. Decision cluster-and-releases.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.cluster.ledgers.ledger_slots import ensure_ledger
from actors.cluster.timekeeper import Timekeeper
from actors.process.startup import settings_argument
from actors.transport.names import NAMESPACE, TIMEKEEPER, ensure_actor
from core.settings import Settings
from ledger.code_version import CODE_VERSION
from ledger.connections.connecting import EMBEDDED_HOSTS

START_TIMEOUT_S: Final = 60.0
_PAUSE_S: Final = 0.1
_FOLDER: Final = Path(__file__).resolve().parent.parent.parent


class RuntimeRefused(RuntimeError):
    """The cluster has a shape that this deployment's settings cannot serve."""


def ensure_runtime(settings: Settings) -> None:
    """Start the ledger actor and the timekeeper, which starts the other actors, if absent.

    Raises:
        RuntimeRefused: several machines, but a Postgres that only one of them reaches.
    """
    # By host name: several raylets on one machine (tests, large machines) share its Postgres.
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    hosts = {node["NodeManagerHostname"] for node in nodes if node["Alive"]}
    if len(hosts) > 1 and any(mark in settings.database_url for mark in EMBEDDED_HOSTS):
        raise RuntimeRefused(
            f"{len(hosts)} machines, but Postgres at an address of this machine only: set"
            " CALLBOARD_DATABASE_URL to one that every machine reaches"
        )
    ensure_ledger(settings)
    ensure_timekeeper(settings)


def this_machine() -> str:
    """Return Ray's id of the machine that this process runs on."""
    return str(ray.get_runtime_context().get_node_id())


def ensure_timekeeper(settings: Settings) -> None:
    """Start the timekeeper if it is not there, as when it has died for good; blocks."""
    ensure_actor(Timekeeper, TIMEKEEPER, settings_argument(settings))


def restart_timekeeper() -> None:
    """End the timekeeper's process, so that Ray starts another; blocks."""
    ray.kill(ray.get_actor(TIMEKEEPER, namespace=NAMESPACE), no_restart=False)


class RollFailed(RuntimeError):
    """An upgrade cannot go on; the text says why."""


def own_environment() -> dict[str, Any]:
    """Return the runtime environment in which Ray starts actors of this process's own release."""
    return {
        "py_executable": shlex.quote(sys.executable),
        "env_vars": {"PYTHONPATH": str(_FOLDER)},
    }


def check_machines(machines: Iterable[str]) -> None:
    """Start a process of this release on every machine, and see that it is of this release.

    Args:
        machines: Ray's ids of them.

    Raises:
        RollFailed: on one of them it did not start, or is another release.
    """
    versions = {
        machine: _code_version.options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(machine, soft=False),
        ).remote()
        for machine in machines
    }
    deadline = time.monotonic() + START_TIMEOUT_S
    for machine, asked in versions.items():
        try:
            found = ray.get(asked, timeout=max(0.1, deadline - time.monotonic()))
        except (RayError, GetTimeoutError) as error:
            raise RollFailed(
                f"no process of {_FOLDER} with {sys.executable} starts on the machine {machine}:"
                f" the release must be there at the same path ({type(error).__name__})"
            ) from None
        if found != (str(_FOLDER), CODE_VERSION):
            raise RollFailed(f"the machine {machine} runs {found}, expected {_FOLDER}")


@ray.remote
def _code_version() -> tuple[str, int]:
    return str(_FOLDER), CODE_VERSION


def replace_timekeeper(settings: Settings) -> None:
    """Put a timekeeper of this release in the place of the one that runs; blocks.

    It starts owners of its own generation on every machine, and knows no others.

    Args:
        settings: with the generation of this upgrade.

    Raises:
        RollFailed: it does not answer in time.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    said = "nothing"
    # More than once, perhaps: a replica of before that misses it starts one of its own release.
    while (left_s := deadline - time.monotonic()) > 0:
        handle = ensure_actor(Timekeeper, TIMEKEEPER, settings_argument(settings))
        try:
            said = ray.get(handle.generation.remote(), timeout=left_s)
        except (RayError, GetTimeoutError) as error:  # it is ending, or does not start
            said = type(error).__name__
        if said == settings.generation:
            return
        end_actor(TIMEKEEPER)
        time.sleep(_PAUSE_S)
    raise RollFailed(
        f"no timekeeper of this release after {START_TIMEOUT_S:.0f} s: got {said!r}, expected the"
        f" generation {settings.generation!r}"
    )


def end_actor(name: str) -> None:
    """End an actor for good; one that is not there has ended."""
    try:
        ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)
    except ValueError:
        return
