"""The described forms of manifests are those that the parser takes, on drawn good and bad ones."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator
from pydantic import ValidationError

from core.errors import ProblemList, ServiceError
from core.records.api.shape import Schemas
from core.records.graph import node_path
from core.records.manifest import WorkflowManifest, parse_list_form, parse_manifest
from core.records.manifest_forms import Manifest, ManifestList
from core.records.manifest_problems import spell_canonically
from core.records.trigger_config import read_config

Json = dict[str, Any]
WHOLE: Json = {
    "intent": "sum it up",
    "nodes": {
        "a": {
            "capabilityId": "cap.a.v1",
            "payload": {"x": 1},
            "timeoutMs": 5,
            "maxRetries": 0,
            "requiresVerification": True,
            "verifierCapabilityId": "cap.b.v1",
            "targetAgentId": "did:net:a",
            "allowBroadcastFallback": False,
            "maxCostCredits": "0.5",
        },
        "b": {
            "capability": "cap.b.v1",
            "dependsOn": ["a"],
            "inputMapping": {"text": "$.a.result.x"},
            "timeout": 7,
            "selection": "auction",
            "auctionWindowMs": 10,
        },
    },
    "trigger": {"type": "manual", "config": {}},
    "settings": {"maxRuntimeMs": 1_000, "allowFallbackAgents": True, "maxBudgetCredits": 1.5},
    "payerDid": "did:net:payer",
    "maxCents": 150,
    "dryRun": True,
    "webhookUrl": "https://example.org/hook",
}
LISTED: Json = {
    "nodes": [
        {"id": "a", "capability": "cap.a.v1", "input": {"x": 1}},
        {"id": "b", "capabilityId": "cap.b.v1", "targetAgentId": "did:net:a"},
    ],
    "edges": [{"from": "a", "to": "b"}],
    "maxCents": 150,
}
ODD: list[Any] = [
    None, True, 0, -1, 2, 0.5, 10**13, "", "a", "cap.c.v1", "did:net:x", "best", "auction",
    "manual", "scheduled", "1.5", "x" * 20_000, "a\0b", [], ["a"], [1], {}, {"x": 1},
    {"type": "manual"}, {"type": "event"}, {"type": "webhook"},
    {"type": "webhook", "config": {"maxRunsPerMinute": 5, "name": None}},
    {"type": "event", "config": {"eventType": "node.failed", "filter": {"a.b": [1, None]}}},
    {"type": "scheduled", "config": {"cronExpression": "0 0 * * *", "dailyBudgetCredits": "0.5"}},
]  # fmt: skip


def validator_of(form: type) -> Draft202012Validator:
    schemas = Schemas()
    return Draft202012Validator({**schemas.of(form), "components": {"schemas": schemas.components}})


MANIFEST, LIST = validator_of(Manifest), validator_of(ManifestList)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every member of every container within a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, below in list(items):
        yield value, key
        if isinstance(below, dict | list):
            yield from places(below)


@st.composite
def changed(draw: st.DrawFn, whole: Json) -> Json:
    """A form with up to three members replaced, left out or added."""
    form = copy.deepcopy(whole)
    for _ in range(draw(st.integers(0, 3))):
        found = list(places(form))
        if not found:
            break
        container, key = draw(st.sampled_from(found))
        what = draw(st.sampled_from(("replace", "leave out", "add")))
        if what == "leave out":
            del container[key]
        elif what == "replace":
            container[key] = copy.deepcopy(draw(st.sampled_from(ODD)))
        elif isinstance(container, dict):
            name = draw(st.sampled_from(("unheardOf", "timeoutMs", "capabilityId", "payload", "c")))
            # Null stands for absent, also of a member that there is not.
            container[name] = copy.deepcopy(draw(st.sampled_from(ODD[1:])))
    return form


def is_formed(raw: Json) -> bool:
    """Whether a manifest has the form that the parser asks for, whatever its graph and options."""
    conflicts = ProblemList()
    plain = spell_canonically(raw, conflicts, node_path)
    try:
        WorkflowManifest.model_validate(plain)
    except ValidationError:
        return False
    trigger = plain.get("trigger", {"type": "manual"})
    is_configured = trigger["type"] == "manual" or not isinstance(
        read_config(trigger["type"], trigger.get("config")), list
    )
    return not conflicts and is_configured


def is_described(raw: Json) -> bool:
    """Whether the schema takes a manifest; two spellings with two values it cannot refuse."""
    conflicts = ProblemList()
    spell_canonically(raw, conflicts, node_path)
    return bool(MANIFEST.is_valid(raw)) and not conflicts


@given(changed(WHOLE))
def test_the_described_form_is_the_one_that_is_parsed(raw: Json) -> None:
    # Whether a text is a cron expression or the name of a zone, no schema says.
    says_all = raw.get("trigger") is None or raw["trigger"] == WHOLE["trigger"]
    assert is_described(raw) is is_formed(raw) or (is_described(raw) and not says_all), raw
    try:
        parse_manifest(raw)
    except ServiceError:
        return
    assert MANIFEST.is_valid(raw)


@given(changed(LISTED))
def test_what_is_parsed_as_a_list_is_described(raw: Json) -> None:
    try:
        parse_list_form(raw)
    except ServiceError:
        return
    assert LIST.is_valid(raw), raw


@pytest.mark.parametrize("name", ["", " a", "a'", "a#verify", "x" * 129])
def test_a_name_that_no_node_may_have_is_not_described(name: str) -> None:
    raw = {"nodes": {name: {"capabilityId": "cap.a.v1"}}}
    assert not MANIFEST.is_valid(raw)
    with pytest.raises(ServiceError):
        parse_manifest(raw)
