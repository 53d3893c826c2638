"""The list form of a manifest. Reference: features.md (Workflows)."""

from __future__ import annotations

from typing import Any

import pytest

from core.errors import ErrorCode, Problem, ServiceError
from core.records.manifest import parse_list_form, parse_manifest


def problems(raw: object) -> list[Problem]:
    with pytest.raises(ServiceError) as refused:
        parse_list_form(raw)
    assert refused.value.code is ErrorCode.INVALID_MANIFEST
    return list(refused.value.problems)


@pytest.mark.parametrize("ends", [("from", "to"), ("source", "target")])
def test_list_form(ends: tuple[str, str]) -> None:
    manifest = parse_list_form(
        {
            "nodes": [
                {"id": "a", "capability": "cap.x", "input": {"n": 1}},
                {"id": "b", "capability": "cap.y", "targetAgentId": "did:x:y", "dependsOn": ["a"]},
                {"id": "c", "capability": "cap.z"},
            ],
            "edges": [dict(zip(ends, ("a", "c"), strict=True))],
            "maxCents": 100,
            "webhookUrl": "http://x.org",
        }
    )
    assert manifest == parse_manifest(
        {
            "nodes": {
                "a": {"capabilityId": "cap.x", "payload": {"n": 1}},
                "b": {"capabilityId": "cap.y", "targetAgentId": "did:x:y", "dependsOn": ["a"]},
                "c": {"capabilityId": "cap.z", "dependsOn": ["a"]},
            },
            "maxCents": 100,
            "webhookUrl": "http://x.org",
        }
    )
    assert parse_manifest(manifest.to_json()).nodes == manifest.nodes


LIST_NODE = {"id": "a", "capability": "cap.x"}
LIST_DEFECTS: dict[str, tuple[Any, list[str]]] = {
    "not an object": (1, [""]),
    "nodes missing": ({}, ["nodes"]),
    "nodes empty": ({"nodes": []}, ["nodes"]),
    "node no object": ({"nodes": [LIST_NODE, 1]}, ["nodes[1]"]),
    "id missing": ({"nodes": [LIST_NODE, {"capability": "cap.x"}]}, ["nodes[1].id"]),
    "bad member": ({"nodes": [{**LIST_NODE, "retries": 1}]}, ["nodes[0].retries"]),
    "input twice": (
        {"nodes": [{**LIST_NODE, "input": {}, "payload": {"x": 1}}]},
        ["nodes[0].input"],
    ),
    "edges an object": ({"nodes": [LIST_NODE], "edges": {}}, ["edges"]),
    "edge no object": ({"nodes": [LIST_NODE], "edges": [1]}, ["edges[0]"]),
    "edge half": ({"nodes": [LIST_NODE], "edges": [{"from": "a"}]}, ["edges[0]"]),
    "edge from a number": (
        {"nodes": [LIST_NODE], "edges": [{"from": 1, "to": "a"}]},
        ["edges[0].from"],
    ),
    "unknown member": ({"nodes": [LIST_NODE], "colour": 1}, ["colour"]),
}


@pytest.mark.parametrize(("raw", "wanted"), LIST_DEFECTS.values(), ids=LIST_DEFECTS)
def test_list_form_defect(raw: Any, wanted: list[str]) -> None:
    assert [problem.path for problem in problems(raw)] == wanted
