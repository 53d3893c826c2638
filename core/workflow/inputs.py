"""Builds an agent's inputs: a node's payload, its mapped values and its parents' results.

Results fill templates of the payload, but templates in results are not expanded. Spec: Input
mapping expressions, Dispatch request; contract.md section 5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from core.errors import NodeErrorCode
from core.records.mapping import InputMapping
from core.workflow.dag import CompiledNode
from core.workflow.events import Failure, Verdict

# Possessive, and blanks are stripped afterwards: every character is looked at once. `\s*` beside
# the name tries each split of a run of blanks, which took a minute for 5,000 of them.
_TEMPLATE = re.compile(r"\{\{([^{}]*+)\}\}")


class _Absent(Exception):
    """A mapping's path is absent in the result; the text says where it ended."""


def build_inputs(
    node: CompiledNode, results: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]] | Failure:
    """Return (inputs, parents) of a dispatch, or the failure INPUT_MAPPING_FAILED.

    Args:
        results: the result of every node that has succeeded, by name.

    Containers with filled templates are copies; all others are shared and must not be modified.
    Spec: Input mapping expressions.
    """
    mapped: dict[str, Any] = {}
    for mapping in node.mappings:
        try:
            mapped[mapping.input_name] = _resolve_mapping(mapping, results[mapping.source])
        except _Absent as absent:
            message = f"input {mapping.input_name!r}: {mapping.expression} {absent}"
            return Failure(NodeErrorCode.INPUT_MAPPING_FAILED, message, Verdict.FINAL)
    inputs = dict(node.payload)
    if node.has_templates:
        inputs = _fill_templates(inputs, {**node.payload, **mapped})
    inputs.update(mapped)
    parents = {parent: {"result": results[parent]} for parent in node.depends_on}
    return inputs, parents


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
        shown = f"[{step}]" if type(step) is int else repr(step)
        depth = f"after {position} step{'' if position == 1 else 's'} into the result"
        raise _Absent(f"is absent: no {shown} {depth}, which is {_kind(value)}")
    return value


def _fill_templates(value: Any, values: Mapping[str, Any]) -> Any:
    """Return `value` with `{{name}}` replaced in every string in it; unknown names stay."""
    if isinstance(value, str):
        return _TEMPLATE.sub(lambda match: _template_text(match, values), value)
    if isinstance(value, dict):
        return {key: _fill_templates(member, values) for key, member in value.items()}
    if isinstance(value, list):
        return [_fill_templates(member, values) for member in value]
    return value


def _template_text(match: re.Match[str], values: Mapping[str, Any]) -> str:
    name = match[1].strip()
    if name not in values:
        return match[0]
    value = values[name]
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return f"an object with {len(value)} members"
    if isinstance(value, list):
        return f"an array of {len(value)}"
    return "null" if value is None else f"a {type(value).__name__}"
