"""Finding a capability by words: over the ids, names and descriptions that agents have registered.

Postgres' own text search, English stems; ids are split at dots, dashes and underscores. A match in
the id or the agent's name counts more than one in a description.

What one search reads is bounded, because owners choose how many agents and how large cards they
register: the words of a card count its bytes once per capability. Of a large card only the ids are
read, and counted by their stored size. Cards are read until `BYTES_MAX` are counted, owner beside
owner: the first cards of all owners, then the next ones, so that the many or large cards of one
hide none of an owner that has few. Of one owner, one card of each set of capabilities comes before
a second of any, the earlier registered first. Sizes are known without reading the cards.
Decision 0083.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sql

from ledger.reads.reader import LedgerReader

WORDS_MAX: Final = 500
# A larger card is found by the ids of its capabilities alone, and so is one whose words would count
# more than that.
CARD_BYTES_MAX: Final = 8 * 1024
WORDS_BYTES_MAX: Final = 16 * CARD_BYTES_MAX
BYTES_MAX: Final = 4 * 1024 * 1024

# `plainto_tsquery` joins words with "and"; any of them is enough, more of them rank higher.
_SEARCH: Final = sql.text(
    """
    WITH asked AS (
        SELECT replace(plainto_tsquery('english', :words)::text, '&', '|')::tsquery AS query
    ), sized AS (
        SELECT a.did, a.owner_did, a.registered_ms, a.bytes, ids.ids,
            CASE WHEN ids.ids IS NULL
                THEN least(a.bytes, 16 * pg_column_size(a.capability_ids))::bigint
                ELSE a.bytes * greatest(cardinality(ids.ids), 1)::bigint END AS bytes_read
        FROM (SELECT *, octet_length(card) AS bytes FROM callboard.agent) a
        CROSS JOIN LATERAL (SELECT CASE WHEN a.bytes <= :card_bytes_max
            THEN CASE WHEN a.bytes * cardinality(a.capability_ids)::bigint <= :words_bytes_max
                THEN a.capability_ids END END AS ids) ids
        WHERE a.status = 'active' AND NOT EXISTS (
            SELECT 1 FROM callboard.revocation v WHERE v.did = a.did AND v.ended_ms IS NULL
                AND (v.expires_ms IS NULL OR v.expires_ms > extract(epoch FROM now()) * 1000))
    ), turned AS (
        SELECT *, CASE WHEN ids IS NULL THEN 1 ELSE row_number() OVER (
            PARTITION BY owner_did, ids ORDER BY registered_ms, did) END AS turn
        FROM sized
    ), of_owner AS (
        SELECT did, ids IS NULL AS is_large, bytes_read, sum(bytes_read) OVER (
            PARTITION BY owner_did ORDER BY turn, registered_ms, did) AS place
        FROM turned
    ), counted AS (
        SELECT did, is_large, sum(bytes_read) OVER (ORDER BY place, did) AS bytes_counted
        FROM of_owner
    ), read AS MATERIALIZED (
        SELECT did, is_large FROM counted WHERE bytes_counted <= :bytes_max
    ), offered AS (
        SELECT o.capability_id, o.words
        FROM read r JOIN callboard.agent a USING (did)
        CROSS JOIN LATERAL callboard.offered_words(a.card) o
        WHERE NOT r.is_large
        UNION ALL
        SELECT c.id, setweight(to_tsvector('english', translate(c.id, '._-', '   ')), 'A')
        FROM read r JOIN callboard.agent a USING (did)
        CROSS JOIN LATERAL unnest(a.capability_ids) c(id)
        WHERE r.is_large
    )
    SELECT o.capability_id AS id, max(ts_rank(o.words, asked.query))::double precision AS rank
    FROM asked CROSS JOIN offered o WHERE o.words @@ asked.query
    GROUP BY o.capability_id ORDER BY rank DESC, o.capability_id LIMIT :limit
    """
)


async def find_capabilities(
    reader: LedgerReader, words: str, *, limit: int, caller: str = ""
) -> list[str]:
    """Return the ids of the capabilities that fit these words, the best first.

    Args:
        caller: who searches, by DID; callers take turns.

    Raises:
        ServiceError: OVERLOADED, LEDGER_UNAVAILABLE.
    """
    values = {
        "words": words[:WORDS_MAX].replace("\x00", " "),
        "limit": limit,
        "card_bytes_max": CARD_BYTES_MAX,
        "words_bytes_max": WORDS_BYTES_MAX,
        "bytes_max": BYTES_MAX,
    }
    return [str(row["id"]) for row in await reader.searches.rows(_SEARCH, values, caller=caller)]
