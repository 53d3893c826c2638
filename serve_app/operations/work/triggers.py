"""Triggers and schedules: a trigger stores a template and starts runs of it later.

A schedule is a trigger of the kind `scheduled`. `/v1/schedules` and `/v1/triggers` share their
handlers; `/v1/schedules` serves only schedules.
Reference: features.md (Triggers, Schedules).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from actors.routing.trigger_runs import run_of, workflow_limits
from core.errors import ErrorCode, ServiceError
from core.json_text import Raw, read_json
from core.records.api.record import PageQuery
from core.records.api.triggers import (
    DueQuery,
    DueTimes,
    RunPage,
    RunStarted,
    SchedulePage,
    TemplateStored,
    Trigger,
    TriggerChanged,
    TriggeredRun,
    TriggerPage,
    TriggersQuery,
)
from core.records.api.workflows import Cancelled
from core.records.manifest import WorkflowManifest
from core.records.manifest_forms import ScheduleRequest, TriggerChange
from core.records.statuses import TriggerKind, TriggerStatus
from core.timestamps import iso_ms
from core.triggers.due import due_times, next_due_of
from core.trust.webhook_messages import publish_secrets
from core.workflow.dag import compile_workflow
from core.workflow.transitions import WorkflowStatus
from core.workflow.unused_members import list_ignored
from ledger.features.triggers import run_rows, trigger_row, trigger_rows
from ledger.features.workflow_commands import CreateTrigger, EndTrigger
from ledger.reads.stored import RowDict
from serve_app.http.calls import Call, Json, Operations, Repeats, Reply, not_found, replayed
from serve_app.http.lists import id_after, listed, number_after, page_of
from serve_app.http.worker_thread import IN_LOOP_BYTES_MAX, in_thread
from serve_app.operations.events.webhooks import check_publish_url
from serve_app.operations.views import Row, iso_time, shown
from serve_app.operations.work import hooks
from serve_app.operations.work.publishing import PUBLISH_ERRORS
from serve_app.operations.work.trigger_making import (
    WORKFLOWS_WRITE,
    changed_trigger,
    create_trigger,
    new_schedule,
    new_template,
)

OPERATIONS = Operations("schedules")

DUE_DEFAULT: Final = 10
# Only due times of the next 50 years are listed, because rare due times take long to find.
DUE_SPAN_MS: Final = 50 * 365 * 24 * 3_600_000
_SCHEDULE: Final = "/v1/schedules/{schedule_id}"
_TRIGGER: Final = "/v1/triggers/{trigger_id}"


@OPERATIONS.add(
    "POST",
    "/v1/schedules",
    body=ScheduleRequest,
    reply=TriggerChanged,
    errors=(ErrorCode.INVALID_MANIFEST,),
)
async def create(call: Call) -> Json:
    """Create a schedule."""
    call.require(WORKFLOWS_WRITE)
    make = partial(new_schedule, call, call.object_body())
    command = await in_thread(call.account, len(call.body), make)
    outcome = await create_trigger(call, command)
    return await shown_trigger(call, outcome.result["id"], TriggerChanged, success=True)


@OPERATIONS.add("GET", "/v1/schedules", query=TriggersQuery, reply=SchedulePage)
async def list_schedules(call: Call) -> Json:
    """List schedules, newest first."""
    return await _list(call, "schedules", TriggerKind.SCHEDULED)


@OPERATIONS.add("GET", "/v1/triggers", query=TriggersQuery, reply=TriggerPage)
async def list_triggers(call: Call) -> Json:
    """List triggers, newest first."""
    return await _list(call, "triggers", None)


@OPERATIONS.add("GET", _TRIGGER, reply=Trigger)
@OPERATIONS.add("GET", _SCHEDULE, reply=Trigger)
async def get(call: Call) -> Json:
    """Read a trigger."""
    row = await _own(call)
    return trigger_record(row, **_hook_of(call, row))


@OPERATIONS.add(
    "PATCH",
    _TRIGGER,
    body=TriggerChange,
    reply=TriggerChanged,
    errors=(ErrorCode.INVALID_MANIFEST,),
)
@OPERATIONS.add(
    "PATCH",
    _SCHEDULE,
    body=TriggerChange,
    reply=TriggerChanged,
    errors=(ErrorCode.INVALID_MANIFEST,),
)
async def change(call: Call) -> Json:
    """Change, pause or resume a trigger."""
    row = await _own(call)
    make = partial(changed_trigger, call, row, call.object_body())
    command = await in_thread(call.account, len(call.body), make)
    await call.commit(command)
    return await shown_trigger(call, str(row["id"]), TriggerChanged, success=True)


@OPERATIONS.add("DELETE", _TRIGGER, reply=TriggerChanged)
@OPERATIONS.add("DELETE", _SCHEDULE, reply=TriggerChanged)
async def delete(call: Call) -> Json:
    """End a trigger; its runs continue."""
    trigger_id = str((await _own(call))["id"])
    await call.commit(EndTrigger(trigger_id=trigger_id))
    return await shown_trigger(call, trigger_id, TriggerChanged, success=True)


@OPERATIONS.add(
    "POST",
    f"{_SCHEDULE}/trigger",
    reply=RunStarted,
    errors=PUBLISH_ERRORS,
    repeats=Repeats.BY_COMMAND,
)
async def start_run(call: Call) -> Reply:
    """Start a run of a schedule now; its due times do not change."""
    call.require(WORKFLOWS_WRITE)
    services, row = call.services, await _own(call)
    key = call.repeat_key.text if call.repeat_key is not None else services.new_id()
    now = iso_ms(services.now_ms())
    started = hooks.start_run(
        call,
        row,
        run_of(row, f"manual:{key}"),
        {"dueAt": now, "result": {"dueAt": now}},
        actor_did=call.caller.did,
        authority=call.authority,
        request_hash=call.request_hash,
    )
    try:
        return await services.to_the_end(started)
    except ServiceError as error:
        # UNAUTHORIZED means here that the trigger's stored credential has ended, not the caller's.
        if error.code is ErrorCode.UNAUTHORIZED:
            detail = f"the schedule cannot run, credentialEnded: {error.detail}"
            raise ServiceError(ErrorCode.CONFLICT, detail) from None
        raise


@OPERATIONS.add("GET", f"{_SCHEDULE}/next", query=DueQuery, reply=DueTimes)
async def next_due(call: Call) -> Json:
    """List the next due times of a schedule."""
    row, count = await _own(call), call.given(DueQuery).n or DUE_DEFAULT
    now_ms = call.services.now_ms()

    def found() -> list[str]:
        next_after, due_ms = next_due_of(row["config"]), row["due_ms"]
        if due_ms is None and row["status"] == TriggerStatus.PAUSED:
            due_ms = next_after(now_ms)
        times = due_times(due_ms, next_after, count=count, until_ms=now_ms + DUE_SPAN_MS)
        return [iso_ms(one) for one in times]

    times = await in_thread(call.account, IN_LOOP_BYTES_MAX + 1, found)
    return {"scheduleId": str(row["id"]), "next": times}


@OPERATIONS.add("GET", f"{_TRIGGER}/runs", query=PageQuery, reply=RunPage)
@OPERATIONS.add("GET", f"{_SCHEDULE}/runs", query=PageQuery, reply=RunPage)
async def list_runs(call: Call) -> Json:
    """List runs of a trigger, newest first."""
    row, page = await _own(call), page_of(call, call.given(PageQuery))
    rows = await run_rows(
        call.services.reader, str(row["id"]), before_audit_id=number_after(page), **page.rows
    )
    form = partial(shown, TriggeredRun)
    return listed("runs", rows, page, lambda one: one["audit_id"], form=form)


def trigger_record(row: Row, declared: type[Trigger] = Trigger, **others: Any) -> dict[str, Any]:
    """Return a trigger's record, with the members of its configuration."""
    trigger_id = str(row["id"])
    is_schedule = row["kind"] == TriggerKind.SCHEDULED
    known = {
        "trigger_id": trigger_id,
        "schedule_id": trigger_id if is_schedule else None,
        "workflow_template": Raw(row["manifest"]),
        "next_run_at": iso_time(row["due_ms"]),
        **others,
    }
    return {**shown(declared, row, **known), **row["config"]}


