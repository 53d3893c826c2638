"""Discovery: finds agents by words, capability or owner, ranked, with the reasons of each result.

Agents of private subnets are found only by callers that may see them.
Reference: features.md (Discovery). Decision registry-and-discovery.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from actors.process.slices import Slices
from core.capabilities.semver import parse_range
from core.capabilities.version_choice import find_within
from core.market.pricing import FixedPrice, Price, asks_price, effective_price, parse_price
from core.market.reputation import LATENCY_MS_MAX, Tally, score
from core.market.standing_bid import standing_offers
from core.money import MICRO_PER_CENT
from core.records.agent import said_in_card
from core.records.api.agents import (
    FOUND_DEFAULT,
    FOUND_MAX,
    Discovered,
    DiscoverQuery,
    DiscoveryRequest,
)
from core.subnets.policies import Policy, decide
from ledger.features.capability_versions import published, version_rows
from ledger.features.discovery import AgentSearch, find_offers, words_share
from ledger.features.offers import HITS_MAX
from ledger.features.prices import has_price, price_of_row
from ledger.features.subnets import binding_policies
from ledger.reads.agent_pages import live_of
from ledger.reads.reader import RowDict
from serve_app.callers.limits import RateClass
from serve_app.http.calls import Call, Json, Operations, invalid
from serve_app.operations.views import availability_of, current_card
from serve_app.operations.visibility import card_for

# Filters on members of the card are applied after the query. A filtered search reads at most so
# many of the best offers. It first reads only twice the requested number, which usually suffices.
LOOKED_AT_MAX: Final = HITS_MAX

OPERATIONS = Operations("agents")


@OPERATIONS.add("GET", "/v1/discover", query=DiscoverQuery, reply=Discovered)
async def discover(call: Call) -> Json:
    """Find agents by words, capability or owner."""
    query = call.given(DiscoverQuery)
    if query.q is None and query.capability_id is None and query.owner_did is None:
        raise invalid("q", "nothing", "q, capabilityId or ownerDid")
    return await _found(call, query)


@OPERATIONS.add(
    "POST",
    "/v1/agent/discovery",
    scope="agents:read",
    rate=RateClass.READ,
    body=DiscoveryRequest,
    reply=Discovered,
)
async def discover_by_words(call: Call) -> Json:
    """Find agents by words."""
    body = call.given(DiscoveryRequest)
    query = DiscoverQuery(
        q=body.query,
        limit=body.limit,
        min_reputation=body.min_reputation,
        max_price_cents=body.max_price_cents,
    )
    return await _found(call, query)


async def _found(call: Call, query: DiscoverQuery) -> Json:
    services = call.services
    limit = max(1, min(query.limit or FOUND_DEFAULT, FOUND_MAX))
    wanted, _, versions = (query.capability_id or "").partition("@")
    asked = AgentSearch(
        words=query.q,
        capability_id=wanted.removesuffix("*") or None,
        is_prefix=wanted.endswith("*"),
        versions=await _versions(call, wanted, versions) if versions else None,
        owner_did=query.owner_did,
        reputation_min=query.min_reputation or 0.0,
        latency_ms_max=query.max_latency_ms,
    )
    by_card = (
        query.max_price_cents,
        query.region,
        query.subnet,
        query.availability,
        asked.versions,
    )
    policies = await binding_policies(services.reader, call.caller.did)
    is_filtered = bool(policies) or by_card != (None,) * len(by_card)
    looks = sorted({min(2 * limit, LOOKED_AT_MAX), LOOKED_AT_MAX}) if is_filtered else [limit]
    for looked_at in looks:
        rows = await find_offers(
            services.reader,
            asked,
            limit=looked_at,
            slowest_ms=LATENCY_MS_MAX,
            caller=call.caller.did,
        )
        results, agents = await _kept(
            call, query, asked, rows, limit=limit, now_ms=services.now_ms(), policies=policies
        )
        if len(results) == limit or len(rows) < looked_at:
            break
    services.gateway.offers.follow()
    return {"results": results, "agents": agents, "limit": limit}


async def _kept(
    call: Call,
    query: DiscoverQuery,
    asked: AgentSearch,
    rows: Sequence[RowDict],
    *,
    limit: int,
    now_ms: int,
    policies: Sequence[Policy],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return at most `limit` results that pass the filters on cards, and their agents' cards."""
    results: list[dict[str, Any]] = []
    cards: dict[str, dict[str, Any]] = {}
    slices = Slices()
    for row in rows:
        if len(results) == limit:
            break
        await slices.pause()
        card = cards.get(row["did"]) or current_card(row)
        offered = next(
            (one for one in card["capabilities"] if one["id"] == row["capability_id"]), None
        )
        if offered is None:
            continue
        if asked.versions is not None and offered.get("version") not in asked.versions:
            continue
        registered = price_of_row(row) if has_price(row) else None
        price = effective_price(parse_price(offered)[0], registered)
        row = _scored_by_what_counts(call, asked, row, card, registered)
        if row["reputation"] < asked.reputation_min:
            continue
        availability = availability_of(row, live_of(row), now_ms)
        if not _passes(query, card, price, availability):
            continue
        if query.subnet is not None and not row["is_in_subnet"]:
            continue  # The card names a subnet that the owner has left.
        own = call.services.settings.region
        region = said_in_card(card, "region") or own or None
        if not decide(policies, row["capability_id"], region, is_own=region == own).is_allowed:
            continue
        if row["did"] not in cards:
            cards[row["did"]] = card_for(call, row, card)
        why = _why(query, row, offered, price, availability)
        results.append(_result(row, cards[row["did"]], offered, why))
    results.sort(key=lambda result: -float(result["score"]))
    return results, list(cards.values())


