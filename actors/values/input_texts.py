"""Builds the inputs of nodes from JSON texts, in the value process beside an owner's event loop.

The owner handles only texts; JSON values are built only here. Mapped values and inputs are returned
in canonical form. Pure. Reference: features.md (Inputs, Verification). Decision
messages-and-large-values.
"""

from __future__ import annotations

from core.canonical import canonical, canonical_object, hash_bytes
from core.errors import NodeErrorCode
from core.json_text import read_json
from core.message import Message
from core.workflow.dag import CompiledNode
from core.workflow.events import Failure, Verdict
from core.workflow.inputs import DispatchByteBudget, fill_payload, map_inputs


class MapTexts(Message, frozen=True):
    """A request for the values that a node maps from these results.

    `bytes_max`: the size limit of the dispatch. `left`: how many of these bytes are still unused.
    """

    node: CompiledNode
    texts: dict[str, bytes]
    bytes_max: int
    left: int


class MappedTexts(Message, frozen=True):
    """The mapped values, by input name; `left`: the unused bytes of the dispatch's size limit."""

    values: dict[str, bytes]
    left: int


class FillTexts(Message, frozen=True):
    """A request for the inputs of a node, with its mapped values.

    `unverified`: the result to be verified, in the canonical form in which results are stored; None
    if the dispatch is not a verification.
    """

    node: CompiledNode
    mapped: dict[str, bytes]
    bytes_max: int
    left: int
    unverified: bytes | None = None


class InputText(Message, frozen=True):
    """Inputs in canonical form, and their hash."""

    inputs: bytes
    hash: str


def map_texts(asked: MapTexts) -> MappedTexts | Failure:
    """Return the values that a node maps from results, or the failure of the mapping.

    A value that is mapped to several inputs is encoded only once.
    """
    room = DispatchByteBudget(asked.bytes_max, asked.left)
    try:
        results = {name: read_json(text) for name, text in asked.texts.items()}
        mapped = map_inputs(asked.node, results, room)
        if isinstance(mapped, Failure):
            return mapped
        texts = {id(value): canonical(value) for value in mapped.values()}
    except ValueError as error:
        return unreadable_failure(error)
    return MappedTexts({name: texts[id(value)] for name, value in mapped.items()}, room.left)


def fill_texts(asked: FillTexts) -> InputText | Failure:
    """Return the inputs of a dispatch, or the failure of building them."""
    room = DispatchByteBudget(asked.bytes_max, asked.left)
    node = asked.node
    try:
        values = {}
        if node.has_templates:
            values = {name: read_json(text) for name, text in asked.mapped.items()}
        payload = fill_payload(node, values, room)
        if isinstance(payload, Failure):
            return payload
        members = {name: canonical(value) for name, value in payload.items()}
        inputs = canonical_object({**members, **asked.mapped})
        if asked.unverified is not None:
            inputs = canonical_object(
                {
                    "capabilityId": canonical(node.capability_id),
                    "inputs": inputs,
                    "result": asked.unverified,
                }
            )
    except ValueError as error:
        return Failure(NodeErrorCode.INPUT_MAPPING_FAILED, str(error), Verdict.FINAL)
    return InputText(inputs, hash_bytes(inputs))


def unreadable_failure(error: Exception) -> Failure:
    """Return the failure of a dispatch whose inputs need a result that cannot be read."""
    message = f"a result cannot be read: {error}"
    return Failure(NodeErrorCode.INPUT_MAPPING_FAILED, message, Verdict.FINAL)
