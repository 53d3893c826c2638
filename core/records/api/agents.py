"""Agents: cards, heartbeats, discovery, and the versions of capabilities.

Reference: features.md (Registration, Discovery, Capability versions).
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from core.capabilities.semver import (
    COMPARATORS_MAX,
    RANGE_CHARS_MAX,
    VERSION_CHARS_MAX,
    VERSION_PATTERN,
    is_version,
    parse_range,
)
from core.json_bounds import as_whole
from core.records.api.kinds import (
    CapabilityId,
    Count,
    Did,
    Flag,
    Hash,
    LongText,
    Ratio,
    ShortText,
    Timestamp,
    Yes,
    text,
    whole,
    words,
)
from core.records.api.record import Done, Page, PageQuery, Problem, Record
from core.records.api.shape import (
    Also,
    Body,
    Json,
    Kind,
    Maybe,
    MaybeNull,
    Mismatch,
    Named,
    Schema,
    checked,
)
from core.records.bounds import CAPABILITY_ID_PATTERN, NAME_CHARS_MAX, TEXT_CHARS_MAX
from core.records.statuses import HEARTBEAT_STATUSES, Availability, OwnershipProof
from core.wording import got_of, kind_of

AGENT_STATUSES: Final = ("active", "inactive")
SERVED_STATUSES: Final = ("same", "different", "unreachable", "not_compared")
NUMBER_MAX: Final = 2**31 - 1

AvailabilityWord = Annotated[str, words(Availability)]


def _heartbeat_status(value: Any) -> str:
    if not isinstance(value, str) or value.lower() not in HEARTBEAT_STATUSES:
        raise Mismatch(got_of(value), "one of " + ", ".join(HEARTBEAT_STATUSES))
    return value.lower()


def _number(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # `not <=` also refuses NaN.
    if not is_number or not 0 <= value <= NUMBER_MAX:
        raise Mismatch(got_of(value), f"a number from 0 to {NUMBER_MAX}")
    return float(value)


def _depth(value: Any) -> int:
    depth = _number(value)
    if depth != int(depth):
        raise Mismatch(got_of(value), "a whole number from 0")
    return int(depth)


def _version(value: Any) -> str:
    value = as_whole(value)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise Mismatch(kind_of(value), "a string or a whole number")
    if not 0 < len(str(value)) <= VERSION_CHARS_MAX:
        raise Mismatch(got_of(value), f"1 to {VERSION_CHARS_MAX} characters")
    return str(value)


_STATUS_SCHEMA: Final = {
    "type": "string",
    "description": "In any case: " + ", ".join(HEARTBEAT_STATUSES) + ".",
}
Number = Annotated[float, Kind({"type": "number", "minimum": 0, "maximum": NUMBER_MAX}, _number)]
Depth = Annotated[int, Kind({"type": "integer", "minimum": 0, "maximum": NUMBER_MAX}, _depth)]
Version = Annotated[
    str,
    Kind({"type": ["string", "integer"], "maxLength": VERSION_CHARS_MAX, "minLength": 1}, _version),
]


class _HeartbeatMembers(Body):
    status: Annotated[str, Kind(_STATUS_SCHEMA, _heartbeat_status), "Health of the agent."] = (
        "healthy"
    )
    load: Annotated[MaybeNull[Number], "Load: 0 to 1, or a percentage above 1 up to 100."] = None
    queue_depth: Annotated[
        MaybeNull[Depth], Also("queue_depth"), "Number of requests that wait at the agent."
    ] = None
    version: Annotated[MaybeNull[Version], "Version of the agent's software."] = None
    latency_ms: Annotated[
        MaybeNull[Number],
        Named("latency_ms"),
        Also("latencyMs"),
        "Latency that the agent measures, in milliseconds.",
    ] = None


class Heartbeat(_HeartbeatMembers):
    """Heartbeat of the agent in the path."""

    did: Annotated[MaybeNull[str], "DID of the agent in the path, or absent."] = None


class HeartbeatFlat(_HeartbeatMembers):
    """Heartbeat of the agent that the body names."""

    did: str


class HeartbeatTaken(Record):
    """Reply to a heartbeat."""

    ok: Yes
    ack: Annotated[Yes, "Always true; the same as `success`."]
    did: Did
    status: Annotated[str, words(HEARTBEAT_STATUSES), "Status that the agent reported."]
    availability: Annotated[Ratio, "Free share of the agent, 0 to 1; 0 when it takes no work."]
    ttl_ms: Annotated[
        Count, "Milliseconds until the heartbeat expires and the agent counts as offline."
    ]


class ServedCard(Record):
    """Comparison with the card that the agent itself serves. It has no effect on the
    registration.
    """

    status: Annotated[str, words(SERVED_STATUSES), "Outcome of the comparison."]
    differences: Annotated[
        list[str],
        "Members in which the served card differs; an empty text when no card was served.",
    ]


class Registered(Done):
    """A registered agent."""

    ok: Yes
    id: Annotated[Did, "DID of the agent."]
    did: Did
    agent_id: Did
    registered: Annotated[Count, "Number of capabilities of the card."]
    owner_did: Did
    is_new: Annotated[bool, "Whether the DID was not registered before."]
    heartbeat_token: Annotated[Maybe[str], "Bearer token for heartbeats only."]
    served_card: Annotated[
        Maybe[ServedCard], "Comparison with the card at the endpoint. Absent in bulk registrations."
    ]


class BulkRegistered(Record):
    """The results of a bulk registration, in the order of the request."""

    results: Annotated[
        list[Registered | Problem], "For each agent the reply of a registration, or a problem."
    ]


class Deregistered(Done):
    """A deregistered agent."""

    ok: Yes
    id: Annotated[Did, "DID of the agent."]
    did: Did
    agent_id: Did
    status: Annotated[str, Kind({"const": "inactive"}), "State of the agent."]


class Live(Record):
    """Last heartbeat and last health probe of an agent."""

    status: Annotated[str | None, "Status of the last heartbeat."]
    load: Annotated[float | None, "Load of the last heartbeat, 0 to 1."]
    queue_depth: Annotated[int | None, "Queue depth of the last heartbeat."]
    version: Annotated[str | None, "Software version of the last heartbeat."]
    latency_ms: Annotated[
        float | None, Named("latency_ms"), "Latency of the last heartbeat, in milliseconds."
    ]
    heartbeat_at: Annotated[Timestamp | None, "Time of the last heartbeat; null: none was sent."]
    probed_at: Annotated[
        Timestamp | None, "Time of the last `GET /health` of the agent; null: none was made."
    ]
    is_probe_ok: Annotated[bool | None, "Whether that probe succeeded."]


class Ownership(Record):
    """Owner of the agent's DID. An unproven claim yields to a proof by another owner."""

    owner_did: Did
    proven: Annotated[bool, "Whether the owner proved the claim."]
    proven_by: Annotated[
        Annotated[str, words(OwnershipProof)] | None, "Kind of proof; null without one."
    ]
    card_counter: Annotated[Count, "Highest `cardProof.counter` accepted so far."]


