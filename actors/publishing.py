"""What publishing works out before anything is stored: prices reserved, budget held, the answer.

Pure, apart from looking into the directory it is given. Spec: Settlement rules 1, Verification and
budget 2; money.md cases 1–4; contract.md section 6 (Estimate, Publish).
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from actors.messages import PublishReply, PublishRequest
from actors.ports import DirectoryPort
from actors.running import RunningWorkflow
from core.errors import ErrorCode, ServiceError
from core.money import MICRO_MAX
from core.workflow.dag import CompiledWorkflow
from core.workflow.events import Record, SelectAgent, WorkflowChanged
from core.workflow.machine import WorkflowMachine
from core.workflow.node_state import error_of
from core.workflow.transitions import (
    WorkflowStatus,
    WorkflowTrigger,
    next_workflow_status,
)
from ledger.commands import Outcome, OutcomeStatus, PublishWorkflow


@dataclass(frozen=True, slots=True)
class Estimate:
    """What each node may cost, and what is held for all of them (micro-credits)."""

    reserved: dict[str, int]
    total_micro: int
    hold_micro: int

    @property
    def exceeds_budget(self) -> bool:
        """Whether the workflow fails before it starts."""
        return self.total_micro > self.hold_micro


def estimate(compiled: CompiledWorkflow, directory: DirectoryPort) -> Estimate:
    """Reserve for each node the dearest price it may have to pay, its verifier's included."""
    reserved = {}
    for name, node in compiled.nodes.items():
        # A target that may be replaced costs what its dearest replacement costs.
        bound_to = None if node.allow_broadcast_fallback else node.target_agent_id
        price = directory.price_micro_max(node.capability_id, bound_to)
        if node.requires_verification:
            price += directory.price_micro_max(node.verifier_capability_id, None)
        reserved[name] = price
    total = sum(reserved.values())
    budget = compiled.budget_micro
    return Estimate(reserved, total, total if budget is None else budget)


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
        deadline_ms=now_ms + request.compiled.max_runtime_ms,
    )
    watchers = {request.watcher} if request.watcher else set()
    return RunningWorkflow(request.task_id, machine, watchers=watchers, payer_did=request.payer_did)


def publish_command(
    request: PublishRequest,
    found: Estimate,
    records: list[Record],
    *,
    owner: str,
    owner_epoch: int,
    now_ms: int,
    fee_bps: int,
) -> PublishWorkflow:
    """Return the one command that stores, holds, owns and opens the first attempts."""
    return PublishWorkflow(
        key=request.command_key,
        request_hash=request.request_hash,
        actor_did=request.actor_did,
        owner=owner,
        owner_epoch=owner_epoch,
        workflow_id=request.workflow_id,
        task_id=request.task_id,
        payer_did=request.payer_did,
        intent=request.compiled.intent or "",
        manifest_json=request.manifest_json,
        created_ms=now_ms,
        deadline_ms=now_ms + request.compiled.max_runtime_ms,
        estimate_micro=found.total_micro,
        hold_micro=0 if found.exceeds_budget else found.hold_micro,
        reserved_json=orjson.dumps(found.reserved).decode(),
        fee_bps=fee_bps,
        has_hold=not found.exceeds_budget,
        records=tuple(records),
    )


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
    looks = {
        name: directory.foresee(
            SelectAgent(
                name,
                node.capability_id,
                node.target_agent_id,
                node.allow_broadcast_fallback,
                (),
                MICRO_MAX,
            ),
            now_ms,
        )
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
        return ServiceError(
            ErrorCode.OVERLOADED, "the workflow's owner is being replaced", retry_after_s=1
        )
    return PublishReply(
        workflow_id=str(outcome.result["workflowId"]),
        task_id=str(outcome.result["taskId"]),
        status=str(outcome.result["status"]),
        is_repeat=True,
    )
