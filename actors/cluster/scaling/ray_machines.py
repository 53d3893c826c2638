"""Calls to Ray about machines: list them, drain them, request more from the autoscaler.

This module only calls Ray; `machine_watch.py` decides. A machine drains when the autoscaler is
about to give it back, when the cloud takes it away, on `ray drain-node`, or on `drain_machine`.
While a machine drains, Ray places nothing new on it and Serve moves its replicas away. When no
process is left, Ray ends on this machine. Ray has no public API to drain a machine. So this module
uses Ray's internal GCS client, as `ray drain-node` does. Every call blocks.
Decision cluster-and-releases.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # of a compiled module
from ray.autoscaler.sdk import request_resources
from ray.core.generated import autoscaler_pb2

# Custom Ray resource. Every machine has exactly 1, so a request for N units asks for N machines,
# however many cores they have.
MACHINE_RESOURCE: Final = "callboard_machine"
# Custom Ray resource that replicas require; a machine has it after it has joined. The autoscaler
# must not know this resource. It would start a new machine for each replica of a leaving machine.
API_RESOURCE: Final = "callboard_api"
_HEAD_RESOURCE: Final = "node:__internal_head__"
_TIMEOUT_S: Final = 5


def live_machines() -> list[str]:
    """Return Ray's ids of the live machines."""
    return [one["NodeID"] for one in _nodes()]


def draining_machines() -> frozenset[str]:
    """Return Ray's ids of the draining machines."""
    return frozenset(_gcs().get_draining_nodes(timeout=_TIMEOUT_S))


def working_machines() -> list[str]:
    """Return Ray's ids of the live machines that are not draining."""
    draining = draining_machines()
    return [one for one in live_machines() if one not in draining]


def removable_machines() -> frozenset[str]:
    """Return the live machines that can be given back: all but Ray's head and this machine."""
    heads = {one["NodeID"] for one in _nodes() if _HEAD_RESOURCE in one["Resources"]}
    return frozenset(live_machines()) - heads - {ray.get_runtime_context().get_node_id()}


def ask_for_machines(count: int) -> None:
    """Request machines from Ray's autoscaler; without an autoscaler this has no effect.

    Args:
        count: the total number of machines, including the head. This request replaces the previous
            request.
    """
    request_resources(bundles=[{MACHINE_RESOURCE: 1}] * count)


def drain_machine(machine: str) -> str:
    """Drain a machine without a deadline; return why Ray refuses, "" if it accepts.

    Args:
        machine: Ray's id of the machine.
    """
    reasons: Any = autoscaler_pb2.DrainNodeReason  # type: ignore[attr-defined]  # made at import
    # Ray refuses the reason "idle termination", because a machine with an owner is not idle.
    reason = reasons.Value("DRAIN_NODE_REASON_PREEMPTION")
    is_accepted, refusal = _gcs().drain_node(machine, reason, "not needed for its load", 0)
    return "" if is_accepted else str(refusal)


def _nodes() -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [one for one in nodes if one["Alive"]]


def _gcs() -> Any:
    return _client(ray.get_runtime_context().gcs_address)


@cache
def _client(address: str) -> Any:
    return GcsClient(address=address)
