"""What agents offer for some words, with schemas and prices: what a draft chooses from.

The best capabilities, four of each owner before the next four of any. The schemas, words and price
of a capability are those of the agent that has done most of its work; of several alike the one that
was registered first. Of a card above 32 KiB only the id is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from core.json_text import read_json
from core.market.pricing import FixedPrice, effective_price, parse_price
from core.planning.offers import Offer, members_of
from ledger.agents.offer_candidates import find_hits, find_words
from ledger.agents.offer_index import IS_CURRENT, OfferIndex
from ledger.prices.price_reads import has_price, price_of_row
from ledger.reads.prepared import PreparedStatement
from ledger.reads.reader import LedgerReader, RowDict

WORDS_MAX: Final = 2_000
OFFERS_MAX: Final = 48
CARD_BYTES_MAX: Final = 32 * 1024
# Of one owner, before others have had as many.
OWNER_OFFERS: Final = 4
# Offers of one capability among which the agent is chosen.
AGENTS_MAX: Final = 100
# Offers that are ranked, and at least of one word: usual words find theirs beside rare ones.
HITS_MAX: Final = 400
EACH_MIN: Final = 16

_SPEAKING: Final = PreparedStatement(
    f"""
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
    """,
    {},
)


async def offers_for_draft(
    reader: LedgerReader, offers: OfferIndex, words: str, *, caller: str, by_names: bool = False
) -> Callable[[], list[Offer]]:
    """Read the 48 capabilities that fit these words best.

    Args:
        offers: brings the index up to date first.
        words: of which each that fits counts; those beyond 2,000 characters are left out.
        caller: the DID that searches; callers take turns.
        by_names: look in the names of inputs and outputs too.

    Returns: what parses the cards that were read, which takes milliseconds: beside the event loop.

    Raises:
        ServiceError: OVERLOADED, LEDGER_UNAVAILABLE.
    """
    await offers.catch_up()
    asked = await find_words(reader, words[:WORDS_MAX], has_fields=by_names, caller=caller)
    each = max(EACH_MIN, HITS_MAX // max(1, len(asked.counts)))
    hits = await find_hits(reader, asked, caller=caller, most=HITS_MAX, each=each)
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
    """Return what the agent of a row offers: `capability_id, card`, its price and its successes."""
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
