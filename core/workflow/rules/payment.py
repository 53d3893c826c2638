"""The price limit and the cost of an attempt.

The price is fixed before the work, or computed from the reported tokens after the work. Tokens are
paid from the node's reservation. A higher cost is paid from unreserved money. If this money or the
node's own limit does not suffice, the attempt fails without payment. Reference: money.md (Prices,
Per-token prices, Budgets and holds, Work of peers).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.errors import NodeErrorCode
from core.market.pricing import cost_micro, price_from_json, price_json, read_tokens
from core.money import credits_text
from core.workflow.events import (
    AgentSelected,
    AttemptFailed,
    Failure,
    NodePaid,
    Verdict,
    VerifierSelected,
)
from core.workflow.rules.history import record_verification
from core.workflow.terms import NO_TERMS
from core.workflow.workflow_state import NodeState, WorkflowState


def price_max_micro(workflow: WorkflowState, state: NodeState) -> int:
    """Return the money left for a node, or the node's `maxCostCredits` if this amount is lower."""
    available_micro = workflow.budget.available_micro(state.compiled.name)
    cap_micro = state.compiled.max_cost_micro
    return available_micro if cap_micro is None else min(available_micro, cap_micro)


def agent_price_max_micro(workflow: WorkflowState, state: NodeState) -> int:
    """Return the price limit for the selection of an agent (money.md, Estimate).

    Without a registered price and an auction, the limit leaves enough money for the verifier. It is
    then at most the limit fixed at publish, even if other nodes cost less than their reservations.
    """
    most_micro = price_max_micro(workflow, state)
    node = state.compiled
    terms = workflow.terms.get(node.name)
    if terms is None or terms.price is not None or node.is_auction:
        return most_micro
    left_micro = max(0, workflow.budget.available_micro(node.name) - terms.verifier_micro)
    limit_micro = most_micro if terms.limit_micro is None else terms.limit_micro
    return min(most_micro, left_micro, limit_micro)


def verifier_price_max_micro(workflow: WorkflowState, state: NodeState) -> int:
    """Return the price limit of a verifier: the node's money minus the agent's price."""
    return max(0, workflow.budget.available_micro(state.compiled.name) - state.price_micro)


def price_of_attempt(workflow: WorkflowState, event: AgentSelected) -> int:
    """Return the price of the attempt; for an agent that is paid by tokens, the price limit."""
    if event.token_price is None:
        return event.price_micro
    verifier_micro = _verifier_micro(workflow, event.node)
    own_micro = workflow.budget.reserved_micro(event.node) - verifier_micro
    return max(0, min(own_micro, price_max_micro(workflow, workflow.nodes[event.node])))


def set_token_price(state: NodeState, event: AgentSelected) -> None:
    """Set the price per token of the new attempt; None for a fixed price."""
    price = event.token_price
    state.price_json = None if price is None else price_json(price)


def settle_tokens(
    workflow: WorkflowState, state: NodeState, metrics: Mapping[str, Any]
) -> Failure | None:
    """Set the price from the reported tokens; return a failure if the price is above the limit."""
    if state.price_json is None:
        return None
    name = state.compiled.name
    due_micro = cost_micro(price_from_json(state.price_json), read_tokens(metrics))
    verifier_micro = _verifier_micro(workflow, name)
    most_micro = max(0, price_max_micro(workflow, state) - verifier_micro)
    if due_micro > most_micro:
        return Failure(
            NodeErrorCode.BUDGET_EXCEEDED,
            f"the reported tokens cost {credits_text(due_micro)} credits, only"
            f" {credits_text(most_micro)} are left for the node",
            # Another agent may be cheaper, so the price of this agent must not end the node.
            Verdict.FINAL_FOR_AGENT,
        )
    state.price_micro = due_micro
    workflow.budget.reserve(name, due_micro + verifier_micro)
    return None


def set_named_price(workflow: WorkflowState, state: NodeState, named_micro: int | None) -> None:
    """Set the price of an attempt that the payer ends.

    The price is the amount that the payer names. It is at least the agent's fixed price, and at
    most the money left for the node. If the payer names no amount, the price does not change. The
    rest of the node's reservation, the verifier's part included, is released.
    """
    if named_micro is not None:
        promised_micro = state.price_micro if state.price_json is None else 0
        available_micro = workflow.budget.available_micro(state.compiled.name)
        state.price_micro = min(max(promised_micro, named_micro), available_micro)
    workflow.budget.reserve(state.compiled.name, state.price_micro)


def payment_line(node: str, verify_attempt: int) -> str:
    """Return the payment line of a verification; each line is paid once (money.md, Verifiers)."""
    return f"{node}#verify" if verify_attempt == 1 else f"{node}#verify{verify_attempt}"


def pay_verification(workflow: WorkflowState, state: NodeState, payee_did: str, micro: int) -> None:
    """Pay for the last verification of a node from the node's reservation."""
    name = state.compiled.name
    workflow.budget.pay(name, micro)
    state.cost_micro += micro
    workflow.record(NodePaid(payment_line(name, state.verify_attempt), payee_did, micro))


def pay_rejection_at_peer(workflow: WorkflowState, state: NodeState, event: AttemptFailed) -> None:
    """Pay what a peer charged for a result that is not accepted, at most the agreed maximum.

    A verification at the peer has rejected the result, or the result's agent is revoked. Without
    this payment, a payer could drain the clearing account: the payer would use its own verifier at
    the peer, or revoke the agent here.
    """
    micro = min(event.charged_micro, peer_price_max_micro(workflow, state))
    is_revoked = event.failure.code is NodeErrorCode.REVOKED
    if micro > 0 and (state.compiled.requires_verification or is_revoked):
        assert state.agent_did is not None
        state.verify_attempt += 1
        state.verifier_did = state.agent_did
        state.verify_queued_ms = state.verify_dispatched_ms = event.started_ms
        record_verification(workflow, state, None, "rejected")
        pay_verification(workflow, state, state.agent_did, micro)


def peer_price_max_micro(workflow: WorkflowState, state: NodeState) -> int:
    """Return the maximum that a peer may charge, a verification at the peer included."""
    name, micro = state.compiled.name, state.price_micro
    if state.compiled.requires_verification:
        micro += _verifier_micro(workflow, name)
    return min(micro, workflow.budget.reserved_micro(name))


def set_peer_price(workflow: WorkflowState, state: NodeState, charged_micro: int) -> None:
    """Set the price of an attempt to the peer's charge, at most `peer_price_max_micro`."""
    state.price_micro = min(charged_micro, peer_price_max_micro(workflow, state))


def price_above_limit(event: AgentSelected | VerifierSelected, limit_micro: int) -> Failure:
    """Return the failure of a selection whose price is above the limit."""
    return Failure(
        NodeErrorCode.BUDGET_EXCEEDED,
        f"{event.agent_did} costs {credits_text(event.price_micro)} credits, only"
        f" {credits_text(limit_micro)} are left for the node",
        Verdict.FINAL,
    )


def _verifier_micro(workflow: WorkflowState, name: str) -> int:
    """Return the verifier's part of a node's reservation; 0 for a node without terms."""
    return workflow.terms.get(name, NO_TERMS).verifier_micro
