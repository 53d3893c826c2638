"""The inputs of an order, with stored large results in the place of their references.

An owner builds the inputs of an order whose results are all in its rows; the process that sends an
order builds those of any other, after it has loaded the results. Spec: Dispatch request,
Verification; contract.md section 6 (Large results).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from msgspec.structs import replace

from actors.ports import DispatchOrder, LargeInputs
from core.errors import NodeErrorCode
from core.workflow.blob_ref import BlobRef
from core.workflow.events import Failure, Verdict
from core.workflow.inputs import build_inputs

Load = Callable[[Collection[BlobRef]], Awaitable[Mapping[BlobRef, Any]]]


async def load_inputs(order: DispatchOrder, load: Load, bytes_max: int) -> DispatchOrder | Failure:
    """Return the order with complete inputs, or the failure to build them.

    Args:
        load: returns the results of references.
        bytes_max: largest dispatch body; larger parents are not loaded.
    """
    large = order.large
    if large is None:
        return order
    refs = blob_refs(large)
    carried = [large.unverified, *(large.results[name] for name in large.node.depends_on)]
    size = sum(item.size for item in carried if type(item) is BlobRef)
    if size > bytes_max:
        message = f"the parents' results have {size} bytes, limit {bytes_max}"
        return Failure(NodeErrorCode.INPUT_TOO_LARGE, message, Verdict.FINAL)
    try:
        values = await load(refs)
    except (LookupError, ValueError) as error:
        message = f"a result cannot be read: {error}"
        return Failure(NodeErrorCode.INPUT_MAPPING_FAILED, message, Verdict.FINAL)
    built = resolve_inputs(large, values, bytes_max, is_verification=order.is_verification)
    if isinstance(built, Failure):
        return built
    return replace(order, inputs=built[0], parents=built[1], large=None)


def blob_refs(large: LargeInputs) -> set[BlobRef]:
    """Return the references among the sources of inputs."""
    return {item for item in (large.unverified, *large.results.values()) if type(item) is BlobRef}


def resolve_inputs(
    large: LargeInputs, values: Mapping[BlobRef, Any], bytes_max: int, *, is_verification: bool
) -> tuple[dict[str, Any], dict[str, Any]] | Failure:
    """Return (inputs, parents) with references replaced by their values, or why there are none.

    Args:
        values: of all references.
        bytes_max: largest dispatch body; larger inputs are not built.
        is_verification: a result is to be judged, its parents are not sent.
    """

    def resolve_value(item: Any) -> Any:
        return values[item] if type(item) is BlobRef else item

    results = (
        {name: resolve_value(item) for name, item in large.results.items()}
        if values
        else large.results
    )
    built = build_inputs(large.node, results, bytes_max)
    if isinstance(built, Failure) or not is_verification:
        return built
    judged = {
        "capabilityId": large.node.capability_id,
        "inputs": built[0],
        "result": resolve_value(large.unverified),
    }
    return judged, {}
