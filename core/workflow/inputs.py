"""Builds an agent's inputs: the payload of a node, with values mapped from earlier results.

Mapped values fill the templates of the payload. Templates inside results are not expanded. A few
bytes of a manifest can request inputs that are far larger than a dispatch may be, so the size is
counted while the inputs are built.
Reference: features.md (Inputs, Dispatch).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from core.canonical import canonical
from core.errors import NodeErrorCode
from core.json_text import write_json
from core.records.graph import InputMapping
from core.wording import counted, kind_of, names_text, quoted
from core.workflow.dag import CompiledNode
from core.workflow.events import Failure, Verdict

# A dispatch contains the inputs twice, as `inputs` and as `input`.
_COPIES: Final = 2
_NAME_CHARS_MAX: Final = 80
_WHERE_CHARS_MAX: Final = 200
# The quantifier is possessive and blanks are stripped afterwards, so each character is read once.
# With `\s*` beside the name, the regex would try each split of a run of blanks. A run of 5,000
# blanks took a minute.
_TEMPLATE = re.compile(r"\{\{([^{}]*+)\}\}")


class _Absent(Exception):
    """The result has no value at a mapping's path; the text says where the path ended."""


class _TooLarge(Exception):
    """The inputs are larger than a dispatch may be."""


class DispatchByteBudget:
    """The remaining bytes of a dispatch body.

    Args:
        bytes_max: the largest size of a dispatch body.
        left: the remaining bytes at the start; None for `bytes_max`.
    """

    __slots__ = ("_bytes_max", "left")

    def __init__(self, bytes_max: int, left: int | None = None) -> None:
        self._bytes_max = bytes_max
        self.left = bytes_max if left is None else left

    def failure(self) -> Failure:
        """Return the failure of a dispatch that is too large."""
        message = f"the dispatch is larger than the limit of {self._bytes_max} bytes"
        return Failure(NodeErrorCode.INPUT_TOO_LARGE, message, Verdict.FINAL)

    def take(self, size: int) -> None:
        """Subtract bytes. Raises `_TooLarge` when fewer are left."""
        self.left -= size
        if self.left < 0:
            raise _TooLarge


def map_inputs(
    node: CompiledNode, results: Mapping[str, Any], room: DispatchByteBudget
) -> dict[str, Any] | Failure:
    """Return the mapped inputs whose sources are in `results`, by input name; or the failure.

    Args:
        results: results of some or all sources of the node's inputs, by the name of the source.
        room: the remaining bytes of the dispatch; the mapped inputs are subtracted.
    """
    mapped: dict[str, Any] = {}
    sizes: dict[int, int] = {}  # by the identity of a value, which `results` keeps alive
    try:
        for mapping in node.mappings:
            if mapping.source in results:
                value = _resolve_mapping(mapping, results[mapping.source])
                if id(value) not in sizes:
                    sizes[id(value)] = sent_bytes(value)
                room.take(_COPIES * sizes[id(value)])
                mapped[mapping.input_name] = value
    except _Absent as absent:
        name = mapping.input_name[:_NAME_CHARS_MAX]
        message = f"input {name!r}: {mapping.expression} {absent}"
        return Failure(NodeErrorCode.INPUT_MAPPING_FAILED, message, Verdict.FINAL)
    except _TooLarge:
        return room.failure()
    return mapped


def fill_payload(
    node: CompiledNode, mapped: Mapping[str, Any], room: DispatchByteBudget
) -> dict[str, Any] | Failure:
    """Return a copy of the payload with its templates filled, or the failure.

    Args:
        mapped: the mapped inputs, which templates may name.
        room: the remaining bytes of the dispatch; the filled templates are subtracted.
    """
    if not node.has_templates:
        return dict(node.payload)
    try:
        filled = _fill_templates(node.payload, {**node.payload, **mapped}, room)
    except _TooLarge:
        return room.failure()
    assert isinstance(filled, dict)
    return filled


def weigh_inputs(node: CompiledNode, sizes: Mapping[str, int]) -> int:
    """Return an upper bound of the JSON bytes read and written to build a node's inputs.

    Args:
        sizes: the sizes in bytes of the results that the inputs need, by the name of the source.
    """
    mapped = [sizes[mapping.source] for mapping in node.mappings]
    whole = [sizes[parent] for parent in node.depends_on]
    weight = node.payload_bytes + sum(mapped) + sum(whole)
    return weight + weigh_templates(node, max(mapped, default=0))


def weigh_templates(node: CompiledNode, value_bytes_max: int) -> int:
    """Return an upper bound of the bytes of a payload's filled templates.

    Args:
        value_bytes_max: the size of the largest mapped input, bytes.
    """
    return node.template_count * max(node.payload_bytes, value_bytes_max)


def sent_bytes(value: Any) -> int:
    """Return the size of a JSON value in canonical form, bytes; for scalars a lower bound."""
    if type(value) is str:
        return len(value)
    if type(value) is not dict and type(value) is not list:
        return 1
    text = write_json(value)
    # Whole floats, and floats from 10^16 to 10^20, may be shorter in canonical form.
    if b".0" in text or b"e1" in text or b"e20" in text:
        return len(canonical(value))
    return len(text)


def _resolve_mapping(mapping: InputMapping, result: Any) -> Any:
    value = result
    for position, step in enumerate(mapping.steps):
        if type(step) is int:
            if type(value) is list and step < len(value):
                value = value[step]
                continue
        elif type(value) is dict and step in value:
            value = value[step]
            continue
        shown = f"item {step}" if type(step) is int else quoted(str(step))
        where = "the result" + "".join(f"[{quoted(str(one))}]" for one in mapping.steps[:position])
        raise _Absent(f"is absent: no {shown} in {where[:_WHERE_CHARS_MAX]}, {_has(value)}")
    return value


def template_names(value: Any) -> set[str]:
    """Return the names of the placeholders `{{name}}` in a payload."""
    if isinstance(value, str):
        return {name.strip() for name in _TEMPLATE.findall(value)}
    members = value.values() if isinstance(value, dict) else value
    return set().union(*map(template_names, members)) if isinstance(value, dict | list) else set()


def _fill_templates(value: Any, values: Mapping[str, Any], room: DispatchByteBudget) -> Any:
    """Return a copy of a value with `{{name}}` replaced in every string; unknown names stay."""
    if isinstance(value, str):
        return _TEMPLATE.sub(lambda match: _template_text(match, values, room), value)
    if isinstance(value, dict):
        return {key: _fill_templates(member, values, room) for key, member in value.items()}
    if isinstance(value, list):
        return [_fill_templates(member, values, room) for member in value]
    return value


def _template_text(
    match: re.Match[str], values: Mapping[str, Any], room: DispatchByteBudget
) -> str:
    name = match[1].strip()
    if name not in values:
        return match[0]
    value = values[name]
    text = value if isinstance(value, str) else write_json(value).decode()
    room.take(_COPIES * len(text))
    return text


def _has(value: Any) -> str:
    """Describe a value in which a mapping's step was not found, without showing its values."""
    if isinstance(value, dict):
        return "which has " + (names_text(value, len(value)) or "no members")
    if isinstance(value, list):
        return f"which has {counted(len(value), 'item')}"
    return f"which is {kind_of(value)}"
