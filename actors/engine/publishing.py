"""What publishing works out before anything is stored: prices reserved, budget held, the answer.

Pure, apart from looking into the directory it is given. Spec: Settlement rules 1, Verification and
budget 2; money.md cases 1–4; contract.md section 6 (Estimate, Publish).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from actors.engine.ports import Asked, DirectoryPort
from actors.engine.running import RunningWorkflow
from actors.transport.messages import NotYet, PublishReply, PublishRequest
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
    """What each node may cost, and what is held for all of them (micro-credits).

    `terms`: of the nodes whose capability has a price of its own, or that may be paid by tokens.
    """

    reserved: dict[str, int]
    total_micro: int
    hold_micro: int
    terms: dict[str, NodeTerms]

    @property
    def exceeds_budget(self) -> bool:
        """Whether the workflow fails before it starts."""
        return self.total_micro > self.hold_micro


def estimate(
    compiled: CompiledWorkflow, directory: DirectoryPort, *, auction_stake_bps: int = 0
) -> Estimate:
    """Reserve for each node the dearest price it may have to pay, its verifier's included.

    A node that may be paid by tokens has its own limit for a price, or a share of what the others
    leave of the budget. So has one to be auctioned whose capability has no fixed price; what is
    reserved for its agent is the auction's reserve.

    Args:
        auction_stake_bps: the stake that auctions ask of bidders, basis points of the reserve.

    Raises:
        ServiceError: BUDGET_REQUIRED, the cost of a node has no bound; INVALID_MANIFEST, all nodes
            together cost more than any account holds.
    """
    reserved: dict[str, int] = {}
    terms: dict[str, NodeTerms] = {}
    unbounded: list[str] = []
    verifiers: dict[str, int] = {}
    budget_micro = compiled.budget_micro
    # Each capability's agents are asked once, however many nodes want one of them.
    asked_of = cache(directory.asked)
    for name, node in compiled.nodes.items():
        # A target that may be replaced costs what its dearest replacement costs.
        bound_to = None if node.allow_broadcast_fallback else node.target_agent_id
        asked = asked_of(node.capability_id, bound_to)
        if node.requires_verification:
            verifier = asked_of(node.verifier_capability_id, None)
            # A verifier is not paid by tokens.
            fixed = _price_asked(replace(verifier, by_token=None))
            verifiers[name] = fixed.micro if isinstance(fixed, FixedPrice) else 0
        price = _price_bidden_below(asked) if node.is_auction else _price_asked(asked)
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
        if asked.registered is not None or name in unbounded:
            is_by_token = name in unbounded and not node.is_auction
            terms[name] = NodeTerms(asked.registered, is_by_token, verifiers.get(name, 0))
    limits = {
        name: limit
        for name in unbounded
        if (limit := compiled.nodes[name].max_cost_micro) is not None
    }
    fixed_micro = sum(reserved.values()) + sum(verifiers.values())
    total_micro = fixed_micro + sum(limits.values())
    if total_micro > MICRO_MAX:
        raise _too_dear(total_micro)
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


def _price_asked(asked: Asked) -> Price | None:
    """Return what a node is estimated by: the capability's price, else the dearest agent's."""
    if asked.registered is not None and asked.dearest_micro is None and asked.by_token is None:
        return asked.registered
    if asked.by_token is not None:
        return asked.by_token
    return None if asked.dearest_micro is None else FixedPrice(asked.dearest_micro)


def _price_bidden_below(asked: Asked) -> Price | None:
    """Return the price that no bid may exceed: cards' prices are none (money.md case 20)."""
    return asked.registered if isinstance(asked.registered, FixedPrice) else None


def _budget_required(name: str) -> ServiceError:
    path = f"{node_path(name)}.maxCostCredits"
    expected = "a limit, or settings.maxBudgetCredits: its cost has no other bound"
    return ServiceError(
        ErrorCode.BUDGET_REQUIRED,
        f"what node {name!r} costs is not known before it has run",
        (Problem(path, "nothing", expected),),
    )


