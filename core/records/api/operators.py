"""API keys, health, the check of the books, and the cluster.

Reference: money.md (Checking the books); decision cluster-and-releases.
"""

from __future__ import annotations

from typing import Annotated, Final

from core.records.api.kinds import (
    Count,
    Did,
    DurationMs,
    ShortText,
    TimeMs,
    Timestamp,
    whole,
    words,
)
from core.records.api.record import Done, Page, PageQuery, Record
from core.records.api.shape import Body, Json, Maybe, MaybeNull

RATE_MAX: Final = 1_000_000
OVERLAP_S_MAX: Final = 86_400
RATE_CLASSES: Final = ("standard", "unlimited")

RateClassWord = Annotated[str, words(RATE_CLASSES)]
_Rate = Annotated[int, whole(1, RATE_MAX, unit="calls a minute")]


class RateLimits(Body, is_closed=True):
    """Rate limits of a key, in calls per minute."""

    read: Annotated[
        Maybe[_Rate], "Read operations per minute. Default: the deployment's limit."
    ] = None
    write: Annotated[
        Maybe[_Rate], "Write operations per minute. Default: the deployment's limit."
    ] = None
    bulk: Annotated[
        Maybe[_Rate], "Bulk operations per minute. Default: the deployment's limit."
    ] = None


class KeyRequest(Body, is_closed=True):
    """A new API key."""

    owner_did: Annotated[Maybe[Did], "DID that the key speaks for. Default: the caller."] = None
    name: Annotated[MaybeNull[ShortText], "Name of the key, for people."] = None
    scopes: Annotated[
        MaybeNull[list[str]], "Scopes. Default: the standard scopes that the caller has."
    ] = None
    rate_class: Annotated[RateClassWord, "`unlimited` needs admin scope."] = "standard"
    rate_limits: Annotated[
        MaybeNull[RateLimits],
        "Rate limits, set by administrators only. Default: the creating key's.",
    ] = None
    expires_at: Annotated[
        MaybeNull[TimeMs], "Time of expiry. Default: that of the caller's key."
    ] = None


class _KeyBase(Record):
    id: Annotated[str, "Id of the key."]
    key_id: str
    owner_did: Did
    name: Annotated[str, "Name of the key, for people."]
    scopes: list[str]
    rate_class: Annotated[RateClassWord, "Rate class of the key."]
    rate_limits: Annotated[
        Json | None, "Rate limits of this key in calls per minute; null: the deployment's."
    ]
    expires_at: Timestamp | None
    parent_id: Annotated[
        str | None, "Id of the key that created it and whose end ends it; null without one."
    ]


class Key(_KeyBase):
    """An API key without its secret."""

    created_at: Timestamp
    revoked_at: Annotated[Timestamp | None, "Time of the revocation; null: not revoked."]
    previous_ends_at: Annotated[
        Timestamp | None, "Time until which the previous secret is accepted; null without one."
    ]


class KeyCreated(_KeyBase, Done):
    """A new API key with its secret."""

    key: str


class KeyRotation(Body, is_closed=True):
    """Options of a key rotation."""

    overlap_seconds: Annotated[
        int,
        whole(0, OVERLAP_S_MAX, unit="seconds"),
        "Seconds for which the previous secret stays valid.",
    ] = 0


class KeyRotated(_KeyBase, Done):
    """A key with a new secret."""

    key: str
    previous_ends_at: Annotated[
        Timestamp | None, "Time until which the previous secret is accepted; null: none."
    ]


class KeyPage(Page[Key], plural="keys"):
    """A page of keys."""


class KeysQuery(PageQuery):
    """Filters of the list of keys."""

    owner_did: Annotated[
        Maybe[str], "Owner of the keys, for administrators; others see their own keys alone."
    ] = None


class KeyRevoked(Done):
    """A revoked key."""

    id: Annotated[str, "Id of the key."]
    key_id: str
    ended_keys: Annotated[Maybe[Count], "Number of keys that ended: this one and its descendants."]


class Health(Record):
    """Health of the deployment."""

    status: Annotated[str, words(("healthy", "unhealthy")), "`unhealthy` when a component is down."]
    version: Annotated[str, "Version of the service."]
    components: Annotated[dict[str, str], "State of each component."]
    workflow_spec_version: Annotated[str, "Version of the workflow specification."]
    settlement_spec_version: Annotated[str, "Version of the settlement specification."]


class Readiness(Record):
    """Whether this replica serves requests."""

    status: Annotated[str, words(("ready", "not ready")), "Whether it serves."]
    version: Annotated[str, "Version of the service."]


class Start(Record):
    """Paths for a first look at the service."""

    service: Annotated[str, "Name of the service."]
    version: Annotated[str, "Version of the service."]
    docs: Annotated[str, "Path of the documentation page."]
    openapi: Annotated[str, "Path of the OpenAPI document."]
    health: Annotated[str, "Path of the health check."]
    ready: Annotated[str, "Path of the readiness check."]


class WrongRow(Record):
    """A row that disagrees with the ledger entries."""

    table: Annotated[str, "Table of the row."]
    row: Annotated[str, "Key of the row; of an account its address."]
    column: Annotated[str, "Column that is wrong."]
    got: Annotated[str, "Stored value; amounts in micro-credits."]
    expected: Annotated[str, "Value by the entries; amounts in micro-credits."]


class BooksChecked(Record):
    """The newest result of the check of the books."""

    started_at: Annotated[Timestamp | None, "Start of the check; null before the first has ended."]
    checked_at: Annotated[Timestamp | None, "End of the check; null before the first has ended."]
    up_to_entry: Annotated[int, "Newest ledger entry that the check has read."]
    rows: Annotated[dict[str, int], "Rows that were compared, by table; fewer if one is wrong."]
    problem: Annotated[WrongRow | None, "First row that disagrees; null if none does."]


class BooksRequested(Done):
    """A requested check of the books."""

    requested_at: Annotated[
        Timestamp, "The result of this request has this `startedAt` or a later one."
    ]


class ClusterMember(Record):
    """A process that drives workflows."""

    id: Annotated[str, "Id of the process; each start has a new one."]
    machine: Annotated[str, "Id of the machine in Ray."]
    address: Annotated[str, "Name of the process, the same after a restart."]
    version: Annotated[str, "Version of its code."]
    state: Annotated[str, words(("ready", "draining")), "State of the process."]
    is_live: Annotated[bool, "Whether its lease is valid."]
    load: Annotated[Count, "Number of unfinished workflows."]
    open_calls: Annotated[Count, "Open calls to agents; they are lost with the process."]
    shards: Annotated[Count, "Number of shards that it holds."]
    is_drained: Annotated[bool, "Whether it is draining and holds neither shards nor open calls."]


class Cluster(Record):
    """Members of the cluster. Counts are up to one second old."""

    members: Annotated[list[ClusterMember], "The processes."]
    unheld_shards: Annotated[Count, "Number of shards that no live process holds."]
    version: Annotated[Count, "Message version that all processes and the ledger understand."]


class MachineChanged(Done):
    """A machine that drains, or takes work again."""

    machine: Annotated[str, "Id of the machine in Ray."]
    members: Annotated[list[ClusterMember], "Its processes."]
    drain_ms: Annotated[DurationMs, "Milliseconds that a drain may take."]
