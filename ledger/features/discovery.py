"""Searches for agents, capabilities and offers.

Reference: features.md (Discovery, Planning).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Struct

from core.json_text import read_json
from core.market.pricing import FixedPrice, effective_price, parse_price
from core.market.reputation import Tally, score
from core.planning.offers import Offer, members_of
from ledger.features.offers import (
    HITS_MAX,
    IS_CURRENT,
    OWNER_OFFERS_MAX,
    Hit,
    OfferIndex,
    any_of,
    find_hits,
    find_words,
)
from ledger.features.prices import has_price, price_of_row
from ledger.reads.agent_pages import LIVE_COLUMNS
from ledger.reads.reader import LedgerReader, RowDict

# Searches for agents by words, by a capability's id or its prefix, or by owner; best first.
# `offers.py` finds offers by words. If a capability or an owner is given, offers are read in the
# order of an index instead. This file ranks the offers by words and by reputation, and then reads
# the cards of the best ones. The number of offers read is bounded.

WORDS_MAX: Final = 500
# Maximum offers of a capability that are read in the order of an index. All offers of an owner are
# read (`OWNER_OFFERS_MAX`).
WALKED_MAX: Final = 1_000
# Maximum bytes of cards in one reply.
CARDS_BYTES_MAX: Final = 2 * 1024 * 1024
# The weight of words in the score. The weight of the reputation is 1 minus this.
WORDS_SHARE: Final = 0.7


class AgentSearch(Struct, frozen=True, kw_only=True):
    """The conditions of a search; None: no condition. With `is_prefix`, `capability_id` is a
    prefix.

    `versions`: accepted versions of the capability, as written in cards. `latency_ms_max`: maximum
    of an agent's average latency; an agent without a success satisfies it.
    """

    words: str | None = None
    capability_id: str | None = None
    is_prefix: bool = False
    versions: tuple[str, ...] | None = None
    owner_did: str | None = None
    reputation_min: float = 0.0
    latency_ms_max: int | None = None


_OF_CAPABILITY: Final = 'capability_id COLLATE "C" = %(capability_id)s'
# Capability ids are ASCII and do not contain its last character.
_BEGINS: Final = """capability_id COLLATE "C" >= %(capability_id)s
    AND capability_id COLLATE "C" < %(capability_id)s || E'\\x7f'"""
_OF_VERSION: Final = "version = ANY (%(versions)s)"
_WALKED: Final = """
    SELECT * FROM (SELECT * FROM callboard.offer {where} ORDER BY {order} LIMIT {walked_max}) w
    WHERE {conditions} LIMIT {hits_max}
