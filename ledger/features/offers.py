"""The index of agents' offers, and the search that ranks offers by words.

Reference: features.md (Discovery).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import sqlalchemy as sql

from core.errors import ErrorCode, ServiceError
from core.json_text import read_json
from core.planning.lexemes import IN_FIELD, IN_ID, IN_NAME, OF_ID, offered_lexemes, search_lexemes
from ledger.connections.pools import OperationalPool
from ledger.merged_runs import MergedRuns
from ledger.reads.agent_pages import IS_HIDDEN, IS_REVOKED
from ledger.reads.reader import LedgerReader
from ledger.reads.stored import RowDict
from ledger.schema import typed

# The index is maintained outside the writer, which only stores which agents have changed. A step
# reads the cards of these agents, computes lexemes in a thread (`core/planning/lexemes.py`) and
# stores the lexemes. Each step is limited in agents and bytes. A registration waits until a step
# has indexed its card. The next step reads awaited cards before others. A search for capabilities
# begins with steps, too.

log = logging.getLogger("callboard.ledger")

# Maximum agents per step. `BYTES_MAX`: maximum bytes of their cards, which are parsed in a fifth of
# a second.
ROWS_MAX: Final = 500
# The server aborts a step that takes too long (`statement_timeout_ms`). Then the next step reads
# half as many agents. This timeout is shorter than a caller waits, so no step continues after its
# caller has given up.
BYTES_MAX: Final = 1024 * 1024
# Maximum steps that a search runs. Changed cards that are left are read later.
STEPS_MAX: Final = 4
# The longest wait of a registration for the index. After this time the registration ends, and its
# offers are indexed later.
FOLLOWED_MAX_S: Final = 5.0
# Searches by words find at most this number of offers of an owner, the earliest registered ones.
OWNER_OFFERS_MAX: Final = 20_000

# A condition on an offer `h`. It excludes agents that are revoked or hidden from the viewer. It
# also excludes agents with a change that was not indexed yet, because the offer may be gone.
IS_CURRENT: Final = f"""
    NOT EXISTS (SELECT 1 FROM callboard.offer_due d WHERE d.did = h.did)
        AND NOT {IS_REVOKED.format(did="h.did")} AND NOT {IS_HIDDEN.format(did="h.did")}
