"""The problems of an invalid manifest, with paths in the client's own spelling.

This file knows the accepted spellings and pydantic's errors. `manifest.py` has the model.
Reference: features.md (Workflows, Nodes).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError as PydanticError

from core.errors import PROBLEMS_MAX, ErrorCode, Problem, ProblemList, ServiceError
from core.records.api.shape import unknown_member
from core.records.graph import TRIGGER_SOURCE, plan_graph
from core.records.model_problems import problem_of
from core.records.trigger_config import CONFIGS, read_config
from core.wording import value_text

NODE_ALIASES = {
    "capability": "capabilityId",
    "inputMapping": "inputMappings",
    "timeout": "timeoutMs",
}
# Frequent wrong names, and the members that are meant (spec: Node definition, alternative
# spellings).
_MEANT = {
    "timeout": "settings.maxRuntimeMs, in milliseconds",
    "budget": "settings.maxBudgetCredits, in credits",
    "maxBudgetCredits": "settings.maxBudgetCredits, in credits",
    "maxRuntimeMs": "settings.maxRuntimeMs, in milliseconds",
    "timeoutMs": "settings.maxRuntimeMs, or timeoutMs of a node",
    "input": "payload",
    "inputs": "payload",
}
_SHOWN_CHARS_MAX = 80


def spell_canonically(
    raw: dict[str, Any], problems: ProblemList, path_of: Callable[[str], str]
) -> dict[str, Any]:
    """Return a copy of the manifest without nulls and alternative spellings.

    Args:
        problems: receives a problem if a member has different values in two spellings.
        path_of: returns the path of a node in the form that the client sent.
    """
    plain = _without_nulls(raw)
    for part in ("settings", "trigger"):
        member = plain.get(part)
        if type(member) is dict and None in member.values():
            plain = {**plain, part: _without_nulls(member)}
    nodes = plain.get("nodes")
    if type(nodes) is not dict:
        return plain
    changed: dict[str, Any] = {}
    for name, node in nodes.items():
        if type(node) is not dict:
            continue
        spelt = _without_nulls(node)
        for alias, canonical in NODE_ALIASES.items():
            if alias not in spelt:
                continue
            spelt = dict(spelt)
            value = spelt.pop(alias)
            if spelt.setdefault(canonical, value) != value:
                got = f"{described(value)}, beside {canonical} {described(spelt[canonical])}"
                path = f"{path_of(name)}.{alias}"
                problems.append(Problem(path, got, f"one value, as {canonical}"))
        if spelt is not node:
            changed[name] = spelt
    return {**plain, "nodes": {**nodes, **changed}} if changed else plain


def add_problems_of_pydantic(
    error: PydanticError,
    raw: dict[str, Any],
    problems: ProblemList,
    path_of: Callable[[str], str],
    known: Mapping[str, Sequence[str]],
) -> None:
    """Add pydantic's errors to the problems, with paths in the client's own spelling.

    Args:
        known: the names of the members of the manifest (key "") and of each of its parts.
    """
    errors = error.errors(include_url=False)
    for found in errors[:PROBLEMS_MAX]:
        kind = found["type"]
        location = list(found["loc"])
        if location[2:] == ["[key]"] and kind != "extra_forbidden":
            del location[2]  # the problem is the name of the node
        path = _path(location, raw, path_of)
        if kind == "extra_forbidden":
            problems.append(_unknown_member(path, location, known))
            continue
        found_problem = problem_of(path, found)
        if kind in ("too_long", "too_short"):
            expected = found_problem.expected
            if path == "nodes":
                expected = expected.replace("item", "node")
            found_problem = Problem(path, f"{len(found['input'])} members", expected)
        problems.append(found_problem)
    problems.add_unnamed(max(0, len(errors) - PROBLEMS_MAX))


def add_graph_problems(
    plain: dict[str, Any], problems: ProblemList, path_of: Callable[[str], str]
) -> None:
    """Add the structural problems of the readable parts of an invalid manifest."""
    nodes = plain.get("nodes")
    if type(nodes) is not dict:
        return
    depends_on: dict[str, list[str]] = {}
    expressions: dict[str, dict[str, str]] = {}
    for name, node in nodes.items():
        parents = node.get("dependsOn") if type(node) is dict else None
        is_names = type(parents) is list and all(type(parent) is str for parent in parents)
        depends_on[name] = parents if is_names and parents is not None else []
        mappings = node.get("inputMappings") if type(node) is dict else None
        if type(mappings) is dict and is_names | (parents is None):
            expressions[name] = {
                input_name: expression
                for input_name, expression in mappings.items()
                if type(expression) is str
            }
    trigger = plain.get("trigger")
    has_trigger = type(trigger) is dict and trigger.get("type") != "manual"
    found = plan_graph(depends_on, expressions, path_of, has_trigger=has_trigger).problems
    problems.extend(found.kept)
    problems.add_unnamed(len(found) - len(found.kept))


def add_unsupported_problems(
    plain: dict[str, Any], problems: ProblemList, path_of: Callable[[str], str]
) -> None:
    """Add a problem for each combination of options that is not supported."""
    nodes = plain.get("nodes")
    for name, node in nodes.items() if type(nodes) is dict else ():
        if type(node) is not dict:
            continue
        is_auction = node.get("selection") == "auction"
        if not is_auction and node.get("auctionWindowMs") is not None:
            got = described(node["auctionWindowMs"])
            expected = "auctionWindowMs only with selection: auction"
            problems.append(Problem(f"{path_of(name)}.auctionWindowMs", got, expected))
        if is_auction and "@" in str(node.get("capabilityId")):
            got = described(node["capabilityId"])
            expected = "no range of versions with selection: auction"
            problems.append(Problem(f"{path_of(name)}.capabilityId", got, expected))
        if is_auction and node.get("targetAgentId") is not None:
            got = described(node["targetAgentId"])
            expected = "no targetAgentId with selection: auction"
            problems.append(Problem(f"{path_of(name)}.targetAgentId", got, expected))


def add_trigger_problems(
    plain: dict[str, Any],
    problems: ProblemList,
    path_of: Callable[[str], str],
    *,
    is_stored: bool,
) -> None:
    """Add the problems of a trigger that is not manual.

    Args:
        is_stored: whether the service has stored the manifest. The trigger configuration of a
            stored manifest may be that of a run, so it is not checked.
    """
    trigger = plain.get("trigger")
    kind = trigger.get("type") if type(trigger) is dict else None
    if type(trigger) is not dict or type(kind) is not str or kind not in CONFIGS:
        return
    nodes, config = plain.get("nodes"), trigger.get("config")
    if type(nodes) is dict and TRIGGER_SOURCE in nodes:
        expected = f"another name: {TRIGGER_SOURCE} is reserved for $.{TRIGGER_SOURCE}.result"
        problems.append(Problem(path_of(TRIGGER_SOURCE), f"a node {TRIGGER_SOURCE!r}", expected))
    if not is_stored and (config is None or type(config) is dict):
        read = read_config(kind, config)
        problems.extend(read if isinstance(read, list) else ())


def refused_manifest(problems: ProblemList) -> ServiceError:
    """Return the error for a manifest with these problems, of which there is at least one."""
    return ServiceError(ErrorCode.INVALID_MANIFEST, problems.summary("manifest"), problems.kept)


def described(value: object) -> str:
    """Describe a value for a problem: a text or number itself, otherwise its kind and size."""
    return "nothing" if value is None else value_text(value, _SHOWN_CHARS_MAX)


def _without_nulls(value: dict[str, Any]) -> dict[str, Any]:
    if None not in value.values():
        return value
    return {key: member for key, member in value.items() if member is not None}


def _unknown_member(
    path: str, location: list[int | str], known: Mapping[str, Sequence[str]]
) -> Problem:
    part, name = str(location[0]) if len(location) > 1 else "", str(location[-1])
    if part == "nodes":
        hint = "payload" if name in ("input", "inputs") else None
    else:
        hint = _MEANT.get(name)
        if hint == f"settings.{name}" and part == "settings":
            hint = None
    for other, names in known.items():
        if hint is None and other != part and name in names:
            hint = {"": f"{name} beside nodes", "nodes": f"{name} of a node"}.get(
                other, f"{other}.{name}"
            )
    if hint is not None:
        return Problem(path, "an unknown member", hint)
    return unknown_member(path, name, known[part])


def _path(location: list[int | str], raw: dict[str, Any], path_of: Callable[[str], str]) -> str:
    path = ""
    for depth, part in enumerate(location):
        if depth == 1 and location[0] == "nodes":
            path = path_of(str(part))
        elif type(part) is int:
            path += f"[{part}]"
        else:
            name = str(part)
            if depth == 2 and location[0] == "nodes":
                name = _spelling(raw["nodes"].get(location[1]), name)
            path += f".{name}" if path else name
    return path


def _spelling(node: object, name: str) -> str:
    """Return the spelling of a member's name that the client used."""
    if type(node) is dict and name not in node:
        for alias, canonical in NODE_ALIASES.items():
            if canonical == name and alias in node:
                return alias
    return name
