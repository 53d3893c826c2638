"""Orders whose inputs need results that are kept elsewhere."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from msgspec.structs import replace

from actors.dispatch.order_inputs import (
    BUILT_IN_LOOP_BYTES_MAX,
    READ_BYTES_MAX,
    Load,
    OrderInputs,
    build_in_child,
    build_in_loop,
    is_small,
    mapped_sources,
)
from actors.ports import InputSources
from actors.values.input_texts import (
    FillTexts,
    MappedTexts,
    MapTexts,
    map_texts,
)
from core.canonical import canonical, hash_bytes
from core.errors import NodeErrorCode
from core.json_text import read_json, write_json
from core.records.manifest import parse_manifest
from core.workflow.dag import CompiledNode, compile_workflow
from core.workflow.events import BlobRef, Failure, Verdict
from tests.actors.orders import sources_of

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


class Beside:
    """Builds texts in the caller's process, and keeps what it is asked."""

    def __init__(self) -> None:
        self.asked: list[MapTexts | FillTexts] = []

    async def call(self, payer_did: str, call: Any) -> Any:
        self.asked += call.args
        return call()


async def built(asked: InputSources, load: Load, bytes_max: int) -> Any:
    """Return (inputs, parents) as values, or the failure."""
    found = await build_in_child("did:x:payer", asked, load, Beside(), bytes_max)
    return values_of(found)


def values_of(found: OrderInputs | Failure) -> Any:
    """Return (inputs, parents) as values, or the failure."""
    if isinstance(found, Failure):
        return found
    assert isinstance(found, OrderInputs)
    inputs = found.inputs.inputs
    assert found.inputs.hash == hash_bytes(inputs)
    values = read_json(inputs)
    assert canonical(values) == inputs
    return values, read_json(write_json(found.parents))


async def load(refs: Collection[BlobRef]) -> dict[str, bytes]:
    """Return what is stored."""
    assert set(refs) == {REF}
    return {REF.hash: b'{"n":7}'}


async def nothing(refs: Collection[BlobRef]) -> dict[str, bytes]:
    """Be asked although nothing may be loaded, or have nothing."""
    raise LookupError("it is not stored")


async def test_references_become_inputs_and_parents() -> None:
    asked = InputSources(NODE, {"far": REF, "near": REF})
    inputs, parents = await built(asked, load, 100_000)
    assert inputs == {"own": 1, "n": 7}
    assert parents == {"near": {"result": {"n": 7}}}


async def test_verifier_gets_the_result_itself() -> None:
    sources = mapped_sources(NODE, {"far": '{"n":1}', "near": "{}"}, REF)
    inputs, parents = await built(sources, load, 100_000)
    own = {"own": 1, "n": 1}
    assert inputs == {"capabilityId": "cap.x", "inputs": own, "result": {"n": 7}}
    assert parents == {}


async def test_a_verification_is_not_refused_for_parents_that_it_does_not_send() -> None:
    """They were even loaded for it."""
    near, unverified = BlobRef("sha256:near", 90_000), BlobRef("sha256:unverified", 20_000)
    loaded: list[str] = []

    async def load_noted(refs: Collection[BlobRef]) -> dict[str, bytes]:
        loaded.extend(ref.hash for ref in refs)
        return {ref.hash: b'"v"' for ref in refs}

    sources = mapped_sources(NODE, {"far": '{"n":1}', "near": near}, unverified)
    assert sources.results.keys() == {"far"}
    inputs, parents = await built(sources, load_noted, 100_000)
    assert (inputs["result"], parents) == ("v", {})
    assert loaded == [unverified.hash]


async def test_a_result_to_be_verified_that_is_too_large_is_not_even_loaded() -> None:
    sources = mapped_sources(NODE, {"far": "{}", "near": "{}"}, REF)
    failure = await built(sources, nothing, 69_999)
    assert isinstance(failure, Failure)
    assert (failure.code, failure.verdict) == (NodeErrorCode.INPUT_TOO_LARGE, Verdict.FINAL)


async def test_an_ancestor_does_not_count_as_a_parent() -> None:
    inputs, _ = await built(InputSources(NODE, {"far": REF, "near": "{}"}), load, 69_999)
    assert inputs == {"own": 1, "n": 7}


async def test_a_lost_result_fails_the_node_and_nothing_else() -> None:
    asked = InputSources(NODE, {"far": REF, "near": "{}"})
    failure = await built(asked, nothing, 100_000)
    assert isinstance(failure, Failure)
    assert failure.code is NodeErrorCode.INPUT_MAPPING_FAILED
    assert "not stored" in failure.message


async def test_a_damaged_result_fails_the_node_as_a_lost_one_does() -> None:
    """The attempt was retried and spared, although no agent could be sent its inputs."""

    async def damaged(refs: Collection[BlobRef]) -> dict[str, bytes]:
        raise ValueError("the bytes stored under it have another hash")

    failure = await built(InputSources(NODE, {"far": REF, "near": "{}"}), damaged, 100_000)
    assert isinstance(failure, Failure)
    assert (failure.code, failure.verdict) == (NodeErrorCode.INPUT_MAPPING_FAILED, Verdict.FINAL)
    assert "another hash" in failure.message


