"""Commands about workflows and about the triggers that start them.

Reference: money.md (Settlement), features.md (Triggers, Schedules).
"""

from __future__ import annotations

from typing import Any, Final, Literal

from core.errors import QuarantineCode
from core.message import Message
from core.records.statuses import TriggerKind
from core.subnets.policies import NodeRate
from core.workflow.events import Record
from ledger.authority import AuthorizedCommand, Credential, OwnersCommand, PermittedCommand
from ledger.commands import Command

# Commands about triggers: create, change and end them, and note causes that started no run. A run
# is a `PublishWorkflow` with a `TriggerRun`.

RUN_KEY: Final = "run:"


def run_command_key(trigger_id: str, key: str) -> str:
    """Return the key of the command for one cause of a run, from the key of the cause."""
    return f"{RUN_KEY}{trigger_id}:{key}"


class TriggerRun(Message, frozen=True, kw_only=True):
    """One cause of a run, and the state of the trigger from which the run was decided.

    `key`: identifies the cause: due time, delivery id, idempotency key or audit entry id.
    `version`, `credential`: the values in the trigger's row. `due_ms`: the due time that the run
    takes, None if it takes none. `next_due_ms`: the due time after `due_ms`, None if there is none.
    `depth`: how many runs of event triggers led to this one.
    """

    trigger_id: str
    key: str
    version: int
    credential: Credential = None
    due_ms: int | None = None
    next_due_ms: int | None = None
    depth: int = 0


class TriggerTerms(Message, frozen=True, kw_only=True):
    """The terms of a trigger that its owner sets.

    `config`: the settings of this kind of trigger. `manifest_json`: the template; None: unchanged.
    `is_enabled`: whether the trigger is active. `due_ms`: the first due time of a schedule.
    `expires_ms`: when the credential of the command ends, None for never.
    """

    name: str
    config: dict[str, Any]
    manifest_json: str | None = None
    max_runs: int | None = None
    daily_budget_micro: int | None = None
    is_enabled: bool = True
    due_ms: int | None = None
    expires_ms: int | None = None


class CreateTrigger(AuthorizedCommand, frozen=True, kw_only=True):
    """Store a trigger. Its runs act as its creator, with the credential of this command.

    `token_hash`, `secret`, `is_signed`: the columns of a hook. `count`: how many triggers the
    creator has. Rejection: CONFLICT, not stored: too many. Result: {"id"}.
    """

    request_hash: bytes = b""
    trigger_id: str
    kind: TriggerKind
    terms: TriggerTerms
    token_hash: bytes | None = None
    secret: bytes | None = None
    is_signed: bool | None = None
    count: int = 0


class ChangeTrigger(OwnersCommand, frozen=True, kw_only=True):
    """Change a trigger: all its terms become those of the command, and its version rises.

    `version`: the version from which the change was made. `changes`: the members that the caller
    named. `keeps_due`: leave the due time unchanged; refused unless the trigger is active. A paused
    trigger is resumed if the terms have `is_enabled`. Later runs use the credential of this
    command, unless the caller is an administrator and not the owner.
    Rejections: NOT_FOUND; CONFLICT: the trigger has ended, or was changed or paused meanwhile;
    INVALID_REQUEST: `max_runs` runs have started already. Result: {"version"}.
    """

    trigger_id: str
    version: int
    changes: tuple[str, ...]
    terms: TriggerTerms
    keeps_due: bool = False


class EndTrigger(OwnersCommand, frozen=True, kw_only=True):
    """End a trigger. Its running workflows continue. A trigger that has ended stays as it is.

    Rejection: NOT_FOUND. Result: {"endedMs"}.
    """

    trigger_id: str


