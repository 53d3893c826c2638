"""The inputs of an order, with stored large results in the place of their references.

An owner builds the inputs of an order whose results are all in its rows; the process that sends an
order builds those of any other, after it has loaded the results. Of an ancestor only what is mapped
is kept, so ancestors are loaded in groups, each within the bound of a dispatch. Spec: Dispatch
request, Verification; contract.md section 6 (Large results).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Any

import orjson
from msgspec.structs import replace

from actors.ports import DispatchOrder, LargeInputs
from actors.process.slices import Slices
from core.errors import NodeErrorCode
from core.workflow.blob_ref import BlobRef
from core.workflow.events import Failure, Verdict
from core.workflow.inputs import DispatchRoom, build_inputs, fill_inputs, map_inputs

# Returns the JSON texts of results by their hash.
Load = Callable[[Collection[BlobRef]], Awaitable[Mapping[str, bytes]]]
Built = tuple[dict[str, Any], dict[str, Any]]


async def load_inputs(order: DispatchOrder, load: Load, bytes_max: int) -> DispatchOrder | Failure:
    """Return the order with complete inputs, or the failure to build them.

    1. What is sent whole is measured. 2. What is small already is mapped. 3. Then the ancestors, a
    group at a time; the first that exceeds the dispatch ends it. 4. The rest is built of that.

    Args:
        load: loads results.
        bytes_max: largest dispatch body; larger parents are not loaded.
    """
    large = order.large
    if large is None:
        return order
    carried = [large.unverified, *(large.results[name] for name in large.node.depends_on)]
    size = sum(item.size for item in carried if type(item) is BlobRef)
    if size > bytes_max:  # 1
        message = f"the parents' results have {size} bytes, limit {bytes_max}"
        return Failure(NodeErrorCode.INPUT_TOO_LARGE, message, Verdict.FINAL)
    try:
        built = await _build(large, load, bytes_max)
    except (LookupError, ValueError) as error:
        message = f"a result cannot be read: {error}"
        return Failure(NodeErrorCode.INPUT_MAPPING_FAILED, message, Verdict.FINAL)
    if isinstance(built, Failure):
        return built
    inputs, parents, unverified = built
    if order.is_verification:
        inputs, parents = _judged_inputs(large, inputs, unverified)
    return replace(order, inputs=inputs, parents=parents, large=None)


async def _build(
    large: LargeInputs, load: Load, bytes_max: int
) -> tuple[dict[str, Any], dict[str, Any], Any] | Failure:
    room, slices = DispatchRoom(bytes_max), Slices(0)
    node = large.node
    stored = {name: item for name, item in large.results.items() if type(item) is BlobRef}
    whole = {name: item for name, item in large.results.items() if name not in stored}
    mapped = map_inputs(node, whole, room)  # 2
    if isinstance(mapped, Failure):
        return mapped
    for group in _groups(stored, bytes_max):  # 3
        texts = await load(set(group.values()))
        for name, ref in group.items():
            value = orjson.loads(texts[ref.hash])
            more = map_inputs(node, {name: value}, room)
            if isinstance(more, Failure):
                return more
            mapped |= more
            if name in node.depends_on:
                whole[name] = value
            await slices.pause()
    unverified = large.unverified
    if type(unverified) is BlobRef:
        unverified = orjson.loads((await load({unverified}))[unverified.hash])
    built = fill_inputs(node, mapped, whole, room)  # 4
    return built if isinstance(built, Failure) else (*built, unverified)


def _groups(stored: Mapping[str, BlobRef], bytes_max: int) -> Iterator[dict[str, BlobRef]]:
    """Divide results into groups of at most so many bytes, or of one result."""
    group: dict[str, BlobRef] = {}
    size = 0
    for name, ref in stored.items():
        if group and size + ref.size > bytes_max:
            yield group
            group, size = {}, 0
        group[name] = ref
        size += ref.size
    if group:
        yield group


def holds_references(large: LargeInputs) -> bool:
    """Say whether one of the sources of inputs has to be loaded."""
    return any(type(item) is BlobRef for item in (large.unverified, *large.results.values()))


def resolve_inputs(large: LargeInputs, bytes_max: int, *, is_verification: bool) -> Built | Failure:
    """Return (inputs, parents) of sources without references, or why there are none.

    Args:
        bytes_max: largest dispatch body; larger inputs are not built.
        is_verification: a result is to be judged, its parents are not sent.
    """
    built = build_inputs(large.node, large.results, bytes_max)
    if isinstance(built, Failure) or not is_verification:
        return built
    return _judged_inputs(large, built[0], large.unverified)


def _judged_inputs(large: LargeInputs, inputs: dict[str, Any], unverified: Any) -> Built:
    """Return (inputs, parents) of a verification: the result beside what it was made of."""
    return {"capabilityId": large.node.capability_id, "inputs": inputs, "result": unverified}, {}