@pytest.mark.parametrize("error", [KeyError, ValueError])
async def test_a_defect_of_the_service_is_no_unreadable_result(error: type[Exception]) -> None:
    """A KeyError was a final failure of the node, and stood in no log."""

    class Defective(Beside):
        async def call(self, payer_did: str, call: Any) -> Any:
            raise error("a defect")

    asked = InputSources(NODE, {"far": '{"n":1}', "near": "{}"})
    with pytest.raises(error):
        await build_in_child("did:x:payer", asked, nothing, Defective(), 100_000)


async def test_inputs_are_measured_while_they_are_built() -> None:
    """A result mapped 400 times was a dispatch of 801 MB before it was found too large."""
    asked = {f"m{number}": "$.far.result" for number in range(400)}
    nodes = {
        "far": {"capabilityId": "cap.x"},
        "b": {"capabilityId": "cap.x", "dependsOn": ["far"], "inputMappings": asked},
    }
    node = compile_workflow(parse_manifest({"nodes": nodes})).nodes["b"]
    inputs, _ = await built(InputSources(node, {"far": REF}), load, 100_000)
    assert len(inputs) == 400

    async def load_large(refs: Collection[BlobRef]) -> dict[str, bytes]:
        return {ref.hash: write_json({"t": "x" * 70_000}) for ref in refs}

    failure = await built(InputSources(node, {"far": REF}), load_large, 100_000)
    assert isinstance(failure, Failure)
    assert (failure.code, failure.verdict) == (NodeErrorCode.INPUT_TOO_LARGE, Verdict.FINAL)


class Ancestors:
    """Stores the results of 40 ancestors, and notes how much is loaded at once."""

    SIZE = 100_000

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
    def sources(self) -> InputSources:
        """Return the sources of a node that maps something of each."""
        return InputSources(self.node, {**self.refs, "near": "{}"})

    async def load(self, refs: Collection[BlobRef]) -> dict[str, bytes]:
        """Return texts of about the size."""
        self.loaded.append(sum(ref.size for ref in refs))
        return {ref.hash: write_json({"n": 7, "t": "x" * self.SIZE}) for ref in refs}


async def test_ancestors_are_loaded_in_groups_of_bounded_size() -> None:
    """400 ancestors of 1 MB of which a number each is mapped were 400 MB at once."""
    ancestors = Ancestors(whole=False)
    inputs, _ = await built(ancestors.sources, ancestors.load, 100_000)
    assert inputs == dict.fromkeys(ancestors.refs, 7)
    assert ancestors.loaded == [1_000_000] * 4


async def test_the_first_ancestor_that_exceeds_the_dispatch_ends_the_loading() -> None:
    ancestors = Ancestors(whole=True)
    failure = await built(ancestors.sources, ancestors.load, 100_000)
    assert isinstance(failure, Failure)
    assert (failure.code, failure.verdict) == (NodeErrorCode.INPUT_TOO_LARGE, Verdict.FINAL)
    assert len(ancestors.loaded) == 1, "each stands twice in a dispatch: five are too many"


def made(mappings: dict[str, str], payload: dict[str, Any] | None = None) -> CompiledNode:
    """Return a node that maps of two ancestors, one of them its parent."""
    last = {
        "capabilityId": "cap.x",
        "dependsOn": ["near"],
        "payload": payload or {},
        "inputMappings": mappings,
    }
    nodes: dict[str, Any] = {
        "far": {"capabilityId": "cap.x"},
        "near": {"capabilityId": "cap.x", "dependsOn": ["far"]},
        "b": last,
    }
    return compile_workflow(parse_manifest({"nodes": nodes})).nodes["b"]


RESULTS = {"far": '{"l":[1e+300,{"\ufeff":"é"}],"n":7}', "near": '{"t":"a \\" b"}'}


@pytest.mark.parametrize("is_verification", [False, True])
@pytest.mark.parametrize(
    ("mappings", "payload"),
    [
        ({}, {}),
        ({"n": "$.far.result.n", "a": "$.near.result"}, {"z": 1.0, "n": 2}),
        ({"l": "$.far.result.l", "m": "$.far.result.l"}, {"\U0001f600": 1, "\uffee": 2}),
        ({"t": "$.near.result.t"}, {"text": "{{t}} {{ l }} {{own}}", "own": [1.5]}),
        ({"o": "$.far.result.l[1]"}, {"deep": [{"text": "{{o}}"}]}),
        ({"lost": "$.far.result.l[2]"}, {}),
        ({"lost": "$.far.result.n.x"}, {"text": "{{lost}}"}),
    ],
)
async def test_inputs_are_the_same_wherever_they_are_built(
    mappings: dict[str, str], payload: dict[str, Any], *, is_verification: bool
) -> None:
    node = made(mappings, payload)
    sources = InputSources(node, RESULTS)
    if is_verification:
        sources = mapped_sources(node, RESULTS, '{"v":[0]}')
    here = build_in_loop(sources, 100_000)
    there = await build_in_child("did:x:payer", sources, nothing, Beside(), 100_000)
    assert values_of(there) == values_of(here)
    if isinstance(here, OrderInputs):
        assert isinstance(there, OrderInputs)
        assert there.inputs == here.inputs


