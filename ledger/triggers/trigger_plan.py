"""Planning what callers do with triggers: they create, change and end them.

Reference: features.md (Triggers, Schedules).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from core.records.audit import AuditEventType
from core.triggers.due import delay_of
from ledger.authority import Credential, OpenedBy, SignedBy
from ledger.tables.trigger_tables import TRIGGERS
from ledger.triggers.run_plan import record_change, stopped, store_trigger
from ledger.triggers.trigger_commands import ChangeTrigger, CreateTrigger, EndTrigger
from ledger.writer.batch import Batch, Result, conflict, invalid, not_found
from ledger.writer.command_kind import plans
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import KnownTrigger

DISABLED = "disabled"
TRIGGERS_PER_OWNER_MAX: Final = 1_000


def add_trigger_reads(command: ChangeTrigger | EndTrigger, read_set: ReadSet) -> None:
    """Declare the rows that a change of a trigger reads."""
    read_set.trigger_ids.add(command.trigger_id)


@plans(CreateTrigger, outlives_credential=True)
def plan_create_trigger(command: CreateTrigger, batch: Batch) -> Result:
    """Store a trigger."""
    terms, trigger_id, actor_did = command.terms, command.trigger_id, command.actor_did
    if command.count >= TRIGGERS_PER_OWNER_MAX:
        detail = f"{actor_did} has {command.count} triggers, the maximum: delete one first"
        raise conflict(detail, is_stored=False)
    known = KnownTrigger(
        id=trigger_id,
        owner_did=actor_did,
        kind=command.kind.value,
        version=1,
        max_runs=terms.max_runs,
        daily_budget_micro=terms.daily_budget_micro,
        status="active" if terms.is_enabled else "paused",
        reason=None if terms.is_enabled else DISABLED,
        due_ms=terms.due_ms if terms.is_enabled else None,
        expires_ms=terms.expires_ms,
        **_credential_columns(command.credential),
    )
    named = {"kind": known.kind, "name": terms.name}
    audit_id = record_change(AuditEventType.TRIGGER_CREATED, known, batch, **named)
    known = replace(known, audit_id=audit_id)
    batch.cache.triggers[trigger_id] = known
    others = {"manifest": terms.manifest_json, "delay_ms": delay_of(trigger_id, terms.config)}
    batch.store(TRIGGERS, trigger_id, command, terms, known, **others)
    return {"id": trigger_id}


@plans(ChangeTrigger, reads=add_trigger_reads, outlives_credential=True)
def plan_change_trigger(command: ChangeTrigger, batch: Batch) -> Result:
    """Change a trigger: its template and terms, and whether it is paused."""
    known, terms, actor_did = _owned(command, batch), command.terms, command.actor_did
    if known.status == "ended":
        raise conflict("the trigger has ended: create another one")
    due_ms = known.due_ms if command.keeps_due else terms.due_ms
    is_taken = due_ms is not None and due_ms <= (known.taken_ms or 0)
    is_paused_meanwhile = command.keeps_due and known.status != "active"
    if known.version != command.version or is_taken or is_paused_meanwhile:
        detail = "the trigger was changed or paused meanwhile: repeat the request"
        raise conflict(detail, is_stored=False)
    if terms.max_runs is not None and terms.max_runs <= known.runs:
        detail = f"maxRuns: got {terms.max_runs}, expected more than the {known.runs} runs so far"
        raise invalid(detail)
    version = known.version + 1
    changed = replace(
        known,
        version=version,
        max_runs=terms.max_runs,
        daily_budget_micro=terms.daily_budget_micro,
        due_ms=due_ms if terms.is_enabled else None,
    )
    if actor_did == known.owner_did:
        columns = _credential_columns(command.credential)
        changed = replace(changed, expires_ms=terms.expires_ms, **columns)
    event, named = AuditEventType.TRIGGER_CHANGED, list(command.changes)
    audit_id = record_change(event, known, batch, version=version, changes=named)
    if terms.is_enabled and known.status == "paused":
        record_change(AuditEventType.TRIGGER_RESUMED, known, batch)
        changed = replace(changed, status="active", reason=None, refusals=0, audit_id=audit_id)
    elif not terms.is_enabled and known.status == "active":
        changed = stopped(changed, "paused", DISABLED, batch)
    others = {} if terms.manifest_json is None else {"manifest": terms.manifest_json}
    store_trigger(
        changed,
        batch,
        name=terms.name,
        config=terms.config,
        delay_ms=delay_of(known.id, terms.config),
        updated_ms=batch.now_ms,
        **others,
    )
    return {"version": version}


@plans(EndTrigger, reads=add_trigger_reads, outlives_credential=True)
def plan_end_trigger(command: EndTrigger, batch: Batch) -> Result:
    """End a trigger."""
    known = _owned(command, batch)
    if known.status != "ended":
        known = stopped(known, "ended", "deleted", batch)
        store_trigger(known, batch, updated_ms=batch.now_ms)
    return {"endedMs": batch.now_ms}


def _owned(command: ChangeTrigger | EndTrigger, batch: Batch) -> KnownTrigger:
    known = batch.cache.triggers.get(command.trigger_id)
    if known is None or (known.owner_did != command.actor_did and not command.is_admin):
        raise not_found(f"the trigger {command.trigger_id} is not known")
    return known


def _credential_columns(credential: Credential) -> dict[str, Any]:
    return {
        "signed_key": credential.public_key if isinstance(credential, SignedBy) else None,
        "key_id": credential.key_id if isinstance(credential, OpenedBy) else None,
    }
