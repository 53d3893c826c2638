"""Orders whose inputs need results that are kept elsewhere."""

from __future__ import annotations

import pickle
from collections.abc import Collection
from typing import Any

import orjson
import pytest

from actors.dispatch.order_inputs import load_inputs
from actors.ports import DispatchOrder, LargeInputs
from core.errors import NodeErrorCode
from core.records.manifest import parse_manifest
from core.workflow.blob_ref import BlobRef
from core.workflow.dag import compile_workflow
from core.workflow.events import Failure, Verdict

pytestmark = pytest.mark.anyio

REF = BlobRef("sha256:" + "ab" * 32, 70_000)
NODE = compile_workflow(
    parse_manifest(
        {
            "nodes": {
                "far": {"capabilityId": "cap.x"},
                "near": {"capabilityId": "cap.x", "dependsOn": ["far"]},
                "b": {
                    "capabilityId": "cap.x",
                    "dependsOn": ["near"],
                    "payload": {"own": 1},
                    "inputMappings": {"n": "$.far.result.n"},
                },
            }
        }
    )
).nodes["b"]


def order(large: LargeInputs, *, is_verification: bool = False) -> DispatchOrder:
    """Return an order whose inputs are still to be made."""
    return DispatchOrder(
        "w", "t", "b", 1, "cap.x", "did:x:a", "http://a/node", "http://a/cancel", None, {}, {},
        1_000, is_verification=is_verification, verify_attempt=int(is_verification), large=large,
    )  # fmt: skip


async def load(refs: Collection[BlobRef]) -> dict[str, bytes]:
    """Return what is stored."""
    assert set(refs) == {REF}
    return {REF.hash: b'{"n": 7}'}


async def nothing(refs: Collection[BlobRef]) -> dict[str, bytes]:
    """Be asked although nothing may be loaded, or have nothing."""
    raise LookupError("it is not stored")


async def test_references_become_inputs_and_parents() -> None:
    whole = await load_inputs(order(LargeInputs(NODE, {"far": REF, "near": REF})), load, 100_000)
    assert isinstance(whole, DispatchOrder)
    assert whole.inputs == {"own": 1, "n": 7}
    assert whole.parents == {"near": {"result": {"n": 7}}}
    assert whole.large is None


async def test_an_order_travels_to_another_machine_with_what_it_is_made_of() -> None:
    sent = order(LargeInputs(NODE, {"far": REF, "near": {"n": 1}}))
    assert pickle.loads(pickle.dumps(sent)) == sent


async def test_verifier_gets_the_result_itself() -> None:
    large = LargeInputs(NODE, {"far": {"n": 1}, "near": {}}, REF)
    whole = await load_inputs(order(large, is_verification=True), load, 100_000)
    assert isinstance(whole, DispatchOrder)
    inputs = {"own": 1, "n": 1}
    assert whole.inputs == {"capabilityId": "cap.x", "inputs": inputs, "result": {"n": 7}}
    assert whole.parents == {}


async def test_an_order_without_references_is_left_as_it_is() -> None:
    plain = order(LargeInputs(NODE, {}))
    ready = DispatchOrder(
        **{name: getattr(plain, name) for name in plain.__struct_fields__} | {"large": None}
    )
    assert await load_inputs(ready, nothing, 1) is ready


async def test_parents_that_are_too_large_are_not_even_loaded() -> None:
    failure = await load_inputs(order(LargeInputs(NODE, {"far": {}, "near": REF})), nothing, 69_999)
    assert isinstance(failure, Failure)
    assert (failure.code, failure.verdict) == (NodeErrorCode.INPUT_TOO_LARGE, Verdict.FINAL)


async def test_an_ancestor_does_not_count_as_a_parent() -> None:
    whole = await load_inputs(order(LargeInputs(NODE, {"far": REF, "near": {}})), load, 69_999)
    assert isinstance(whole, DispatchOrder)