@pytest.mark.parametrize("bytes_max", range(60, 200, 7))
async def test_what_is_too_large_here_is_too_large_there(bytes_max: int) -> None:
    node = made({"l": "$.far.result.l", "n": "$.near.result.t"}, {"text": "{{l}}"})
    sources = InputSources(node, RESULTS)
    here = values_of(build_in_loop(sources, bytes_max))
    assert await built(sources, nothing, bytes_max) == here


def test_each_mapping_template_and_parent_counts_for_what_may_be_built_here() -> None:
    """999 children that map of one result were built in one turn of the loop."""
    half = f'["{"x" * (BUILT_IN_LOOP_BYTES_MAX // 2)}"]'

    def fits(mappings: dict[str, str], payload: dict[str, Any], near: str, far: str) -> bool:
        return is_small(InputSources(made(mappings, payload), {"near": near, "far": far}))

    assert fits({"a": "$.far.result[0]"}, {}, "1", half)
    twice = {"a": "$.far.result[0]", "b": "$.far.result[0]"}
    assert not fits(twice, {}, "1", half)
    assert not fits({"a": "$.far.result[0]"}, {}, half, half)
    assert not fits({"a": "$.far.result[0]"}, {"t": "{{a}}"}, "1", half)
    assert not fits({}, {"t": "x" * BUILT_IN_LOOP_BYTES_MAX}, "1", "1")
    named = {"t": "{{t}}{{u}}", "u": "x" * (BUILT_IN_LOOP_BYTES_MAX // 2)}
    assert not fits({}, named, "1", "1")
    assert not is_small(InputSources(NODE, {"far": REF, "near": "1"}))
    assert not is_small(InputSources(NODE, {"far": "1", "near": "1"}, REF))


class Untouched(str):
    """A text that counts how often its length is asked, and cannot be encoded."""

    asked = 0

    def __len__(self) -> int:
        Untouched.asked += 1
        return super().__len__()

    def encode(self, *_: object) -> bytes:
        raise AssertionError("a large text was encoded")


def test_what_is_asked_in_the_turn_of_a_commit_ends_at_the_first_large_results() -> None:
    """900 children of 85 parents of 64 KB held it for 2.3 s: each child encoded each text."""
    text = Untouched("é" * 60_000)
    sources = sources_of(parents={f"p{number}": 0 for number in range(85)})
    sources = replace(sources, results=dict.fromkeys(sources.results, text))
    assert not is_small(sources)
    assert Untouched.asked < 40


async def test_no_value_of_a_large_text_is_built_in_the_loop() -> None:
    """Only texts pass through it: results of some size at once, and what was mapped of them."""
    beside = Beside()
    names = [f"far{number}" for number in range(40)]
    mappings = {name: f"$.{name}.result" for name in names}
    nodes: dict[str, Any] = {name: {"capabilityId": "cap.x"} for name in names}
    nodes["b"] = {"capabilityId": "cap.x", "dependsOn": names[:1], "inputMappings": mappings}
    nodes |= {"near": {"capabilityId": "cap.x", "dependsOn": names}}
    nodes["b"]["dependsOn"] = ["near"]
    node = compile_workflow(parse_manifest({"nodes": nodes})).nodes["b"]
    texts = dict.fromkeys(names, write_json(["x" * 60_000]).decode())
    sources = InputSources(node, {**texts, "near": "{}"})
    found = await build_in_child("did:x:payer", sources, nothing, beside, 8 * READ_BYTES_MAX)
    assert isinstance(found, OrderInputs)
    reads = [asked for asked in beside.asked if isinstance(asked, MapTexts)]
    assert [len(asked.texts) for asked in reads] == [17, 17, 6]
    assert all(sum(map(len, asked.texts.values())) <= READ_BYTES_MAX for asked in reads)
    assert [len(asked.node.mappings) for asked in reads] == [17, 17, 6]
    assert isinstance(beside.asked[-1], FillTexts)


def test_a_result_is_written_once_however_often_it_is_mapped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[Any] = []

    def write(value: Any) -> bytes:
        written.append(value)
        return canonical(value)

    monkeypatch.setattr("actors.values.input_texts.canonical", write)
    node = made({f"m{number}": "$.far.result.l" for number in range(50)})
    asked = MapTexts(node, {"far": RESULTS["far"].encode()}, 100_000, 100_000)
    found = map_texts(asked)
    assert isinstance(found, MappedTexts) and len(found.values) == 50
    assert len({id(value) for value in written}) == 1
