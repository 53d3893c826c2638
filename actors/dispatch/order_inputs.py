"""The inputs of an order: built in the owner's loop from small texts, beside it from large ones.

The process that sends an order builds its inputs from the texts that the order carries. Building a
value, writing its canonical form and hashing it hold the loop, 300 ms per MiB of some texts, so
only what is small is built there, and only what is mapped is read; parents go on as they are. The
rest is built beside the loop, of stored large results too, which are loaded first: in groups of
bounded size, since of an ancestor only what is mapped is kept. Reference: features.md (Dispatch,
Verification). Decision messages-and-large-values.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from actors.ports import InputSources
from actors.values.input_texts import (
    FillTexts,
    InputText,
    MapTexts,
    fill_texts,
    map_texts,
    unreadable_failure,
)
from actors.values.value_process import ValueProcess
from core.canonical import canonical, hash_bytes
from core.errors import NodeErrorCode
from core.json_text import Raw, read_json
from core.records.graph import InputMapping
from core.workflow.dag import CompiledNode
from core.workflow.events import BlobRef, Failure, Verdict
from core.workflow.inputs import (
    DispatchRoom,
    fill_payload,
    map_inputs,
    weigh_inputs,
    weigh_templates,
)

# What is built in one turn of the loop. The worst texts of this size take 5 ms.
BUILT_IN_LOOP_BYTES_MAX: Final = 16 * 1024
# Results that are loaded and read at once: other payers' requests come between.
READ_BYTES_MAX: Final = 1024 * 1024
# Bodies up to this are taken by an agent's socket at once.
UNTIMED_BYTES_MAX: Final = 16 * 1024
# Inputs are in a body under two names, and what fills a template may need twice its characters.
_WRITTEN_PER_BYTE: Final = 4

# Returns the JSON texts of results by their hash; raises LookupError for one that is lost,
# ValueError for one that is damaged.
Load = Callable[[Collection[BlobRef]], Awaitable[Mapping[str, bytes]]]


class _Unreadable(Exception):
    """A stored result is lost, or its bytes have another hash."""


class OrderInputs(Struct, frozen=True):
    """What an order sends: inputs in canonical form with their hash, and the parents' results."""

    inputs: InputText
    parents: dict[str, Any]


def mapped_sources(
    node: CompiledNode, results: Mapping[str, str | BlobRef], unverified: str | BlobRef | None
) -> InputSources:
    """Return what inputs without the results of parents are made of: for verifiers and peers.

    Args:
        node: the node whose inputs they are.
        results: those that its own inputs need.
        unverified: the result to be judged, None for a peer.
    """
    mapped = {mapping.source: results[mapping.source] for mapping in node.mappings}
    return InputSources(replace(node, depends_on=()), mapped, unverified)


def is_small(sources: InputSources) -> bool:
    """Say whether what is read and written to build inputs is little enough for the loop.

    It is asked of each child of a step in one turn, so a large result is all that is looked at.
    """
    sizes = {}
    total = 0
    for name, item in sources.results.items():
        if isinstance(item, BlobRef):
            return False
        sizes[name] = size = len(item)
        total += size
        if total > BUILT_IN_LOOP_BYTES_MAX:
            return False
    unverified = sources.unverified
    if isinstance(unverified, BlobRef):
        return False
    weight = weigh_inputs(sources.node, sizes)
    return weight + (0 if unverified is None else len(unverified)) <= BUILT_IN_LOOP_BYTES_MAX


def build_in_loop(sources: InputSources, bytes_max: int) -> OrderInputs | Failure:
    """Return what an order sends that is made of small texts, or the failure to build it.

    Args:
        bytes_max: largest dispatch body.
    """
    node, room = sources.node, DispatchRoom(bytes_max)
    parents = {name: _text(sources.results[name]).encode() for name in node.depends_on}
    mapped_from = {mapping.source for mapping in node.mappings}
    results = {name: read_json(_text(sources.results[name])) for name in mapped_from}
    mapped = map_inputs(node, results, room)
    if isinstance(mapped, Failure):
        return mapped
    inputs = fill_payload(node, mapped, room)
    if isinstance(inputs, Failure):
        return inputs
    if room.left < sum(map(len, parents.values())):
        return room.failure()
    inputs.update(mapped)
    if sources.unverified is not None:
        result = read_json(_text(sources.unverified))
        inputs = {"capabilityId": node.capability_id, "inputs": inputs, "result": result}
    try:
        text = canonical(inputs)
    except ValueError as error:
        return Failure(NodeErrorCode.INPUT_MAPPING_FAILED, str(error), Verdict.FINAL)
    return _order_inputs(node, InputText(text, hash_bytes(text)), parents)


def hash_small_inputs(sources: InputSources) -> str | None:
    """Return the hash of an order's inputs; None of those that are not built in the loop."""
    if not is_small(sources):
        return None
    built = build_in_loop(sources, _WRITTEN_PER_BYTE * BUILT_IN_LOOP_BYTES_MAX)
    return None if isinstance(built, Failure) else built.inputs.hash


