"""No message of a refused record shows a Python type or a regular expression.

Every member of every request body gets values of each JSON type.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

import core.records
from core.errors import Problem, ProblemList, ServiceError
from core.records.agent import AgentCard
from core.records.agent_forms import Registration
from core.records.api.shape import Body, members_of, parsed, read
from core.records.manifest import WorkflowManifest, parse_list_form, parse_manifest
from core.records.model_problems import PATTERN_WORDS

for module in pkgutil.walk_packages(core.records.__path__, "core.records."):
    importlib.import_module(module.name)

HOSTILE: tuple[Any, ...] = (
    None, True, -1, 10**30, 1.5, "", "a b\x00", "x" * 20_000, [], [1], [None], {}, {"a": 1},
)  # fmt: skip
_PYTHON = re.compile(
    r"\b(tuple|NoneType|None|True|False|dict|dictionary|list|str|int|bool|float|Struct|type \w+"
    r"|Decimal|instance of|ValueError)\b"
)
_REGEX = re.compile(r"\^|\[[^\]]*\w-\w[^\]]*\]|\(\?|\\[wsdx]|\.\*|\{\d+,\d*\}|\bpattern\b")


def bodies() -> Iterator[type[Body]]:
    todo = [Body]
    while todo:
        for one in todo.pop().__subclasses__():
            todo.append(one)
            if one.__module__.startswith("core."):
                yield one


def refusals() -> Iterator[tuple[str, Problem]]:
    """Yield the problems of every record, for each hostile value of each member."""
    for body in bodies():
        for member in members_of(body):
            for value in HOSTILE:
                if body.__name__.endswith(("Query", "Path")) and type(value) is not str:
                    continue  # these hold text alone
                problems = ProblemList()
                read(body, {member.json_name: value}, problems)
                yield from ((body.__name__, one) for one in problems.kept)
    for model in (WorkflowManifest, AgentCard):
        yield from ((model.__name__, one) for one in of_model(model))


def of_model(model: type[BaseModel]) -> Iterator[Problem]:
    good: dict[str, Any] = {"nodes": {"a": {"capabilityId": "cap.a.v1"}}}
    if model is AgentCard:
        capability = {"id": "cap.a.v1"}
        good = {"did": "did:x:y", "endpoint": "http://x", "version": 1}
        good["capabilities"] = [capability]
    for path, fields in members_below(model):
        for name in fields:
            for value in HOSTILE:
                yield from problems_of(model, with_value(good, (*path, name), value))


def members_below(model: type[BaseModel]) -> list[tuple[tuple[str, ...], list[str]]]:
    schema = model.model_json_schema(by_alias=True)
    parts = {name: list(part["properties"]) for name, part in schema["$defs"].items()}
    own = ((), list(schema["properties"]))
    if model is AgentCard:
        return [own, (("capabilities", "0"), parts["Capability"]),
                (("metadata",), parts["CardMetadata"])]  # fmt: skip
    return [own, (("nodes", "a"), [*parts["NodeDefinition"], "timeout_ms", "inputs"]),
            (("settings",), [*parts["WorkflowSettings"], "budget"]),
            (("trigger",), parts["WorkflowTrigger"])]  # fmt: skip


def with_value(whole: Any, path: tuple[str, ...], value: Any) -> Any:
    if not path:
        return value
    if isinstance(whole, list):
        return [with_value(one, path[1:], value) for one in whole]
    whole = whole if isinstance(whole, dict) else {}
    return {**whole, path[0]: with_value(whole.get(path[0]), path[1:], value)}


def problems_of(model: type[BaseModel], raw: Any) -> tuple[Problem, ...]:
    try:
        if model is AgentCard:
            parsed(Registration, {"acard": raw})
        else:
            parse_manifest(raw)
            parse_list_form({**raw, "nodes": [1, {"id": 2}, {"id": "a"}, {"id": "b", "input": []}]})
    except ServiceError as error:
        return error.problems
    return ()


def test_no_message_shows_a_python_type_or_a_regular_expression() -> None:
    found = list(refusals())
    assert len({record for record, _ in found}) > 25
    wrong = {
        (record, text)
        for record, one in found
        for text in (one.expected, re.sub(r"'[^']*'", "", one.got))
        if _PYTHON.search(text) or _REGEX.search(text)
    }
    assert not wrong


def test_every_pattern_of_the_models_has_words() -> None:
    for model in (WorkflowManifest, AgentCard):
        patterns = re.findall(r"'pattern': '(.*?)'[,}]", str(model.model_json_schema()))
        known = str(PATTERN_WORDS)
        assert patterns
        assert all(one in known for one in patterns)


@pytest.mark.parametrize(
    ("raw", "path", "meant"),
    [
        ({"nodes": {"a": {"timeout_ms": 5}}}, "nodes.a.timeout_ms", "timeoutMs"),
        ({"nodes": {"a": {"capabiltyId": "c"}}}, "nodes.a.capabiltyId", "capabilityId"),
        ({"nodes": {"a": {"dependson": []}}}, "nodes.a.dependson", "dependsOn"),
        ({"nodes": {"a": {"depends_on": []}}}, "nodes.a.depends_on", "dependsOn"),
        ({"nodes": {"a": {"params": {}}}}, "nodes.a.params", "one of"),
        ({"settings": {"maxBudgetCredit": 1}}, "settings.maxBudgetCredit", "maxBudgetCredits"),
        ({"settings": {"targetAgentId": 1}}, "settings.targetAgentId", "targetAgentId of a node"),
        ({"trigger": {"type": "manual", "configs": {}}}, "trigger.configs", "config"),
        ({"dryrun": True}, "dryrun", "dryRun"),
        ({"allowFallbackAgents": True}, "allowFallbackAgents", "settings.allowFallbackAgents"),
        ({"budget": 5}, "budget", "settings.maxBudgetCredits"),
    ],
)  # fmt: skip
def test_an_unknown_member_of_a_manifest_names_what_was_meant(
    raw: dict[str, Any], path: str, meant: str
) -> None:
    with pytest.raises(ServiceError) as refused:
        parse_manifest({"nodes": {"a": {"capabilityId": "cap.a"}}, **raw})
    found = [one for one in refused.value.problems if one.path == path]
    assert [one.got for one in found] == ["an unknown member"]
    assert meant in found[0].expected


def test_an_unknown_member_of_a_body_names_what_was_meant() -> None:
    closed = [body for body in bodies() if body.is_closed]
    assert len(closed) > 10
    for body in closed:
        for member in members_of(body):
            problems = ProblemList()
            read(body, {member.name + "_": 1}, problems)
            (first, *_) = problems.kept
            assert first.expected == (
                f"one of the known members; did you mean '{member.json_name}'?"
            )
