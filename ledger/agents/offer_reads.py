"""What agents offer for some words, with schemas and prices: what a draft chooses from.

One read over the index of words (`offer_index.py`): the best capabilities, four of each owner
before the next four of any. Of a capability speaks, with its schemas, words and price, the agent
that has done most of its work, of several alike the one that was registered first. Of a card above
32 KiB only the id is told. Spec: suggest; decision 0290.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import sqlalchemy as sql

from core.json_text import read_json
from core.market.pricing import FixedPrice, effective_price, parse_price
from core.planning.offers import Offer, members_of
from ledger.agents.offer_index import ANY_SAID_WORD, ANY_WORD, IS_CURRENT, OfferIndex
from ledger.prices.price_reads import has_price, price_of_row
from ledger.reads.reader import LedgerReader, RowDict

WORDS_MAX: Final = 2_000
OFFERS_MAX: Final = 48
CARD_BYTES_MAX: Final = 32 * 1024
HITS_MAX: Final = 10_000
# Of one owner, before others have had as many.
OWNER_OFFERS: Final = 4

_OFFERS: Final = """
    WITH asked AS (
        SELECT {any_word} AS query
    ), hit AS MATERIALIZED (
        SELECT did, capability_id, owner_did, words FROM callboard.offer
        WHERE words @@ (SELECT query FROM asked)
        ORDER BY place, did, capability_id LIMIT :hits_max
    ), ranked AS MATERIALIZED (
        SELECT h.did, h.capability_id, h.owner_did, ts_rank(h.words, asked.query) AS rank
        FROM asked CROSS JOIN hit h WHERE {is_current}
    ), owned AS (
        SELECT capability_id, max(rank) AS rank, row_number() OVER (
                PARTITION BY owner_did ORDER BY max(rank) DESC, capability_id) - 1 AS number
        FROM ranked GROUP BY owner_did, capability_id
    ), best AS MATERIALIZED (
        SELECT capability_id, min(number / :owner_offers) AS turn, max(rank) AS rank FROM owned
        GROUP BY capability_id ORDER BY turn, rank DESC, capability_id LIMIT :limit
    ), speaking AS (
        SELECT DISTINCT ON (h.capability_id) h.capability_id, h.did, r.successful, r.latency_ms_sum
        FROM best b JOIN ranked h ON h.capability_id = b.capability_id
            JOIN callboard.agent a ON a.did = h.did
            LEFT JOIN callboard.reputation r ON r.agent_did = h.did
        ORDER BY h.capability_id, coalesce(r.successful, 0) DESC, a.registered_ms, h.did
    )
    SELECT s.capability_id, a.owner_did, p.price_cents, p.input_rate, p.output_rate, s.successful,
        s.latency_ms_sum, CASE WHEN octet_length(a.card) <= :card_bytes THEN a.card END AS card
    FROM speaking s JOIN callboard.agent a ON a.did = s.did
        LEFT JOIN callboard.capability_price p ON p.capability_id = s.capability_id
    ORDER BY s.capability_id
    """
_BY_WORDS: Final = sql.text(_OFFERS.format(any_word=ANY_SAID_WORD, is_current=IS_CURRENT))
_BY_NAMES: Final = sql.text(_OFFERS.format(any_word=ANY_WORD, is_current=IS_CURRENT))


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
    values = {
        "words": words[:WORDS_MAX].replace("\x00", " "),
        "limit": OFFERS_MAX,
        "owner_offers": OWNER_OFFERS,
        "hits_max": HITS_MAX,
        "card_bytes": CARD_BYTES_MAX,
    }
    rows = await reader.searches.rows(
        _BY_NAMES if by_names else _BY_WORDS, values, caller=caller, before=offers.catch_up
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