"""
_CARDS: Final = f"""
    SELECT s.did, s.capability_id, s.owner_did, s.card, s.endpoint, s.status, s.public_key,
        s.key_number, s.updated_ms, EXISTS (SELECT FROM callboard.subnet_member m
            WHERE m.subnet_id = s.subnet_id AND m.did = s.owner_did AND m.status = 'joined'
        ) AS is_in_subnet, p.price_cents, p.input_rate, p.output_rate, {LIVE_COLUMNS}
    FROM (
        SELECT h.capability_id, h.number, a.*, sum(octet_length(a.card)) OVER (ORDER BY h.number)
            - octet_length(a.card) AS bytes_before
        FROM unnest(%(dids)s::text[], %(ids)s::text[]) WITH ORDINALITY h(did, capability_id, number)
            CROSS JOIN LATERAL (SELECT * FROM callboard.agent
                WHERE did = h.did AND status = 'active' OFFSET 0) a
    ) s LEFT JOIN LATERAL (SELECT * FROM callboard.capability_price
            WHERE capability_id = s.capability_id OFFSET 0) p ON true
        LEFT JOIN LATERAL (
            SELECT * FROM callboard.agent_live WHERE did = s.did OFFSET 0) l ON true
    WHERE s.bytes_before < {CARDS_BYTES_MAX} ORDER BY s.number
    """


def words_share(asked: AgentSearch) -> float:
    """Return the weight of words in the score, 0 to 1. The weight of the reputation is 1 minus
    this."""
    return WORDS_SHARE if asked.words is not None else 0.0


def _near(asked: AgentSearch) -> str | None:
    """Return the SQL that selects offers of a capability or an owner, None if neither is given."""
    conditions = [_OF_VERSION] if asked.versions is not None else []
    if asked.words is not None:
        conditions.append("words @@ %(query)s::tsquery")
    capability = _BEGINS if asked.is_prefix else _OF_CAPABILITY
    if asked.owner_did is not None:
        if asked.capability_id is not None:
            conditions.append(capability)
        return _walk("WHERE owner_did = %(owner_did)s", "place", conditions, OWNER_OFFERS_MAX)
    if asked.capability_id is None:
        return None
    by_id = _walk(
        f"WHERE {capability}", 'capability_id COLLATE "C", place, number', conditions, WALKED_MAX
    )
    if not asked.is_prefix:
        return by_id
    # The first offers of each owner are read too, because one owner may have a thousand ids before
    # the first id of another owner.
    by_place = _walk("", "place, number", [capability, *conditions], WALKED_MAX)
    return f"({by_place}) UNION ALL ({by_id})"


def _walk(where: str, order: str, conditions: Sequence[str], walked_max: int) -> str:
    return _WALKED.format(
        where=where,
        order=order,
        conditions=" AND ".join(conditions) or "true",
        walked_max=walked_max,
        hits_max=HITS_MAX,
    )


async def find_offers(
    reader: LedgerReader, asked: AgentSearch, *, limit: int, slowest_ms: int, caller: str
) -> list[RowDict]:
    """Return the offers that match, best first.

    A row has the agent and capability, scores, the card, the registered price, heartbeats and
    probes, and the stems that were found (`said`, `fields`). `tally`: the outcomes on which the
    reputation is based, None without any. A registration waits until its card is indexed, so a
    search after the registration finds its offers.

    Args:
        limit: maximum rows; large cards reduce it.
        slowest_ms: the average latency at which the speed score is 0.
        caller: the DID that searches; callers take turns.

    Raises:
        ServiceError: OVERLOADED, LEDGER_UNAVAILABLE.
    """
    assert asked.words is not None or asked.capability_id is not None or asked.owner_did is not None
    text = (asked.words or "")[:WORDS_MAX]
    words = await find_words(reader, text, has_fields=True, caller=caller)
    if asked.words is not None and not words.counts:
        return []
    values: dict[str, Any] = {
        "capability_id": asked.capability_id,
        "owner_did": asked.owner_did,
        "versions": None if asked.versions is None else list(asked.versions),
        "query": any_of(words),
    }
    hits = await find_hits(reader, words, caller=caller, near=_near(asked), values=values)
    hits = sorted(hits, key=lambda hit: (hit.row["place"], hit.row["number"]))[:HITS_MAX]
    best_fit = max((hit.fit for hit in hits), default=0.0) or 1.0
    scored: list[tuple[float, str, str, float, Hit]] = []
    for hit in hits:
        row = hit.row
        reputation = score(Tally(*(row["tally"] or ())), latency_ms_max=slowest_ms)
        if reputation < asked.reputation_min or _is_slow(row, asked):
            continue
        share = words_share(asked)
        total = share * hit.fit / best_fit + (1 - share) * reputation
        scored.append((-total, row["capability_id"], row["did"], reputation, hit))
    scored = sorted(scored, key=lambda one: one[:3])[:limit]
    found = {(one[2], one[1]): one for one in scored}
    keys = {"dids": [did for did, _ in found], "ids": [one for _, one in found]}
    rows = await reader.searches.prepared_rows(_CARDS, keys, caller=caller)
    return [_shown(row, *found[row["did"], row["capability_id"]]) for row in rows]


def _is_slow(row: RowDict, asked: AgentSearch) -> bool:
    if asked.latency_ms_max is None or not row["successful"]:
        return False
    return bool(row["latency_ms_sum"] > row["successful"] * asked.latency_ms_max)


def _shown(
    row: RowDict, negated: float, _id: str, _did: str, reputation: float, hit: Hit
) -> RowDict:
    return {
        **row,
        "score": -negated,
        "reputation": reputation,
        "tally": hit.row["tally"],
        "said": hit.said or None,
        "fields": hit.fields or None,
    }


# Searches for capabilities by words in the ids, names and descriptions that agents registered.


async def find_capabilities(
    reader: LedgerReader, offers: OfferIndex, words: str, *, limit: int, caller: str = ""
) -> list[str]:
    """Return the ids of the capabilities that fit these words, best first.

    Args:
        offers: the index; it is brought up to date first.
        caller: the DID that searches; callers take turns.

    Raises:
        ServiceError: OVERLOADED, LEDGER_UNAVAILABLE.
    """
    await offers.catch_up()
    asked = await find_words(reader, words[:WORDS_MAX], has_fields=False, caller=caller)
    fits: dict[str, float] = {}
    for hit in await find_hits(reader, asked, caller=caller):
        capability_id = hit.row["capability_id"]
        fits[capability_id] = max(fits.get(capability_id, 0.0), hit.fit)
    return sorted(fits, key=lambda one: (-fits[one], one))[:limit]


# Offers from which a draft of a workflow chooses, with schemas and prices. The best capabilities
# are taken: first up to four of each owner, then the next four of each owner, and so on. The
# schemas, description and price of a capability are those of its agent with the most successes;
# among equals, the agent registered first. A card above 32 KiB is not read, so only the
# capability's id is returned.

DESCRIPTION_MAX: Final = 2_000
OFFERS_MAX: Final = 48
CARD_BYTES_MAX: Final = 32 * 1024
# Capabilities of one owner per round of taking.
OWNER_OFFERS: Final = 4
# Maximum offers of one capability that are considered, in the order of an index.
AGENTS_MAX: Final = 100
# Maximum offers that are ranked. The maximum per word is at least `EACH_MIN`, so that rare words
# leave room for frequent words.
DESCRIPTION_HITS_MAX: Final = 400
EACH_MIN: Final = 16

_SPEAKING: Final = f"""
    SELECT s.capability_id, a.owner_did, p.price_cents, p.input_rate, p.output_rate, s.successful,
        s.latency_ms_sum, CASE WHEN octet_length(a.card) <= {CARD_BYTES_MAX} THEN a.card END AS card
    FROM unnest(%(ids)s::text[]) c(id) CROSS JOIN LATERAL (
            SELECT h.did, h.capability_id, r.successful, r.latency_ms_sum FROM (
                SELECT did, capability_id FROM callboard.offer
                WHERE capability_id COLLATE "C" = c.id ORDER BY place, number LIMIT {AGENTS_MAX}
            ) h JOIN callboard.agent a ON a.did = h.did
                LEFT JOIN callboard.reputation r ON r.agent_did = h.did
            WHERE {IS_CURRENT}
            ORDER BY coalesce(r.successful, 0) DESC, a.registered_ms, h.did LIMIT 1
        ) s JOIN callboard.agent a ON a.did = s.did
        LEFT JOIN callboard.capability_price p ON p.capability_id = s.capability_id
    ORDER BY s.capability_id
    """


async def offers_for_draft(
    reader: LedgerReader, offers: OfferIndex, words: str, *, caller: str, by_names: bool = False
) -> Callable[[], list[Offer]]:
    """Read the 48 capabilities that fit these words best.

    Args:
        offers: the index; it is brought up to date first.
        words: offers with any of these words match; text beyond 2,000 characters is ignored.
        caller: the DID that searches; callers take turns.
        by_names: also search the names of inputs and outputs.

    Returns: a function that parses the cards that were read. It takes milliseconds, so call it in
        a thread.

    Raises:
        ServiceError: OVERLOADED, LEDGER_UNAVAILABLE.
    """
    await offers.catch_up()
    asked = await find_words(reader, words[:DESCRIPTION_MAX], has_fields=by_names, caller=caller)
    each = max(EACH_MIN, DESCRIPTION_HITS_MAX // max(1, len(asked.counts)))
    hits = await find_hits(reader, asked, caller=caller, most=DESCRIPTION_HITS_MAX, each=each)
    taken: Counter[str] = Counter()
    best: dict[str, tuple[int, float]] = {}
    for hit in sorted(hits, key=lambda hit: (-hit.fit, hit.row["capability_id"])):
        capability_id, owner_did = hit.row["capability_id"], hit.row["owner_did"]
        turn = taken[owner_did] // OWNER_OFFERS
        if capability_id not in best or best[capability_id] > (turn, -hit.fit):
            taken[owner_did] += 1
            best[capability_id] = (turn, -hit.fit)
    ids = sorted(best, key=lambda one: (best[one], one))[:OFFERS_MAX]
    rows = await reader.searches.prepared_rows(
        _SPEAKING, {"ids": ids, "viewer": caller}, caller=caller
    )
    return lambda: [parse_offer(row) for row in rows]


def parse_offer(row: RowDict) -> Offer:
    """Return the offer of a row: its capability as described in the card, price and successes."""
    wanted = row["capability_id"]
    card = {} if row["card"] is None else read_json(row["card"])
    offered: dict[str, Any] = next(
        (one for one in card.get("capabilities", ()) if one.get("id") == wanted), {}
    )
    price = effective_price(
        parse_price(offered)[0] if offered else None, price_of_row(row) if has_price(row) else None
    )
    return Offer(
        wanted,
        str(offered.get("description") or ""),
        members_of(offered.get("inputSchema")),
        members_of(offered.get("outputSchema")),
        price.micro if isinstance(price, FixedPrice) else None,
        row["latency_ms_sum"] / row["successful"] if row["successful"] else None,
        row["successful"] or 0,
        row["owner_did"],
    )
