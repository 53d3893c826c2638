"""Computes a publish before its commit: estimate, reserved prices, hold and reply.

Pure, apart from reads of the directory. Reference: money.md (Estimate, Budgets and holds).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Final

from msgspec.structs import replace as replace_members

from actors.directory.peer_directory import PeerDirectory
from actors.ports import AskingPrices
from actors.transport.messages import Moved, PublishReply, PublishRequest
from actors.workflows.running_workflow import RunningWorkflow
from core.errors import ErrorCode, Problem, ServiceError
from core.market.pricing import (
    FixedPrice,
    Price,
    TokenPrice,
    is_budget_required,
    market_limit_micro,
    token_reservations,
)
from core.money import MICRO_MAX, credits_text
from core.records.graph import node_path
from core.workflow.actions import SelectAgent
from core.workflow.dag import CompiledNode, CompiledWorkflow
from core.workflow.events import Failure, WorkflowChanged
from core.workflow.machine import WorkflowMachine
from core.workflow.terms import NodeTerms
from core.workflow.transitions import (
    WorkflowStatus,
    WorkflowTrigger,
    next_workflow_status,
)
from core.workflow.workflow_state import error_of
from ledger.commands import Outcome, OutcomeStatus

# A dry run with more different directory queries than this does not check the promised times and
# the verifiers of the agents. A query with these checks takes 7 ms among 5,000 agents.
EXACT_QUERIES_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Estimate:
    """The reserved amount of each node, and the hold of the workflow. Amounts are in micro-credits.

    `total_micro`: the estimate. `hold_micro`: the budget, or the estimate if there is no budget.
    `terms`: by node, the price terms that do not follow from the reserved amount alone.
    """

    reserved: dict[str, int]
    total_micro: int
    hold_micro: int
    terms: dict[str, NodeTerms]

    @property
    def exceeds_budget(self) -> bool:
        """Whether the estimate is above the hold. Then the workflow fails at publish."""
        return self.total_micro > self.hold_micro


def estimate_cost(
    compiled: CompiledWorkflow,
    directory: PeerDirectory,
    *,
    auction_stake_bps: int = 0,
    at_ms: int = 0,
    payer_did: str = "",
) -> Estimate:
    """Return the estimate: by node, the amount to reserve for its agent and its verifier.

    A node with a known price reserves this price. A node that is paid by tokens, or auctioned
    without a fixed price, reserves its own limit or a share of the rest of the budget. Any other
    node reserves the lowest price of an agent that can take it, and a share of the rest of the
    budget. Without a budget, other rules apply to such a node (money.md, Estimate).

    Args:
        auction_stake_bps: the stake required of bidders, basis points of the reserve.
        at_ms: now, Unix milliseconds.
        payer_did: the payer. Only agents that the payer can see count, and only peers that the
            payer's policies allow.

    Raises:
        ServiceError: BUDGET_REQUIRED when the cost of a node has no bound; INVALID_MANIFEST when
            the nodes together cost more than an account can hold.
    """
    budget_micro = compiled.budget_micro
    has_budget = budget_micro is not None

    find_prices = _prices_of(directory, at_ms, payer_did)
    costs: dict[str, _NodeCost] = {}
    for name, node in compiled.nodes.items():
        # With a fallback, a node reserves the price of any agent that may replace its target.
        bound_to = None if node.allow_broadcast_fallback else node.target_agent_id
        find_node_prices = partial(
            find_prices,
            node.capability_id,
            versions=node.versions,
            timeout_ms=node.timeout_ms,
            chosen_verifier_id=node.chosen_verifier_capability_id,
        )
        prices = find_node_prices(target=bound_to)
        at_peers = directory.peer_prices(node, node.capability_id, payer_did)
        if at_peers:
            prices = _add_peers(prices, at_peers)
        if _is_open(prices) and not node.is_auction:
            target = prices
            if has_budget and node.target_agent_id is not None:
                target = find_node_prices(target=node.target_agent_id)
            is_target_by_token = target.by_token is not None and not _is_open(target)
            cost = _find_open_cost(
                node, prices, has_budget=has_budget, is_target_by_token=is_target_by_token
            )
        else:
            cost = _find_known_cost(node, prices, budget_micro)
        if node.requires_verification:
            # If the payer chose the capability, agents may accept untrusted verifiers, too.
            verifiers = [find_prices(node.verifier_capability_id, None, "", is_trusted=True)]
            if node.is_verifier_chosen:
                verifiers.append(find_prices(node.verifier_capability_id, None, ""))
            cost.verifier_micro = max(
                _find_verifier_micro(one, has_budget=has_budget) for one in verifiers
            )
            if at_peers:  # a peer gets the result verified itself and charges for it
                asked = directory.peer_prices(node, node.verifier_capability_id, payer_did)
                limit_micro = _find_market_limit(_add_peers(AskingPrices(), asked))
                cost.verifier_micro = max(cost.verifier_micro, limit_micro)
        if node.max_cost_micro is not None:
            cost.micro = min(cost.micro, node.max_cost_micro)
        costs[name] = cost
    return _share_out(compiled, costs, auction_stake_bps)


def _prices_of(directory: PeerDirectory, at_ms: int, payer_did: str) -> Callable[..., AskingPrices]:
    """Return a function that finds the prices of the agents that a node may take."""

    # Cached: nodes with the same arguments share one query.
    @cache
    def find_prices(
        capability_id: str,
        target: str | None,
        versions: str,
        *,
        is_trusted: bool = False,
        timeout_ms: int | None = None,
        chosen_verifier_id: str = "",
    ) -> AskingPrices:
        prices = directory.asking_prices(capability_id, target, payer_did=payer_did)
        if not _is_open(prices):
            return prices
        return directory.available_prices(
            capability_id,
            versions,
            at_ms,
            is_trusted=is_trusted,
            timeout_ms=timeout_ms,
            verifier_capability_id=chosen_verifier_id,
            payer_did=payer_did,
        )

    return find_prices


def _add_peers(prices: AskingPrices, at_peers: Sequence[int]) -> AskingPrices:
    """Return the prices of agents and peers together; a registered price stays the limit."""
    if prices.registered is not None:
        return prices
    known = (prices.dearest_micro, prices.cheapest_micro, prices.positive_micro)
    asked = [*at_peers, *(micro for micro in known if micro is not None)]
    return replace(
        prices,
        dearest_micro=max(asked, default=None),
        cheapest_micro=min(asked, default=None),
        positive_micro=min(filter(None, asked), default=None),
    )


def _share_out(
    compiled: CompiledWorkflow, costs: dict[str, _NodeCost], auction_stake_bps: int
) -> Estimate:
    """Return the estimate; divide the rest of the budget among the nodes with `has_share`."""
    budget_micro = compiled.budget_micro
    verifiers_micro = sum(cost.verifier_micro for cost in costs.values())
    total_micro = verifiers_micro + sum(cost.micro for cost in costs.values())
    if total_micro > MICRO_MAX:
        raise _estimate_too_large(total_micro)
    hold_micro = total_micro if budget_micro is None else budget_micro
    starts = {name: cost.micro for name, cost in costs.items() if cost.has_share}
    others_micro = total_micro - sum(starts.values())
    # If the limits of all these nodes (`maxCostCredits`) fit in the hold, each node reserves its
    # full limit. The low price of one agent then does not exclude other agents.
    limits = {name: compiled.nodes[name].max_cost_micro for name in starts}
    own = {name: limit for name, limit in limits.items() if limit is not None}
    if others_micro + sum((starts | own).values()) > hold_micro:
        own = {}
    shares = token_reservations(hold_micro, others_micro, list(starts), own, starts)
    reserved: dict[str, int] = {}
    terms: dict[str, NodeTerms] = {}
    for name, cost in costs.items():
        limit_micro = compiled.nodes[name].max_cost_micro
        micro = shares.get(name, cost.micro)
        cost.micro = micro if limit_micro is None else min(micro, limit_micro)
        reserved[name], verifier_micro = cost.micro, cost.verifier_micro
        reserved[name] += verifier_micro
        known = _build_terms(cost, compiled.nodes[name], auction_stake_bps)
        if known is not None:
            terms[name] = known
    return Estimate(reserved, total_micro, hold_micro, terms)


@dataclass(slots=True)
class _NodeCost:
    """The amounts that a node reserves for its agent and its verifier, micro-credits.

    `has_share`: the node gets a share of the rest of the budget, too. `registered`: the registered
    price of the capability. `may_pay_tokens`: the agent may be paid by tokens. `limit_micro`: see
    `NodeTerms`.
    """

    micro: int
    has_share: bool = False
    registered: Price | None = None
    may_pay_tokens: bool = False
    limit_micro: int | None = None
    verifier_micro: int = 0


def _is_open(prices: AskingPrices) -> bool:
    """Say whether the price of a node depends on the agent that takes it."""
    return prices.registered is None and prices.cheapest_micro is not None


def _find_open_cost(
    node: CompiledNode, prices: AskingPrices, *, has_budget: bool, is_target_by_token: bool
) -> _NodeCost:
    """Return the cost of a node for which agents ask fixed prices of their own.

    A budget alone does not allow payment by tokens, because any agent could report as many tokens
    as the budget pays for. In addition to the budget, the node needs a target that is paid by
    tokens. `maxCostCredits` allows payment by tokens without a budget.
    """
    assert prices.cheapest_micro is not None, prices
    assert prices.dearest_micro is not None, prices
    limit_micro = node.max_cost_micro
    has_limit = limit_micro is not None or (has_budget and is_target_by_token)
    may_pay_tokens = prices.by_token is not None and has_limit
    if has_budget:
        return _NodeCost(prices.cheapest_micro, has_share=True, may_pay_tokens=may_pay_tokens)
    if limit_micro is not None:
        return _NodeCost(prices.dearest_micro, may_pay_tokens=may_pay_tokens)
    micro = _find_market_limit(prices)
    return _NodeCost(micro, limit_micro=micro)


def _find_known_cost(
    node: CompiledNode, prices: AskingPrices, budget_micro: int | None
) -> _NodeCost:
    """Return the cost of a node that has one price, is auctioned, or is paid by tokens."""
    price = _price_to_reserve(prices)
    if node.is_auction:  # no bid may exceed a registered fixed price (money.md, Auctions)
        price = prices.registered if isinstance(prices.registered, FixedPrice) else None
    if is_budget_required(
        price,
        is_auction=node.is_auction,
        max_cost_micro=node.max_cost_micro,
        budget_micro=budget_micro,
    ):
        raise _budget_required(node.name)
    if isinstance(price, TokenPrice) or (node.is_auction and price is None):
        limit_micro = node.max_cost_micro
        has_share = limit_micro is None
        may_pay_tokens = not node.is_auction
        return _NodeCost(limit_micro or 0, has_share, prices.registered, may_pay_tokens)
    micro = 0 if price is None else price.micro
    return _NodeCost(micro, registered=prices.registered)


def _find_verifier_micro(prices: AskingPrices, *, has_budget: bool) -> int:
    """Return the amount that a node reserves for its verifier, which is never paid by tokens."""
    if _is_open(prices):
        return (prices.cheapest_micro or 0) if has_budget else _find_market_limit(prices)
    fixed = _price_to_reserve(replace(prices, by_token=None))
    return fixed.micro if isinstance(fixed, FixedPrice) else 0


def _find_market_limit(prices: AskingPrices) -> int:
    has_free = prices.cheapest_micro == 0
    return market_limit_micro(prices.positive_micro, prices.dearest_micro or 0, has_free=has_free)


def _build_terms(cost: _NodeCost, node: CompiledNode, stake_bps: int) -> NodeTerms | None:
    """Return a node's price terms; None if they follow from the reserved amount alone."""
    if node.is_auction:
        return NodeTerms(None, False, cost.verifier_micro, cost.micro, stake_bps)
    is_told = cost.registered is None and not cost.may_pay_tokens and not cost.verifier_micro
    if is_told and cost.limit_micro is None:
        return None
    return NodeTerms(
        cost.registered, cost.may_pay_tokens, cost.verifier_micro, limit_micro=cost.limit_micro
    )


