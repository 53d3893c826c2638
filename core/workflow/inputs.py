"""Builds an agent's inputs: a node's payload with what it maps of its ancestors' results.

Results fill templates of the payload, but templates in results are not expanded. What a few bytes
of a manifest ask for can be far larger than a dispatch, so it is measured while it is built.
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

# Inputs stand twice in a dispatch, as `inputs` and as `input`.
_COPIES: Final = 2
_NAME_CHARS_MAX: Final = 80
_WHERE_CHARS_MAX: Final = 200
# Possessive, and blanks are stripped afterwards: every character is looked at once. `\s*` beside
# the name tries each split of a run of blanks, which took a minute for 5,000 of them.
_TEMPLATE = re.compile(r"\{\{([^{}]*+)\}\}")


class _Absent(Exception):
    """A mapping's path is absent in the result; the text says where it ended."""


class _TooLarge(Exception):
    """What is built exceeds a dispatch."""


class DispatchRoom:
    """The bytes that are left of a dispatch.

    Args:
        bytes_max: largest dispatch body.
        left: what was left of it before; None: all of it.
    """

    __slots__ = ("_bytes_max", "left")

    def __init__(self, bytes_max: int, left: int | None = None) -> None:
        self._bytes_max = bytes_max
        self.left = bytes_max if left is None else left

    def failure(self) -> Failure:
        """Return the failure of a dispatch that exceeds it."""
        message = f"the dispatch has more than {self._bytes_max} bytes, limit {self._bytes_max}"
        return Failure(NodeErrorCode.INPUT_TOO_LARGE, message, Verdict.FINAL)

    def take(self, size: int) -> None:
        """Use bytes up. Raises `_TooLarge`."""
        self.left -= size
        if self.left < 0:
            raise _TooLarge


def map_inputs(
    node: CompiledNode, results: Mapping[str, Any], room: DispatchRoom
) -> dict[str, Any] | Failure:
    """Return the mapped inputs whose sources are among these results, or the failure.

    Args:
        results: some of those that the node's inputs need, by name.
        room: what is left of the dispatch; what is mapped is taken from it.
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
    node: CompiledNode, mapped: Mapping[str, Any], room: DispatchRoom
) -> dict[str, Any] | Failure:
    """Return a copy of the payload with its templates filled, or the failure.

    Args:
        mapped: the mapped inputs, which its templates may name.
        room: what is left of the dispatch.
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
    """Return how many bytes of JSON are read and written at most to build a node's inputs.

    Args:
        sizes: of the texts of the results that they need, by name.
    """
    mapped = [sizes[mapping.source] for mapping in node.mappings]
    whole = [sizes[parent] for parent in node.depends_on]
    weight = node.payload_bytes + sum(mapped) + sum(whole)
    return weight + weigh_templates(node, max(mapped, default=0))


def weigh_templates(node: CompiledNode, value_bytes_max: int) -> int:
    """Return how many bytes the templates of a payload become at most.

    Args:
        value_bytes_max: the size of the largest mapped input.
    """
    return node.template_count * max(node.payload_bytes, value_bytes_max)


def sent_bytes(value: Any) -> int:
    """Return how many bytes a JSON value has at least in canonical form; exactly, but for texts."""
    if type(value) is str:
        return len(value)
    if type(value) is not dict and type(value) is not list:
        return 1
    text = write_json(value)
    # Floats without decimals and those from 10^16 to 10^20 may be shorter there.
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


def _fill_templates(value: Any, values: Mapping[str, Any], room: DispatchRoom) -> Any:
    """Return `value` with `{{name}}` replaced in every string in it; unknown names stay."""
    if isinstance(value, str):
        return _TEMPLATE.sub(lambda match: _template_text(match, values, room), value)
    if isinstance(value, dict):
        return {key: _fill_templates(member, values, room) for key, member in value.items()}
    if isinstance(value, list):
        return [_fill_templates(member, values, room) for member in value]
    return value


def _template_text(match: re.Match[str], values: Mapping[str, Any], room: DispatchRoom) -> str:
    name = match[1].strip()
    if name not in values:
        return match[0]
    value = values[name]
    text = value if isinstance(value, str) else write_json(value).decode()
    room.take(_COPIES * len(text))
    return text


def _has(value: Any) -> str:
    """Return what a mapping could have taken: the names there are, never a value."""
    if isinstance(value, dict):
        return "which has " + (names_text(value, len(value)) or "no members")
    if isinstance(value, list):
        return f"which has {counted(len(value), 'item')}"
    return f"which is {kind_of(value)}"
