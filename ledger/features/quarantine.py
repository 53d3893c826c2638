"""Plans that quarantine one workflow after a step that the ledger or the member cannot process, or
resume it.

A quarantined workflow keeps its status and its money; its steps are refused until it is resumed or
ends. The quarantine is stored in the workflow's row, so neither a new command key nor another
member can repeat the step. Decision ledger-writer.
"""

from __future__ import annotations

from core.errors import ErrorCode, QuarantineCode
from core.records.audit import AuditEventType
from core.workflow.events import WorkflowChanged
from core.workflow.transitions import is_terminal
from ledger.commands import Outcome, OutcomeStatus
from ledger.features.workflow_commands import AdvanceWorkflow, QuarantineWorkflow, ResumeWorkflow
from ledger.tables.work_tables import HALTS
from ledger.writer.batch import Batch, Refusal, Result, conflict
from ledger.writer.command_kind import keys_of, plans
from ledger.writer.state_cache import Escrow

# Refusals that a member handles by itself; any other refusal of a step quarantines the workflow.
FORESEEN = (ErrorCode.ESCROW_RELEASED, ErrorCode.FORBIDDEN, ErrorCode.CONFLICT)


def held_escrow(workflow_id: str, batch: Batch) -> Escrow:
    """Return the escrow of a workflow that has not ended.

    Raises:
        Refusal: ESCROW_RELEASED.
    """
    escrow = batch.cache.escrows.get(workflow_id)
    if escrow is None or escrow.is_released:
        raise Refusal(
            ErrorCode.ESCROW_RELEASED,
            "the workflow has ended and its escrow is released: it cannot change any more",
            is_audited=True,
        )
    return escrow


def check_not_quarantined(command: AdvanceWorkflow, escrow: Escrow) -> None:
    """Refuse a step of a quarantined workflow, unless the step is fresh and ends the workflow.

    Raises:
        Refusal: CONFLICT, not stored.
    """
    if escrow.quarantine is None or (command.is_fresh and _is_end(command)):
        return
    raise conflict(
        "the workflow is quarantined: resume or cancel it",
        is_stored=False,
        result={"quarantined": escrow.quarantine.value},
    )


def quarantined(
    command: AdvanceWorkflow, code: QuarantineCode, error: ErrorCode, detail: str, batch: Batch
) -> Outcome:
    """Quarantine the workflow of a step that cannot be stored. Store nothing under the step's
    key."""
    escrow = batch.cache.escrows.get(command.workflow_id)
    result: dict[str, str] = {}
    if escrow is not None and not escrow.is_released:
        batch.actor_did = command.actor_did
        result = {"quarantined": _quarantine(command, escrow, code, batch)}
    batch.untraced.add(command.key)
    return Outcome(OutcomeStatus.REJECTED, result, error, detail)


@plans(QuarantineWorkflow, reads=keys_of(workflow_ids="workflow_id"))
def plan_quarantine(command: QuarantineWorkflow, batch: Batch) -> Result:
    """Quarantine a workflow at the request of the member that drives it."""
    batch.actor_did = command.member
    escrow = held_escrow(command.workflow_id, batch)
    return {"quarantined": _quarantine(command, escrow, command.code, batch)}


@plans(ResumeWorkflow, reads=keys_of(workflow_ids="workflow_id"))
def plan_resume(command: ResumeWorkflow, batch: Batch) -> Result:
    """End a quarantine. The workflow stays halted: its next step must be decided from its rows."""
    escrow = held_escrow(command.workflow_id, batch)
    if escrow.quarantine is None:
        raise conflict("the workflow is not quarantined", is_stored=False)
    code, escrow.quarantine = escrow.quarantine, None
    set_halted(command.workflow_id, escrow, batch, is_halted=True)
    target = ("workflow", command.workflow_id)
    batch.record(AuditEventType.WORKFLOW_RESUMED, target, code=code.value)
    return {}


def set_halted(workflow_id: str, escrow: Escrow, batch: Batch, *, is_halted: bool) -> None:
    """Set whether a workflow's next step must be decided from its rows."""
    escrow.is_halted = is_halted
    halt = {"id": workflow_id, "is_halted": is_halted, "quarantine_code": escrow.quarantine}
    batch.put(HALTS, workflow_id, halt)


def _quarantine(
    command: AdvanceWorkflow | QuarantineWorkflow,
    escrow: Escrow,
    code: QuarantineCode,
    batch: Batch,
) -> str:
    if escrow.quarantine is not None:
        return escrow.quarantine.value
    escrow.quarantine = code
    set_halted(command.workflow_id, escrow, batch, is_halted=True)
    payload = {"code": code.value, "commandKey": command.key}
    batch.record(AuditEventType.WORKFLOW_QUARANTINED, ("workflow", command.workflow_id), **payload)
    return code.value


def _is_end(command: AdvanceWorkflow) -> bool:
    return any(
        type(record) is WorkflowChanged and is_terminal(record.status) for record in command.records
    )