async def build_in_child(
    payer_did: str, sources: InputSources, load: Load, builder: ValueProcess, bytes_max: int
) -> OrderInputs | Failure:
    """Return what an order sends that is made of any texts, or the failure to build it.

    1. What is sent whole is measured, parents or a result to be judged. 2. What is mapped of each
    result is read, first of those at hand, then of stored ones, a group at a time; the first that
    exceeds the dispatch ends it. 3. The inputs are made of that.

    Args:
        payer_did: in whose turn it is built.
        load: loads results.
        builder: reads and writes texts beside the loop.
        bytes_max: largest dispatch body; more is not loaded to be sent whole.
    """
    node = sources.node
    carried = [sources.results[name] for name in node.depends_on]
    if sources.unverified is not None:
        carried.append(sources.unverified)
    size = sum(map(_size, carried))
    if size > bytes_max:  # 1
        message = f"the results that are sent whole have {size} bytes, limit {bytes_max}"
        return Failure(NodeErrorCode.INPUT_TOO_LARGE, message, Verdict.FINAL)
    try:
        return await _build(payer_did, sources, load, builder, bytes_max)
    except _Unreadable as error:
        return unreadable_failure(error)


async def _build(
    payer_did: str, sources: InputSources, load: Load, builder: ValueProcess, bytes_max: int
) -> OrderInputs | Failure:
    node, left = sources.node, bytes_max
    by_source: dict[str, list[InputMapping]] = {}
    for mapping in node.mappings:
        by_source.setdefault(mapping.source, []).append(mapping)
    mapped: dict[str, bytes] = {}
    parents: dict[str, bytes] = {}
    for group in _groups(sources.results):  # 2
        texts = await _load(group, load)
        parents |= {name: text for name, text in texts.items() if name in node.depends_on}
        read = {name: text for name, text in texts.items() if name in by_source}
        if not read:
            continue
        wanted = tuple(mapping for name in read for mapping in by_source[name])
        part = replace(node, payload={}, has_templates=False, mappings=wanted)
        asked = MapTexts(part, read, bytes_max, left)
        found = await builder.call(payer_did, partial(map_texts, asked))
        if isinstance(found, Failure):
            return found
        mapped |= found.values
        left = found.left
    left -= sum(map(len, parents.values()))
    if left < 0:
        return DispatchRoom(bytes_max).failure()
    unverified = None
    if sources.unverified is not None:
        unverified = (await _load({"": sources.unverified}, load))[""]
    filling = FillTexts(replace(node, mappings=()), mapped, bytes_max, left, unverified)
    if _weigh_filling(filling) > BUILT_IN_LOOP_BYTES_MAX:  # 3
        filled = await builder.call(payer_did, partial(fill_texts, filling))
    else:
        filled = fill_texts(filling)
    if isinstance(filled, Failure):
        return filled
    return _order_inputs(node, filled, parents)


def _order_inputs(
    node: CompiledNode, inputs: InputText, parents: Mapping[str, bytes]
) -> OrderInputs:
    """Return what an order sends, its parents in the order of the manifest."""
    results = {name: {"result": Raw(parents[name])} for name in node.depends_on}
    return OrderInputs(inputs, results)


async def _load(results: Mapping[str, str | BlobRef], load: Load) -> dict[str, bytes]:
    refs = {item for item in results.values() if isinstance(item, BlobRef)}
    try:
        loaded = await load(refs) if refs else {}
    except (LookupError, ValueError) as error:
        raise _Unreadable(*error.args) from error
    return {
        name: item.encode() if isinstance(item, str) else loaded[item.hash]
        for name, item in results.items()
    }


def _groups(results: Mapping[str, str | BlobRef]) -> Iterator[dict[str, str | BlobRef]]:
    """Divide results into groups that are read at once, those at hand before stored ones."""
    group: dict[str, str | BlobRef] = {}
    total = 0
    for name in sorted(results, key=lambda name: isinstance(results[name], BlobRef)):
        size = _size(results[name])
        if group and total + size > READ_BYTES_MAX:
            yield group
            group, total = {}, 0
        group[name] = results[name]
        total += size
    if group:
        yield group


def _weigh_filling(asked: FillTexts) -> int:
    sizes = [len(text) for text in asked.mapped.values()]
    carried = 0 if asked.unverified is None else len(asked.unverified)
    filled = weigh_templates(asked.node, max(sizes, default=0))
    return asked.node.payload_bytes + sum(sizes) + carried + filled


def _size(item: str | BlobRef) -> int:
    """Return the bytes of a stored result, or the characters of one at hand."""
    return item.size if isinstance(item, BlobRef) else len(item)


def _text(item: str | BlobRef) -> str:
    assert isinstance(item, str), "a stored result is loaded first"
    return item
