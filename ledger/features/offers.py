"""The index of what agents offer, and the offers that a search ranks.

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
from ledger.reads.prepared import PreparedStatement
from ledger.reads.reader import LedgerReader
from ledger.reads.stored import RowDict
from ledger.schema import typed

# How many rows a step of work in the background takes: half as many after one that took too long.
# What is begun again as it was would end as it did.


class StepRows:
    """The size of the next step: a part of what a step takes where none has failed."""

    def __init__(self) -> None:
        # One for each step that failed, one less for each that did not.
        self._halvings = 0

    def of(self, most: int) -> int:
        """Return how many rows the next step takes, 1 to `most`."""
        return max(1, most >> self._halvings)

    def note_failed(self, most: int) -> None:
        """Note that a step failed, where a step takes so many rows at most."""
        self._halvings = min(self._halvings + 1, most.bit_length())

    def note_done(self) -> None:
        """Note that a step was done."""
        self._halvings = max(0, self._halvings - 1)


# The index of what agents offer, kept outside the writer: its callers have cards parsed. The
# writer only notes which agents have changed. A step reads their cards, makes lexemes of them in
# a thread (`core/planning/lexemes.py`) and stores these: a bounded number of agents and bytes. A
# registration waits until a step has read its own cards, which it reads first. A search for work
# calls a step first, too.

log = logging.getLogger("callboard.ledger")

# Agents in one step, and bytes of their cards: a fifth of a second of parsing.
ROWS_MAX: Final = 500
# The server ends one that takes longer, and the next one reads half as many agents: what is begun
# again as it was would end as it did. Shorter than a caller waits, so that the work ends as well.
BYTES_MAX: Final = 1024 * 1024
# A search waits for so many transactions at most; what is due then is found by a later one.
STEPS_MAX: Final = 4
# A registration waits so long: when more is due, its offers are found later.
FOLLOWED_MAX_S: Final = 5.0
# Offers of one owner that words find, the earlier registered ones.
OWNER_OFFERS_MAX: Final = 20_000

# A condition of searches on an offer `h`: what has changed since it was read is left out, as it may
# have been taken back; so are agents that are revoked, and those that are hidden from the viewer.
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
    """Brings the index up to date, on a connection of its own."""

    name, is_durable = "callboard-offers", False
    # Of one step.
    statement_timeout_ms = 2_000

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._step_rows = StepRows()
        # Agents whose registrations wait for the next run, which reads these first.
        self._awaited: set[str] = set()
        self._reads = MergedRuns("reading changed cards", self._index_next)

    async def close(self) -> None:
        """Close the connection."""
        await self._reads.close()
        await super().close()

    async def catch_up(self) -> None:
        """Read the cards that have changed, up to a bound; those of a slow step are read later.

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
                log.warning(
                    "reading changed cards takes too long, next rows=%d",
                    self._step_rows.of(ROWS_MAX),
                )
                return

    def follow(self) -> None:
        """Read all cards that have changed, in the background."""
        self._reads.soon()

    async def followed(self, dids: Iterable[str]) -> None:
        """Return when the cards of these agents were read, or after `FOLLOWED_MAX_S`."""
        self._awaited.update(dids)
        with suppress(TimeoutError):
            async with asyncio.timeout(FOLLOWED_MAX_S):
                await self._reads.done()

    async def _index_next(self) -> None:
        """Read all awaited cards, and some others; have the next ones read if there were any."""
        awaited, self._awaited = self._awaited, set()
        while True:
            try:
                read = await self.index_some(awaited)
            except ServiceError as error:
                # The next step reads half as many.
                if error.code is not ErrorCode.OVERLOADED or self._step_rows.of(ROWS_MAX) == 1:
                    raise
                continue
            if not awaited & read:  # they are read first, so none of them is due
                break
            awaited = awaited - read
        if read:
            self._reads.soon()

    async def index_some(self, awaited: Collection[str] = ()) -> set[str]:
        """Read some cards that have changed; return their agents.

        Args:
            awaited: the cards of these agents are read first.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE; OVERLOADED, the step took too long.
        """
        rows_max = self._step_rows.of(ROWS_MAX)
        due = {"dids": list(awaited), "rows_max": rows_max, "bytes_max": BYTES_MAX}
        try:
            rows = await self.rows(_DUE, due)
            if rows:
                stored = await asyncio.to_thread(_build_offers, rows)
                await self.rows(_STORE, {**stored, "owner_max": OWNER_OFFERS_MAX})
        except ServiceError:
            self._step_rows.note_failed(ROWS_MAX)
            raise
        self._step_rows.note_done()
        return {row["did"] for row in rows}