class Agent(Record, is_open=True):
    """A registered agent: the members of its card, the whole card, and what the registry adds."""

    id: Annotated[Did, "DID of the agent."]
    did: Did
    agent_id: Did
    endpoint: Annotated[str, "URL of the agent; empty when the card has none."]
    version: Annotated[int, "Version of the card."]
    capabilities: Annotated[list[Json], "Capabilities of the card."]
    acard: Annotated[Json, "The card as registered."]
    owner_did: Did
    ownership: Annotated[Ownership, "Owner of the DID and proof of the ownership."]
    status: Annotated[str, words(AGENT_STATUSES), "`inactive` after a deregistration."]
    is_revoked: Annotated[bool, "Whether the agent is revoked now."]
    registered_at: Timestamp
    updated_at: Annotated[Timestamp, "Time of the last change of the card."]
    availability: Annotated[AvailabilityWord, "Whether the agent takes work now."]
    live: Annotated[Live | None, "Last heartbeat and probe; null: none."]


class AgentPage(Page[Agent], plural="agents"):
    """A page of agents, ordered by DID."""


class AgentsQuery(PageQuery):
    """Filters of the list of agents."""

    capability_id: Annotated[Maybe[str], "Only agents that offer this capability."] = None
    owner_did: Annotated[Maybe[str], "Only agents of this owner."] = None
    status: Annotated[
        str, words(AGENT_STATUSES), "`inactive` lists the caller's own deregistered agents."
    ] = "active"
    name: Annotated[Maybe[ShortText], "Only agents with exactly this `metadata.name`."] = None
    author: Annotated[Maybe[ShortText], "Only agents with exactly this `metadata.author`."] = None
    model: Annotated[Maybe[ShortText], "Only agents with exactly this `metadata.model`."] = None


