"""The inputs of a node from values, as a process that sends an order builds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.workflow.dag import CompiledNode
from core.workflow.events import Failure
from core.workflow.inputs import DispatchByteBudget, fill_payload, map_inputs


def build_inputs(
    node: CompiledNode, results: Mapping[str, Any], bytes_max: int = 1_000_000
) -> dict[str, Any] | Failure:
    """Return the inputs of a node, or the failure."""
    room = DispatchByteBudget(bytes_max)
    mapped = map_inputs(node, results, room)
    if isinstance(mapped, Failure):
        return mapped
    filled = fill_payload(node, mapped, room)
    return filled if isinstance(filled, Failure) else filled | mapped
