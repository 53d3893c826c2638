"""Revocations and the audit chain. Reference: features.md (Revocation), money.md (Audit chain)."""

from __future__ import annotations

from typing import Annotated, Final

from core.records.api.kinds import (
    Did,
    Hash,
    LastEventId,
    Limit,
    TimeMs,
    Timestamp,
    Uuid,
    Yes,
    text,
)
from core.records.api.market import REASON_CHARS_MAX
from core.records.api.record import Page, PageQuery, Record
from core.records.api.shape import Body, Json, Kind, Maybe, MaybeNull, Mismatch
from core.records.audit import AuditEventType
from core.wording import did_you_mean, got_of


class RevocationRequest(Body, is_closed=True):
    """The agent to revoke, and why."""

    did: Did
    evidence: Json
    reason: Annotated[str, text(1, REASON_CHARS_MAX), "Reason in words."]
    expires_at: Annotated[
        MaybeNull[TimeMs], "Time at which the revocation ends. Default: never."
    ] = None


class Revocation(Record):
    """Whether an agent is revoked, since when and why."""

    did: Annotated[Did, "The DID that was looked up."]
    revoked: Annotated[bool, "Whether it is revoked now."]
    reason: Annotated[str | None, "Reason in words; null: not revoked."]
    revoked_at: Annotated[Timestamp | None, "Time of the revocation; null: not revoked."]
    expires_at: Annotated[Timestamp | None, "Time at which it ends; null: never, or not revoked."]
    revoked_by_did: Annotated[Maybe[Did], "DID of the caller who revoked it."]
    evidence: Annotated[Maybe[Json], "Evidence; shown to both parties and administrators."]


class Revoked(Revocation):
    """An agent that was revoked."""

    success: Yes
    id: Annotated[Did, "DID of the agent."]


class Unrevoked(Revocation):
    """An agent whose revocation was lifted."""

    success: Yes
    id: Annotated[Did, "DID of the agent."]
    unrevoked_at: Annotated[Maybe[Timestamp], "Time at which it was lifted."]


class RevocationPage(Page[Revocation]):
    """A page of revocations, ordered by DID."""

    plural = "revocations"
    row = Revocation


class AuditEvent(Record):
    """One event of a command."""

    type: Annotated[str, "Type of the event."]
    target_type: str
    target_id: str
    payload: Annotated[Json, "Details, such as amounts."]


class AuditAuthority(Record):
    """The single right that permitted a command."""

    right: Annotated[str, "The right."]
    reason: Annotated[str, "Reason that the caller gave in `x-callboard-reason`."]


class AuditPayload(Record, is_open=True):
    """What a command did. The first entry of the chain holds the fixed terms of the ledger
    instead.
    """

    events: Annotated[
        Maybe[list[AuditEvent]],
        "All events of the command; the first one gives the entry its type.",
    ]
    authority: Annotated[Maybe[AuditAuthority], "Absent when no single right was used."]


class AuditEntry(Record):
    """One entry of the audit chain. `hash` covers the canonical form of all other members.

    The type, the target and the action are those of the first event of a command. A caller who is
    no party of the entry, and has no `audit:all`, sees its id, its type and its hash only.
    """

    id: Annotated[int, "Number of the entry; without gaps, in commit order."]
    event_type: Annotated[str, "Type of the command's first event."]
    actor_did: Annotated[Maybe[str], "DID of the caller."]
    target_type: Maybe[str]
    target_id: Maybe[str]
    action: Annotated[Maybe[str], "Action of the first event, the last part of its type."]
    payload: Annotated[Maybe[AuditPayload], "Events of the command."]
    hash: Annotated[Hash, "Hash of this entry."]
    prev_hash: Annotated[Maybe[Hash], "Hash of the previous entry."]
    created_at: Maybe[Timestamp]


class AuditPage(Page[AuditEntry]):
    """A page of audit entries, newest first."""

    plural = "entries"
    row = AuditEntry


def _event_type(value: str) -> str:
    if value not in _EVENT_TYPES:
        # Those of the same resource first: only so many are compared.
        known = sorted(_EVENT_TYPES, key=lambda one: one[:4] != value[:4])
        raise Mismatch(got_of(value), "an event type" + did_you_mean(value, known))
    return value


_EVENT_TYPES: Final = [*map(str, AuditEventType)]
EventType = Annotated[str, Kind({"enum": _EVENT_TYPES}, _event_type)]


class AuditQuery(PageQuery):
    """Filters of the list of audit entries."""

    limit: Annotated[Maybe[Limit], "Maximum number of rows, 1 to 1,000. Default 100."] = None
    event_type: Annotated[Maybe[EventType], "Only entries with an event of this type."] = None
    actor_did: Annotated[Maybe[str], "Only entries of this caller."] = None
    target_type: Annotated[Maybe[str], "Only entries with an event about this kind of target."] = (
        None
    )
    target_id: Annotated[Maybe[str], "Only entries with an event about this target."] = None
    start_time: Annotated[Maybe[TimeMs], "Start of the period, included."] = None
    end_time: Annotated[Maybe[TimeMs], "End of the period, excluded."] = None


EventTypes = Annotated[
    frozenset[str],
    Kind(
        {"type": "string", "examples": ["node.succeeded,node.failed"]},
        lambda value: frozenset(map(_event_type, value.split(","))),
    ),
]


class StreamQuery(Body):
    """Where a stream of events begins."""

    last_event_id: Annotated[
        Maybe[LastEventId],
        "The stream begins after this audit entry. The header `Last-Event-ID` takes precedence.",
    ] = None


class EventsQuery(StreamQuery):
    """Where a stream of events begins, and its filters."""

    event_type: Annotated[
        Maybe[EventTypes], "Only entries with an event of one of these types, parted by commas."
    ] = None
    workflow_id: Annotated[Maybe[Uuid], "Only entries about this workflow."] = None
