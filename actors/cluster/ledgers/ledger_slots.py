"""The names under which ledger processes run, and how they are made and ended. All calls block.

A wrapper only, without decisions. Decision process-liveness-and-standby.
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
    """Return the handles of the ledger's actors that exist, by name; one may be being restarted."""
    found = {}
    for name in LEDGERS:
        try:
            found[name] = ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:
            continue
    return found


def ensure_ledger(settings: Settings) -> None:
    """Make the ledger's actor unless there is one, whether the writer or a standby."""
    if not existing_ledgers():
        ensure_actor(LedgerActor, LEDGER, settings_argument(settings))


def make_ledger(name: str, settings: Settings, *, machine: str = "", **options: Any) -> Any:
    """Make a ledger's actor, which is a standby while another is the writer.

    Args:
        name: one of `LEDGERS` that no actor has.
        settings: its own.
        machine: Ray's id of the machine where it runs for good; "": any.
        options: further ones of Ray.

    Returns:
        its handle.
    """
    if machine:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(machine, soft=False)
    return ensure_actor(LedgerActor, name, settings_argument(settings), **options)


def end_ledger(name: str) -> None:
    """End a ledger's actor for good, if it exists, and return when its name is free.

    Raises:
        TimeoutError: it is not within `ENDED_TIMEOUT_S`.
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
