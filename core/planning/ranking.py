"""Which capability a phrase asks for: BM25 over the words of the offers. Pure.

The first word of a phrase counts half as much again: `translate the summary` asks for a
translation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from core.planning.offers import Offer
from core.planning.phrases import Phrase
from core.planning.words import stems

_K1: Final = 1.2
_B: Final = 0.5
_FIRST_WORD: Final = 1.5
# How often a word counts that stands in an id, and in the name of a member.
_IN_ID: Final = 2
_IN_OUTPUT: Final = 1


@dataclass(frozen=True, slots=True)
class Ranked:
    """An offer for a phrase. `score`: 0 and more. `share`: of what the phrase could reach."""

    offer: Offer
    score: float
    share: float


class OfferRanking:
    """The offers among which phrases choose."""

    def __init__(self, offers: Sequence[Offer]) -> None:
        counted = [(offer, _words_of(offer)) for offer in offers]
        total = len(counted)
        mean = sum(counts.total() for _, counts in counted) / max(1, total)
        # By word, what it counts for each offer that has it.
        self._parts: dict[str, list[tuple[Offer, float]]] = {}
        for offer, counts in counted:
            length = _B * counts.total() / mean if mean else 0.0
            for word, count in counts.items():
                part = count * (_K1 + 1) / (count + _K1 * (1 - _B + length))
                self._parts.setdefault(word, []).append((offer, part))
        self._weights = {
            word: math.log(1 + (total - len(parts) + 0.5) / (len(parts) + 0.5))
            for word, parts in self._parts.items()
        }
        self._unknown = math.log(1 + total + 0.5)

    def rank(self, phrase: Phrase) -> list[Ranked]:
        """Return the offers that share a word with a phrase, best first, then by id."""
        asked: dict[str, float] = {}
        for place, word in enumerate(phrase.stems):
            asked[word] = max(asked.get(word, 0), _FIRST_WORD if place == 0 else 1.0)
        most = sum(weight * self.weight(word) * (_K1 + 1) / 2 for word, weight in asked.items())
        scores: dict[Offer, float] = {}
        for word, weight in sorted(asked.items()):
            for offer, part in self._parts.get(word, ()):
                scores[offer] = scores.get(offer, 0.0) + weight * self.weight(word) * part
        found = [Ranked(one, score, min(1.0, score / most)) for one, score in scores.items()]
        return sorted(found, key=_best_first)

    def weight(self, word: str) -> float:
        """Return how much a word tells: the rarer among the offers, the more."""
        return self._weights.get(word, self._unknown)


def _best_first(one: Ranked) -> tuple[float, float, str]:
    price = math.inf if one.offer.price is None else one.offer.price
    return -one.score, price, one.offer.capability_id


def _words_of(offer: Offer) -> Counter[str]:
    counts: Counter[str] = Counter(stems(offer.description))
    for word in stems(offer.capability_id):
        if word not in ("cap", "v") and not word.isdigit():
            counts[word] += _IN_ID
    for member in offer.outputs:
        for word in stems(member.name):
            counts[word] += _IN_OUTPUT
    return counts
