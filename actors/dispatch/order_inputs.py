"""The inputs of an order: built in the owner's loop from small texts, beside it from large ones.

Building a value, writing its canonical form and hashing it hold the loop, 300 ms per MiB of some
texts. So an owner builds only what is small in a turn; orders of more carry the sources, and the
process that sends one builds its inputs, of stored large results too, which it loads first. Of an
ancestor only what is mapped is kept, so ancestors are loaded in groups, each within the bound of a
dispatch. Spec: Dispatch request, Verification; contract.md section 6 (Large results). Decision
0160.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import orjson
from msgspec.structs import replace

from actors.ports import DispatchOrder, InputSources
from actors.values.input_texts import (
    FillTexts,
    InputText,
    MappedTexts,
    MapTexts,
    fill_texts,
    unreadable_failure,
)
from core.errors import NodeErrorCode
from core.records.mapping import InputMapping
from core.workflow.blob_ref import BlobRef
from core.workflow.dag import CompiledNode
from core.workflow.events import Failure, Verdict
from core.workflow.inputs import DispatchRoom, build_inputs, weigh_inputs, weigh_templates

# What is built in one turn of the loop. The worst texts of this size take 5 ms.
BUILT_IN_LOOP_BYTES_MAX: Final = 16 * 1024
# Results that are read at once beside the loop: other payers' requests come between.
READ_BYTES_MAX: Final = 1024 * 1024
# Bodies up to this do not count: 2,048 open orders have 32 MiB of them at most.
UNCOUNTED_BYTES_MAX: Final = 16 * 1024
# Inputs are in a body under two names, and what fills a template may need twice its characters.
_WRITTEN_PER_BYTE: Final = 4
# The weight of what must be loaded: it is never built at once.
_UNBOUNDED: Final = 2**62

# Returns the JSON texts of results by their hash; raises LookupError for one that is lost,
# ValueError for one that is damaged.
Load = Callable[[Collection[BlobRef]], Awaitable[Mapping[str, bytes]]]
Built = tuple[dict[str, Any], dict[str, Any]]


class _Unreadable(Exception):
    """A stored result is lost, or its bytes have another hash."""


class InputBuilder(Protocol):
    """Builds inputs beside the loop, for payers in turn."""

    async def map_texts(self, payer_did: str, asked: MapTexts) -> MappedTexts | Failure: ...

    async def fill_texts(self, payer_did: str, asked: FillTexts) -> InputText | Failure: ...


@dataclass(frozen=True, slots=True)
class OrderInputs:
    """What an order sends: inputs in canonical form with their hash, and the parents' results."""

    inputs: InputText
    parents: dict[str, Any]


def verifier_sources(
    node: CompiledNode, results: Mapping[str, str | BlobRef], unverified: str | BlobRef | None
) -> InputSources:
    """Return what the inputs of a verification are made of: its parents only where it maps them.

    Args:
        node: the node whose result is to be judged.
        results: those that its own inputs need.
        unverified: the result to be judged.
    """
    mapped = {mapping.source: results[mapping.source] for mapping in node.mappings}
    return InputSources(replace(node, depends_on=()), mapped, unverified)


def weigh_sources(sources: InputSources) -> int:
    """Return how many bytes are read and written to build inputs in one piece.

    More than any bound when results have to be loaded.
    """
    if any(type(item) is BlobRef for item in (sources.unverified, *sources.results.values())):
        return _UNBOUNDED
    weight = weigh_inputs(
        sources.node, {name: _size(item) for name, item in sources.results.items()}
    )
    return weight if sources.unverified is None else weight + _size(sources.unverified)


def limit_bytes(order: DispatchOrder, bytes_max: int) -> int:
    """Return how many bytes an order's body has at most, of those that count, before it is built.

    What the loop builds is small and counts when it is built. Of anything else this is no estimate
    but a limit: what is held can only become less, so a payer's bodies exceed its share by one.

    Args:
        bytes_max: the largest body.
    """
    sources = order.sources
    if sources is None or weigh_sources(sources) <= BUILT_IN_LOOP_BYTES_MAX:
        return 0
    weight = weigh_inputs(
        sources.node, {name: _utf8_bytes(item) for name, item in sources.results.items()}
    )
    if sources.unverified is not None:
        weight += _utf8_bytes(sources.unverified)
    return min(_WRITTEN_PER_BYTE * weight, bytes_max)


