"""Discovery: what agents are looked for by, and what is found.

Reference: features.md (Discovery).
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from core.capabilities.semver import RANGE_CHARS_MAX, parse_range
from core.records.api.agents import AvailabilityWord
from core.records.api.kinds import Count, Did, Ratio, text, whole
from core.records.api.record import Record
from core.records.api.shape import Body, Json, Kind, Maybe, MaybeNull, Mismatch
from core.records.bounds import CAPABILITY_ID_PATTERN, NAME_CHARS_MAX, TEXT_CHARS_MAX
from core.wording import got_of

FOUND_MAX: Final = 100
FOUND_DEFAULT: Final = 20
LATENCY_MS_MAX: Final = 30 * 24 * 3_600_000
PRICE_CENTS_MAX: Final = 10**11
_CAPABILITY: Final = re.compile(CAPABILITY_ID_PATTERN)
_DIGITS_MAX: Final = 12
# An id, @ and a range.
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


RatioSent = Annotated[float, Kind({"type": "number", "minimum": 0, "maximum": 1}, _ratio)]
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
    min_reputation: Annotated[Maybe[RatioSent], "Minimum reputation score, 0 to 1."] = None
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
    min_reputation: Annotated[MaybeNull[RatioSent], "Minimum reputation score, 0 to 1."] = None
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
