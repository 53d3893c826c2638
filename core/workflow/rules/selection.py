"""Makes nodes ready and requests the selection of an agent or a verifier.

The caller of the machine performs the selection (`core/market/ranked_candidates.py`) within the
same step. `attempts.py` and `verification.py` handle the answer.
Reference: features.md (Nodes, Targeted routing), money.md (Prices, Auctions).
"""

from __future__ import annotations

from core.errors import IllegalTransition
from core.market.pricing import FixedPrice
from core.workflow.actions import SelectAgent, SelectVerifier
from core.workflow.events import WorkflowAccepted
from core.workflow.rules.auction_rounds import ask_bidder
from core.workflow.rules.payment import agent_price_max_micro, verifier_price_max_micro
from core.workflow.rules.retry import AGENTS_PER_NODE_MAX
from core.workflow.terms import NO_TERMS
from core.workflow.transitions import NodeTrigger, next_node_status
from core.workflow.workflow_state import AwaitedSelection, NodeState, WorkflowState


def workflow_accepted(workflow: WorkflowState, event: WorkflowAccepted) -> None:
    """Make the roots ready. Raises `IllegalTransition` when the workflow was accepted before."""
    if workflow.is_accepted:
        raise IllegalTransition("workflow", workflow.status, "workflow accepted")
    workflow.is_accepted = True
    for name in workflow.compiled.roots:
        make_ready(workflow, workflow.nodes[name])


def make_ready(workflow: WorkflowState, state: NodeState) -> None:
    """Set a node whose dependencies are complete to ready, and request an agent."""
    state.status = next_node_status(state.status, NodeTrigger.DEPENDENCIES_COMPLETE)
    ask_agent(workflow, state)


def ask_agent(workflow: WorkflowState, state: NodeState) -> None:
    """Request the selection of the next attempt's agent."""
    node = state.compiled
    if node.is_auction:
        ask_bidder(workflow, state)
        return
    exclude = state.agents_tried
    if state.declined is not None and state.agent_did is not None:
        exclude += (state.agent_did,)
    target = node.target_agent_id if node.target_agent_id not in exclude else None
    allow_fallback = node.allow_broadcast_fallback
    is_last_known = len(state.agents_used) >= AGENTS_PER_NODE_MAX
    is_bound = is_last_known or not workflow.compiled.allow_fallback_agents
    known = [did for did in state.agents_used if did not in exclude]
    if is_bound and known:
        # No new agent may be tried: select the agent of the last attempt, or the newest other agent
        # that worked on the node.
        target = state.agent_did if state.agent_did in known else known[-1]
        allow_fallback = False
    terms = workflow.terms.get(node.name, NO_TERMS)
    state.awaiting = AwaitedSelection.AGENT
    state.price_limit_micro = agent_price_max_micro(workflow, state)
    if isinstance(terms.price, FixedPrice) and (target is None or allow_fallback):
        # Only a target agent may cost more than the capability's registered price.
        state.price_limit_micro = min(state.price_limit_micro, terms.price.micro)
    workflow.perform(
        SelectAgent(
            node.name,
            node.capability_id,
            target,
            allow_fallback,
            exclude,
            state.price_limit_micro,
            workflow.workflow_id,
            state.attempt + 1,
            terms.price,
            terms.is_by_token,
            node.versions,
            node.chosen_verifier_capability_id,
            node.timeout_ms,
            node.region,
            node.is_federated,
            workflow.deadline_ms,
            node.peer_verifier_id,
        )
    )


def ask_verifier(workflow: WorkflowState, state: NodeState) -> None:
    """Request the selection of a verifier for the agent's result."""
    assert state.agent_did is not None
    tried = state.verifiers_tried
    if state.declined is not None and state.verifier_did is not None:
        tried += (state.verifier_did,)
    state.awaiting = AwaitedSelection.VERIFIER
    state.price_limit_micro = verifier_price_max_micro(workflow, state)
    workflow.perform(
        SelectVerifier(
            state.compiled.name,
            state.compiled.verifier_capability_id,
            state.agent_did,
            (state.agent_did, *tried),
            state.price_limit_micro,
            state.compiled.is_verifier_chosen,
        )
    )
