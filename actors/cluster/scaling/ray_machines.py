"""Ray's machines: which live, which Ray drains, how many its autoscaler is asked for.

Calls of Ray only; `machine_watch.py` decides. Ray drains a machine when its autoscaler is about to
give it back, when its cloud takes it away, when `ray drain-node` says so, or when we do: nothing
new is placed there, Serve moves its replicas, and Ray ends there once no process is left. Ray has
no public call for that, so its own client of the GCS is used, as `ray drain-node` does. Every call
blocks. Decision cluster-and-releases.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # of a compiled module
from ray.autoscaler.sdk import request_resources
from ray.core.generated import autoscaler_pb2

# What each machine offers one of, so that the autoscaler counts machines and not their cores.
MACHINE_RESOURCE: Final = "callboard_machine"
# What each machine offers to replicas when it has joined. The autoscaler must not know of it: it
# would make a machine for the replica that Serve wants in the place of one that is leaving.
API_RESOURCE: Final = "callboard_api"
_HEAD_RESOURCE: Final = "node:__internal_head__"
_TIMEOUT_S: Final = 5


def live_machines() -> list[str]:
    """Return Ray's ids of the machines that live."""
    return [one["NodeID"] for one in _nodes()]


def draining_machines() -> frozenset[str]:
    """Return Ray's ids of the machines that Ray drains."""
    return frozenset(_gcs().get_draining_nodes(timeout=_TIMEOUT_S))


def working_machines() -> list[str]:
    """Return Ray's ids of the machines that live and that Ray does not drain."""
    draining = draining_machines()
    return [one for one in live_machines() if one not in draining]


def removable_machines() -> frozenset[str]:
    """Return the machines that can be given back: neither the head nor this process's machine."""
    heads = {one["NodeID"] for one in _nodes() if _HEAD_RESOURCE in one["Resources"]}
    return frozenset(live_machines()) - heads - {ray.get_runtime_context().get_node_id()}


def ask_for_machines(count: int) -> None:
    """Ask Ray's autoscaler for so many machines in all; without an autoscaler nothing comes of it.

    Args:
        count: of machines, the head among them.
    """
    request_resources(bundles=[{MACHINE_RESOURCE: 1}] * count)


def drain_machine(machine: str) -> str:
    """Let Ray drain a machine, without a deadline; return why it refuses, or nothing.

    Args:
        machine: Ray's id.
    """
    reasons: Any = autoscaler_pb2.DrainNodeReason  # type: ignore[attr-defined]  # made at import
    # The other reason, idleness, is refused by a machine that has an owner.
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
