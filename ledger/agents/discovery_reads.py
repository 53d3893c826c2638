"""Finding agents: by words, by a capability's id or its beginning, by owner; the best first.

One statement over the index of offers (`offer_index.py`). What it looks at is bounded: so many
offers in the order of an index, and those that the index of words finds by words that are rare
among these; of the matches so many, owners in turn, are ranked. Spec: Settlement rules 9
(discovery ranking); contract.md sections 6 and 7 (Discovery). Decisions 0288, 0291, 0298.
"""

from __future__ import annotations

import secrets
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from core.market.reputation import NEUTRAL
from ledger.agents.offer_index import IS_CURRENT, OWNER_OFFERS_MAX
from ledger.reads.agent_pages import LIVE_COLUMNS
from ledger.reads.prepared import PreparedStatement
from ledger.reads.reader import LedgerReader, RowDict

WORDS_MAX: Final = 500
# Offers that match and are ranked: the first of each owner, then the second of each.
HITS_MAX: Final = 150
# Offers that are looked at in the order of an index: of a capability, of all where words are looked
# for; of a beginning half as many by id and then so many by place; of an owner all. And of rare
# words, in no order.
WALKED_MAX: Final = 1_000
# Of these, the matches that are taken, in the order of the index: by place an owner has no more
# offers than places, so those whose turn is first are there. Of a beginning half as many by place.
MATCHES_MAX: Final = 400
# A word is rare that fewer of these matches have. Of so many words.
RARE_MAX: Final = 25
RARE_WORDS_MAX: Final = 16
# Of those that are looked at for rare words, a word may have this part, where there are so many.
RARE_SHARES_MAX: Final = 4
# Bytes of cards in one reply.
CARDS_BYTES_MAX: Final = 2 * 1024 * 1024
# Of the hash by which owners take turns.
_SEED: Final = secrets.randbits(62)
# Of the score; the rest is the reputation's.
WORDS_SHARE: Final = 0.7


class Asked(Struct, frozen=True, kw_only=True):
    """What is looked for; None: anything. `capability_id` is the beginning if `is_prefix`.

    `versions`: of the one capability, as cards say them; those of large cards are not known here,
    and found all the same. `latency_ms_max`: of an agent's average, which one without a success
    meets.
    """

    words: str | None = None
    capability_id: str | None = None
    is_prefix: bool = False
    versions: tuple[str, ...] | None = None
    owner_did: str | None = None
    reputation_min: float = 0.0
    latency_ms_max: int | None = None


# An agent's score as `core/market/reputation.py` has it; one without a row has never worked.
_REPUTATION: Final = """
    round((
        0.5 * CASE WHEN successful + failed > 0
            THEN successful::float8 / (successful + failed) ELSE 0.5 END
        + 0.3 * CASE WHEN successful > 0 THEN greatest(0,
                1 - latency_ms_sum::float8 / (successful * CAST(%(slowest_ms)s AS float8)))
            WHEN failed > 0 THEN 0 ELSE 0.5 END
        + 0.2 * CASE WHEN total > 0 THEN 1 - cancelled::float8 / total ELSE 0.5 END
    )::numeric, 6)::float8
"""
# `plainto_tsquery` joins words with "and"; any of them is enough, more of them rank higher.
_ANY_WORD: Final = "replace(plainto_tsquery('english', %(words)s)::text, ' & ', ' | ')::tsquery"
_OF_OWNER: Final = "owner_did = %(owner_did)s"
_OF_CAPABILITY: Final = 'capability_id COLLATE "C" = %(capability_id)s'
# Ids are ASCII; none has the last character of it.
_BEGINS: Final = """capability_id COLLATE "C" >= %(capability_id)s
    AND capability_id COLLATE "C" < %(capability_id)s || E'\\x7f'"""