async def shown_trigger(
    call: Call, trigger_id: str, declared: type[Trigger], **others: Any
) -> dict[str, Any]:
    """Read a trigger that the caller has created or changed, and return its record.

    The record has the hook's URL and the webhook secret if the caller may see them.
    """
    row = await trigger_row(call.services.reader, trigger_id)
    assert row is not None, trigger_id
    given = {**_hook_of(call, row), **_secret_of(call, row)}
    return trigger_record(row, declared, **given, **others)


def _hook_of(call: Call, row: RowDict) -> dict[str, Any]:
    """Return the `hook_url` member. Only the owner sees it: with the URL anyone can start runs."""
    is_shown = call.is_party((row["owner_did"],)) and call.holds(WORKFLOWS_WRITE)
    if row["kind"] != TriggerKind.WEBHOOK or not is_shown:
        return {}
    return {"hook_url": hooks.hook_url(call.services.settings, row)}


def _secret_of(call: Call, row: RowDict) -> dict[str, Any]:
    """Return the `webhook_secret` member, which only the owner sees.

    The secret signs messages to the `webhookUrl` of the runs. The check is a text search, so a
    template that has a nested member named `webhookUrl` also gets a secret.
    """
    if '"webhookUrl":' not in row["manifest"] or not call.is_party((row["owner_did"],)):
        return {}
    secret, *_ = publish_secrets(call.services.settings.deployment_keys, str(row["id"]))
    return {"webhook_secret": secret}


