"""What a selfish owner with three DIDs may do in a market, and the honest parties beside it.

A seed draws what the owner publishes, and for each of its two agents an offer, an answer, a bid and
a judgement. The cases of issue 29 are combinations of these. money.md.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import orjson

from tests.simulation.shapes import (
    CENT_MICRO,
    VERIFY,
    Shape,
    agent_row,
    compiled,
    token_rates,
)

OWNER = "did:sim:selfish"
AGENTS = ("did:sim:s0", "did:sim:s1")
DIDS = (OWNER, *AGENTS)
HONEST = ("did:sim:h0", "did:sim:h1")
VERIFIER, FAILING = "did:sim:hv", "did:sim:c0"
WORK, OTHER, CLUMSY, OWN = (f"cap.sim.{name}.v1" for name in ("work", "other", "clumsy", "own"))
CENTS = {"fair": 90, "free": 0, "tiny": 1, "huge": 10**11}
# Standing bids, credits: of the honest agents, of one that always fails, and in between.
BIDS = {HONEST[0]: 1, HONEST[1]: 9, FAILING: 0.5, "between": 2}

OFFERS = ("nothing", "fair", "free", "tiny", "huge", "tokens")
ANSWERS = ("works", "full", "refuses", "fails later", "leaves")
BIDDING = ("none", "between", "zero", "withdraws", "pair")
JUDGING = ("no", "free", "tiny", "huge")  # the price at which it rejects all
Node = dict[str, Any]


def _auction(capability_id: str, credits: int, window_ms: int = 0, **more: Any) -> Node:
    terms = {"selection": "auction", "auctionWindowMs": window_ms, "maxCostCredits": credits}
    return {"capabilityId": capability_id, **terms, "maxRetries": 0, **more}


# What the selfish owner publishes.
PAYS: dict[str, Node] = {
    "nothing": {},
    "short timeout": {"capabilityId": WORK, "timeoutMs": 100, "maxRetries": 0},
    "short auction": _auction(WORK, 300, timeoutMs=1),
    "short runtime": {"capabilityId": WORK},
    "cancels": {"capabilityId": WORK},
    "settles": {"capabilityId": WORK, "maxCostCredits": 5},
    "own verifier": {
        "capabilityId": WORK, "requiresVerification": True, "verifierCapabilityId": OWN,
    },
    "auction": _auction(WORK, 10),
    "auction of failing work": _auction(CLUMSY, 300),
    "farms": {"capabilityId": OWN, "targetAgentId": AGENTS[0]},
}  # fmt: skip
# What honest payers publish, a first part without a limit.
PLAIN: dict[str, Node] = {
    "plain": {"capabilityId": WORK},
    "plain, once": {"capabilityId": WORK, "maxRetries": 0},
}
HONEST_PAYS: dict[str, Node] = {
    "capped": {"capabilityId": WORK, "maxCostCredits": 2, "maxRetries": 0},
    "budget": {"capabilityId": WORK},
    "two": {"capabilityId": WORK, "maxCostCredits": 2, "maxRetries": 0},
    "verified": {
        "capabilityId": WORK, "maxCostCredits": 2, "requiresVerification": True, "maxRetries": 0,
    },
    "honest auction": _auction(WORK, 10, 300),
}  # fmt: skip
PAIRED = {"auction of a pair": _auction(OWN, 10, 300)}  # only the selfish owner's agents offer it
SETTINGS = {
    "short runtime": {"maxRuntimeMs": 100},
    "budget": {"maxBudgetCredits": 5},
    "two": {"maxBudgetCredits": 5},
}
MORE_NODES = {"two": {"m": {"capabilityId": OTHER}}}


@dataclass(frozen=True, slots=True)
class Play:
    """What one agent of the selfish owner does."""

    offer: str
    answer: str
    bid: str
    judge: str


PAIR = Play("nothing", "works", "pair", "no")
ACTS = [("pay", one) for one in PAYS] + [
    (name, one)
    for name, choices in (
        ("offer", OFFERS), ("answer", ANSWERS), ("bid", BIDDING), ("judge", JUDGING)
    )
    for one in choices
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Strategy:
    """What a selfish owner does in one run. `payer`: by which of its DIDs it pays."""

    payer: str
    pays: tuple[str, ...]
    plays: dict[str, Play]

    @property
    def honest_pays(self) -> dict[str, Node]:
        """Return what honest payers publish.

        Without a limit, a node costs at most three times the cheapest positive price: then a tiny
        offer may leave dearer agents out, which is the payer's choice (rule 4).
        """
        is_tiny = any(play.offer == "tiny" for play in self.plays.values())
        is_pair = PAIR in self.plays.values()
        return HONEST_PAYS | ({} if is_tiny else PLAIN) | (PAIRED if is_pair else {})


def strategy(seed: int) -> Strategy:
    """Return the strategy of a seed, whose number says one act of it: each has its turn."""
    chance = random.Random(f"selfish {seed}")
    payer, pays = chance.choice(DIDS), chance.sample(list(PAYS), chance.choice((1, 2)))
    plays = {
        did: Play(*map(chance.choice, (OFFERS, ANSWERS, BIDDING[:-1], JUDGING))) for did in AGENTS
    }
    name, act = ACTS[seed % len(ACTS)]
    if name == "pay":
        pays[0] = act
    elif act == "pair":
        plays = dict.fromkeys(AGENTS, PAIR)
    else:
        first = replace(plays[AGENTS[0]], **{name: act})
        is_chosen = name != "answer" or first.offer in ("fair", "free", "tiny")
        plays[AGENTS[0]] = first if is_chosen else replace(first, offer="free")
    return Strategy(payer, tuple(pays), plays)


@cache
def shape_of(kind: str) -> Shape:
    """Return the workflow that a payer publishes."""
    node = {"payload": {}, **(PAYS | PLAIN | HONEST_PAYS | PAIRED)[kind]}
    nodes = {"n": node, **MORE_NODES.get(kind, {})}
    return compiled({"nodes": nodes, "settings": SETTINGS.get(kind, {})})


def rows_of(strategy: Strategy) -> dict[str, dict[str, Any]]:
    """Return the agents' rows by DID."""
    prices: dict[str, dict[str, int | None]] = {
        HONEST[0]: {WORK: 100, OTHER: 33}, HONEST[1]: {WORK: 120}, FAILING: {CLUMSY: 100},
        VERIFIER: {VERIFY: 40},
    }  # fmt: skip
    for did, play in strategy.plays.items():
        prices[did] = {OWN: 0}
        if play.offer != "nothing" or play.bid not in ("none", "pair"):
            # Without an offer it wants to work for its bid alone.
            prices[did][WORK] = CENTS.get(play.offer.replace("nothing", "huge"))
        if play.judge != "no":
            prices[did][VERIFY] = CENTS[play.judge]
    return {did: _row(did, asked, strategy) for did, asked in prices.items()}


def _row(did: str, prices: dict[str, int | None], strategy: Strategy) -> dict[str, Any]:
    play = strategy.plays.get(did)
    bid = BIDS.get(did if play is None else play.bid)
    capabilities: list[dict[str, Any]] = []
    for name, cents in prices.items():
        rates = dict(zip(("inputRate", "outputRate"), token_rates("0"), strict=True))
        pricing = {"pricing": {"model": "per-token", **rates}}
        capabilities.append({"id": name, **(pricing if cents is None else {"price_cents": cents})})
        if bid is not None and name in (WORK, CLUMSY):
            capabilities[-1]["standingBid"] = {"bidAmount": bid}
    card = orjson.dumps({"capabilities": capabilities}).decode()
    owner_did = f"{did}:owner" if play is None else OWNER
    is_trusted = did == VERIFIER
    return {**agent_row(did, {}), "owner_did": owner_did, "card": card, "is_trusted": is_trusted}


def live_bid_micro(play: Play, did: str, reserve_micro: int) -> int | None:
    """Return what an agent bids in a round that has opened, None when it does not."""
    if play.bid == "pair":
        return CENT_MICRO if did == AGENTS[0] else reserve_micro
    return {"zero": 0, "withdraws": 500_000}.get(play.bid)