class AgentQuery(Body):
    """Options of reading one agent."""

    include_inactive: Annotated[
        Flag, "Show a deregistered agent, to its owner and administrators only."
    ] = False


class CardPlace(Record):
    """One card in the lineage of an agent's cards."""

    number: Annotated[int, "Position in the lineage; the first card is 1."]
    card_version: Annotated[int, "The `version` of the card."]
    card_hash: Annotated[Hash, "Hash of the card without standing bids, in canonical form."]
    previous_hash: Annotated[Hash | None, "The `hash` of the previous card; null for the first."]
    hash: Annotated[Hash, "Hash of {cardHash, did, number, previousHash} in canonical form."]
    registered_by_did: Annotated[Did, "DID of the caller who registered this card."]
    registered_at: Timestamp


class Lineage(Page[CardPlace], plural="versions"):
    """A page of the lineage of an agent's cards, newest first."""


FOUND_MAX: Final = 100
FOUND_DEFAULT: Final = 20
LATENCY_MS_MAX: Final = 30 * 24 * 3_600_000
PRICE_CENTS_MAX: Final = 10**11
_CAPABILITY: Final = re.compile(CAPABILITY_ID_PATTERN)
_DIGITS_MAX: Final = 12
# A capability id, "@" and a range of versions.
_PATTERN_CHARS_MAX: Final = 128 + 1 + RANGE_CHARS_MAX


def _ratio(value: Any) -> float:
    number = value
    if isinstance(value, str):
        try:
            number = float(value[:_DIGITS_MAX])
        except ValueError:
            raise Mismatch(got_of(value), "a number from 0 to 1") from None
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= 1:
        raise Mismatch(got_of(value), "a number from 0 to 1")
    return float(number)


def _whole_text(most: int) -> Kind:
    def take(value: Any) -> int:
        is_number = isinstance(value, str) and value.isascii() and value.isdigit()
        if not is_number or len(value) > _DIGITS_MAX or int(value) > most:
            raise Mismatch(got_of(value), f"a whole number from 0 to {most}")
        return int(value)

    return Kind({"type": "integer", "minimum": 0, "maximum": most}, take)


def _pattern(value: Any) -> str:
    expected = "a capability's id, its beginning and *, or an id, @ and versions such as >=1.2"
    if not isinstance(value, str):
        raise Mismatch(got_of(value), expected)
    wanted, at, versions = value.partition("@")
    whole_id = wanted if at else wanted.removesuffix("*")
    if _CAPABILITY.fullmatch(whole_id) is None or (at and not versions):
        raise Mismatch(got_of(value), expected)
    if at:
        try:
            parse_range(versions)
        except ValueError:
            raise Mismatch(got_of(value), expected) from None
    return value


RatioIn = Annotated[float, Kind({"type": "number", "minimum": 0, "maximum": 1}, _ratio)]
CapabilityPattern = Annotated[
    str, Kind({"type": "string", "maxLength": _PATTERN_CHARS_MAX}, _pattern)
]


class DiscoverQuery(Body):
    """Filters of a discovery; at least one of `q`, `capabilityId` and `ownerDid` is required."""

    q: Annotated[
        Maybe[str], text(1, TEXT_CHARS_MAX), "Search words; one matching word is enough."
    ] = None
    capability_id: Annotated[
        Maybe[CapabilityPattern],
        "A capability id, a prefix and `*`, or an id with versions such as `cap.x.y.v1@>=1.2`.",
    ] = None
    owner_did: Annotated[Maybe[Did], "Only agents of this owner."] = None
    limit: Annotated[
        Maybe[int], _whole_text(10**9), "Maximum number of results, 1 to 100. Default 20."
    ] = None
    min_reputation: Annotated[Maybe[RatioIn], "Minimum reputation score, 0 to 1."] = None
    max_price_cents: Annotated[
        Maybe[int], _whole_text(PRICE_CENTS_MAX), "Maximum price, in cents."
    ] = None
    max_latency_ms: Annotated[
        Maybe[int], _whole_text(LATENCY_MS_MAX), "Maximum average latency, in milliseconds."
    ] = None
    region: Annotated[
        Maybe[str], text(1, NAME_CHARS_MAX), "Only agents whose card names this region."
    ] = None
    subnet: Annotated[
        Maybe[str], text(1, NAME_CHARS_MAX), "Only agents in the subnet with this id."
    ] = None
    availability: Annotated[Maybe[AvailabilityWord], "Only agents with this availability."] = None


