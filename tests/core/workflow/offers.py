"""Who takes a node in the tests' engine: the target, or the first whose price can be paid."""

from __future__ import annotations

from collections.abc import Mapping

from core.errors import NodeErrorCode
from core.market.pricing import TokenPrice
from core.workflow.actions import SelectAgent, SelectVerifier
from core.workflow.events import (
    AgentNotSelected,
    AgentSelected,
    Event,
    Failure,
    Verdict,
    VerifierSelected,
)

Offers = Mapping[str, int | TokenPrice]


def answer(
    action: SelectAgent | SelectVerifier, offers: Offers, at_ms: int, *, stake_micro: int
) -> Event:
    """Answer a selection out of these offers, prices by DID."""

    def selected(did: str, price: int | TokenPrice) -> Event:
        if isinstance(price, TokenPrice):
            return AgentSelected(action.node, did, 0, at_ms, None, price, stake_micro)
        if isinstance(action, SelectVerifier):
            return VerifierSelected(action.node, did, price, at_ms, is_trusted=True)
        return AgentSelected(action.node, did, price, at_ms, stake_micro=stake_micro)

    target = None if isinstance(action, SelectVerifier) else action.target_agent_id
    if target is not None:
        if target in offers and target not in action.exclude:
            return selected(target, offers[target])
        if isinstance(action, SelectAgent) and not action.allow_fallback:
            message, details = "the target is away", "agent_not_found"
            away = NodeErrorCode.AGENT_UNAVAILABLE
            failure = Failure(away, message, Verdict.FINAL, details, target)
            return AgentNotSelected(action.node, failure, at_ms)
    for did, price in offers.items():
        if did in action.exclude:
            continue
        if isinstance(price, TokenPrice):
            if isinstance(action, SelectAgent) and action.is_by_token:
                return selected(did, price)
        elif price <= action.price_max_micro:
            return selected(did, price)
    is_absent = all(did in action.exclude for did in offers)
    code = NodeErrorCode.NO_CANDIDATE if is_absent else NodeErrorCode.BUDGET_EXCEEDED
    failure = Failure(code, "no agent takes it", Verdict.FINAL)
    return AgentNotSelected(action.node, failure, at_ms)