"""
_DUE: Final = sql.text(
    "SELECT did, seq, card FROM callboard.due_offers(:dids, :rows_max, :bytes_max)"
)
_STORE: Final = sql.text(
    "SELECT callboard.store_offers(:dids, :seqs, :offer_dids, :ids, :versions, :words, :owner_max)"
).bindparams(
    *typed(texts="dids offer_dids ids versions words", bigints="seqs", integer="owner_max")
)


class OfferIndex(OperationalPool):
    """Brings the index up to date, on its own connection."""

    name, is_durable = "callboard-offers", False
    # The timeout of one step.
    statement_timeout_ms = 2_000

    def __init__(self, url: str) -> None:
        super().__init__(url)
        # The agents of the next step: half as many after a step that took too long, because a
        # repeat with the same size would fail again.
        self._rows_max = ROWS_MAX
        # Agents whose registrations wait for the next run, which reads their cards first.
        self._awaited: set[str] = set()
        self._reads = MergedRuns("reading changed cards", self._index_next)

    async def close(self) -> None:
        """Close the connection."""
        await self._reads.close()
        await super().close()

    async def catch_up(self) -> None:
        """Index changed cards, up to `STEPS_MAX` steps; stop after a step that takes too long.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
        """
        for _ in range(STEPS_MAX):
            try:
                if not await self.index_some():
                    return
            except ServiceError as error:
                if error.code is not ErrorCode.OVERLOADED:
                    raise
                log.warning("reading changed cards takes too long, next rows=%d", self._rows_max)
                return

    def follow(self) -> None:
        """Index all changed cards in the background."""
        self._reads.soon()

    async def followed(self, dids: Iterable[str]) -> None:
        """Return when the cards of these agents are indexed, or after `FOLLOWED_MAX_S`."""
        self._awaited.update(dids)
        with suppress(TimeoutError):
            async with asyncio.timeout(FOLLOWED_MAX_S):
                await self._reads.done()

    async def _index_next(self) -> None:
        """Index all awaited cards, and some other changed cards. Schedule the next run if any were
        indexed."""
        awaited, self._awaited = self._awaited, set()
        while True:
            try:
                read = await self.index_some(awaited)
            except ServiceError as error:
                # The next step reads half as many agents.
                if error.code is not ErrorCode.OVERLOADED or self._rows_max == 1:
                    raise
                continue
            if not awaited & read:  # awaited cards come first, so none of them is left
                break
            awaited = awaited - read
        if read:
            self._reads.soon()

    async def index_some(self, awaited: Collection[str] = ()) -> set[str]:
        """Index some changed cards; return the agents of these cards.

        Args:
            awaited: the cards of these agents are read first.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE; OVERLOADED, the step took too long.
        """
        due = {"dids": list(awaited), "rows_max": self._rows_max, "bytes_max": BYTES_MAX}
        try:
            rows = await self.rows(_DUE, due)
            if rows:
                stored = await asyncio.to_thread(_build_offers, rows)
                await self.rows(_STORE, {**stored, "owner_max": OWNER_OFFERS_MAX})
        except ServiceError:
            self._rows_max = max(1, self._rows_max // 2)
            raise
        self._rows_max = min(ROWS_MAX, 2 * self._rows_max)
        return {row["did"] for row in rows}


def _build_offers(rows: Sequence[RowDict]) -> dict[str, list[Any]]:
    """Return the arguments of `store_offers` for the agents of these rows."""
    offers: list[tuple[str, str, str, str]] = []
    for row in rows:
        # The row of an inactive agent has no card.
        card = read_json(row["card"] or "{}")
        # A card without a list of capabilities has no offers.
        said = {one.get("id"): one for one in _capabilities(card)}
        for capability_id, offered in said.items():
            if not isinstance(capability_id, str):
                continue
            version = str(offered.get("version") or "")
            words = offered_lexemes(card, capability_id, offered)
            offers.append((row["did"], capability_id, version, " ".join(words)))
    return {
        "dids": [row["did"] for row in rows],
        "seqs": [row["seq"] for row in rows],
        "offer_dids": [offer[0] for offer in offers],
        "ids": [offer[1] for offer in offers],
        "versions": [offer[2] for offer in offers],
        "words": [offer[3] for offer in offers],
    }


def _capabilities(card: Any) -> list[dict[str, Any]]:
    listed = card.get("capabilities") if isinstance(card, dict) else None
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


# Searches for offers. The statement takes the offers of the rarest words first. For a word that
# very many offers have, it reads only the first offers of each owner. So a search reads at most
# some thousand offers, and takes at most `HITS_MAX` of them. This file ranks them by the rarity of
# their words and by where the words occur. A capability whose id is the searched text is first.

# Maximum number of offers that a search ranks.
HITS_MAX: Final = 150
# A word with at most RARE_MAX offers is looked up completely. For a more frequent word, WALKED_MAX
# offers are read in the order of their place among their owner's offers.
RARE_MAX: Final = 2_000
WALKED_MAX: Final = 4_000
# Maximum words of a search: the rarest words of its text.
WORDS_MAX: Final = 48

# Weights of a word by where it occurs in an offer, and of an exact id.
_IN_ID, _IN_NAME, _SAID, _IN_FIELD, _EXACT = 1.0, 0.4, 0.2, 0.1, 1_000.0

_COLUMNS: Final = "did, capability_id, owner_did, place, number, version, words"
_COUNTS: Final = "SELECT word, offers FROM callboard.offer_word WHERE word = ANY (%(words)s)"
# `before`: the rarer words. Offers with one of them were taken before.
_BY_WORDS: Final = f"""
    SELECT o.* FROM (
        SELECT word, offers, string_agg(word, ' | ') OVER (
            ORDER BY number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
        FROM unnest(%(words)s::text[], %(offers)s::int[]) WITH ORDINALITY w(word, offers, number)
        ORDER BY number
    ) w CROSS JOIN LATERAL (
        (SELECT * FROM (
            SELECT {_COLUMNS} FROM callboard.offer
            WHERE w.offers <= {{rare_max}} AND words @@ w.word::tsquery OFFSET 0
        ) rare WHERE (w.before IS NULL OR NOT words @@ w.before::tsquery)
        ORDER BY place, number LIMIT %(each)s)
        UNION ALL
        (SELECT * FROM (
            SELECT {_COLUMNS} FROM callboard.offer WHERE w.offers > {{rare_max}}
            ORDER BY place, number LIMIT {{walked_max}}
        ) usual WHERE words @@ w.word::tsquery
            AND (w.before IS NULL OR NOT words @@ w.before::tsquery) LIMIT %(each)s)
    ) o LIMIT {{hits_max}}
"""
# Lateral joins, so that even a plan that was made when a table was small does not read the whole
# table.
_STATEMENT: Final = """
    WITH asked AS MATERIALIZED (
        SELECT ARRAY(SELECT mark::tsquery FROM unnest(%(marks)s::text[]) WITH ORDINALITY m(mark, n)
            ORDER BY n) AS marks
    ), near AS MATERIALIZED ({near})
    SELECT h.did, h.capability_id, h.owner_did, h.place, h.number, ARRAY(
            SELECT n::int FROM unnest(asked.marks) WITH ORDINALITY m(mark, n)
            WHERE h.words @@ m.mark) AS matched,
        r.successful, r.latency_ms_sum, r.tally
    FROM asked CROSS JOIN near h
        CROSS JOIN LATERAL (SELECT 1 WHERE {is_current} OFFSET 0) current
        LEFT JOIN LATERAL (
            SELECT successful, latency_ms_sum, ARRAY[
                successful, failed, cancelled, latency_ms_sum, paid_successful, paid_failed,
                paid_cancelled, paid_latency_ms_sum] AS tally
            FROM callboard.reputation WHERE agent_did = h.did OFFSET 0) r ON true
"""


class Hit(NamedTuple):
    """An offer with its rank. `fit`: how well its words fit. `row`: the row of the statement.

    `said`, `fields`: the stems found in the agent's texts, and in names of fields.
    """

    fit: float
    row: RowDict
    said: Sequence[str]
    fields: Sequence[str]


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a search that at least one offer has, rarest first.

    `counts`: by word, the number of offers. `marks`: (lexeme, its stem, its weight) to match in an
    offer.
    """

    counts: Mapping[str, int]
    marks: Sequence[tuple[str, str, float]]

    @property
    def wanted(self) -> list[str]:
        """The lexemes of which an offer must have at least one, rarest first."""
        return sorted(self.counts, key=self.counts.__getitem__)

    def rank(self, row: RowDict) -> Hit:
        """Return an offer with the fit of its words."""
        best: dict[str, float] = {}
        for number in row["matched"]:
            _, stem, weight = self.marks[number - 1]
            best[stem] = max(best.get(stem, 0.0), weight)
        usual = max(self.counts.values(), default=1)
        fit = 0.0
        for stem, weight in best.items():
            count = self.counts.get(stem) or self.counts[stem + IN_FIELD]
            fit += weight * math.log2(2 + usual / count)
        said = sorted(stem.removeprefix(OF_ID) for stem in best if best[stem] > _IN_FIELD)
        fields = sorted(stem for stem in best if best[stem] == _IN_FIELD)
        return Hit(fit, row, said, fields)


async def find_words(reader: LedgerReader, text: str, *, has_fields: bool, caller: str) -> Words:
    """Return the words of a text that at least one offer has.

    Args:
        has_fields: whether names of fields count.
        caller: the DID that searches; callers take turns.
    """
    stems = search_lexemes(text)
    if not stems:
        return Words({}, [])
    wanted = [*stems, *(stem + IN_FIELD for stem in stems if has_fields)]
    rows = await reader.searches.prepared_rows(_COUNTS, {"words": wanted}, caller=caller)
    rarest = sorted(rows, key=lambda row: int(row["offers"]))[:WORDS_MAX]
    counts = {row["word"]: row["offers"] for row in rarest}
    marks: list[tuple[str, str, float]] = []
    for stem in stems:
        if stem in counts:
            marks.append((stem, stem, _EXACT if stem.startswith(OF_ID) else _SAID))
            marks += [(stem + IN_ID, stem, _IN_ID), (stem + IN_NAME, stem, _IN_NAME)]
        if stem + IN_FIELD in counts:
            marks.append((stem + IN_FIELD, stem, _IN_FIELD))
    return Words(counts, marks)


async def find_hits(
    reader: LedgerReader,
    words: Words,
    *,
    caller: str,
    near: str | None = None,
    most: int | None = None,
    each: int | None = None,
    values: Mapping[str, Any] | None = None,
) -> list[Hit]:
    """Return the offers that match, unsorted, each once.

    Args:
        caller: the DID that searches; agents that are hidden from it are left out.
        near: SQL that selects the offers; None: offers that have one of the words.
        most: maximum number of offers; None: `HITS_MAX`.
        each: maximum number of offers per word; None: `most`.
        values: values of the parameters of `near`.
    """
    wanted = words.wanted
    if near is None and not wanted:
        return []
    given = {
        "marks": [_quoted(mark) for mark, _, _ in words.marks],
        "words": [_quoted(word) for word in wanted],
        "offers": [words.counts[word] for word in wanted],
        "each": each or most or HITS_MAX,
        "viewer": caller,
        **(values or {}),
    }
    statement = _statement(near, most or HITS_MAX, RARE_MAX, WALKED_MAX)
    rows = await reader.searches.prepared_rows(statement, given, caller=caller)
    hits = {(row["did"], row["capability_id"]): words.rank(row) for row in rows}
    return list(hits.values())


@lru_cache
def _statement(near: str | None, hits_max: int, rare_max: int, walked_max: int) -> str:
    if near is None:
        near = _BY_WORDS.format(rare_max=rare_max, walked_max=walked_max, hits_max=hits_max)
    return _STATEMENT.format(near=near, is_current=IS_CURRENT)


def any_of(words: Words) -> str:
    """Return the tsquery for offers with any of the words; without words it matches no offer."""
    return " | ".join(map(_quoted, words.wanted))


def _quoted(word: str) -> str:
    return f"'{word}'"
