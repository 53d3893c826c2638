"""Finding agents: by words, by a capability's id or its beginning, by owner; the best first.

The offers come from `offer_candidates.py` or, where a capability or an owner is named, in the order
of an index. They are ranked here by their words and by reputation; then the cards of the best are
read. What is looked at is bounded. Reference: features.md (Discovery).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from core.market.reputation import Tally, score
from ledger.agents.offer_candidates import HITS_MAX, Hit, any_of, find_hits, find_words
from ledger.agents.offer_index import OWNER_OFFERS_MAX
from ledger.reads.agent_pages import LIVE_COLUMNS
from ledger.reads.prepared import PreparedStatement
from ledger.reads.reader import LedgerReader, RowDict

WORDS_MAX: Final = 500
# Offers of a capability that are looked at in the order of an index; of an owner all.
WALKED_MAX: Final = 1_000
# Bytes of cards in one reply.
CARDS_BYTES_MAX: Final = 2 * 1024 * 1024
# Of the score; the rest is the reputation's.
WORDS_SHARE: Final = 0.7


class Asked(Struct, frozen=True, kw_only=True):
    """What is looked for; None: anything. `capability_id` is the beginning if `is_prefix`.

    `versions`: of the one capability, as cards say them. `latency_ms_max`: of an agent's average;
    an agent without a success meets it.
    """

    words: str | None = None
    capability_id: str | None = None
    is_prefix: bool = False
    versions: tuple[str, ...] | None = None
    owner_did: str | None = None
    reputation_min: float = 0.0
    latency_ms_max: int | None = None


_OF_CAPABILITY: Final = 'capability_id COLLATE "C" = %(capability_id)s'
# Ids are ASCII; none has the last character of it.
_BEGINS: Final = """capability_id COLLATE "C" >= %(capability_id)s
    AND capability_id COLLATE "C" < %(capability_id)s || E'\\x7f'"""
_OF_VERSION: Final = "version = ANY (%(versions)s)"
_WALKED: Final = """
    SELECT * FROM (SELECT * FROM callboard.offer {where} ORDER BY {order} LIMIT {walked_max}) w
    WHERE {conditions} LIMIT {hits_max}
"""
_CARDS: Final = PreparedStatement(
    f"""
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
    """,
    {},
)


def words_share(asked: Asked) -> float:
    """Return the share of words in a score; the rest is the reputation's."""
    return WORDS_SHARE if asked.words is not None else 0.0


def _near(asked: Asked) -> str | None:
    """Return the SQL that selects the offers of a capability or an owner, None for words alone."""
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
    # One owner may have a thousand ids before all others: the first offers of each owner, too.
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
    reader: LedgerReader, asked: Asked, *, limit: int, slowest_ms: int, caller: str
) -> list[RowDict]:
    """Return the offers that match, the best first: agent and capability, scores, the card, the
    registered price, heartbeats and probes, and which stems were found: `said` and `fields`. The
    reputation is by all outcomes; `tally` has them as a `Tally`, None of an agent without any.

    What is registered is found when its card was read, which its registration waits for.

    Args:
        limit: most rows; fewer where their cards are large.
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


def _is_slow(row: RowDict, asked: Asked) -> bool:
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
