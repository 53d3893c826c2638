"""Finding a capability by words: over the ids, names and descriptions that agents have registered.

Postgres' own text search, English stems; ids are split at dots, dashes and underscores. A match in
the id or the agent's name counts more than one in a description. Decision 0083.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sql

from ledger.reads.reader import LedgerReader

WORDS_MAX: Final = 500

# `plainto_tsquery` joins words with "and"; any of them is enough, more of them rank higher.
_SEARCH: Final = sql.text(
    """
    WITH asked AS (
        SELECT replace(plainto_tsquery('english', :words)::text, '&', '|')::tsquery AS query
    )
    SELECT o.capability_id AS id, max(ts_rank(o.words, asked.query))::double precision AS rank
    FROM asked CROSS JOIN callboard.agent a CROSS JOIN LATERAL callboard.offered_words(a.card) o
    WHERE a.status = 'active' AND o.words @@ asked.query AND NOT EXISTS (
        SELECT 1 FROM callboard.revocation v WHERE v.did = a.did AND v.ended_ms IS NULL
            AND (v.expires_ms IS NULL OR v.expires_ms > extract(epoch FROM now()) * 1000))
    GROUP BY o.capability_id ORDER BY rank DESC, o.capability_id LIMIT :limit
    """
)


async def find_capabilities(reader: LedgerReader, words: str, *, limit: int) -> list[str]:
    """Return the ids of the capabilities that fit these words, the best first."""
    query = _SEARCH.bindparams(words=words[:WORDS_MAX].replace("\x00", " "), limit=limit)
    return [str(row["id"]) for row in await reader.rows(query)]