def _price_to_reserve(prices: AskingPrices) -> Price | None:
    """Return the price that a node reserves: a token price, else the highest fixed price."""
    if prices.by_token is not None:
        return prices.by_token
    return prices.registered if prices.dearest_micro is None else FixedPrice(prices.dearest_micro)


def _budget_required(name: str) -> ServiceError:
    path = f"{node_path(name)}.maxCostCredits"
    expected = "maxCostCredits, or settings.maxBudgetCredits: the cost has no other bound"
    return ServiceError(
        ErrorCode.BUDGET_REQUIRED,
        f"the cost of node {name!r} is not known in advance",
        (Problem(path, "nothing", expected),),
    )


def _estimate_too_large(total_micro: int) -> ServiceError:
    """Return the error of an estimate above the largest balance (money.md, Units)."""
    got, most = credits_text(total_micro), credits_text(MICRO_MAX)
    return ServiceError(
        ErrorCode.INVALID_MANIFEST,
        f"the nodes may cost {got} credits, expected at most {most}",
        (Problem("nodes", got, f"an estimate of at most {most} credits"),),
    )


def build_budget_refusal(estimate: Estimate, now_ms: int) -> WorkflowChanged:
    """Return the record that fails a workflow whose estimate exceeds its budget."""
    return WorkflowChanged(
        next_workflow_status(WorkflowStatus.PENDING, WorkflowTrigger.ESTIMATE_EXCEEDS_BUDGET),
        now_ms,
        error=_budget_error(estimate),
    )


