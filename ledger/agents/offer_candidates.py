"""The offers that a search ranks, and how well their words fit: what all searches share.

The statement takes the offers of the rarest words first. An offer of a word that very many offers
have is looked for among the first offers of each owner. So a search looks at some thousand offers,
however many there are, and takes at most `HITS_MAX`. They are ranked here: by the rarity of the
words that they have and by the place where they have them. A capability that is named by its id
comes first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from core.planning.lexemes import IN_FIELD, IN_ID, IN_NAME, OF_ID, search_lexemes
from ledger.agents.offer_index import IS_CURRENT
from ledger.reads.prepared import PreparedStatement
from ledger.reads.reader import LedgerReader, RowDict

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
