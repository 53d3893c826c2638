"""Creates the cluster's actors, and replaces the timekeeper during an upgrade.

Any process can create the actors; creation is idempotent. The Serve application creates them when
it starts, so `callboard up`, `serve deploy` and `ray up` all work.

A release is a Python interpreter and a folder of packages. A Ray runtime environment selects the
release of an actor. An actor inherits the environment of the job or the actor that creates it. So
all actors that a timekeeper creates run the timekeeper's release, and an actor restarts in its own
release. Only the process that begins an upgrade has to name a release.
Decision cluster-and-releases.
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
from ledger.connections.connect import EMBEDDED_HOSTS

START_TIMEOUT_S: Final = 60.0
_PAUSE_S: Final = 0.1
_FOLDER: Final = Path(__file__).resolve().parent.parent.parent


class RuntimeRefused(RuntimeError):
    """The deployment's settings do not suit the cluster's machines."""


def ensure_runtime(settings: Settings) -> None:
    """Start the ledger actor and the timekeeper, if absent; the timekeeper starts the other actors.

    Raises:
        RuntimeRefused: there are several machines, but only one of them can reach Postgres.
    """
    # Machines are counted by host name: several raylets of one host (in tests) share its Postgres.
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
    """Start the timekeeper if it does not exist, or if Ray no longer restarts it; blocks."""
    ensure_actor(Timekeeper, TIMEKEEPER, settings_argument(settings))


def restart_timekeeper() -> None:
    """End the timekeeper's process, so that Ray starts a new process; blocks."""
    ray.kill(ray.get_actor(TIMEKEEPER, namespace=NAMESPACE), no_restart=False)


class UpgradeFailed(RuntimeError):
    """An upgrade cannot continue; the text says why."""


def own_environment() -> dict[str, Any]:
    """Return the Ray runtime environment that starts actors in the release of this process."""
    return {
        "py_executable": shlex.quote(sys.executable),
        "env_vars": {"PYTHONPATH": str(_FOLDER)},
    }


def check_machines(machines: Iterable[str]) -> None:
    """Check that every machine can run this release, by starting a short process on each machine.

    Args:
        machines: Ray's ids of the machines.

    Raises:
        UpgradeFailed: on one machine the process did not start, or it ran another release.
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
            raise UpgradeFailed(
                f"no process of {_FOLDER} with {sys.executable} starts on the machine {machine}:"
                f" the release must be there at the same path ({type(error).__name__})"
            ) from None
        if found != (str(_FOLDER), CODE_VERSION):
            raise UpgradeFailed(f"the machine {machine} runs {found}, expected {_FOLDER}")


@ray.remote
def _code_version() -> tuple[str, int]:
    return str(_FOLDER), CODE_VERSION


def replace_timekeeper(settings: Settings) -> None:
    """Replace the running timekeeper by a timekeeper of this release; blocks.

    The new timekeeper starts owners of its own generation on every machine. It does not know the
    owners of earlier generations.

    Args:
        settings: the deployment's settings, with the generation of this upgrade.

    Raises:
        UpgradeFailed: the new timekeeper does not answer in time.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    said = "nothing"
    # The loop may run more than once: a replica of the previous release may notice that the
    # timekeeper is missing, and start a timekeeper of its own release.
    while (left_s := deadline - time.monotonic()) > 0:
        handle = ensure_actor(Timekeeper, TIMEKEEPER, settings_argument(settings))
        try:
            said = ray.get(handle.generation.remote(), timeout=left_s)
        except (RayError, GetTimeoutError) as error:  # the actor is ending, or does not start
            said = type(error).__name__
        if said == settings.generation:
            return
        end_actor(TIMEKEEPER)
        time.sleep(_PAUSE_S)
    raise UpgradeFailed(
        f"no timekeeper of this release after {START_TIMEOUT_S:.0f} s: got {said!r}, expected the"
        f" generation {settings.generation!r}"
    )


def end_actor(name: str) -> None:
    """End an actor permanently; do nothing if it does not exist."""
    try:
        ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)
    except ValueError:
        return
