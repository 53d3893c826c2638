"""Agents: registrations, what the registry shows of them, heartbeats.

What a card holds is `core/records/agent.py`'s. Reference: features.md (Agent cards, Registration).
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from core.json_bounds import as_whole
from core.records.api.kinds import (
    Count,
    Did,
    Flag,
    Hash,
    Ratio,
    ShortText,
    Timestamp,
    Yes,
    words,
)
from core.records.api.problems import Problem
from core.records.api.record import Page, PageQuery, Record
from core.records.api.shape import (
    Also,
    Body,
    Json,
    Kind,
    Maybe,
    MaybeNull,
    Mismatch,
    Named,
)
from core.records.statuses import HEARTBEAT_STATUSES, Availability, OwnershipProof
from core.wording import got_of, kind_of

AGENT_STATUSES: Final = ("active", "inactive")
SERVED_STATUSES: Final = ("same", "different", "unreachable", "not_compared")
VERSION_CHARS_MAX: Final = 64
NUMBER_MAX: Final = 2**31 - 1

AvailabilityWord = Annotated[str, words(Availability)]


def _heartbeat_status(value: Any) -> str:
    if not isinstance(value, str) or value.lower() not in HEARTBEAT_STATUSES:
        raise Mismatch(got_of(value), "one of " + ", ".join(HEARTBEAT_STATUSES))
    return value.lower()


def _number(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # `not <=` refuses what is no number at all as well.
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


class _HowItIs(Body):
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


class Heartbeat(_HowItIs):
    """Heartbeat of the agent in the path."""

    did: Annotated[MaybeNull[str], "DID of the agent in the path, or absent."] = None


class HeartbeatFlat(_HowItIs):
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


class Registered(Record):
    """A registered agent."""

    ok: Yes
    success: Yes
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


class Deregistered(Record):
    """A deregistered agent."""

    ok: Yes
    success: Yes
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


class AgentPage(Page[Agent]):
    """A page of agents, ordered by DID."""

    plural = "agents"
    row = Agent


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


class Lineage(Page[CardPlace]):
    """A page of the lineage of an agent's cards, newest first."""

    plural = "versions"
    row = CardPlace