@pytest.mark.parametrize("stored", [{"far": REF, "near": {}}])
async def test_a_lost_result_fails_the_node_and_nothing_else(stored: dict[str, Any]) -> None:
    failure = await load_inputs(order(LargeInputs(NODE, stored)), nothing, 100_000)
    assert isinstance(failure, Failure)
    assert failure.code is NodeErrorCode.INPUT_MAPPING_FAILED
    assert "not stored" in failure.message


async def test_inputs_are_measured_while_they_are_built() -> None:
    """A result mapped 400 times was a dispatch of 801 MB before it was found too large."""
    asked = {f"m{number}": "$.far.result" for number in range(400)}
    nodes = {
        "far": {"capabilityId": "cap.x"},
        "b": {"capabilityId": "cap.x", "dependsOn": ["far"], "inputMappings": asked},
    }
    node = compile_workflow(parse_manifest({"nodes": nodes})).nodes["b"]
    whole = await load_inputs(order(LargeInputs(node, {"far": REF})), load, 100_000)
    assert isinstance(whole, DispatchOrder)
    assert len(whole.inputs) == 400

    async def load_large(refs: Collection[BlobRef]) -> dict[str, bytes]:
        return {ref.hash: orjson.dumps({"t": "x" * 70_000}) for ref in refs}

    failure = await load_inputs(order(LargeInputs(node, {"far": REF})), load_large, 100_000)
    assert isinstance(failure, Failure)
    assert (failure.code, failure.verdict) == (NodeErrorCode.INPUT_TOO_LARGE, Verdict.FINAL)


class Ancestors:
    """Stores the results of 40 ancestors, and notes how much is loaded at once."""

    SIZE = 10_000

    def __init__(self, *, whole: bool) -> None:
        step = "" if whole else ".n"
        names = [f"far{number}" for number in range(40)]
        mappings = {name: f"$.{name}.result{step}" for name in names}
        last = {"capabilityId": "cap.x", "dependsOn": ["near"], "inputMappings": mappings}
        nodes: dict[str, Any] = {name: {"capabilityId": "cap.x"} for name in names}
        nodes |= {"near": {"capabilityId": "cap.x", "dependsOn": names}, "b": last}
        self.node = compile_workflow(parse_manifest({"nodes": nodes})).nodes["b"]
        self.refs = {name: BlobRef(f"sha256:{name}", self.SIZE) for name in names}
        self.loaded: list[int] = []

    @property
    def order(self) -> DispatchOrder:
        """Return an order that maps something of each."""
        return order(LargeInputs(self.node, {**self.refs, "near": {}}))

    async def load(self, refs: Collection[BlobRef]) -> dict[str, bytes]:
        """Return texts of about the size."""
        self.loaded.append(sum(ref.size for ref in refs))
        return {ref.hash: orjson.dumps({"n": 7, "t": "x" * self.SIZE}) for ref in refs}


async def test_ancestors_are_loaded_in_groups_within_the_bound_of_a_dispatch() -> None:
    """400 ancestors of 1 MB of which a number each is mapped were 400 MB at once."""
    ancestors = Ancestors(whole=False)
    whole = await load_inputs(ancestors.order, ancestors.load, 100_000)
    assert isinstance(whole, DispatchOrder)
    assert whole.inputs == dict.fromkeys(ancestors.refs, 7)
    assert ancestors.loaded == [100_000] * 4


async def test_the_first_ancestor_that_exceeds_the_dispatch_ends_the_loading() -> None:
    ancestors = Ancestors(whole=True)
    failure = await load_inputs(ancestors.order, ancestors.load, 100_000)
    assert isinstance(failure, Failure)
    assert (failure.code, failure.verdict) == (NodeErrorCode.INPUT_TOO_LARGE, Verdict.FINAL)
    assert len(ancestors.loaded) == 1, "each stands twice in a dispatch: five are too many"


async def test_a_result_above_the_bound_of_which_little_is_mapped_is_a_group_of_its_own() -> None:
    ancestors = Ancestors(whole=False)
    whole = await load_inputs(ancestors.order, ancestors.load, Ancestors.SIZE - 1)
    assert isinstance(whole, DispatchOrder)
    assert ancestors.loaded == [Ancestors.SIZE] * 40
