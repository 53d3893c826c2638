"""Builds the inputs of an order: small ones in the event loop, large ones in a child process.

An order contains the JSON texts of results, or references to stored results. The process that sends
the order builds the inputs from these results. Parsing, writing the canonical form and hashing
block the event loop for up to 300 ms per MiB, so only small inputs are built there. The value
process builds large inputs. Only mapped results are parsed; the results of parents are sent as they
are. Results are read in groups of bounded size. Of a result that is not sent whole, only the mapped
parts stay in memory. Reference: features.md (Dispatch, Verification). Decision
messages-and-large-values.
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
    DispatchByteBudget,
    fill_payload,
    map_inputs,
    weigh_inputs,
    weigh_templates,
)

# Maximum size of inputs that are built in the event loop. The slowest texts of this size take 5 ms.
BUILT_IN_LOOP_BYTES_MAX: Final = 16 * 1024
# Maximum size of a group of results. Between two groups the value process serves other payers.
READ_BYTES_MAX: Final = 1024 * 1024
# A socket takes a body up to this size at once, so its transfer needs no timer.
UNTIMED_BYTES_MAX: Final = 16 * 1024
# A body contains the inputs under two names, and escaping may double the text in a template.
_WRITTEN_PER_BYTE: Final = 4

# Returns the JSON texts of results by their hash. Raises LookupError if a result is lost, and
# ValueError if a result is damaged.
Load = Callable[[Collection[BlobRef]], Awaitable[Mapping[str, bytes]]]


class _Unreadable(Exception):
    """A stored result is lost, or its bytes do not match its hash."""


class OrderInputs(Struct, frozen=True):
    """The built inputs of an order, in canonical form with their hash, and the parents' results."""

    inputs: InputText
    parents: dict[str, Any]


def mapped_sources(
    node: CompiledNode, results: Mapping[str, str | BlobRef], unverified: str | BlobRef | None
) -> InputSources:
    """Return the sources of inputs that are sent without the parents' results.

    Verifiers and peers get such inputs.

    Args:
        node: the node whose inputs are sent.
        results: results of other nodes by node id, including all results that mappings name.
        unverified: the result that a verifier judges; None for a peer.
    """
    mapped = {mapping.source: results[mapping.source] for mapping in node.mappings}
    return InputSources(replace(node, depends_on=()), mapped, unverified)


def is_small(sources: InputSources) -> bool:
    """Say whether inputs are small enough to be built in the event loop.

    A step calls this for each child node in one turn of the loop, so the function returns at the
    first large result.
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
    """Build the inputs of an order from small texts; return them, or the failure.

    Args:
        bytes_max: the largest dispatch body.
    """
    node, room = sources.node, DispatchByteBudget(bytes_max)
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
    """Return the hash of an order's inputs; None for inputs that are large or cannot be built."""
    if not is_small(sources):
        return None
    built = build_in_loop(sources, _WRITTEN_PER_BYTE * BUILT_IN_LOOP_BYTES_MAX)
    return None if isinstance(built, Failure) else built.inputs.hash


async def build_in_child(
    payer_did: str, sources: InputSources, load: Load, builder: ValueProcess, bytes_max: int
) -> OrderInputs | Failure:
    """Build the inputs of an order in the value process; return them, or the failure.

    1. Measure the results that are sent whole: the results of parents, and the result to verify. If
       they exceed `bytes_max`, return the failure and load nothing.
    2. Read the mapped parts of the results group by group: first the results that the dispatch
       order contains, then the stored results. Stop when the mapped parts exceed `bytes_max`.
    3. Build the inputs from the mapped parts.

    Args:
        payer_did: the payer; the value process serves payers round robin.
        load: loads stored results.
        builder: the value process.
        bytes_max: the largest dispatch body.
    """
    node = sources.node
    carried = [sources.results[name] for name in node.depends_on]
    if sources.unverified is not None:
        carried.append(sources.unverified)
    size = sum(map(_size, carried))
    if size > bytes_max:  # 1
        message = f"the parents' results together have {size} bytes, limit {bytes_max}"
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
        return DispatchByteBudget(bytes_max).failure()
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
    """Return the built inputs, with the parents in the order of the manifest."""
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
    """Divide results into groups of `READ_BYTES_MAX`; stored results come last."""
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
    """Return the size of a result: the bytes of a stored result, the characters of a text."""
    return item.size if isinstance(item, BlobRef) else len(item)


def _text(item: str | BlobRef) -> str:
    assert isinstance(item, str), "a stored result is loaded first"
    return item
