"""Finding agents: by words, by a capability's id or its beginning, by owner; the best first.

One statement over the index of words (`offer_index.py`). What it looks at is bounded: so many
offers that match, and of these the cards of the best. A capability is found by the words of its id
and compared then, so that no index by id is written with each offer. Of more matches than are
looked at those count that were stored first. Spec: Settlement rules 9 (discovery ranking);
contract.md sections 6 and 7 (Discovery). Decision 0288.
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sql
from msgspec import Struct

from ledger.agents.offer_index import IS_CURRENT, OfferIndex
from ledger.reads.reader import LedgerReader, RowDict

WORDS_MAX: Final = 500
# Offers that are ranked: 14 ms a thousand on a busy machine.
HITS_MAX: Final = 1_000
# Bytes of cards in one reply.
CARDS_BYTES_MAX: Final = 2 * 1024 * 1024
# Of the score; the rest is the reputation's.
WORDS_SHARE: Final = 0.7


class Asked(Struct, frozen=True, kw_only=True):
    """What is looked for; None: anything. `capability_id` is the beginning if `is_prefix`.

    `latency_ms_max`: of an agent's average, which one without a success meets.
    """

    words: str | None = None
    capability_id: str | None = None
    is_prefix: bool = False
    owner_did: str | None = None
    reputation_min: float = 0.0
    latency_ms_max: int | None = None


# An agent's score as `core/market/reputation.py` has it.
_REPUTATION: Final = """
    round((
        0.5 * CASE WHEN r.successful + r.failed > 0
            THEN r.successful::float8 / (r.successful + r.failed) ELSE 0.5 END
        + 0.3 * CASE WHEN r.successful > 0 THEN greatest(
                0, 1 - r.latency_ms_sum::float8 / (r.successful * CAST(:slowest_ms AS float8)))
            WHEN r.failed > 0 THEN 0 ELSE 0.5 END
        + 0.2 * CASE WHEN r.total > 0
            THEN 1 - r.cancelled::float8 / r.total ELSE 0.5 END
    )::numeric, 6)::float8
"""
_BY_WORDS: Final = "words @@ (SELECT query FROM asked)"
_BY_ID_WORDS: Final = "words @@ plainto_tsquery('english', translate(:capability_id, '._-', '   '))"
# The last word of a beginning may be cut.
_BY_PREFIX: Final = (
    "words @@ plainto_tsquery('english',"
    " translate(regexp_replace(:capability_id, '[^._-]*$', ''), '._-', '   '))"
)
_STATEMENT: Final = """
    WITH asked AS (
        SELECT replace(plainto_tsquery('english', :words)::text, '&', '|')::tsquery AS query,
            to_tsvector('english', :words) AS words
    ), hit AS MATERIALIZED (
        SELECT did, capability_id, words FROM callboard.offer WHERE {conditions} LIMIT :hits_max
    ), known AS (
        SELECT h.did, h.capability_id, h.words, {reputation} AS reputation,
            {rank} AS rank, r.successful, r.latency_ms_sum
        FROM asked CROSS JOIN hit h LEFT JOIN callboard.reputation r ON r.agent_did = h.did
        WHERE {is_current}
    ), scored AS (
        SELECT *, CAST(:share AS float8) * coalesce(rank / nullif(max(rank) OVER (), 0), 0)
            + (1 - CAST(:share AS float8)) * reputation AS score
        FROM known WHERE reputation >= :reputation_min AND (
            CAST(:latency_ms_max AS bigint) IS NULL OR coalesce(successful, 0) = 0
            OR latency_ms_sum <= successful * CAST(:latency_ms_max AS bigint))
    ), best AS (
        SELECT * FROM scored ORDER BY score DESC, capability_id, did LIMIT :limit
    ), shown AS (
        SELECT b.did, b.capability_id, b.reputation, b.score, a.owner_did, a.card, a.endpoint,
            a.status, a.public_key, a.key_number, a.updated_ms,
            ARRAY(SELECT lexeme FROM unnest(b.words) WHERE lexeme = ANY(
                tsvector_to_array(asked.words))) AS matched,
            sum(octet_length(a.card)) OVER (ORDER BY b.score DESC, b.capability_id, b.did)
                - octet_length(a.card) AS bytes_before
        FROM asked CROSS JOIN best b JOIN callboard.agent a USING (did) WHERE a.status = 'active'
    )
    SELECT * FROM shown WHERE bytes_before < :bytes_max ORDER BY score DESC, capability_id, did
"""


async def find_offers(
    reader: LedgerReader,
    offers: OfferIndex,
    asked: Asked,
    *,
    limit: int,
    slowest_ms: int,
    caller: str,
) -> list[RowDict]:
    """Return the offers that match, the best first: agent and capability, scores, the card.

    Args:
        offers: brings the index up to date first.
        limit: most rows; fewer where their cards are large.
        slowest_ms: the average latency at which the speed score is 0.
        caller: the DID that searches; callers take turns.

    Raises:
        ServiceError: OVERLOADED, LEDGER_UNAVAILABLE.
    """
    words = asked.words or ""
    values: dict[str, Any] = {
        "words": words[:WORDS_MAX].replace("\x00", " "),
        "hits_max": HITS_MAX,
        "slowest_ms": slowest_ms,
        # Without words the reputation alone ranks.
        "share": WORDS_SHARE if asked.words is not None else 0.0,
        "reputation_min": asked.reputation_min,
        "latency_ms_max": asked.latency_ms_max,
        "limit": limit,
        "bytes_max": CARDS_BYTES_MAX,
    }
    conditions = []
    if asked.words is not None:
        conditions.append(_BY_WORDS)
    if asked.capability_id is not None:
        values["capability_id"] = asked.capability_id
        if asked.is_prefix:
            conditions += [_BY_PREFIX, "starts_with(capability_id, :capability_id)"]
        else:
            conditions += [_BY_ID_WORDS, "capability_id = :capability_id"]
    if asked.owner_did is not None:
        values["owner_did"] = asked.owner_did
        conditions.append("owner_did = :owner_did")
    assert conditions, "a search looks for something"
    rank = "1.0::float8" if asked.words is None else "ts_rank(h.words, asked.query)::float8"
    statement = _STATEMENT.format(
        conditions=" AND ".join(conditions),
        reputation=_REPUTATION,
        rank=rank,
        is_current=IS_CURRENT,
    )
    return await reader.searches.rows(
        sql.text(statement), values, caller=caller, before=offers.catch_up
    )
