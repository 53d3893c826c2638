"""Finding a capability by words: over the ids, names and descriptions that agents have registered.

Postgres' own text search, English stems; ids are split at dots, dashes and underscores. A match in
the id or the agent's name counts more than one in a description.

The words stand in a table with an index (`offer_index.py`), so a search costs what its hits cost.
Of very many hits those are ranked that their owners registered first: the second of an owner comes
after the first ones of all, so that the many of one hide none of an owner that has few. Of a large
card, or one of very many capabilities, only the ids are words. Decisions 0083, 0172.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sql

from ledger.agents.offer_index import ANY_SAID_WORD, IS_CURRENT, OfferIndex
from ledger.reads.reader import LedgerReader

WORDS_MAX: Final = 500
# Ranked in a fifth of a second.
HITS_MAX: Final = 50_000

# More words rank higher.
_SEARCH: Final = sql.text(
    f"""
    WITH asked AS (
        SELECT {ANY_SAID_WORD} AS query
    ), hit AS MATERIALIZED (
        SELECT did, capability_id, words FROM callboard.offer
        WHERE words @@ (SELECT query FROM asked)
        ORDER BY place, did, capability_id LIMIT :hits_max
    )
    SELECT h.capability_id AS id, max(ts_rank(h.words, asked.query))::double precision AS rank
    FROM asked CROSS JOIN hit h
    WHERE {IS_CURRENT}
    GROUP BY h.capability_id ORDER BY rank DESC, h.capability_id LIMIT :limit
    """
)


async def find_capabilities(
    reader: LedgerReader, offers: OfferIndex, words: str, *, limit: int, caller: str = ""
) -> list[str]:
    """Return the ids of the capabilities that fit these words, the best first.

    Args:
        offers: brings the index up to date first.
        caller: the DID that searches; callers take turns.

    Raises:
        ServiceError: OVERLOADED, LEDGER_UNAVAILABLE.
    """
    values = {"words": words[:WORDS_MAX].replace("\x00", " "), "limit": limit, "hits_max": HITS_MAX}
    rows = await reader.searches.rows(_SEARCH, values, caller=caller, before=offers.catch_up)
    return [str(row["id"]) for row in rows]
