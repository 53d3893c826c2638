"""Summarise agent: picks the sentences with the most frequent words of the text."""

from __future__ import annotations

import math
from collections import Counter

from typing_extensions import TypedDict

from callboard import Agent
from examples.article_report.language import content_words, sentences

# A shorter sentence lacks its context, a longer one is a list.
_WORDS_MIN, _WORDS_MAX = 6, 45
_OVERLAP_MAX = 0.5

agent = Agent("did:example:summarise", "Summarise")


class Summary(TypedDict):
    """The sentences that tell most, in their order, of so many."""

    sentences: list[str]
    of: int


@agent.capability("cap.text.summarise.v1", price_cents=5)
def summarise(text: str, count: int = 4) -> Summary:
    """Summarise a text: pick its most telling sentences, by the frequency of their words."""
    found = sentences(text)
    frequency = Counter(content_words(text))
    scored: list[tuple[float, int, set[str]]] = []
    for place, sentence in enumerate(found):
        carried = content_words(sentence)
        if not _WORDS_MIN <= len(sentence.split()) <= _WORDS_MAX or not carried:
            continue
        # The root favours sentences that say more, without letting length decide.
        weight = sum(math.log(1 + frequency[word]) for word in carried) / math.sqrt(len(carried))
        opening = 1.25 if place == 0 else 1.0
        scored.append((weight * opening, place, set(carried)))
    chosen: list[tuple[int, set[str]]] = []
    for _, place, carried_words in sorted(scored, key=lambda entry: (-entry[0], entry[1])):
        if len(chosen) == count:
            break
        if all(_overlap(carried_words, other) < _OVERLAP_MAX for _, other in chosen):
            chosen.append((place, carried_words))
    picked = [found[place] for place in sorted(place for place, _ in chosen)]
    return {"sentences": picked, "of": len(found)}


def _overlap(one: set[str], other: set[str]) -> float:
    return len(one & other) / min(len(one), len(other))


if __name__ == "__main__":
    agent.run(register=False, until_eof=True)
