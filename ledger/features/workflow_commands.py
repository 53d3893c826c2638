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

# Commands about triggers: they are created, changed and ended, and refused runs are noted. A run
# itself is `PublishWorkflow` with a `TriggerRun`.

RUN_KEY: Final = "run:"


def run_command_key(trigger_id: str, key: str) -> str:
    """Return the key of the command that takes one cause of a run, by the key of the cause."""
    return f"{RUN_KEY}{trigger_id}:{key}"


class TriggerRun(Message, frozen=True, kw_only=True):
    """One cause of a run, and the state of the trigger that it was decided from.

    `key`: identifies the cause: due time, delivery id, idempotency key or audit entry id.
    `version`, `credential`: as the trigger's row has them. `due_ms`: the due time that is taken,
    None for a run that takes none; `next_due_ms`: the due time after it; None: there is none.
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
    """What configures a trigger.

    `config`: the configuration of its kind. `manifest_json`: the template; None: unchanged.
    `is_enabled`: whether it is active. `due_ms`: the first due time of a schedule. `expires_ms`:
    when the credential of the command ends, None for never.
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
    """Store a trigger; it runs as its creator, by the credential of this command.

    `token_hash`, `secret`, `is_signed`: of a hook, as its row has them. `count`: how many triggers
    its creator has. Rejection: CONFLICT, not stored: too many. Result: {"id"}.
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
    """Change a trigger: all its terms become those of the command; its version rises.

    `version`: that the change was made from. `changes`: the members that the caller named.
    `keeps_due`: leave the due time unchanged; refused unless the trigger is active. A paused
    trigger whose terms are enabled is resumed. From then on the trigger runs by the credential of
    this command, unless it is that of an administrator who is not the owner. Rejections: NOT_FOUND;
    CONFLICT: it has ended, or was changed or paused meanwhile; INVALID_REQUEST: `max_runs` are
    started already. Result: {"version"}.
    """

    trigger_id: str
    version: int
    changes: tuple[str, ...]
    terms: TriggerTerms
    keeps_due: bool = False


class EndTrigger(OwnersCommand, frozen=True, kw_only=True):
    """End a trigger; its runs go on. One that has ended stays as it is.

    Rejection: NOT_FOUND. Result: {"endedMs"}.
    """

    trigger_id: str


class NoteRun(Command, frozen=True, kw_only=True):
    """Note that a cause of a run started none: it `failed`, since it was refused, or was `skipped`.

    The key is that of the run. A failure for the `reason` UNAUTHORIZED pauses the trigger at once;
    ten failures in a row pause it, too. `missed_until_ms`: the last of the due times that were
    missed, the first is `run.due_ms`. Rejection: CONFLICT, not stored: the trigger is not active,
    was changed meanwhile, or the due time was taken.
    """

    actor_did: str
    run: TriggerRun
    status: Literal["failed", "skipped"]
    reason: str
    detail: str = ""
    missed_until_ms: int | None = None


# Commands of a workflow's life: it is published, advances, is quarantined and resumed. Each
# carries the member that holds the workflow's shard and the epoch under which it does, for the
# fence (`ledger/writer/plan.py`).

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