def _budget_error(estimate: Estimate) -> dict[str, Any] | None:
    """Return the error of an estimate that exceeds its budget, None for one that does not."""
    if not estimate.exceeds_budget:
        return None
    total, budget = credits_text(estimate.total_micro), credits_text(estimate.hold_micro)
    message = f"the estimate of {total} credits exceeds the budget of {budget}"
    return {"code": "BUDGET_EXCEEDED", "message": message}


def build_running_workflow(
    request: PublishRequest, estimate: Estimate, now_ms: int, *, key_version: int
) -> RunningWorkflow:
    """Return the running workflow in its initial state.

    Args:
        key_version: the version of the deployment's current key.
    """
    machine = WorkflowMachine(
        request.workflow_id,
        request.compiled,
        hold_micro=estimate.hold_micro,
        reserved=estimate.reserved,
        terms=estimate.terms,
        deadline_ms=now_ms + request.compiled.max_runtime_ms,
        key_version=key_version,
    )
    watchers = {request.watcher} if request.watcher else set()
    return RunningWorkflow(
        request.task_id,
        machine,
        watchers=watchers,
        payer_did=request.payer_did,
        created_ms=now_ms,
        traceparent=request.traceparent,
    )


def build_publish_reply(request: PublishRequest, estimate: Estimate) -> PublishReply:
    """Return the reply to a publish that was stored."""
    status = WorkflowStatus.FAILED if estimate.exceeds_budget else WorkflowStatus.PENDING
    return PublishReply(
        workflow_id=request.workflow_id,
        task_id=request.task_id,
        status=status,
        estimate_micro=estimate.total_micro,
        hold_micro=0 if estimate.exceeds_budget else estimate.hold_micro,
        error=_budget_error(estimate),
    )


