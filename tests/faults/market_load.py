"""The part of the load that uses the market: auctions, stakes, tokens, verifiers, agents that fail.

One of the agents, `SCARCE`, bids lowest and can have the stake of two nodes
at risk at once: its locks are refused again and again, and the next round begins without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CAPABILITY = "cap.fault.v1"
TOKENS = "cap.fault.tokens.v1"
VERIFY = "cap.verify.generic.v1"
JUDGE = "did:fault:judge"
SCARCE = "did:fault:scarce"
STAKE_CREDITS = 100.0
# At `STAKE_BPS` and a new agent's score, a node's stake is half a cent, or a little more.
SCARCE_CREDITS = 0.012
STAKE_BPS = 5_000
SLASH_BPS = 1_000
RESERVE_CREDITS = 0.02
LIVE_WINDOW_MS = 1_000
KINDS = 3
# Of the workflows that are paid by tokens and verified, one in so many is to fail.
DOOMED_EVERY = 3
# What is frozen is replaced soon, so that tests wait for that and for nothing else.
SETTINGS = (
    f"stake_bps = {STAKE_BPS}\nslash_failure_bps = {SLASH_BPS}\n"
    "ledger_silence_ms = 6_000\ntimekeeper_silence_ms = 6_000\nserve_silence_ms = 12_000\n"
)


@dataclass(frozen=True, slots=True)
class Work:
    """A manifest, and what is to become of it: `is_doomed` if an agent fails its last node,
    `has_bidding` if its node `a` takes live bids."""

    manifest: dict[str, Any]
    is_doomed: bool = False
    has_bidding: bool = False


def chain(**payload: Any) -> dict[str, Any]:
    """Return a manifest of three nodes in a row; the payload tells the agent what to do."""
    return _chain({"payload": {"n": 1, **payload}}, {}, {})


def work(number: int, **payload: Any) -> Work:
    """Return the n-th workflow of a load: of fixed prices, auctioned, or by tokens, in turn."""
    kind, round_ = number % KINDS, number // KINDS
    if kind == 0:
        return Work(chain(**payload))
    inputs = {"payload": {"n": 1, **payload}}
    if kind == 1:
        auction = {"selection": "auction", "maxCostCredits": RESERVE_CREDITS, **inputs}
        first = {**auction, "auctionWindowMs": LIVE_WINDOW_MS}
        return Work(_chain(first, auction, auction), has_bidding=True)
    verified = {**inputs, "requiresVerification": True}
    by_token = {**inputs, "capabilityId": TOKENS, "maxCostCredits": RESERVE_CREDITS}
    if round_ % DOOMED_EVERY:
        return Work(_chain(verified, by_token, verified))
    failing = {"payload": {"n": 1, **payload, "manner": "fail"}, "maxRetries": 1}
    return Work(_chain(verified, by_token, failing), is_doomed=True)


def card(did: str, endpoint: str, capability_id: str) -> dict[str, Any]:
    """Return the card of an agent that has a price, a standing bid, and a rate per token.

    Args:
        capability_id: what it is found by, beside the work by tokens.
    """
    bid = 0.001 if did == SCARCE else 0.005 if did.endswith("0") else 0.006
    offers: list[dict[str, Any]] = [
        {"id": capability_id, "price_cents": 2, "standingBid": {"bidAmount": bid}}
    ]
    if did != SCARCE and capability_id == CAPABILITY:
        rates = {"model": "per-token", "inputRate": "0.000011", "outputRate": "0.0000007"}
        offers.append({"id": TOKENS, "pricing": rates})
    return _card(did, endpoint, offers)


def verifier_card(number: int, endpoint: str) -> dict[str, Any]:
    """Return the card of an agent that judges."""
    return _card(f"did:fault:verifier{number}", endpoint, [{"id": VERIFY, "price_cents": 1}])


def _card(did: str, endpoint: str, offers: list[dict[str, Any]]) -> dict[str, Any]:
    capabilities = [{"description": "works", **offer} for offer in offers]
    return {"did": did, "endpoint": endpoint, "version": 1, "capabilities": capabilities}


def _chain(first: dict[str, Any], second: dict[str, Any], third: dict[str, Any]) -> dict[str, Any]:
    mapping = {"n": "$.a.result.n"}
    nodes = {
        "a": first,
        "b": {**(second or first), "dependsOn": ["a"], "inputMappings": mapping},
        "c": {**(third or first), "dependsOn": ["b"], "inputMappings": mapping},
    }
    nodes = {name: {"capabilityId": CAPABILITY, **node} for name, node in nodes.items()}
    return {"intent": "fault", "nodes": nodes}
