"""Triggers and schedules: what starts workflows later, and their runs.

The requests that configure them are described by `core/records/manifest_forms.py`.
Reference: features.md (Triggers, Schedules).
"""

from __future__ import annotations

from typing import Annotated

from core.records.api.kinds import Count, Credits, Did, DueCount, Timestamp, Uuid, Yes, words
from core.records.api.record import Page, PageQuery, Record
from core.records.api.shape import Body, Json, Maybe
from core.records.api.workflows import Status
from core.records.statuses import OverlapPolicy, RunStatus, TriggerKind, TriggerStatus


class Trigger(Record):
    """A trigger: a template, and what starts runs of it. A schedule is a scheduled trigger."""

    id: Annotated[Uuid, "Id of the trigger, and of its template."]
    trigger_id: Annotated[Uuid, "Id of the trigger."]
    schedule_id: Annotated[Maybe[Uuid], "Id of the trigger, where it is a schedule."]
    kind: Annotated[str, words(TriggerKind), "What starts its runs."]
    name: Annotated[str, "Name of the trigger."]
    owner_did: Annotated[Did, "DID of its creator, who pays for its runs."]
    status: Annotated[str, words(TriggerStatus), "`paused` and `ended` triggers start no runs."]
    reason: Annotated[
        str | None,
        "Why it is paused (`disabled`, `refusals`, `credentialEnded`) or has ended (`deleted`,"
        " `maxRuns`, `noDueTime`); null while it is active.",
    ]
    version: Annotated[Count, "Number of its version; each change makes a new one."]
    workflow_template: Annotated[Json, "Manifest of its runs."]
    max_runs: Annotated[Count | None, "Runs after which it ends; null: no maximum."]
    daily_budget_credits: Annotated[
        Credits | None, "Most that the runs of one UTC day may hold; null: no maximum."
    ]
    runs: Annotated[Count, "Number of runs that were started."]
    refusals: Annotated[Count, "Number of refused runs since the last run that was not refused."]
    next_run_at: Annotated[Timestamp | None, "Next due time; null without one."]
    expires_at: Annotated[
        Timestamp | None, "End of the credential that it runs by; null: it does not expire."
    ]
    cron_expression: Annotated[Maybe[str], "When runs of a schedule are due."]
    timezone: Annotated[Maybe[str], "IANA time zone of a schedule."]
    overlap_policy: Annotated[
        Maybe[str],
        words(OverlapPolicy),
        "What happens to a due time of a schedule while a run has not ended.",
    ]
    catch_up_window_ms: Annotated[Maybe[Count], "How late a run of a schedule may start, in ms."]
    jitter_ms: Annotated[Maybe[Count], "Longest delay of the runs of a schedule, in ms."]
    hook_url: Annotated[
        Maybe[str],
        "URL that starts runs of a webhook trigger: keep it secret. Only its creator reads it,"
        " where one trigger is read or created.",
    ]
    is_signed: Annotated[Maybe[bool], "Whether calls of the hook need a signature."]
    event_type: Annotated[Maybe[str], "Type of the events that start runs of an event trigger."]
    filter: Annotated[Maybe[Json], "What members of the event must equal."]
    max_runs_per_minute: Annotated[Maybe[Count], "Most runs of a hook or event trigger a minute."]
    created_at: Timestamp
    updated_at: Annotated[Timestamp, "Time of the last change by a caller."]


class TriggerChanged(Trigger):
    """A trigger that was created, changed or ended."""

    success: Yes
    webhook_secret: Maybe[str]


class TriggersQuery(PageQuery):
    """Which triggers are listed."""

    status: Annotated[
        Maybe[TriggerStatus],
        words(TriggerStatus),
        "Only triggers in this state. Default: all that have not ended.",
    ] = None


class SchedulePage(Page[Trigger]):
    """A page of the caller's schedules."""

    plural = "schedules"
    row = Trigger


class TriggerPage(Page[Trigger]):
    """A page of the caller's triggers."""

    plural = "triggers"
    row = Trigger


class DueQuery(Body):
    """How many due times are listed."""

    n: Annotated[Maybe[DueCount], "Number of due times, 1 to 100. Default 10."] = None


class DueTimes(Record):
    """The next due times of a schedule."""

    schedule_id: Annotated[Uuid, "Id of the schedule."]
    next: Annotated[
        list[str], "The due times, in order; fewer if the next 50 years have no more of them."
    ]


class TriggeredRun(Record):
    """The result of one due time, hook call or event."""

    key: Annotated[str, "The due time, the delivery or the event that was the cause."]
    status: Annotated[
        str,
        words(RunStatus),
        "`started` a workflow, `failed`: the publish was refused, or `skipped`.",
    ]
    version: Annotated[Count, "Version of the trigger that was used."]
    due_at: Annotated[Timestamp | None, "Due time; null for a run that was not due."]
    workflow_id: Annotated[Uuid | None, "Id of the workflow; null when none was started."]
    workflow_status: Annotated[Status | None, "State of that workflow now."]
    reason: Annotated[
        str | None,
        "Error code of a refusal; `overlap` or `missed` of a due time, `depth`, `rate` or"
        " `inactive` of an event that was skipped; else null.",
    ]
    detail: Annotated[str | None, "The refusal in words."]
    missed_until: Annotated[
        Timestamp | None, "Last of the due times that were missed, from `dueAt` on; else null."
    ]
    depth: Annotated[Count, "How many runs of event triggers led to this one."]
    created_at: Timestamp


class RunPage(Page[TriggeredRun]):
    """A page of runs, the newest first."""

    plural = "runs"
    row = TriggeredRun


class RunStarted(Record):
    """A run that a caller started."""

    success: Yes
    id: Annotated[Uuid, "Id of the workflow."]
    workflow_id: Uuid
    task_id: Uuid
    template_id: Annotated[Uuid, "Id of the trigger."]
    status: Annotated[Status, "`pending`, or `failed` when the estimate exceeds the budget."]


class TemplateStored(Trigger):
    """A template that was published, and its trigger. Nothing runs yet."""

    workflow_id: Annotated[Uuid, "Id of the template; each run is a workflow of its own."]
    template_id: Annotated[Uuid, "Id of the template."]
    webhook_secret: Maybe[str]
    warnings: Annotated[
        Maybe[list[str]], "Members of the manifest that have no effect, each with its path."
    ]
