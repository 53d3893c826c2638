"""How the workflow endpoints treat template ids: publish stores a trigger, cancel ends it.

Reference: features.md (Triggers).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from actors.routing.trigger_runs import workflow_limits
from core.json_text import read_json
from core.records.api.triggers import TemplateStored
from core.records.api.workflows import Cancelled
from core.records.manifest import WorkflowManifest
from core.workflow.dag import compile_workflow
from core.workflow.transitions import WorkflowStatus
from core.workflow.unused_members import list_ignored
from ledger.reads.stored import RowDict
from ledger.triggers.trigger_commands import CreateTrigger, EndTrigger
from ledger.triggers.trigger_reads import trigger_row
from serve_app.http.calls import Call, Reply, replayed
from serve_app.operations.events.webhook_urls import check_publish_url
from serve_app.operations.views import iso_time, shown
from serve_app.operations.work.trigger_making import create_trigger, new_template
from serve_app.operations.work.triggers import shown_trigger


@dataclass(frozen=True, slots=True)
class Template:
    """A publish that stores a template. `warnings`: members of it that have no effect."""

    command: CreateTrigger
    warnings: tuple[str, ...]


def published_template(call: Call, manifest: WorkflowManifest, manifest_json: bytes) -> Template:
    """Return what a publish with a trigger that is not manual stores.

    Raises:
        ServiceError: INVALID_MANIFEST with every defect; FORBIDDEN for another's money.
    """
    compiled = compile_workflow(manifest, workflow_limits(call.services.settings))
    check_publish_url(manifest.webhook_url, call.services.settings.egress_allow)
    command = new_template(call, manifest, read_json(manifest_json))
    return Template(command, list_ignored(manifest, compiled))


async def store_template(
    call: Call, template: Template, headers: tuple[tuple[bytes, bytes], ...]
) -> Reply:
    """Store a template and its trigger; a repeat returns the trigger as it is now.

    Args:
        headers: of the reply.
    """
    outcome = await create_trigger(call, template.command)
    trigger_id = outcome.result["id"]
    others = {"workflow_id": trigger_id, "template_id": trigger_id}
    record = await shown_trigger(
        call, trigger_id, TemplateStored, **others, warnings=template.warnings or None
    )
    return Reply(record, headers=(*replayed(outcome), *headers))


async def owned_template(call: Call, template_id: str) -> RowDict | None:
    """Return the trigger of a template, None when the caller may not know of it."""
    row = await trigger_row(call.services.reader, template_id)
    return row if row is not None and call.may((row["owner_did"],)) else None


async def cancel_template(call: Call, row: RowDict, reason: str) -> dict[str, Any]:
    """End the trigger of a template; return the reply of a cancel.

    Raises:
        ServiceError: INSUFFICIENT_SCOPE.
    """
    call.require("schedules:write")
    trigger_id = str(row["id"])
    outcome = await call.commit(EndTrigger(trigger_id=trigger_id))
    return shown(
        Cancelled,
        {},
        success=True,
        id=trigger_id,
        workflow_id=trigger_id,
        status=WorkflowStatus.CANCELLED,
        reason=reason,
        cancelled_at=iso_time(outcome.result["endedMs"]),
        cancelled_by=call.caller.did,
        nodes_affected=0,
        refunded_credits=0,
    )