class DiscoveryRequest(Body):
    """Search words and filters of a discovery."""

    query: Annotated[str, text(0, TEXT_CHARS_MAX), "Search words; one matching word is enough."]
    limit: Annotated[
        MaybeNull[int], whole(1, 10**9), "Maximum number of results, 1 to 100. Default 20."
    ] = None
    min_reputation: Annotated[MaybeNull[RatioIn], "Minimum reputation score, 0 to 1."] = None
    max_price_cents: Annotated[
        MaybeNull[int], whole(0, PRICE_CENTS_MAX), "Maximum price, in cents."
    ] = None


class FoundAgent(Record):
    """Agent of a search result."""

    did: Did
    name: Annotated[str | None, "The `metadata.name` of the card; null without one."]
    endpoint: Annotated[str, "URL of the agent."]


class Found(Record):
    """One search result: a capability of an agent."""

    agent_did: Did
    capability_id: str
    description: Annotated[str, "Description of the capability."]
    score: Annotated[Ratio, "Rank of the result, 0 to 1."]
    reputation: Annotated[Ratio, "Reputation score of the agent."]
    agent: Annotated[FoundAgent, "The agent in short."]
    why: Annotated[list[str], "Reasons for the match and the rank, in words."]


class Discovered(Record):
    """Search results, best first, and the cards of their agents."""

    results: Annotated[list[Found], "One result per agent and capability, best first."]
    agents: Annotated[list[Json], "The card of each agent, once."]
    limit: Annotated[Count, "Maximum number of results of this reply."]


# The size of one schema in canonical form, and its depth.
SCHEMA_BYTES_MAX: Final = 32 * 1024
SCHEMA_LEVELS_MAX: Final = 32
SUPPORTED_MAX: Final = 100
VERSION_STATUSES: Final = ("active", "deprecated")


def _range(value: Any) -> str:
    try:
        parse_range(value if isinstance(value, str) else "")
    except ValueError as error:
        raise Mismatch(got_of(value), str(error).partition("expected ")[2]) from None
    return str(value)


def _supported(value: Any) -> list[str]:
    if not isinstance(value, list) or not 0 < len(value) <= SUPPORTED_MAX:
        got = f"{len(value)} items" if isinstance(value, list) else got_of(value)
        raise Mismatch(got, f"1 to {SUPPORTED_MAX} versions or ranges")
    return [_range(one) for one in value]


_VERSION_SCHEMA: Final[Schema] = {
    "type": "string",
    "pattern": VERSION_PATTERN,
    "maxLength": VERSION_CHARS_MAX,
}
_RANGE_SCHEMA: Final[Schema] = {
    "type": "string",
    "minLength": 1,
    "maxLength": RANGE_CHARS_MAX,
    "description": f"A version, or up to {COMPARATORS_MAX} comparators such as `>=1.2 <2`.",
}
_EXPECTED: Final = "a semantic version such as 1.4.0, without build metadata"
SemanticVersion = Annotated[str, checked(_VERSION_SCHEMA, is_version, _EXPECTED)]
VersionRange = Annotated[str, Kind(_RANGE_SCHEMA, _range)]


class VersionPublication(Body, is_closed=True):
    """A version of a capability: its schemas, and what changed."""

    capability_id: CapabilityId
    version: Annotated[SemanticVersion, "Semantic version."]
    input_schema: Annotated[
        dict[str, Any], "JSON Schema 2020-12 of the inputs; `$ref` only within the schema."
    ]
    output_schema: Annotated[
        dict[str, Any], "JSON Schema 2020-12 of the result; `$ref` only within the schema."
    ]
    changelog: LongText = ""
    deprecates_version: Annotated[
        Maybe[SemanticVersion], "Version that this one replaces; it becomes deprecated."
    ] = None
    owner_did: Annotated[
        Maybe[Did],
        "Owner of the versions. Default: the caller; only administrators may name another.",
    ] = None