def build_dry_run_reply(
    request: PublishRequest, estimate: Estimate, directory: PeerDirectory, now_ms: int
) -> PublishReply:
    """Return the reply to a dry run: the hold, and by node the available agents or the failure."""

    # Cached: nodes with equal queries share one. 1,000 queries among 1,000 agents take seconds.
    @cache
    def list_available_agents(action: SelectAgent) -> tuple[list[str], Failure | None]:
        return directory.list_available_agents(action, now_ms, payer_did=request.payer_did)

    actions = {name: _build_selection(node) for name, node in request.compiled.nodes.items()}
    if len({*actions.values()}) > EXACT_QUERIES_MAX:
        actions = {
            name: replace_members(one, timeout_ms=None, verifier_capability_id="")
            for name, one in actions.items()
        }
    selections = {name: list_available_agents(action) for name, action in actions.items()}
    return replace_members(
        build_publish_reply(request, estimate),
        hold_micro=estimate.hold_micro,
        candidates={name: dids for name, (dids, _) in selections.items()},
        unavailable={
            name: error_of(failure)
            for name, (_, failure) in selections.items()
            if failure is not None
        },
        waiting={
            name: {"reason": failure.message, "waitForAgentMs": wait_ms}
            for name, (_, failure) in selections.items()
            if failure is not None
            and failure.is_temporary
            and (wait_ms := request.compiled.nodes[name].wait_for_agent_ms)
        },
    )


def _build_selection(node: CompiledNode) -> SelectAgent:
    """Return the selection that a dry run requests from the directory for a node."""
    return SelectAgent(
        "",
        node.capability_id,
        node.target_agent_id,
        node.allow_broadcast_fallback,
        (),
        MICRO_MAX,
        versions=node.versions,
        verifier_capability_id=node.chosen_verifier_capability_id,
        timeout_ms=node.timeout_ms,
        region=None if node.is_auction else node.region,
        is_federated=node.is_federated,
        peer_verifier_id=node.peer_verifier_id,
    )


def build_outcome_reply(outcome: Outcome) -> PublishReply | ServiceError:
    """Return the reply to a publish whose command stored nothing new."""
    if outcome.error is not None:
        retry_after_s = outcome.result.get("retryAfterS")
        return ServiceError(outcome.error, outcome.detail, retry_after_s=retry_after_s)
    if outcome.status is OutcomeStatus.STALE:
        return Moved(
            ErrorCode.OVERLOADED, "another member holds the workflow's shard", retry_after_s=1
        )
    return PublishReply(
        workflow_id=str(outcome.result["workflowId"]),
        task_id=str(outcome.result["taskId"]),
        status=str(outcome.result["status"]),
        is_repeat=True,
    )
