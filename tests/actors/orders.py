"""Sources of orders for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actors.ports import InputSources
from core.canonical import canonical
from core.records.manifest import parse_manifest
from core.workflow.dag import compile_workflow


def sources_of(
    payload: Mapping[str, Any] | None = None,
    parents: Mapping[str, Any] | None = None,
    mappings: Mapping[str, str] | None = None,
) -> InputSources:
    """Return what the inputs of a node are made of.

    Args:
        payload: the node's.
        parents: the result of each of its parents, by name.
        mappings: the expression of each mapped input, by name.
    """
    results = parents or {}
    last = {
        "capabilityId": "cap.x.v1",
        "dependsOn": list(results),
        "payload": payload or {},
        "inputMappings": mappings or {},
    }
    nodes = {name: {"capabilityId": "cap.x.v1"} for name in results} | {"a": last}
    compiled = compile_workflow(parse_manifest({"nodes": nodes}))
    texts = {name: canonical(result).decode() for name, result in results.items()}
    return InputSources(compiled.nodes["a"], texts)
