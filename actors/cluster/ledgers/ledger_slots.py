"""Creates and ends ledger processes under their two names. All calls block.

This module only calls Ray and makes no decisions. Decision process-liveness-and-standby.
"""

from __future__ import annotations

import time
from typing import Any, Final

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.cluster.ledgers.ledger_actor import LedgerActor
from actors.process.startup import settings_argument
from actors.transport.names import LEDGER, LEDGERS, NAMESPACE, ensure_actor
from core.settings import Settings

ENDED_TIMEOUT_S: Final = 10.0
POLL_S: Final = 0.05


def existing_ledgers() -> dict[str, Any]:
    """Return the handles of the existing ledger actors, by name. An actor may be restarting."""
    found = {}
    for name in LEDGERS:
        try:
            found[name] = ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:
            continue
    return found


def ensure_ledger(settings: Settings) -> None:
    """Create a ledger actor, unless a writer or a standby exists."""
    if not existing_ledgers():
        ensure_actor(LedgerActor, LEDGER, settings_argument(settings))


def make_ledger(name: str, settings: Settings, *, machine: str = "") -> Any:
    """Create a ledger actor and return its handle; it is a standby while there is a writer.

    Args:
        name: the name in `LEDGERS` that no actor has.
        settings: the settings of the new actor.
        machine: Ray's id of the machine to which the actor is bound; "": any machine.
    """
    options: dict[str, Any] = {}
    if machine:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(machine, soft=False)
    return ensure_actor(LedgerActor, name, settings_argument(settings), **options)


def end_ledger(name: str) -> None:
    """End a ledger actor permanently, if it exists; return when its name is free.

    Raises:
        TimeoutError: the name is not free after `ENDED_TIMEOUT_S`.
    """
    deadline_s = time.monotonic() + ENDED_TIMEOUT_S
    while True:
        try:
            ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)
        except ValueError:
            return
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{name} has not ended within {ENDED_TIMEOUT_S} s")
        time.sleep(POLL_S)
