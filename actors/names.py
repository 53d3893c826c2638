"""The names under which actors find each other, and the one namespace they live in."""

from __future__ import annotations

NAMESPACE = "callboard"
LEDGER = "ledger"
TIMEKEEPER = "timekeeper"
WORKFLOW_PREFIX = "workflow@"


def workflow_actor(node_id: str, index: int) -> str:
    """Return the name of one of a machine's `WorkflowActor`s, which is also its owner name.

    Args:
        node_id: Ray's hexadecimal id of the machine.
        index: 0 for the first actor of that machine.
    """
    return f"{WORKFLOW_PREFIX}{node_id}#{index}"
