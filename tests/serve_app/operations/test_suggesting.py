"""Every draft is published as it stands, whatever agents have registered."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.directory.agent_directory import Directory
from actors.transport.messages import PublishReply
from actors.workflows.mapping_checks import check_mappings
from actors.workflows.publish_estimate import estimate_cost
from core.errors import ErrorCode, ServiceError
from core.planning.plan import plan
from core.records.agent import PRICE_CENTS_MAX, AgentCard
from core.records.manifest import parse_manifest
from core.workflow.dag import WorkflowLimits, compile_workflow
from ledger.features.discovery import parse_offer
from serve_app.operations.work.suggesting import TRIES_MAX, try_out
from tests.actors.directory.test_agent_directory import KEYS

Json = dict[str, Any]
# What the capabilities do, one word each; their ids are odd as far as ids may be.
WORDS = ("sing", "paint", "count", "draw", "bake", "mail")
IDS = ("cap.a.fetch.v1", "page-", "0", "x." + "a" * 126, "y." + "a" * 126, "cap..text..v1.2.0")
NOISE = ("the", "text", '"a quoted', '{{page}}"', "in", "parallel")
NAMES = ("text", "text", "page", "a b", "é", "x" * 128)

# What a member may be said to be: the common types, and what fits nothing or anything.
MEMBER = st.sampled_from(
    (
        {"type": "string"}, {"type": "number"}, {"type": "array"}, {"type": "object"}, {},
        {"type": ["string", "null"]}, {"enum": [1, 2]}, {"const": "x"}, False, True,
        {"$ref": "#/properties/text"}, {"anyOf": [{"type": "null"}]}, {"allOf": [False]},
        {"type": "string", "contentMediaType": "image/png"},
    )
)  # fmt: skip
# Of what is said of the whole: the usual object, and lies about it.
WHOLE = st.sampled_from(
    (
        {"type": "object"}, {}, {"type": "array"}, {"type": "string"}, {"allOf": [False]},
        {"additionalProperties": False, "allOf": [{"properties": {"text": {"type": "null"}}}]},
        {"description": "x" * 9_000},
    )
)  # fmt: skip
SCHEMA = st.builds(
    lambda whole, members, needed: {
        **whole,
        "properties": members,
        "required": [name for name in members if needed],
    },
    WHOLE,
    st.dictionaries(st.sampled_from(NAMES), MEMBER, max_size=5),
    st.booleans(),
)
RATES = {"pricing": {"model": "per-token", "inputRate": 0.0001, "outputRate": 0.0001}}
PRICE = st.sampled_from(
    ({}, {"price_cents": 0}, {"price_cents": 10}, {"price_cents": PRICE_CENTS_MAX}, RATES)
)
CAPABILITY = st.builds(
    lambda number, takes, gives, price: {
        "id": IDS[number],
        "description": WORDS[number],
        **({} if takes is None else {"inputSchema": takes}),
        **({} if gives is None else {"outputSchema": gives}),
        **price,
    },
    st.integers(0, len(IDS) - 1),
    st.none() | SCHEMA,
    st.none() | SCHEMA,
    PRICE,
)


class Registry:
    """Agents of one capability each, as an owner of workflows and as a search knows them."""

    def __init__(self, capabilities: list[Json]) -> None:
        self.directory = Directory(
            service="callboard", deployment_keys=KEYS, default_secret=None, max_concurrency=1
        )
        self.offers = {}
        self.refusals: list[ServiceError] = []
        for number, one in enumerate(capabilities):
            card = AgentCard.model_validate(
                {
                    "did": f"did:x:{number}",
                    "endpoint": "http://agent.example",
                    "version": 1,
                    "capabilities": [one],
                }
            )
            text = orjson.dumps(card.to_json())
            row = {"did": card.did, "owner_did": "did:x:o", "endpoint": card.endpoint}
            rest = {"card": text, "status": "active", "public_key": None, "signing_secret": None}
            self.directory.put([{**row, **rest}])
            # Of several agents the first is looked at, as the search does.
            self.offers.setdefault(one["id"], parse_offer(_found(one["id"], text)))

    async def run_dry(self, nodes: dict[str, Json]) -> PublishReply:
        """Refuse what publish refuses."""
        manifest = parse_manifest({"intent": "A test's", "nodes": nodes, "dryRun": True})
        compiled = compile_workflow(manifest, WorkflowLimits(nodes_max=6))
        try:
            check_mappings(compiled, self.directory)
            estimate = estimate_cost(compiled, self.directory)
        except ServiceError as refusal:
            self.refusals.append(refusal)
            raise
        micro = estimate.total_micro
        return PublishReply(workflow_id="", task_id="", status="pending", estimate_micro=micro)


def _found(capability_id: str, card: bytes) -> Json:
    none = dict.fromkeys(("price_cents", "input_rate", "output_rate"))
    return {
        "capability_id": capability_id,
        "card": card,
        "successful": 0,
        "owner_did": "did:x:owner",
        "latency_ms_sum": 0,
        **none,
    }


@given(
    st.permutations(WORDS),
    st.lists(st.sampled_from(NOISE), max_size=4).map(" ".join),
    st.lists(CAPABILITY, min_size=2, max_size=12),
)
def test_every_draft_passes_publish_unchanged(
    words: list[str], noise: str, capabilities: list[Json]
) -> None:
    registry = Registry(capabilities)
    draft = plan(f"{', '.join(words)} {noise}", list(registry.offers.values()), nodes_max=6)
    if draft.steps:
        asyncio.run(try_out(draft, registry.run_dry))
        asyncio.run(registry.run_dry(draft.nodes()))
        assert len(registry.refusals) < TRIES_MAX


def capability(name: str, says: str, takes: Json, gives: Json, **more: Any) -> Json:
    """Return a capability; its members are given by their schemas."""
    return {
        "id": f"cap.a.{name}.v1",
        "description": says,
        "inputSchema": {"properties": takes, "required": list(takes)},
        "outputSchema": {"properties": gives},
        **more,
    }


def test_more_mappings_than_publish_names_at_once_are_all_left_out() -> None:
    """An agent that the search has not seen makes texts, where its like says nothing of them."""
    names = [f"m{number}" for number in range(16)]
    anything, numbers, texts = (
        dict.fromkeys(names, member) for member in ({}, {"type": "number"}, {"type": "string"})
    )
    users = [
        capability(word, word, numbers, {}) for word in ("sing", "paint", "count", "draw", "bake")
    ]
    seen = Registry([capability("make", "Makes", {}, anything), *users])
    there = Registry([capability("make", "Makes", {}, texts), *users])
    draft = plan("make, sing, paint, count, draw, bake", list(seen.offers.values()), nodes_max=6)
    assert sum(len(step.sources) for step in draft.steps) == 80
    asyncio.run(try_out(draft, there.run_dry))
    assert sum(len(step.sources) for step in draft.steps) == 0
    assert len(draft.notes) == 80
    assert len(there.refusals) == 4


def test_one_dear_agent_of_several_does_not_matter_to_a_draft() -> None:
    fair = [capability(name, name, {}, {}, price_cents=10) for name in ("sing", "paint")]
    registry = Registry(fair + [{**one, "price_cents": PRICE_CENTS_MAX} for one in fair])
    draft = plan("sing, paint", list(registry.offers.values()))
    reply = asyncio.run(try_out(draft, registry.run_dry))
    assert (registry.refusals, reply.estimate_micro) == ([], 2 * 3 * 100_000)


def test_dear_agents_alone_make_no_draft_impossible() -> None:
    """They have raised their prices since the search has seen them."""
    fair = [capability(name, name, {}, {}, price_cents=10) for name in ("sing", "paint")]
    draft = plan("sing, paint", list(Registry(fair).offers.values()))
    registry = Registry([{**one, "price_cents": PRICE_CENTS_MAX} for one in fair])
    reply = asyncio.run(try_out(draft, registry.run_dry))
    assert [one.problems[0].path for one in registry.refusals] == ["nodes"]
    assert reply.estimate_micro == 20_000_000
    assert [node["maxCostCredits"] for node in draft.nodes().values()] == [10, 10]


def test_what_no_change_of_a_draft_helps_is_refused() -> None:
    async def refuse(_: dict[str, Json]) -> PublishReply:
        raise ServiceError(ErrorCode.OVERLOADED, "busy")

    registry = Registry([capability("sing", "Sings", {}, {})])
    with pytest.raises(ServiceError, match="busy"):
        asyncio.run(try_out(plan("sing", list(registry.offers.values())), refuse))