class VersionDeprecation(Body, is_closed=True):
    """Options of a deprecation."""

    successor: Annotated[Maybe[SemanticVersion], "Active version to use instead."] = None


class Negotiation(Body, is_closed=True):
    """The versions that a caller supports."""

    capability_id: CapabilityId
    supported_versions: Annotated[
        list[str],
        Kind(
            {"type": "array", "items": _RANGE_SCHEMA, "minItems": 1, "maxItems": SUPPORTED_MAX},
            _supported,
        ),
        "Versions or ranges that the caller supports.",
    ]
    preferred_version: Annotated[
        Maybe[VersionRange], "Version that is chosen when it is supported and exists."
    ] = None


class SchemaBreak(Record):
    """A rule of one version that does not hold in the other."""

    path: Annotated[str, "The member, such as `inputSchema.text`."]
    affected: Annotated[str, "Who is affected: callers or agents."]
    was: Annotated[str, "The rule in the earlier version."]
    now: Annotated[str, "The rule in the later version."]
    is_decided: Annotated[bool, "false: compatibility could not be shown."]


class Compatibility(Record):
    """Incompatible changes between two versions."""

    from_version: Annotated[str, "The earlier version."]
    to_version: Annotated[str, "The later version."]
    is_compatible: Annotated[bool, "Whether there is no incompatible change."]
    breaks: Annotated[list[SchemaBreak], "Incompatible changes, at most 20."]


class CapabilityVersion(Record):
    """A published version of a capability."""

    version_id: str
    capability_id: str
    version: Annotated[str, "Semantic version."]
    status: Annotated[str, words(VERSION_STATUSES)]
    schema_hash: Hash
    changelog: str
    published_by_did: Annotated[Did, "DID of the caller who published it."]
    published_at: Annotated[Timestamp, "Time of the publication."]
    successor: Annotated[str | None, "Version to use instead; null without one."]
    deprecated_at: Timestamp | None
    sunset_at: Annotated[
        Timestamp | None,
        "Time after which it may be withdrawn, 12 months after the deprecation; null when active.",
    ]


class CapabilityVersionWhole(CapabilityVersion):
    """A version of a capability with its schemas."""

    input_schema: Annotated[Json, "JSON Schema of the inputs."]
    output_schema: Annotated[Json, "JSON Schema of the result."]
    compatibility: Annotated[
        Compatibility | None, "Changes against the previous version; null for the first."
    ]


class VersionPublished(CapabilityVersion, Done):
    """A version that was published."""

    id: Annotated[str, "Id of the version."]
    owner_did: Annotated[Did, "Owner of the capability's versions."]
    deprecates_version: Annotated[str | None, "Version that this one deprecated; null without one."]
    compatibility: Annotated[
        Compatibility | None, "Changes against the previous version; null for the first."
    ]


class VersionDeprecated(Done):
    """A version that was deprecated."""

    id: Annotated[str, "Id of the version."]
    version_id: str
    capability_id: str
    version: Annotated[str, "Semantic version."]
    status: Annotated[str, Kind({"const": "deprecated"})]
    successor: Annotated[str | None, "Version to use instead; null without one."]
    deprecated_at: Timestamp
    sunset_at: Timestamp


class CapabilityVersionPage(Page[CapabilityVersion], plural="versions"):
    """A page of a capability's versions, newest first."""

    latest: Annotated[str, "The newest active version."]


class MigrationStep(Compatibility):
    """One step from a version to the next."""

    changelog: str


class Negotiated(Record):
    """The version that the caller should use."""

    capability_id: str
    version_id: str
    version: Annotated[str, "Semantic version."]
    status: Annotated[str, words(VERSION_STATUSES)]
    schema_hash: Hash
    sunset_at: Timestamp | None
    latest: Annotated[str, "The newest active version."]
    migration_path: Annotated[
        list[MigrationStep], "Steps from this version to the latest; empty when it is the latest."
    ]