def build_values(
    sources: InputSources, bytes_max: int, *, is_verification: bool
) -> Built | Failure:
    """Return (inputs, parents) of sources without references, or why there are none.

    Args:
        bytes_max: largest dispatch body; larger inputs are not built.
        is_verification: a result is to be judged.
    """
    results = {name: _value(item) for name, item in sources.results.items()}
    built = build_inputs(sources.node, results, bytes_max)
    if isinstance(built, Failure) or not is_verification:
        return built
    capability_id, unverified = sources.node.capability_id, sources.unverified
    result = None if unverified is None else _value(unverified)
    return {"capabilityId": capability_id, "inputs": built[0], "result": result}, {}


async def build_in_child(
    order: DispatchOrder, load: Load, builder: InputBuilder, bytes_max: int
) -> OrderInputs | Failure:
    """Return what an order with sources sends, or the failure to build it.

    1. What is sent whole is measured, parents or a result to be judged. 2. What is mapped of each
    result is read, first of those at hand, then of stored ones, a group at a time; the first that
    exceeds the dispatch ends it. 3. The inputs are made of that.

    Args:
        load: loads results.
        builder: reads and writes texts beside the loop.
        bytes_max: largest dispatch body; more is not loaded to be sent whole.
    """
    sources = order.sources
    assert sources is not None, "an order without sources has its inputs"
    node = sources.node
    carried = [sources.results[name] for name in node.depends_on]
    if sources.unverified is not None:
        carried.append(sources.unverified)
    size = sum(map(_size, carried))
    if size > bytes_max:  # 1
        message = f"the results that are sent whole have {size} bytes, limit {bytes_max}"
        return Failure(NodeErrorCode.INPUT_TOO_LARGE, message, Verdict.FINAL)
    try:
        return await _build(order, sources, load, builder, bytes_max)
    except _Unreadable as error:
        return unreadable_failure(error)


async def _build(
    order: DispatchOrder, sources: InputSources, load: Load, builder: InputBuilder, bytes_max: int
) -> OrderInputs | Failure:
    node, payer_did, left = sources.node, order.payer_did, bytes_max
    by_source: dict[str, list[InputMapping]] = {}
    for mapping in node.mappings:
        by_source.setdefault(mapping.source, []).append(mapping)
    mapped: dict[str, bytes] = {}
    parents: dict[str, bytes] = {}
    for group in _groups(sources.results, bytes_max):  # 2
        texts = await _load(group, load)
        parents |= {name: text for name, text in texts.items() if name in node.depends_on}
        read = {name: text for name, text in texts.items() if name in by_source}
        for names in _divided({name: len(text) for name, text in read.items()}, READ_BYTES_MAX):
            wanted = tuple(mapping for name in names for mapping in by_source[name])
            part = replace(node, payload={}, has_templates=False, mappings=wanted)
            asked = MapTexts(part, {name: read[name] for name in names}, bytes_max, left)
            found = await builder.map_texts(payer_did, asked)
            if isinstance(found, Failure):
                return found
            mapped |= found.values
            left = found.left
    left -= sum(map(len, parents.values()))
    if left < 0:
        return DispatchRoom(bytes_max).failure()
    unverified = None
    if order.is_verification and sources.unverified is not None:
        unverified = (await _load({"": sources.unverified}, load))[""]
    filling = FillTexts(replace(node, mappings=()), mapped, bytes_max, left, unverified)
    if _weigh_filling(filling) > BUILT_IN_LOOP_BYTES_MAX:  # 3
        filled = await builder.fill_texts(payer_did, filling)
    else:
        filled = fill_texts(filling)
    if isinstance(filled, Failure):
        return filled
    ordered = {name: {"result": orjson.Fragment(parents[name])} for name in node.depends_on}
    return OrderInputs(filled, ordered)


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


def _groups(
    results: Mapping[str, str | BlobRef], bytes_max: int
) -> Iterator[dict[str, str | BlobRef]]:
    """Divide results into groups of at most so many bytes, those at hand before stored ones."""
    for kind in (str, BlobRef):
        sizes = {name: _size(item) for name, item in results.items() if type(item) is kind}
        for names in _divided(sizes, bytes_max):
            yield {name: results[name] for name in names}


def _divided(sizes: Mapping[str, int], bytes_max: int) -> Iterator[list[str]]:
    """Divide names into groups whose sizes are at most so many bytes together, or into one."""
    group: list[str] = []
    total = 0
    for name, size in sizes.items():
        if group and total + size > bytes_max:
            yield group
            group, total = [], 0
        group.append(name)
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


def _utf8_bytes(item: str | BlobRef) -> int:
    if isinstance(item, BlobRef):
        return item.size
    return len(item) if item.isascii() else len(item.encode())


def _value(item: str | BlobRef) -> Any:
    assert isinstance(item, str), "a stored result is loaded first"
    return orjson.loads(item)
