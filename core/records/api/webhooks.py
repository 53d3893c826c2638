"""Records of webhooks and their deliveries.

Reference: features.md (Webhooks).
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from core.records.api.kinds import Count, Timestamp, Uuid, Yes, words
from core.records.api.record import Page, PageQuery, Record
from core.records.api.shape import Body, Kind, Maybe, Mismatch, checked
from core.records.audit import AuditEventType
from core.records.bounds import (
    URL_CHARS_MAX,
    WEBHOOK_SECRET,
    WEBHOOK_URL_PATTERN,
    is_webhook_secret,
    is_webhook_url,
)
from core.wording import got_of

ALL_EVENTS: Final = "*"
# The type of the message that a test sends; it is no audit entry.
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
        # A secret is shown to nobody, not even a wrong one.
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


class WebhookPage(Page[Webhook]):
    """A page of webhooks, oldest first."""

    plural = "webhooks"
    row = Webhook


class WebhookDeleted(Record):
    """A deleted webhook."""

    success: Yes
    id: Annotated[Uuid, "Id of the webhook."]


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


class DeliveryPage(Page[WebhookDelivery]):
    """A page of deliveries, newest first."""

    plural = "deliveries"
    row = WebhookDelivery