class NoteRun(Command, frozen=True, kw_only=True):
    """Note that a cause started no run: the run was refused (`failed`) or was `skipped`.

    The key is that of the run. A failure with the `reason` UNAUTHORIZED pauses the trigger at once;
    so do ten failures in a row. `missed_until_ms`: the last of the missed due times; the first is
    `run.due_ms`. Rejection: CONFLICT, not stored: the trigger is not active, was changed meanwhile,
    or the due time was taken.
    """

    actor_did: str
    run: TriggerRun
    status: Literal["failed", "skipped"]
    reason: str
    detail: str = ""
    missed_until_ms: int | None = None


# Commands of a workflow: publish, advance, quarantine, resume. Each command carries the member that
# holds the workflow's shard, and the epoch of the shard, for the fence (`ledger/writer/plan.py`).

# The prefix of keys of publishes without a client's key; the task id follows.
PUBLISH_KEY: Final = "publish:"


class PublishWorkflow(PermittedCommand, frozen=True, kw_only=True):
    """Store a workflow, hold its budget in escrow, and store the first attempts of its root nodes.

    `records`: records of the workflow machine (NodeChanged, WorkflowChanged, AttemptFinished). If
    the estimate exceeds the budget, they contain a terminal WorkflowChanged(failed), `hold_micro`
    is 0 and nothing is held.
    `traceparent`: the traceparent of the caller's request, or None. `run`: the trigger run that
    this publish is, or None. `webhook_url`: the URL that gets a message when the workflow ends, or
    None.
    `reserved_json`: the reservation of each node, micro-credits by node. A member that takes over
    the workflow reads it.
    `rates`: the payer's rate policies.
    Rejections: INSUFFICIENT_CREDITS, KEY_REUSED; RATE_LIMITED, not stored (a rate policy). For a
    run also UNAUTHORIZED (the trigger's credential has ended), QUOTA_EXCEEDED (its daily budget)
    and CONFLICT as for `NoteRun`; rejections of runs are not stored.
    Result: {"workflowId", "taskId", "status"}, and "unstaked" and "revoked" as for
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
    """Store one step of a workflow: node rows, attempts, payments, and the end if it ends.

    A terminal WorkflowChanged releases the rest of the escrow. Payments never exceed the escrow,
    because the machine reserves before it dispatches. `slash_bps`: the part of its locked stake
    that an agent loses for a failed node, basis points. `slash_fraud_bps`: the part that it loses
    for a wrong signature. `is_fresh`: the step was decided from rows that have just been read.

    Rejections: ESCROW_RELEASED. FORBIDDEN (the step has the work of a revoked agent) halts the
    workflow: its steps get CONFLICT, not stored, until a fresh step comes. Any other rejection
    (INTERNAL_ERROR, ALREADY_SETTLED) is not stored and quarantines the workflow. The refused step
    and all later steps (CONFLICT) have the result {"quarantined": code}, until `ResumeWorkflow`.
    Until then only a fresh step that ends the workflow is accepted.
    Result: {"releasedMicro": int} when the workflow ended. {"unstaked": nodes}: the agent's
    unlocked stake did not cover the lock. {"revoked": nodes}: the agent is revoked. The attempts of
    these nodes must not be sent.
    """

    member: str
    shard_epoch: int
    workflow_id: str
    records: tuple[Record, ...]
    slash_bps: int = 0
    slash_fraud_bps: int = 0
    is_fresh: bool = False


class QuarantineWorkflow(Command, frozen=True, kw_only=True):
    """Stop a workflow because its member cannot continue it; its status stays as it is.

    If the workflow is quarantined already, the first code stays. Rejections: ESCROW_RELEASED (it
    has ended). Result: {"quarantined": code}.
    """

    member: str
    shard_epoch: int
    workflow_id: str
    code: QuarantineCode


class ResumeWorkflow(PermittedCommand, frozen=True, kw_only=True):
    """End a workflow's quarantine: its next step, decided from its rows, is accepted again.

    Rejections: ESCROW_RELEASED; CONFLICT when it is not quarantined. No result.
    """

    member: str
    shard_epoch: int
    workflow_id: str
