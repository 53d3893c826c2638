"""Agents: registrations, what the registry shows of them, heartbeats.

What a card holds is `core/records/agent.py`'s. Spec: Agent card, Registry; contract.md sections 3
and 6.
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
    "description": "in any case: " + ", ".join(HEARTBEAT_STATUSES),
    "default": "healthy",
}
Number = Annotated[float, Kind({"type": "number", "minimum": 0, "maximum": NUMBER_MAX}, _number)]
Depth = Annotated[int, Kind({"type": "integer", "minimum": 0, "maximum": NUMBER_MAX}, _depth)]
Version = Annotated[
    str,
    Kind({"type": ["string", "integer"], "maxLength": VERSION_CHARS_MAX, "minLength": 1}, _version),
]


class _HowItIs(Body):
    status: Annotated[str, Kind(_STATUS_SCHEMA, _heartbeat_status)] = "healthy"
    load: Annotated[MaybeNull[Number], "0 to 1, or above 1 up to 100 as a percentage"] = None
    queue_depth: Annotated[MaybeNull[Depth], Also("queue_depth")] = None
    version: MaybeNull[Version] = None
    latency_ms: Annotated[MaybeNull[Number], Named("latency_ms"), Also("latencyMs")] = None


class Heartbeat(_HowItIs):
    """How the agent in the path is."""

    did: Annotated[MaybeNull[str], "the agent in the path, or nothing"] = None


class HeartbeatFlat(_HowItIs):
    """How an agent is, its DID in the body."""

    did: str


class HeartbeatTaken(Record):
    """A heartbeat's answer; `ttl_ms` is how long it speaks."""

    ok: Yes
    ack: Yes
    did: Did
    status: Annotated[str, words(HEARTBEAT_STATUSES)]
    availability: Annotated[Ratio, "how much of the agent is free; 0 where it takes no work"]
    ttl_ms: Count


class ServedCard(Record):
    """The card that the agent itself serves, beside the registered one; it changes nothing."""

    status: Annotated[str, words(SERVED_STATUSES)]
    differences: Annotated[list[str], 'members that are served otherwise; "" for no card at all']


class Registered(Record):
    """A registration; `heartbeat_token` is the Bearer token for heartbeats, nothing else."""

    ok: Yes
    success: Yes
    id: Did
    did: Did
    agent_id: Did
    registered: Annotated[Count, "capabilities of the card"]
    owner_did: Did
    is_new: bool
    heartbeat_token: Maybe[str]
    served_card: Annotated[Maybe[ServedCard], "of a single registration"]


class BulkRegistered(Record):
    """A registration or a problem for each agent, in order."""

    results: list[Registered | Problem]


class Deregistered(Record):
    """An agent that is out of service."""

    ok: Yes
    success: Yes
    id: Did
    did: Did
    agent_id: Did
    status: Annotated[str, Kind({"const": "inactive"})]


class Live(Record):
    """What an agent has last said of itself, and what asking it showed."""

    status: str | None
    load: float | None
    queue_depth: int | None
    version: str | None
    latency_ms: Annotated[float | None, Named("latency_ms")]
    heartbeat_at: Timestamp | None
    probed_at: Timestamp | None
    is_probe_ok: bool | None


class Ownership(Record):
    """Whose an agent's DID is; an unproven claim yields to a proof of another owner."""

    owner_did: Did
    proven: bool
    proven_by: Annotated[str, words(OwnershipProof)] | None
    card_counter: Annotated[Count, "the highest that a card was signed for"]


class Agent(Record, is_open=True):
    """A registered agent: its card's members, the card whole, and what the registry adds."""

    id: Did
    did: Did
    agent_id: Did
    endpoint: str
    version: int
    capabilities: list[Json]
    acard: Json
    owner_did: Did
    ownership: Ownership
    status: Annotated[str, words(AGENT_STATUSES)]
    is_revoked: bool
    registered_at: Timestamp
    updated_at: Timestamp
    availability: AvailabilityWord
    live: Live | None


class AgentPage(Page[Agent]):
    """A page of agents, in the order of their DIDs."""

    plural = "agents"
    row = Agent


class AgentsQuery(PageQuery):
    """Which agents a list shows."""

    capability_id: Annotated[Maybe[str], "only agents that offer it"] = None
    owner_did: Annotated[Maybe[str], "only agents of this owner"] = None
    status: Annotated[
        str, words(AGENT_STATUSES), "inactive: the caller's own deregistered agents"
    ] = "active"
    name: Annotated[Maybe[ShortText], "only agents whose metadata says exactly this"] = None
    author: Annotated[Maybe[ShortText], "as name"] = None
    model: Annotated[Maybe[ShortText], "as name"] = None


class AgentQuery(Body):
    """Whether a deregistered agent is shown, too."""

    include_inactive: Annotated[Flag, "to its owner and administrators"] = False


class CardPlace(Record):
    """A card in the lineage of an agent's cards."""

    number: Annotated[int, "1: the first"]
    card_version: Annotated[int, "the card's own `version`"]
    card_hash: Annotated[Hash, "of the card without its standing bids, in its canonical form"]
    previous_hash: Annotated[Hash | None, "the `hash` of the one before"]
    hash: Annotated[Hash, "of {cardHash, did, number, previousHash} in its canonical form"]
    registered_by_did: Did
    registered_at: Timestamp


class Lineage(Page[CardPlace]):
    """A page of the lineage of an agent's cards, the newest first."""

    plural = "versions"
    row = CardPlace
