"""Revocations and the audit chain. Spec: Revocation, Audit entry; contract.md section 6."""

from __future__ import annotations

from typing import Annotated, Final

from core.records.api.kinds import Did, Hash, TimeMs, Timestamp, Yes, text
from core.records.api.record import Page, PageQuery, Record
from core.records.api.shape import Body, Json, Kind, Maybe, MaybeNull, Mismatch
from core.records.audit import AuditEventType
from core.wording import did_you_mean, got_of

REASON_CHARS_MAX: Final = 1_000


class RevocationRequest(Body, is_closed=True):
    """Whom to trust no more, and why."""

    did: Did
    evidence: Json
    reason: Annotated[str, text(1, REASON_CHARS_MAX)]
    expires_at: Annotated[MaybeNull[TimeMs], "left out: for good"] = None


class Revocation(Record):
    """Whether an agent is revoked, since when and why."""

    did: Did
    revoked: bool
    reason: str | None
    revoked_at: Timestamp | None
    expires_at: Annotated[Timestamp | None, "null: for good, or not revoked"]
    revoked_by_did: Maybe[Did]
    evidence: Annotated[Maybe[Json], "for those it is between, and administrators"]


class Revoked(Revocation):
    """An agent that was revoked."""

    success: Yes
    id: Did


class Unrevoked(Revocation):
    """An agent that was taken back."""

    success: Yes
    id: Did
    unrevoked_at: Maybe[Timestamp]


class RevocationPage(Page[Revocation]):
    """A page of revocations, in the order of their DIDs."""

    plural = "revocations"
    row = Revocation


class AuditEvent(Record):
    """One thing that a command has done to one target."""

    type: str
    target_type: str
    target_id: str
    payload: Json


class AuditAuthority(Record):
    """The single right that permitted a command, and the reason that its holder gave."""

    right: str
    reason: str


class AuditPayload(Record, is_open=True):
    """What a command has done; the first entry of a chain is no command's: it holds fixed terms."""

    events: Annotated[Maybe[list[AuditEvent]], "all of the command, the entry's own first"]
    authority: Annotated[Maybe[AuditAuthority], "absent where a usual key's rights were enough"]


class AuditEntry(Record):
    """One entry of the audit chain; `hash` is over the canonical form of all other members.

    The type, the target and the action are those of the first event of a command. A caller who is
    no party of the entry, and has no `audit:all`, sees its id, its type and its hash only.
    """

    id: int
    event_type: str
    actor_did: Maybe[str]
    target_type: Maybe[str]
    target_id: Maybe[str]
    action: Maybe[str]
    payload: Maybe[AuditPayload]
    hash: Hash
    prev_hash: Maybe[Hash]
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
    """Which audit entries a list shows."""

    event_type: Annotated[Maybe[EventType], "only entries with an event of this type"] = None
    actor_did: Annotated[Maybe[str], "only what this one did"] = None
    target_type: Annotated[Maybe[str], "only entries with an event about this kind of thing"] = None
    target_id: Annotated[Maybe[str], "only entries with an event about this"] = None
    start_time: Annotated[Maybe[TimeMs], "not before"] = None
    end_time: Annotated[Maybe[TimeMs], "before"] = None
