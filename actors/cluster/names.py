"""The names of actors and their namespace."""

from __future__ import annotations

NAMESPACE = "callboard"
LEDGER = "ledger"
TIMEKEEPER = "timekeeper"
WORKFLOW_PREFIX = "workflow@"
# Concurrency group of methods that run in a thread of their own, and its number of threads.
LIVENESS = {"liveness": 1}


def workflow_actor(node_id: str, index: int) -> str:
    """Return the name of one of a machine's `WorkflowActor`s, which is also its owner name.

    Args:
        node_id: Ray's hexadecimal id of the machine.
        index: 0 for the first actor of that machine.
    """
    return f"{WORKFLOW_PREFIX}{node_id}#{index}"


def dedicated_owner(pooled: str, slot: str) -> str:
    """Return the owner name of the child in a slot of a pooled owner; "" gives their prefix."""
    return f"{pooled}.{slot}"


def pooled_owner(name: str) -> str:
    """Return the pooled owner that an owner belongs to: itself, unless it is a child."""
    machine, mark, rest = name.partition("#")
    return machine + mark + rest.partition(".")[0]
