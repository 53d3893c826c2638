"""Triggers and schedules: what starts workflows later, and their runs.

`core/records/manifest_forms.py` describes the requests that configure triggers.
Reference: features.md (Triggers, Schedules).
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from core.records.api.kinds import Count, Credits, Did, DueCount, Timestamp, Uuid, words
from core.records.api.record import Done, Page, PageQuery, Record
from core.records.api.shape import Body, Json, Kind, Maybe, Mismatch, checked
from core.records.api.workflows import Status
from core.records.audit import AuditEventType
from core.records.bounds import (
    URL_CHARS_MAX,
    WEBHOOK_SECRET,
    WEBHOOK_URL_PATTERN,
    is_webhook_secret,
    is_webhook_url,
)
from core.records.statuses import OverlapPolicy, RunStatus, TriggerKind, TriggerStatus
from core.wording import got_of


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


class TriggerChanged(Trigger, Done):
    """A trigger that was created, changed or ended."""

    webhook_secret: Maybe[str]


class TriggersQuery(PageQuery):
    """Which triggers are listed."""

    status: Annotated[
        Maybe[TriggerStatus],
        words(TriggerStatus),
        "Only triggers in this state. Default: all that have not ended.",
    ] = None


class SchedulePage(Page[Trigger], plural="schedules"):
    """A page of the caller's schedules."""


class TriggerPage(Page[Trigger], plural="triggers"):
    """A page of the caller's triggers."""


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


class RunPage(Page[TriggeredRun], plural="runs"):
    """A page of runs, the newest first."""


class RunStarted(Done):
    """A run that a caller started."""

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


ALL_EVENTS: Final = "*"
# The type of the message that a test of a webhook sends. This message is no audit entry.
TEST_EVENT: Final = "webhook.test"
DELIVERY_STATUSES: Final = ("pending", "delivered", "failed")
_EVENTS_MAX: Final = 100
_KNOWN_EVENTS: Final = frozenset((ALL_EVENTS, *AuditEventType))


def _events(value: Any) -> list[str]:
    expected = f"an array of 1 to {_EVENTS_MAX} audit event types"
    if not isinstance(value, list) or not 0 < len(value) <= _EVENTS_MAX:
        raise Mismatch(got_of(value), expected)
    for one in value:
        if not isinstance(one, str) or one not in _KNOWN_EVENTS:
            raise Mismatch(got_of(one), expected)
    return list(dict.fromkeys(value))


def _secret(value: Any) -> str:
    if not is_webhook_secret(value):
        # A message must not contain a secret, even an invalid one.
        raise Mismatch("a value", WEBHOOK_SECRET)
    return str(value)


WebhookUrl = Annotated[
    str,
    checked(
        {"type": "string", "pattern": WEBHOOK_URL_PATTERN, "maxLength": URL_CHARS_MAX},
        is_webhook_url,
        "an http or https URL without credentials, spaces and #",
    ),
]
SentEvents = Annotated[
    list[str],
    Kind(
        {
            "type": "array",
            "items": {"enum": sorted(_KNOWN_EVENTS)},
            "minItems": 1,
            "maxItems": _EVENTS_MAX,
        },
        _events,
    ),
]
WebhookSecret = Annotated[
    str,
    Kind({"type": "string", "pattern": "^whsec_[A-Za-z0-9+/]+={0,2}$", "maxLength": 128}, _secret),
]


class WebhookRequest(Body, is_closed=True):
    """A new webhook."""

    url: Annotated[WebhookUrl, "Address to which events are sent."]
    events: Annotated[SentEvents, "Audit event types; `*`: all."]
    secret: Annotated[Maybe[WebhookSecret], "Key of the signatures. Default: a new one."] = None


class WebhookChange(Body, is_closed=True):
    """Changes of a webhook."""

    url: Annotated[Maybe[WebhookUrl], "New address."] = None
    events: Annotated[Maybe[SentEvents], "New audit event types."] = None
    enabled: Annotated[Maybe[bool], "Whether events are sent; false pauses the webhook."] = None
    rotate_secret: Annotated[
        Maybe[bool],
        "True: make a new secret. For 24 hours the previous one signs as well.",
    ] = None


class Webhook(Record):
    """A webhook."""

    id: Annotated[Uuid, "Id of the webhook."]
    owner_did: str
    url: Annotated[str, "Address to which events are sent."]
    events: Annotated[list[str], "Audit event types; `*`: all."]
    enabled: Annotated[bool, "Whether events are sent."]
    pause_reason: Annotated[str | None, "Why no events are sent; null while they are."]
    failing_since: Annotated[
        Timestamp | None, "Time since which every attempt has failed; null: the last one succeeded."
    ]
    skipped_events: Annotated[
        Count, "Number of events that were never sent because too many were undelivered."
    ]
    previous_secret_ends_at: Annotated[
        Timestamp | None, "Time until which the previous secret signs as well; null without one."
    ]
    created_at: Timestamp
    updated_at: Timestamp | None
    secret: Annotated[
        Maybe[str], "Key of the signatures. Only in the reply that creates or rotates it."
    ]


class WebhookPage(Page[Webhook], plural="webhooks"):
    """A page of webhooks, oldest first."""


class DeliveriesQuery(PageQuery):
    """Filters of the list of deliveries."""

    status: Annotated[Maybe[str], words(DELIVERY_STATUSES), "Only deliveries in this state."] = None


class WebhookDelivery(Record):
    """An event that is sent to a webhook."""

    id: Annotated[Uuid, "Id of the delivery, the header `webhook-id` of each attempt."]
    webhook_id: Annotated[Uuid, "Id of the webhook."]
    event_type: Annotated[str, "Type of the event, the `type` of the message."]
    audit_id: Annotated[int | None, "Id of the audit entry; null for a test."]
    workflow_id: Annotated[Uuid | None, "Workflow that the entry is about; null without one."]
    status: Annotated[str, words(DELIVERY_STATUSES), "State of the delivery."]
    attempts: Annotated[Count, "Number of attempts since it was last made due."]
    next_attempt_at: Annotated[
        Timestamp | None, "Time of the next attempt; null when it has ended."
    ]
    http_status: Annotated[int | None, "Status of the last reply; null without a reply."]
    error: Annotated[str | None, "Why the last attempt failed; null otherwise."]
    created_at: Timestamp
    ended_at: Annotated[
        Timestamp | None, "Time at which it was delivered or given up; null before that."
    ]


class DeliveryPage(Page[WebhookDelivery], plural="deliveries"):
    """A page of deliveries, newest first."""
