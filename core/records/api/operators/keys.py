"""API keys, and the service's health. contract.md section 3 (Keys) and section 6 (Versions)."""

from __future__ import annotations

from typing import Annotated, Final

from core.records.api.kinds import Count, Did, ShortText, TimeMs, Timestamp, Yes, whole, words
from core.records.api.record import Page, PageQuery, Record
from core.records.api.shape import Body, Json, Maybe, MaybeNull

RATE_MAX: Final = 1_000_000
OVERLAP_S_MAX: Final = 86_400
RATE_CLASSES: Final = ("standard", "unlimited")

RateClassWord = Annotated[str, words(RATE_CLASSES)]
_Rate = Annotated[int, whole(1, RATE_MAX, unit="calls a minute")]


class RateLimits(Body, is_closed=True):
    """A key's own limits, calls a minute."""

    read: Maybe[_Rate] = None
    write: Maybe[_Rate] = None
    bulk: Maybe[_Rate] = None


class KeyRequest(Body, is_closed=True):
    """A key to be made; without `scopes` it gets the default ones that its maker has."""

    owner_did: Maybe[Did] = None
    name: MaybeNull[ShortText] = None
    scopes: MaybeNull[list[str]] = None
    rate_class: RateClassWord = "standard"
    rate_limits: MaybeNull[RateLimits] = None
    expires_at: MaybeNull[TimeMs] = None


class _KeyBase(Record):
    id: str
    key_id: str
    owner_did: Did
    name: str
    scopes: list[str]
    rate_class: RateClassWord
    rate_limits: Annotated[Json | None, "calls a minute, by class"]
    expires_at: Timestamp | None
    parent_id: Annotated[str | None, "the key it was made with and ends with"]


class Key(_KeyBase):
    """An API key, without its secret."""

    created_at: Timestamp
    revoked_at: Timestamp | None
    previous_ends_at: Annotated[
        Timestamp | None, "until when the secret of before a rotation opens"
    ]


class KeyCreated(_KeyBase):
    """A new API key; `key` is its secret, in this reply and never again."""

    success: Yes
    key: str


class KeyRotation(Body, is_closed=True):
    """How a key is rotated."""

    overlap_seconds: Annotated[
        int,
        whole(0, OVERLAP_S_MAX, unit="seconds"),
        "how long the secret of now still opens",
    ] = 0


class KeyRotated(_KeyBase):
    """A key with another secret: `key` is it, in this reply and never again."""

    success: Yes
    key: str
    previous_ends_at: Annotated[Timestamp | None, "until when the secret of before opens"]


class KeyPage(Page[Key]):
    """A page of keys."""

    plural = "keys"
    row = Key


class KeysQuery(PageQuery):
    """Which keys a list shows."""

    owner_did: Annotated[Maybe[str], "whose; others than one's own for administrators"] = None


class KeyRevoked(Record):
    """A revoked key; `ended_keys` is absent where the first answer was lost."""

    success: Yes
    id: str
    key_id: str
    ended_keys: Annotated[Maybe[Count], "this one and all made with it"]


class Health(Record):
    """The deployment's health."""

    status: Annotated[str, words(("healthy", "unhealthy"))]
    version: str
    components: dict[str, str]
    workflow_spec_version: str
    settlement_spec_version: str


class Readiness(Record):
    """Whether this replica serves."""

    status: Annotated[str, words(("ready", "not ready"))]
    version: str


class Start(Record):
    """Paths with which a stranger begins."""

    service: str
    version: str
    docs: str
    openapi: str
    health: str
    ready: str