async def _list(call: Call, plural: str, kind: TriggerKind | None) -> Json:
    query = call.given(TriggersQuery)
    page = page_of(call, query)
    rows = await trigger_rows(
        call.services.reader,
        owner_did=call.party_did,
        kind=kind,
        status=query.status,
        before_id=id_after(page),
        bytes_max=page.bytes_max,
        **page.rows,
    )
    return listed(
        plural, rows, page, lambda row: row["id"], form=trigger_record, is_cut=rows.is_cut
    )


async def _own(call: Call) -> RowDict:
    """Return the trigger in the path. The caller must be its owner or an administrator.

    Raises:
        ServiceError: NOT_FOUND if the trigger does not exist or has another owner. If the path
            names a schedule, also if the trigger is of another kind.
    """
    is_schedule = "schedule_id" in call.path_values
    trigger_id = call.path_values["schedule_id" if is_schedule else "trigger_id"]
    what = f"the {'schedule' if is_schedule else 'trigger'} {trigger_id}"
    row = await trigger_row(call.services.reader, trigger_id)
    if row is None or (is_schedule and row["kind"] != TriggerKind.SCHEDULED):
        raise not_found(what)
    call.require_party((row["owner_did"],), what)
    return row


@dataclass(frozen=True, slots=True)
class Template:
    """A publish that stores a template. `warnings`: members of the template without effect."""

    command: CreateTrigger
    warnings: tuple[str, ...]


def published_template(call: Call, manifest: WorkflowManifest, manifest_json: bytes) -> Template:
    """Return the template to store for a published manifest whose trigger is not manual.

    Raises:
        ServiceError: INVALID_MANIFEST with all problems; FORBIDDEN if the manifest names another
            payer.
    """
    compiled = compile_workflow(manifest, workflow_limits(call.services.settings))
    check_publish_url(manifest.webhook_url, call.services.settings.egress_allow)
    command = new_template(call, manifest, read_json(manifest_json))
    return Template(command, list_ignored(manifest, compiled))


async def store_template(
    call: Call, template: Template, headers: tuple[tuple[bytes, bytes], ...]
) -> Reply:
    """Store a template and its trigger. A repeat returns the current state of the trigger.

    Args:
        call: the publish.
        template: the template.
        headers: further headers of the reply.
    """
    outcome = await create_trigger(call, template.command)
    trigger_id = outcome.result["id"]
    others = {"workflow_id": trigger_id, "template_id": trigger_id}
    record = await shown_trigger(
        call, trigger_id, TemplateStored, **others, warnings=template.warnings or None
    )
    return Reply(record, headers=(*replayed(outcome), *headers))


async def owned_template(call: Call, template_id: str) -> RowDict | None:
    """Return the trigger of a template; None if it does not exist or is hidden from the caller."""
    row = await trigger_row(call.services.reader, template_id)
    return row if row is not None and call.may((row["owner_did"],)) else None


async def cancel_template(call: Call, row: RowDict, reason: str) -> dict[str, Any]:
    """End the trigger of a template, and return the body of a cancel's reply.

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