_OF_VERSION: Final = "(version IS NULL OR version = ANY (%(versions)s))"
_HAS_WORDS: Final = "words @@ (SELECT query FROM asked)"
_NEAR: Final = """
    SELECT did, capability_id, owner_did, place, words FROM (
        SELECT * FROM callboard.offer WHERE {walked} ORDER BY {order} LIMIT {walked_max}
    ) w WHERE {conditions} LIMIT {near_max}
"""
# Of a beginning the ids that come first, and of the others the offers of the lowest places: one
# owner may have a thousand ids before all others.
_NEAR_BEGINNING: Final = """
    WITH first AS MATERIALIZED (
        SELECT did, capability_id, owner_did, place, version, words FROM callboard.offer
        WHERE {walked} ORDER BY {order} LIMIT {walked_max} / 2
    ), last AS MATERIALIZED (
        SELECT capability_id, place, did FROM first ORDER BY {order} OFFSET {walked_max} / 2 - 1
    )
    SELECT did, capability_id, owner_did, place, words FROM first WHERE {conditions} UNION ALL (
        SELECT did, capability_id, owner_did, place, words FROM (
            SELECT o.* FROM last CROSS JOIN LATERAL (
                SELECT did, capability_id, place FROM callboard.offer
                ORDER BY place, did, capability_id LIMIT {walked_max}
            ) p CROSS JOIN LATERAL (
                SELECT * FROM callboard.offer
                WHERE did = p.did AND capability_id = p.capability_id OFFSET 0
            ) o WHERE (p.capability_id COLLATE "C", p.place, p.did)
                    > (last.capability_id, last.place, last.did)
                AND p.capability_id COLLATE "C" < %(capability_id)s || E'\\x7f'
        ) w WHERE {conditions} LIMIT {near_max} / 2)
"""
# Words that few of those have: the index of words finds who has them, however many others match.
# The rarest first, and of each a share: a usual one leaves room for the others. When the shares of
# a few are full no other word is looked for: one that 5 % of 100,000 offers have takes 0.8 ms.
_RARE: Final = r"""
    UNION ALL (
        SELECT o.* FROM (
            SELECT w.word FROM asked CROSS JOIN LATERAL (
                SELECT concat('''', replace(replace(word, '\', '\\'), '''', ''''''), '''')::tsquery
                    AS word
                FROM unnest(words) word LIMIT {rare_words_max}) w
                CROSS JOIN LATERAL (SELECT count(*) AS found FROM near WHERE words @@ w.word) n
            WHERE n.found < {rare_max} ORDER BY n.found
        ) rare CROSS JOIN LATERAL (
            SELECT did, capability_id, owner_did, place, words FROM callboard.offer
            WHERE words @@ rare.word LIMIT (SELECT {walked_max}
                / greatest(1, least({shares_max}, cardinality(words))) FROM asked)) o
        LIMIT {walked_max})
"""
# Turns are counted by a hash of the owner's DID, because DIDs begin alike and are slow to sort. Two
# owners of one hash share their turns: none is later than its place. By a secret, so that a DID
# cannot be made that has the hash of another owner's.
# Joined one by one: a plan that was made when a table was small never reads it whole.
_STATEMENT: Final = """
    WITH asked AS MATERIALIZED (
        SELECT {any_word} AS query, tsvector_to_array(to_tsvector('english', %(words)s)) AS words
    ), near AS MATERIALIZED ({near}), turned AS (
        SELECT did, capability_id, words,
            dense_rank() OVER (
                PARTITION BY hashtextextended(owner_did, %(seed)s) ORDER BY place) AS turn
        FROM (SELECT * FROM near {rare}) matching
    ), hit AS MATERIALIZED (
        SELECT DISTINCT ON (turn, did, capability_id) did, capability_id, words FROM turned
        ORDER BY turn, did, capability_id LIMIT {hits_max}
    ), known AS (
        SELECT h.did, h.capability_id, h.words, coalesce(r.reputation, {unknown}) AS reputation,
            {rank} AS rank, r.successful, r.latency_ms_sum, r.tally
        FROM asked CROSS JOIN hit h
            CROSS JOIN LATERAL (SELECT 1 WHERE {is_current} OFFSET 0) current
            LEFT JOIN LATERAL (
                SELECT successful, latency_ms_sum, {reputation} AS reputation, ARRAY[
                    successful, failed, cancelled, latency_ms_sum, paid_successful, paid_failed,
                    paid_cancelled, paid_latency_ms_sum] AS tally
                FROM callboard.reputation WHERE agent_did = h.did OFFSET 0) r ON true
    ), scored AS (
        SELECT *, CAST(%(share)s AS float8) * coalesce(rank / nullif(max(rank) OVER (), 0), 0)
            + (1 - CAST(%(share)s AS float8)) * reputation AS score
        FROM known WHERE reputation >= %(reputation_min)s AND (
            CAST(%(latency_ms_max)s AS bigint) IS NULL OR coalesce(successful, 0) = 0
            OR latency_ms_sum <= successful * CAST(%(latency_ms_max)s AS bigint))
    ), best AS (
        SELECT * FROM scored ORDER BY score DESC, capability_id, did LIMIT %(limit)s
    ), shown AS (
        SELECT b.did, b.capability_id, b.words, b.reputation, b.score, b.tally, a.owner_did, a.card,
            a.endpoint, a.status, a.public_key, a.key_number, a.updated_ms,
            sum(octet_length(a.card)) OVER (ORDER BY b.score DESC, b.capability_id, b.did)
                - octet_length(a.card) AS bytes_before
        FROM best b CROSS JOIN LATERAL (
            SELECT * FROM callboard.agent WHERE did = b.did AND status = 'active' OFFSET 0) a
    )
    SELECT s.did, s.capability_id, s.reputation, s.score, s.tally, s.owner_did, s.card, s.endpoint,
        s.status, s.public_key, s.key_number, s.updated_ms, p.price_cents, p.input_rate,
        p.output_rate, {live_columns}, matched.said, matched.fields
    FROM asked CROSS JOIN shown s
        LEFT JOIN LATERAL (SELECT * FROM callboard.capability_price
            WHERE capability_id = s.capability_id OFFSET 0) p ON true
        LEFT JOIN LATERAL (
            SELECT * FROM callboard.agent_live WHERE did = s.did OFFSET 0) l ON true
        CROSS JOIN LATERAL (
            SELECT array_agg(lexeme) FILTER (WHERE 'D' <> ANY (weights)) AS said,
                array_agg(lexeme) FILTER (WHERE 'D' = ALL (weights)) AS fields
            FROM unnest(s.words) WHERE lexeme = ANY (asked.words)) matched
    WHERE s.bytes_before < {bytes_max} ORDER BY s.score DESC, s.capability_id, s.did
"""


