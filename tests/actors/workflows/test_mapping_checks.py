"""A publish is refused for a mapping that no pair of agents could serve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import orjson
import pytest

from actors.directory.peer_directory import PeerDirectory
from actors.workflows.mapping_checks import LOOKS_MAX, check_mappings
from core.errors import ErrorCode, ServiceError
from core.records.manifest import parse_manifest
from core.workflow.dag import CompiledWorkflow, compile_workflow

TEXT = {"properties": {"x": {"type": "string"}}}
COUNT = {"properties": {"x": {"type": "number"}}}


class Schemas:
    """The schemas of outputs and of inputs, the same of every capability."""

    def __init__(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
        self._outputs, self._inputs = outputs, inputs

    def schemas_of(self, _: str, target: str | None, *, is_output: bool) -> list[bytes]:
        """Return what a directory would."""
        return [orjson.dumps(one) for one in (self._outputs if is_output else self._inputs)]


def mapped(nodes: int = 1, mappings: int = 1) -> CompiledWorkflow:
    """Return a workflow whose last nodes map what the first has at `x`, and at other places."""
    expressions = {"x": "$.a.result.x"} | {f"x{n}": "$.a.result.x" for n in range(1, mappings)}
    last = {"capabilityId": "cap.b.v1", "dependsOn": ["a"], "inputMappings": expressions}
    others = {f"b{number}": last for number in range(nodes)}
    return compile_workflow(
        parse_manifest({"nodes": {"a": {"capabilityId": "cap.a.v1"}, **others}})
    )


def check(outputs: Sequence[Any], inputs: Sequence[Any], workflow: CompiledWorkflow) -> None:
    """Check a workflow's mappings."""
    check_mappings(workflow, cast(PeerDirectory, Schemas(outputs, inputs)))


@pytest.mark.parametrize(
    ("outputs", "inputs"),
    [([], [TEXT]), ([TEXT], []), ([TEXT], [TEXT]), ([TEXT, COUNT], [COUNT]), ([TEXT], [COUNT, {}])],
)
def test_mapping_that_one_pair_serves_is_let_through(
    outputs: Sequence[Any], inputs: Sequence[Any]
) -> None:
    check(outputs, inputs, mapped())


@pytest.mark.parametrize(
    ("outputs", "inputs"), [([TEXT], [COUNT]), ([TEXT, {"type": "array"}], [COUNT])]
)
def test_mapping_that_no_pair_serves_is_refused(
    outputs: Sequence[Any], inputs: Sequence[Any]
) -> None:
    with pytest.raises(ServiceError) as refused:
        check(outputs, inputs, mapped(2))
    assert refused.value.code is ErrorCode.INVALID_MANIFEST
    paths = [problem.path for problem in refused.value.problems]
    assert paths == ["nodes.b0.inputMappings.x", "nodes.b1.inputMappings.x"]


def test_looks_of_a_publish_are_bounded() -> None:
    """What a stranger has made costly is let through once the looks are used up."""
    with pytest.raises(ServiceError) as refused:
        check([TEXT], [COUNT], mapped(1, 40))
    assert len(refused.value.problems) == 1, "the other inputs take anything"
    wide = {**TEXT, "anyOf": [{"anyOf": [{}] * 190}] * 2}
    with pytest.raises(ServiceError) as refused:
        check([wide], [COUNT], mapped(40))
    costly = len(refused.value.problems)
    check([{**TEXT, "description": "x" * LOOKS_MAX * 256}], [COUNT], mapped())
    assert 0 < costly < 40
