"""Keywords agent: finds the key phrases of a text (RAKE)."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from typing_extensions import TypedDict

from callboard import Agent
from examples.article_report.language import STOP_WORDS, words

_PHRASE_WORDS_MAX = 3
_SHORT_TEXT_WORDS = 150

agent = Agent("did:example:keywords", "Keywords")


class Keyword(TypedDict):
    """A phrase and how much it tells."""

    phrase: str
    score: float


class Keywords(TypedDict):
    """The phrases that tell most, best first."""

    keywords: list[Keyword]


@agent.capability("cap.text.keywords.v1", price_cents=3)
def keywords(text: str, count: int = 8) -> Keywords:
    """Find key phrases: runs of words between stop words, scored by how they keep company."""
    phrases = Counter(
        phrase
        for fragment in re.split(r"[.,;:!?()\"“”\n—–]", text)
        for phrase in _phrases(words(fragment))
    )
    frequency: Counter[str] = Counter()
    degree: defaultdict[str, int] = defaultdict(int)
    for phrase, times in phrases.items():
        for word in phrase:
            frequency[word] += times
            degree[word] += len(phrase) * times
    # A phrase seen once is an accident, except in a text too short to repeat itself.
    times_min = 1 if sum(frequency.values()) < _SHORT_TEXT_WORDS else 2
    scores = {
        phrase: times * sum(degree[word] / frequency[word] for word in phrase)
        for phrase, times in phrases.items()
        if times >= times_min
    }
    ranked = sorted(scores, key=lambda phrase: (-scores[phrase], phrase))[:count]
    return {
        "keywords": [
            {"phrase": " ".join(phrase), "score": round(scores[phrase], 2)} for phrase in ranked
        ]
    }


def _phrases(run: list[str]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    current: list[str] = []
    for word in [*run, ""]:
        if len(word) > 2 and word not in STOP_WORDS:
            current.append(word)
            continue
        if 0 < len(current) <= _PHRASE_WORDS_MAX:
            found.append(tuple(current))
        current = []
    return found


if __name__ == "__main__":
    agent.run(register=False, until_eof=True)