def _too_dear(total_micro: int) -> ServiceError:
    """Return the refusal of what no account could hold (money.md case 39)."""
    got, most = credits_text(total_micro), credits_text(MICRO_MAX)
    return ServiceError(
        ErrorCode.INVALID_MANIFEST,
        f"the nodes may cost {got} credits, expected at most {most}",
        (Problem("nodes", got, f"an estimate of at most {most} credits"),),
    )


def refusal(found: Estimate, now_ms: int) -> WorkflowChanged:
    """Return the end of a workflow whose estimate exceeds its budget."""
    return WorkflowChanged(
        next_workflow_status(WorkflowStatus.PENDING, WorkflowTrigger.ESTIMATE_EXCEEDS_BUDGET),
        now_ms,
        error={
            "code": "BUDGET_EXCEEDED",
            "message": f"the estimate of {found.total_micro} micro-credits exceeds"
            f" the budget of {found.hold_micro}",
        },
    )


def begun(request: PublishRequest, found: Estimate, now_ms: int) -> RunningWorkflow:
    """Return the workflow as its owner will hold it, before anything has happened to it."""
    machine = WorkflowMachine(
        request.workflow_id,
        request.compiled,
        hold_micro=found.hold_micro,
        reserved=found.reserved,
        terms=found.terms,
        deadline_ms=now_ms + request.compiled.max_runtime_ms,
    )
    watchers = {request.watcher} if request.watcher else set()
    return RunningWorkflow(request.task_id, machine, watchers=watchers, payer_did=request.payer_did)


def accepted(request: PublishRequest, found: Estimate) -> PublishReply:
    """Return the reply of a publish that was stored."""
    status = WorkflowStatus.FAILED if found.exceeds_budget else WorkflowStatus.PENDING
    return PublishReply(
        workflow_id=request.workflow_id,
        task_id=request.task_id,
        status=status,
        estimate_micro=found.total_micro,
        hold_micro=0 if found.exceeds_budget else found.hold_micro,
    )


def foreseen(
    request: PublishRequest, found: Estimate, directory: DirectoryPort, now_ms: int
) -> PublishReply:
    """Return the reply of a dry run: what would be held, who could take each node, why nobody."""

    # Once for nodes that ask for the same: a thousand looks at a thousand agents take seconds.
    @cache
    def look(
        capability_id: str, target: str | None, allow_fallback: bool
    ) -> tuple[list[str], Failure | None]:
        action = SelectAgent("", capability_id, target, allow_fallback, (), MICRO_MAX)
        return directory.foresee(action, now_ms, payer_did=request.payer_did)

    looks = {
        name: look(node.capability_id, node.target_agent_id, node.allow_broadcast_fallback)
        for name, node in request.compiled.nodes.items()
    }
    status = WorkflowStatus.FAILED if found.exceeds_budget else WorkflowStatus.PENDING
    return PublishReply(
        workflow_id=request.workflow_id,
        task_id=request.task_id,
        status=status,
        estimate_micro=found.total_micro,
        hold_micro=found.hold_micro,
        candidates={name: dids for name, (dids, _) in looks.items()},
        unavailable={
            name: error_of(failure) for name, (_, failure) in looks.items() if failure is not None
        },
    )


def answer_of(outcome: Outcome) -> PublishReply | ServiceError:
    """Return what a publish that stored nothing new is answered with."""
    if outcome.error is not None:
        retry_after_s = outcome.result.get("retryAfterS")
        return ServiceError(outcome.error, outcome.detail, retry_after_s=retry_after_s)
    if outcome.status is OutcomeStatus.STALE:
        return NotYet(
            ErrorCode.OVERLOADED, "the workflow's owner is being replaced", retry_after_s=1
        )
    return PublishReply(
        workflow_id=str(outcome.result["workflowId"]),
        task_id=str(outcome.result["taskId"]),
        status=str(outcome.result["status"]),
        is_repeat=True,
    )