def _scored_by_what_counts(
    call: Call, asked: AgentSearch, row: RowDict, card: Mapping[str, Any], registered: Price | None
) -> RowDict:
    """Return the row, with a reputation only from paid work if the agent asks a price."""
    tally = Tally(*(row["tally"] or ()))
    paid = tally.counted(asks_price=True)
    if paid == tally.counted(asks_price=False):
        return row  # All of the agent's work was paid, or the agent has done no work.
    own = {one["id"]: parse_price(one)[0] for one in card["capabilities"]}
    prices = {} if registered is None else {row["capability_id"]: registered}
    if not asks_price(own, prices, has_bid=bool(standing_offers(card["capabilities"]))):
        return row
    slowest_ms = LATENCY_MS_MAX
    reputation = score(paid, latency_ms_max=slowest_ms)
    change = (1 - words_share(asked)) * (reputation - row["reputation"])
    return {**row, "reputation": reputation, "score": row["score"] + change}


async def _versions(call: Call, capability_id: str, wanted: str) -> tuple[str, ...]:
    """Return the published versions in a range, by the same rules as for a node's range."""
    rows = published(await version_rows(call.services.reader, [capability_id]))
    return tuple(str(one.version) for one in find_within(rows, parse_range(wanted)))


def _passes(query: DiscoverQuery, card: Mapping[str, Any], price: Price, availability: str) -> bool:
    if query.availability is not None and availability != query.availability:
        return False
    if query.region is not None and said_in_card(card, "region") != query.region:
        return False
    if query.subnet is not None and said_in_card(card, "subnet") != query.subnet:
        return False
    if query.max_price_cents is None:
        return True
    # An agent that is paid by tokens never passes: its cost is not known in advance.
    return isinstance(price, FixedPrice) and price.micro <= query.max_price_cents * MICRO_PER_CENT


def _why(
    query: DiscoverQuery,
    row: RowDict,
    offered: Mapping[str, Any],
    price: Price,
    availability: str,
) -> list[str]:
    """Return the reasons why a result was found and ranked, as texts."""
    why = []
    if row["said"]:
        why.append("words: " + ", ".join(sorted(row["said"])))
    if row["fields"]:
        why.append("schema fields: " + ", ".join(sorted(row["fields"])))
    if query.capability_id is not None:
        wanted, _, versions = query.capability_id.partition("@")
        kind = "begins with" if wanted.endswith("*") else "is"
        why.append(f"capability {kind} {wanted.removesuffix('*')}")
        if versions:
            why.append(f"version {offered['version']} in {versions}")
    if query.owner_did is not None:
        why.append(f"owner {query.owner_did}")
    if query.max_price_cents is not None and isinstance(price, FixedPrice):
        why.append(f"price {price.micro / MICRO_PER_CENT:g} cents")
    if query.region is not None:
        why.append(f"region {query.region}")
    if query.subnet is not None:
        why.append(f"subnet {query.subnet}")
    if query.availability is not None:
        why.append(f"availability {availability}")
    why.append(f"reputation {row['reputation']:g}")
    return why


def _result(
    row: RowDict, card: Mapping[str, Any], offered: Mapping[str, Any], why: Sequence[str]
) -> dict[str, Any]:
    metadata = card.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return {
        "agentDid": row["did"],
        "capabilityId": row["capability_id"],
        "description": offered.get("description") or "",
        "score": round(row["score"], 6),
        "reputation": row["reputation"],
        "agent": {"did": row["did"], "name": name, "endpoint": card.get("endpoint", "")},
        "why": list(why),
    }
