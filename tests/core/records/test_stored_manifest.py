"""Stored manifests: read as they were published, and without what no request asks for."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from core.records.manifest import StoredNode, parse_manifest, read_stored_manifest

NODES = {"a": {"capabilityId": "cap.a.v1"}}


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"maxCents": 7},
        {"maxCents": 0},
        {"maxCents": None, "settings": None},
        {"settings": {}},
        {"settings": {"maxBudgetCredits": 3}},
        {"settings": {"maxBudgetCredits": 0}},
        {"settings": {"maxBudgetCredits": 0.25}},
        {"settings": {"maxBudgetCredits": "1.000001"}},
        {"settings": {"maxBudgetCredits": None}, "maxCents": 5},
        {"settings": {"maxBudgetCredits": 0.05, "maxRuntimeMs": 1}, "maxCents": 5},
    ],
)
def test_a_budget_is_the_one_that_was_published(members: dict[str, Any]) -> None:
    manifest = {"nodes": NODES, **members}
    stored = read_stored_manifest(orjson.dumps(manifest))
    assert stored.budget_micro == parse_manifest(manifest).budget_micro


def test_nodes_are_read_in_their_order_and_in_either_spelling() -> None:
    nodes = {
        "b": {"capability": "cap.b.v1", "dependsOn": None},
        "a": {"capabilityId": "cap.a.v1", "dependsOn": ["b"], "payload": {"dependsOn": []}},
    }
    stored = read_stored_manifest(orjson.dumps({"nodes": nodes}).decode())
    assert list(stored.nodes.items()) == [
        ("b", StoredNode(capability="cap.b.v1")),
        ("a", StoredNode(capability_id="cap.a.v1", depends_on=["b"])),
    ]
