"""The workflows and agents that simulations run: generated once, the same in every run.

A shape is a compiled manifest that many workflows share. Its number alone decides what it is.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import ceil
from typing import Any
from zlib import crc32

import orjson

from core.records.manifest import parse_manifest
from core.workflow.dag import CompiledNode, CompiledWorkflow, compile_workflow

SHAPES = 400
CENT_MICRO = 10_000
VERIFY = "cap.verify.generic.v1"
CAPABILITIES = tuple(f"cap.sim.work{number}.v1" for number in range(5))
# Free, dear, odd against the fee, middling; the last one has a single agent.
PRICES_CENTS = {CAPABILITIES[0]: 0, CAPABILITIES[1]: 100, CAPABILITIES[2]: 7, CAPABILITIES[3]: 33,
                CAPABILITIES[4]: 1, VERIFY: 3}  # fmt: skip
WORKERS, VERIFIERS = 5, 3
# What is paid by tokens where there is a market; odd rates, so that costs have to be rounded.
TOKENS = CAPABILITIES[2]


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """One manifest, as it is stored and as it runs."""

    compiled: CompiledWorkflow
    manifest_json: str


def eta_of(did: str) -> int | None:
    """Return in which time an agent's card promises its results; None: it does not say."""
    return (None, 0, 500, 5_000)[crc32(did.encode()) % 4]


def agent_row(did: str, prices_cents: dict[str, int]) -> dict[str, Any]:
    """Return an agent's row as the directory reads it; each agent has an owner of its own."""
    eta = {} if (eta_ms := eta_of(did)) is None else {"etaMs": eta_ms}
    capabilities = [
        {"id": name, "price_cents": cents, **eta} for name, cents in prices_cents.items()
    ]
    return {
        "did": did,
        "owner_did": f"{did}:owner",
        "card": orjson.dumps({"capabilities": capabilities}).decode(),
        "endpoint": f"http://{did}",
        "status": "active",
        "public_key": None,
        "signing_secret": None,
        "is_trusted": VERIFY in prices_cents,
    }


@cache
def agent_rows() -> tuple[dict[str, Any], ...]:
    """Return the agents of every simulation; several offer the same work at different prices."""
    rows = []
    for number in range(WORKERS):
        offered = [
            name for i, name in enumerate(CAPABILITIES[:4]) if number == 0 or (number + i) % 3
        ]
        if number == 0:
            offered.append(CAPABILITIES[4])
        prices = {name: PRICES_CENTS[name] + number for name in offered}
        rows.append(agent_row(f"did:sim:w{number}", prices))
    for number in range(VERIFIERS):
        rows.append(agent_row(f"did:sim:v{number}", {VERIFY: PRICES_CENTS[VERIFY] + number}))
    return tuple(rows)


def token_rates(did: str) -> tuple[str, str]:
    """Return what an agent asks for a token read and a token written, credits."""
    number = int(did[-1]) + 1
    return f"0.0000{number}1", f"0.000{number}07"


def tokens_spent(workflow_id: str, node: str, attempt: int) -> tuple[int, int]:
    """Return how many tokens an attempt reads and writes, by any agent."""
    drawn = crc32(f"{workflow_id}/{node}/{attempt}".encode())
    return drawn % 2_000, (drawn >> 16) % 400


def token_cost_micro(did: str, workflow_id: str, node: str, attempt: int) -> int:
    """Return what an attempt costs that is paid by tokens, rounded up."""
    spent = zip(token_rates(did), tokens_spent(workflow_id, node, attempt), strict=True)
    return ceil(sum(Fraction(rate) * tokens for rate, tokens in spent) * 1_000_000)


@cache
def price_max_cents(capability_id: str) -> int:
    """Return the highest price of a capability, the most that an estimate reserves."""
    return max(_prices_cents(capability_id))


@cache
def price_min_cents(capability_id: str) -> int:
    """Return the lowest price of a capability."""
    return min(_prices_cents(capability_id))


def _prices_cents(capability_id: str) -> list[int]:
    return [
        offer["price_cents"]
        for row in agent_rows()
        for offer in orjson.loads(row["card"])["capabilities"]
        if offer["id"] == capability_id
    ]


def compiled(manifest: dict[str, Any]) -> Shape:
    """Return the shape of a manifest."""
    return Shape(compile_workflow(parse_manifest(manifest)), orjson.dumps(manifest).decode())


@cache
def shape(number: int) -> Shape:
    """Return the n-th generated shape."""
    chance = random.Random(f"shape {number}")
    parents = chance.choices(
        (_chain, _fan, _diamond, _any_graph, _large), weights=(45, 20, 15, 18, 2)
    )[0](chance)
    nodes = {name: _node(chance, name, depends_on) for name, depends_on in parents.items()}
    settings: dict[str, Any] = {}
    if chance.random() < 0.15:
        settings["maxRuntimeMs"] = chance.choice((500, 4_000, 20_000, 90_000))
    if chance.random() < 0.15:
        settings["allowFallbackAgents"] = False
    if chance.random() < 0.4:
        settings["maxBudgetCredits"] = _budget(chance, nodes)
    return compiled({"nodes": nodes, "settings": settings})


