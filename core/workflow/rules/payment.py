"""The price limit and the cost of an attempt: fixed before the work, or by tokens after it.

An agent paid by tokens has the node's reservation as its limit. A higher cost is paid from
unreserved money, if there is enough and the node's own limit allows it; otherwise the node fails
unpaid. Reference: money.md (Prices, Per-token prices, Budgets and holds, Settlement).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.errors import NodeErrorCode
from core.market.pricing import cost_micro, price_from_json, price_json, read_tokens
from core.money import credits_text
from core.workflow.events import AgentSelected, Failure, Verdict, VerifierSelected
from core.workflow.node_state import NodeState
from core.workflow.terms import NO_TERMS
from core.workflow.workflow_state import WorkflowState


def price_max_micro(workflow: WorkflowState, state: NodeState) -> int:
    """Return an attempt's price limit: the money left for the node, or its own limit if lower."""
    available_micro = workflow.budget.available_micro(state.compiled.name)
    cap_micro = state.compiled.max_cost_micro
    return available_micro if cap_micro is None else min(available_micro, cap_micro)


def agent_price_max_micro(workflow: WorkflowState, state: NodeState) -> int:
    """Return the price limit of an agent's selection (money.md, Estimate).

    The price that its verifier asks is left, and the limit of the publish holds, also where other
    nodes have left money.
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
    """Return a verification's price limit: the node's money less the agent's price."""
    return max(0, workflow.budget.available_micro(state.compiled.name) - state.price_micro)


def price_of_attempt(workflow: WorkflowState, event: AgentSelected) -> int:
    """Return the attempt's reservation: its price, or its limit if paid by tokens."""
    if event.token_price is None:
        return event.price_micro
    verifier_micro = _verifier_micro(workflow, event.node)
    own_micro = workflow.budget.reserved_micro(event.node) - verifier_micro
    return max(0, min(own_micro, price_max_micro(workflow, workflow.nodes[event.node])))


def set_token_price(state: NodeState, event: AgentSelected) -> None:
    """Store the price per token of the new attempt, None for a fixed price."""
    price = event.token_price
    state.price_json = None if price is None else price_json(price)


def settle_tokens(
    workflow: WorkflowState, state: NodeState, metrics: Mapping[str, Any]
) -> Failure | None:
    """Set the attempt's price from its result's tokens; return a failure above the limit."""
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
            # Another agent may take the node: this one's rates must not end it.
            Verdict.FINAL_FOR_AGENT,
        )
    state.price_micro = due_micro
    workflow.budget.reserve(name, due_micro + verifier_micro)
    return None


def set_named_price(workflow: WorkflowState, state: NodeState, named_micro: int | None) -> None:
    """Set the price of an attempt that its payer ends: what the payer names, else what is reserved.

    It is at least what the agent was promised, which is nothing for one that is paid by tokens, and
    at most the money left for the node. The rest of the node's reservation, a verifier's part too,
    is free again.
    """
    if named_micro is not None:
        promised_micro = state.price_micro if state.price_json is None else 0
        available_micro = workflow.budget.available_micro(state.compiled.name)
        state.price_micro = min(max(promised_micro, named_micro), available_micro)
    workflow.budget.reserve(state.compiled.name, state.price_micro)


def price_above_limit(event: AgentSelected | VerifierSelected, limit_micro: int) -> Failure:
    """Return the failure of a selection whose price is above the limit."""
    return Failure(
        NodeErrorCode.BUDGET_EXCEEDED,
        f"{event.agent_did} costs {credits_text(event.price_micro)} credits, only"
        f" {credits_text(limit_micro)} are left for the node",
        Verdict.FINAL,
    )


def _verifier_micro(workflow: WorkflowState, name: str) -> int:
    """Return the verifier's part of the reservation of a node that may be paid by tokens."""
    return workflow.terms.get(name, NO_TERMS).verifier_micro