def _build_offers(rows: Sequence[RowDict]) -> dict[str, list[Any]]:
    """Return the arguments of `store_offers` for agents that were read."""
    offers: list[tuple[str, str, str, str]] = []
    for row in rows:
        # An agent that is not active has no card here.
        card = read_json(row["card"] or "{}")
        # A card that is not a card of capabilities is found by nothing.
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


# The offers that a search ranks, and how well their words fit: what all searches share. The
# statement takes the offers of the rarest words first. An offer of a word that very many offers
# have is looked for among the first offers of each owner. So a search looks at some thousand
# offers, however many there are, and takes at most `HITS_MAX`. They are ranked here: by the
# rarity of the words that they have and by the place where they have them. A capability that is
# named by its id comes first.

# Offers that a search ranks at most.
HITS_MAX: Final = 150
# All offers of a word are read up to so many; of more, those among the first offers of each owner.
RARE_MAX: Final = 2_000
WALKED_MAX: Final = 4_000
# The rarest words of a text, which are looked for.
WORDS_MAX: Final = 48

# Weights of a word by where an offer has it, and of an id.
_IN_ID, _IN_NAME, _SAID, _IN_FIELD, _EXACT = 1.0, 0.4, 0.2, 0.1, 1_000.0

_COLUMNS: Final = "did, capability_id, owner_did, place, number, version, words"
_COUNTS: Final = PreparedStatement(
    "SELECT word, offers FROM callboard.offer_word WHERE word = ANY (%(words)s)", {}
)
# `before`: the rarer words, whose offers are taken already.
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
# Joined one by one: a plan that was made when a table was small never reads it whole.
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
    """An offer that a search ranks: `fit`, how well its words fit; `row`: of the statement.

    `said`, `fields`: the stems that were found in what the agent says, and in names of fields.
    """

    fit: float
    row: RowDict
    said: Sequence[str]
    fields: Sequence[str]


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a search that some offer has, the rarest first.

    `counts`: how many offers have each. `marks`: what is looked for in an offer: the lexeme, its
    stem, and its weight.
    """

    counts: Mapping[str, int]
    marks: Sequence[tuple[str, str, float]]

    @property
    def wanted(self) -> list[str]:
        """The lexemes of which an offer must have one."""
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
    """Return the words of a text that some offer has.

    Args:
        has_fields: whether names of fields count.
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
    """Return the offers that a search ranks, each once.

    Args:
        caller: the DID that searches, which finds no agents that are hidden from it.
        near: SQL that selects them; None: those that have one of the words.
        most: how many offers are taken; None: `HITS_MAX`.
        each: how many offers of one word are taken; None: as many.
        values: of the parameters of `near`.
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
def _statement(
    near: str | None, hits_max: int, rare_max: int, walked_max: int
) -> PreparedStatement:
    if near is None:
        near = _BY_WORDS.format(rare_max=rare_max, walked_max=walked_max, hits_max=hits_max)
    return PreparedStatement(_STATEMENT.format(near=near, is_current=IS_CURRENT), {})


def any_of(words: Words) -> str:
    """Return the query of offers that have one of the words, which no offer meets without words."""
    return " | ".join(map(_quoted, words.wanted))


def _quoted(word: str) -> str:
    return f"'{word}'"
