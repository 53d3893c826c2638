"""Creates the cluster's actors; idempotent, from any process.

The Serve application's start-up calls it, so that `callboard up`, `serve deploy` and `ray up` all
work. design.md section 3 (Starting and owning).
"""

from __future__ import annotations

import ray

from actors.cluster.ledgers.ledger_slots import ensure_ledger
from actors.cluster.timekeeper import Timekeeper
from actors.process.arguments import settings_argument
from actors.transport.names import NAMESPACE, TIMEKEEPER, ensure_actor
from core.settings import Settings
from ledger.connections.reaching import EMBEDDED_HOSTS


class RuntimeRefused(RuntimeError):
    """The cluster has a shape that this deployment's settings cannot serve."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


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