@lru_cache
def _statement(
    *, with_words: bool, with_owner: bool, capability: str | None, with_versions: bool
) -> PreparedStatement:
    """Return the statement that looks for these; `capability`: its condition."""
    others = [_OF_VERSION] if with_versions else []
    if with_owner:
        walked, order = _OF_OWNER, "place"
        others += [capability] if capability is not None else []
    elif capability is not None:
        walked, order = capability, 'capability_id COLLATE "C", place, did'
    else:
        walked, order = "true", "place, did, capability_id"
    others += [_HAS_WORDS] if with_words else []
    is_beginning = capability == _BEGINS and not with_owner
    near = (_NEAR_BEGINNING if is_beginning else _NEAR).format(
        walked=walked,
        order=order,
        walked_max=OWNER_OFFERS_MAX if with_owner else WALKED_MAX,
        conditions=" AND ".join(others) or "true",
        near_max=HITS_MAX if with_owner else MATCHES_MAX,
    )
    rare = _RARE.format(
        rare_words_max=RARE_WORDS_MAX,
        rare_max=RARE_MAX,
        shares_max=RARE_SHARES_MAX,
        walked_max=WALKED_MAX,
    )
    return PreparedStatement(
        _STATEMENT.format(
            any_word=_ANY_WORD,
            near=near,
            rare=rare if walked == "true" else "",
            hits_max=HITS_MAX,
            reputation=_REPUTATION,
            unknown=NEUTRAL,
            rank="ts_rank(h.words, asked.query)::float8" if with_words else "1.0::float8",
            is_current=IS_CURRENT,
            live_columns=LIVE_COLUMNS,
            bytes_max=CARDS_BYTES_MAX,
        ),
        {},
    )


def words_share(asked: Asked) -> float:
    """Return the share of words in a score; the rest is the reputation's."""
    return WORDS_SHARE if asked.words is not None else 0.0


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
    values: dict[str, Any] = {
        "words": (asked.words or "")[:WORDS_MAX].replace("\x00", " "),
        "slowest_ms": slowest_ms,
        # Without words the reputation alone ranks.
        "share": words_share(asked),
        "reputation_min": asked.reputation_min,
        "latency_ms_max": asked.latency_ms_max,
        "limit": limit,
        "seed": _SEED,
        "capability_id": asked.capability_id,
        "owner_did": asked.owner_did,
        "versions": None if asked.versions is None else list(asked.versions),
    }
    capability = _BEGINS if asked.is_prefix else _OF_CAPABILITY
    statement = _statement(
        with_words=asked.words is not None,
        with_owner=asked.owner_did is not None,
        capability=None if asked.capability_id is None else capability,
        with_versions=asked.versions is not None,
    )
    return await reader.searches.prepared_rows(statement, values, caller=caller)
