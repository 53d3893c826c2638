"""A publish before its commit: the estimate, the reserved prices, the hold, and the reply.

Pure, apart from reads of the given directory. Spec: Settlement rules 1, Verification and budget 2;
money.md cases 1–4; contract.md section 6 (Estimate, Publish).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from actors.ports import AskingPrices, DirectoryPort
from actors.transport.messages import Moved, PublishReply, PublishRequest
from actors.workflows.running_workflow import RunningWorkflow
from core.errors import ErrorCode, Problem, ServiceError
from core.market.pricing import (
    FixedPrice,
    Price,
    TokenPrice,
    is_budget_required,
    token_reservations,
)
from core.money import MICRO_MAX, credits_text
from core.records.graph import node_path
from core.workflow.actions import SelectAgent
from core.workflow.dag import CompiledWorkflow
from core.workflow.events import Failure, WorkflowChanged
from core.workflow.machine import WorkflowMachine
from core.workflow.node_state import error_of
from core.workflow.terms import NodeTerms
from core.workflow.transitions import (
    WorkflowStatus,
    WorkflowTrigger,
    next_workflow_status,
)
from ledger.commands import Outcome, OutcomeStatus


@dataclass(frozen=True, slots=True)
class Estimate:
    """The cost limit of each node and the hold for all of them, micro-credits.

    `terms`: the terms of nodes with a registered price, paid by tokens, or auctioned.
    """

    reserved: dict[str, int]
    total_micro: int
    hold_micro: int
    terms: dict[str, NodeTerms]

    @property
    def exceeds_budget(self) -> bool:
        """Whether the estimate is above the hold, so that the workflow fails at publish."""
        return self.total_micro > self.hold_micro


def estimate_cost(
    compiled: CompiledWorkflow, directory: DirectoryPort, *, auction_stake_bps: int = 0
) -> Estimate:
    """Reserve for each node the highest price it may pay, its verifier's included.

    A node paid by tokens reserves its own limit, or a share of the budget that the other nodes
    leave. So does an auctioned node whose capability has no fixed price; the amount reserved for
    its agent is the auction's reserve.

    Args:
        auction_stake_bps: the stake required of bidders, basis points of the reserve.

    Raises:
        ServiceError: BUDGET_REQUIRED, the cost of a node has no bound; INVALID_MANIFEST, the nodes
            together cost more than an account can hold.
    """
    reserved: dict[str, int] = {}
    terms: dict[str, NodeTerms] = {}
    unbounded: list[str] = []
    verifiers: dict[str, int] = {}
    budget_micro = compiled.budget_micro
    # Each capability's agents are asked once, however many nodes want one of them.
    asking_prices = cache(directory.asking_prices)
    for name, node in compiled.nodes.items():
        # A target with a fallback reserves the highest price of its replacements.
        bound_to = None if node.allow_broadcast_fallback else node.target_agent_id
        prices = asking_prices(node.capability_id, bound_to)
        if node.requires_verification:
            verifier = asking_prices(node.verifier_capability_id, None)
            # Verifiers are not paid by tokens.
            fixed = _price_to_reserve(replace(verifier, by_token=None))
            verifiers[name] = fixed.micro if isinstance(fixed, FixedPrice) else 0
        price = _auction_reserve_price(prices) if node.is_auction else _price_to_reserve(prices)
        if is_budget_required(
            price,
            is_auction=node.is_auction,
            max_cost_micro=node.max_cost_micro,
            budget_micro=budget_micro,
        ):
            raise _budget_required(name)
        if isinstance(price, TokenPrice) or (node.is_auction and price is None):
            unbounded.append(name)
        else:
            micro = 0 if price is None else price.micro
            limit_micro = node.max_cost_micro
            reserved[name] = micro if limit_micro is None else min(micro, limit_micro)
        if prices.registered is not None or name in unbounded:
            is_by_token = name in unbounded and not node.is_auction
            terms[name] = NodeTerms(prices.registered, is_by_token, verifiers.get(name, 0))
    limits = {
        name: limit
        for name in unbounded
        if (limit := compiled.nodes[name].max_cost_micro) is not None
    }
    fixed_micro = sum(reserved.values()) + sum(verifiers.values())
    total_micro = fixed_micro + sum(limits.values())
    if total_micro > MICRO_MAX:
        raise _estimate_too_large(total_micro)
    hold_micro = total_micro if budget_micro is None else budget_micro
    reserved |= token_reservations(hold_micro, fixed_micro, unbounded, limits)
    for name, node in compiled.nodes.items():
        if node.is_auction:
            terms[name] = NodeTerms(
                None, False, verifiers.get(name, 0), reserved[name], auction_stake_bps
            )
    for name, verifier_micro in verifiers.items():
        reserved[name] += verifier_micro
    return Estimate(reserved, total_micro, hold_micro, terms)


def _price_to_reserve(prices: AskingPrices) -> Price | None:
    """Return the price of the estimate: the registered one, else the highest that an agent asks."""
    if prices.registered is not None and prices.dearest_micro is None and prices.by_token is None:
        return prices.registered
    if prices.by_token is not None:
        return prices.by_token
    return None if prices.dearest_micro is None else FixedPrice(prices.dearest_micro)


def _auction_reserve_price(prices: AskingPrices) -> Price | None:
    """Return the registered fixed price, which no bid may exceed (money.md case 20)."""
    return prices.registered if isinstance(prices.registered, FixedPrice) else None


def _budget_required(name: str) -> ServiceError:
    path = f"{node_path(name)}.maxCostCredits"
    expected = "a limit, or settings.maxBudgetCredits: its cost has no other bound"
    return ServiceError(
        ErrorCode.BUDGET_REQUIRED,
        f"what node {name!r} costs is not known before it has run",
        (Problem(path, "nothing", expected),),
    )


def _estimate_too_large(total_micro: int) -> ServiceError:
    """Return the error of an estimate above the largest balance (money.md case 39)."""
    got, most = credits_text(total_micro), credits_text(MICRO_MAX)
    return ServiceError(
        ErrorCode.INVALID_MANIFEST,
        f"the nodes may cost {got} credits, expected at most {most}",
        (Problem("nodes", got, f"an estimate of at most {most} credits"),),
    )


def build_budget_refusal(estimate: Estimate, now_ms: int) -> WorkflowChanged:
    """Return the failed end of a workflow whose estimate exceeds its budget."""
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
        key_version: of the deployment's key in use.
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
    request: PublishRequest, estimate: Estimate, directory: DirectoryPort, now_ms: int
) -> PublishReply:
    """Return the reply to a dry run: the hold, the available agents per node, or why none is."""

    # Once for nodes that ask for the same: a thousand looks at a thousand agents take seconds.
    @cache
    def list_available_agents(
        capability_id: str, target: str | None, allow_fallback: bool, versions: str
    ) -> tuple[list[str], Failure | None]:
        action = SelectAgent(
            "", capability_id, target, allow_fallback, (), MICRO_MAX, versions=versions
        )
        return directory.list_available_agents(action, now_ms, payer_did=request.payer_did)

    selections = {
        name: list_available_agents(
            node.capability_id,
            node.target_agent_id,
            node.allow_broadcast_fallback,
            node.versions,
        )
        for name, node in request.compiled.nodes.items()
    }
    status = WorkflowStatus.FAILED if estimate.exceeds_budget else WorkflowStatus.PENDING
    return PublishReply(
        workflow_id=request.workflow_id,
        task_id=request.task_id,
        status=status,
        estimate_micro=estimate.total_micro,
        hold_micro=estimate.hold_micro,
        error=_budget_error(estimate),
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
            and failure.is_passing
            and (wait_ms := request.compiled.nodes[name].wait_for_agent_ms)
        },
    )


def build_outcome_reply(outcome: Outcome) -> PublishReply | ServiceError:
    """Return the reply to a publish whose command stored nothing new."""
    if outcome.error is not None:
        retry_after_s = outcome.result.get("retryAfterS")
        return ServiceError(outcome.error, outcome.detail, retry_after_s=retry_after_s)
    if outcome.status is OutcomeStatus.STALE:
        return Moved(
            ErrorCode.OVERLOADED, "the workflow's shard is another member's", retry_after_s=1
        )
    return PublishReply(
        workflow_id=str(outcome.result["workflowId"]),
        task_id=str(outcome.result["taskId"]),
        status=str(outcome.result["status"]),
        is_repeat=True,
    )
