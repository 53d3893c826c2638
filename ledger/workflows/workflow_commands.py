"""Commands of a workflow's life: it is published, advances, is quarantined and resumed.

Plain values, as `ledger/commands.py` says. Each carries the member that holds the workflow's shard
and the epoch under which it does, for the fence (`ledger/writer/plan.py`). Reference: money.md
(Settlement).
"""

from __future__ import annotations

from typing import Final

from core.errors import QuarantineCode
from core.subnets.policies import NodeRate
from core.workflow.events import Record
from ledger.authority import PermittedCommand
from ledger.commands import Command
from ledger.triggers.trigger_commands import TriggerRun

# What the keys of publishes without a client's own begin with; their task's id follows.
PUBLISH_KEY: Final = "publish:"


class PublishWorkflow(PermittedCommand, frozen=True, kw_only=True):
    """Store a workflow, hold its budget in escrow, and open its roots' attempts.

    `records` are the machine's (NodeChanged, WorkflowChanged, AttemptFinished). An estimate over
    the budget arrives as a terminal WorkflowChanged(failed) and hold_micro 0: then nothing is held.
    `traceparent`: the caller's, None without one. `run`: the trigger's run that it starts.
    `webhook_url`: URL that gets a message when the workflow ends; None for none.
    `reserved_json`: what each node may cost, micro-credits by node; recovery goes on with it.
    `rates`: the payer's rate policies. Rejections: INSUFFICIENT_CREDITS, KEY_REUSED; RATE_LIMITED,
    not stored, by a rate policy; of a run also UNAUTHORIZED: the trigger's credential has ended;
    QUOTA_EXCEEDED: its daily budget; CONFLICT, as of `NoteRun`. A run's rejections are not stored.
    Result: {"workflowId", "taskId", "status"}, and "unstaked" and "revoked" as of
    `AdvanceWorkflow`.
    """

    request_hash: bytes
    member: str
    shard_epoch: int
    workflow_id: str
    task_id: str
    payer_did: str
    intent: str
    manifest_json: str
    created_ms: int
    deadline_ms: int
    estimate_micro: int
    hold_micro: int
    reserved_json: str
    fee_bps: int
    has_hold: bool
    records: tuple[Record, ...]
    traceparent: str | None = None
    run: TriggerRun | None = None
    webhook_url: str | None = None
    rates: tuple[NodeRate, ...] = ()


class AdvanceWorkflow(PermittedCommand, frozen=True, kw_only=True):
    """Store what one step of a workflow decided: node rows, attempts, payments, perhaps its end.

    A terminal WorkflowChanged releases what is left in the escrow. Payments above the rest of the
    escrow never arrive here: the machine reserves before it dispatches. `slash_bps`: the share of
    its locked stake that an agent loses by a failed node, `slash_fraud_bps` by a wrong signature.
    `is_fresh`: decided from rows that have just been read. Rejections: ESCROW_RELEASED; FORBIDDEN
    (it says what a revoked agent has done) halts the workflow: CONFLICT, not stored, until a fresh
    command comes. Any other rejection (INTERNAL_ERROR, ALREADY_SETTLED) is not stored either and
    quarantines the workflow: {"quarantined": code} is its result and that of every later step,
    CONFLICT, until `ResumeWorkflow`; only a fresh step that ends the workflow is taken before.
    Result: {"releasedMicro": int} when it ended; {"unstaked": nodes} whose agent's free stake did
    not cover the lock, {"revoked": nodes} whose agent is revoked: their attempts must not be sent.
    """

    member: str
    shard_epoch: int
    workflow_id: str
    records: tuple[Record, ...]
    slash_bps: int = 0
    slash_fraud_bps: int = 0
    is_fresh: bool = False


class QuarantineWorkflow(Command, frozen=True, kw_only=True):
    """Stop a workflow for a reason that its member has found; its status stays as it is.

    Of a workflow that is quarantined already or has ended nothing changes; the first code stays.
    Rejections: ESCROW_RELEASED. Result: {"quarantined": code}.
    """

    member: str
    shard_epoch: int
    workflow_id: str
    code: QuarantineCode


class ResumeWorkflow(PermittedCommand, frozen=True, kw_only=True):
    """End a workflow's quarantine: the next step, decided from its rows, is taken again.

    Rejections: ESCROW_RELEASED; CONFLICT when it is not quarantined. No result.
    """

    member: str
    shard_epoch: int
    workflow_id: str