@cache
def auctioned_shape(number: int) -> Shape:
    """Return the n-th generated shape with about half of its nodes auctioned, at most its price.

    What is paid by tokens has a limit, perhaps too low, or the budget's share.
    """
    chance = random.Random(f"auctions {number}")
    manifest = orjson.loads(shape(number).manifest_json)
    for node in manifest["nodes"].values():
        if chance.random() < 0.5:
            node.pop("targetAgentId", None)
            node.pop("allowBroadcastFallback", None)
            node.setdefault("maxCostCredits", price_max_cents(node["capabilityId"]) / 100)
            node["selection"] = "auction"
            node["auctionWindowMs"] = chance.choice((0, 0, 300, 2_000))
        elif node["capabilityId"] == TOKENS:
            has_budget = "maxBudgetCredits" in manifest["settings"]
            if not has_budget or chance.random() < 0.5:
                node.setdefault("maxCostCredits", chance.choice((0.03, 0.15, 0.5)))
    return compiled(manifest)


Parents = dict[str, list[str]]


def _chain(chance: random.Random) -> Parents:
    length = chance.choice((1, 1, 2, 3, 3, 3, 4))
    return {f"n{i}": [f"n{i - 1}"] if i else [] for i in range(length)}


def _fan(chance: random.Random) -> Parents:
    middle = [f"m{i}" for i in range(chance.randint(2, 5))]
    return {"first": [], **{name: ["first"] for name in middle}, "last": list(middle)}


def _diamond(_: random.Random) -> Parents:
    return {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}


def _any_graph(chance: random.Random, count: int = 0) -> Parents:
    count = count or chance.randint(2, 8)
    graph: Parents = {}
    for i in range(count):
        earlier = [f"n{j}" for j in range(max(0, i - 6), i)]
        graph[f"n{i}"] = chance.sample(earlier, min(len(earlier), chance.choice((0, 1, 1, 2))))
    return graph


def _large(chance: random.Random) -> Parents:
    return _any_graph(chance, 50)


def _node(chance: random.Random, name: str, depends_on: list[str]) -> dict[str, Any]:
    node: dict[str, Any] = {"capabilityId": chance.choice(CAPABILITIES), "dependsOn": depends_on}
    node["payload"] = {"name": name, "text": "{{got}}" if chance.random() < 0.2 else "plain"}
    if depends_on and chance.random() < 0.4:
        path = "absent" if chance.random() < 0.03 else "value"
        node["inputMappings"] = {"got": f"$.{depends_on[0]}.result.{path}"}
    if chance.random() < 0.5:
        node["maxRetries"] = chance.choice((0, 1, 2))
    if chance.random() < 0.3:
        node["timeoutMs"] = chance.choice((200, 1_000, 10_000))
    if chance.random() < 0.2:
        node["requiresVerification"] = True
    if chance.random() < 0.15:
        target = chance.choice((0, 1, 2, 3, WORKERS - 1, "absent"))
        node["targetAgentId"] = f"did:sim:w{target}"
        node["allowBroadcastFallback"] = chance.random() < 0.5
    if chance.random() < 0.05:
        node["maxCostCredits"] = chance.choice((0.01, 1, 2))
    return node


def is_by_token(node: CompiledNode) -> bool:
    """Say whether a node is paid by tokens where there is a market."""
    return node.capability_id == TOKENS and not node.is_auction


def estimate_bounds_micro(shape: Shape, *, has_market: bool) -> tuple[int, int]:
    """Return between what an estimate must be while no agent has come, gone or changed its price.

    A target's own price when it offers the work and no agent may replace it, else the price of some
    agent, by who is well: at most the dearest; a verifier's too. A node's own limit is the most
    that is reserved for its agent.
    """
    totals = []
    own = {row["did"]: prices_micro(row) for row in agent_rows()}
    for price_cents in (price_min_cents, price_max_cents):
        total = 0
        for node in shape.compiled.nodes.values():
            target = own.get(node.target_agent_id or "", {})
            asked = price_cents(node.capability_id) * CENT_MICRO
            if not node.allow_broadcast_fallback:
                asked = target.get(node.capability_id, asked)
            limit = node.max_cost_micro
            if has_market and is_by_token(node):
                total += limit or 0
            else:
                total += asked if limit is None else limit if node.is_auction else min(asked, limit)
            if node.requires_verification:
                total += price_cents(node.verifier_capability_id) * CENT_MICRO
        totals.append(total)
    return totals[0], totals[1]


def _estimate_cents(nodes: dict[str, Any]) -> int:
    cents = 0
    for node in nodes.values():
        cents += price_max_cents(node["capabilityId"])
        if node.get("requiresVerification"):
            cents += price_max_cents(VERIFY)
    return cents


def _budget(chance: random.Random, nodes: dict[str, Any]) -> float:
    """Just enough, a little more, plenty, or too little by one cent."""
    more: Callable[[int], int] = chance.choice(
        (lambda c: c, lambda c: c, lambda c: c + 2, lambda c: 3 * c + 10, lambda c: max(0, c - 1))
    )
    return more(_estimate_cents(nodes)) / 100


def prices_micro(row: dict[str, Any]) -> dict[str, int]:
    """Return an agent's prices by capability, micro-credits."""
    offers = orjson.loads(row["card"])["capabilities"]
    return {o["id"]: o["price_cents"] * CENT_MICRO for o in offers if "price_cents" in o}
