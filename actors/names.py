"""The names under which actors find each other, and the one namespace they live in."""

from __future__ import annotations

NAMESPACE = "callboard"
LEDGER = "ledger"
TIMEKEEPER = "timekeeper"
WORKFLOW_PREFIX = "workflow@"


def workflow_actor(node_id: str) -> str:
    """Return the name of the `WorkflowActor` of a machine, which is also its owner name.

    Args:
        node_id: Ray's hexadecimal id of the machine.
    """
    return f"{WORKFLOW_PREFIX}{node_id}"
