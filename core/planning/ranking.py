"""Which capability a phrase asks for: BM25 over the words of the offers. Pure.

A word counts once for each place that it stands in, an id, a description, the names of outputs,
and not how often: who repeats words is no better found. The first word of a phrase counts half as
much again: `translate the summary` asks for a translation. Who has done the work before counts up
to half as much again; of offers that fit alike the cheaper one comes first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from core.planning.offers import Offer
from core.planning.phrases import Phrase
from core.planning.synonyms import related
from core.planning.words import name_stems, stem, stems

_K1: Final = 1.2
_B: Final = 0.5
_FIRST_WORD: Final = 1.5
# First words that do not say which work is asked for.
_VAGUE: Final = frozenset(map(stem, ("find", "get", "give", "list", "make", "show", "take")))
# What a word counts that stands in a description, in an id, in the name of an output.
_IN_DESCRIPTION: Final = 1
_IN_ID: Final = 2
_IN_OUTPUT: Final = 1
# Of a word that nearly all of these offers have, as who registers very many can make any word.
_WEIGHT_MIN: Final = 0.5
# Of what a word counts, what one does that is related to it: more where no offer has the word.
_RELATED: Final = 0.7
_RELATED_TO_KNOWN: Final = 0.4
# What work that was done adds, half of it after so many times.
_PROVEN: Final = 0.5
_OFTEN: Final = 5
# Of a description, in characters: authors of cards write as much as a card may hold.
DESCRIPTION_LENGTH_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class Ranked:
    """An offer for a phrase. `score`: 0 and more. `share`: of what the phrase could reach."""

    offer: Offer
    score: float
    share: float


class OfferRanking:
    """The offers among which phrases choose."""

    def __init__(self, offers: Sequence[Offer]) -> None:
        counted = [(offer, _counts_of(offer)) for offer in offers]
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
            word: max(_WEIGHT_MIN, math.log(1 + (total - len(parts) + 0.5) / (len(parts) + 0.5)))
            for word, parts in self._parts.items()
        }
        self._unknown = math.log(1 + total + 0.5)

    def rank(self, phrase: Phrase) -> list[Ranked]:
        """Return the offers that share a word with a phrase, best first, then by id."""
        asked: dict[str, float] = {}
        for place, word in enumerate(phrase.stems):
            asked[word] = max(asked.get(word, 0), 1.0 if place or word in _VAGUE else _FIRST_WORD)
        most = sum(weight * self.weight(word) * (_K1 + 1) / 2 for word, weight in asked.items())
        scores: dict[Offer, float] = {}
        for word, weight in sorted(asked.items()):
            for offer, part in self._parts_of(word).items():
                scores[offer] = scores.get(offer, 0.0) + weight * part
        found = [Ranked(one, score, min(1.0, score / most)) for one, score in scores.items()]
        return sorted(found, key=_best_first)

    def _parts_of(self, word: str) -> dict[Offer, float]:
        """Return by offer what a word counts: by itself, else the best of the related ones."""
        found: dict[Offer, float] = {}
        share = _RELATED_TO_KNOWN if word in self._parts else _RELATED
        for near in sorted(related(word)):
            weight = share * min(self.weight(word), self.weight(near))
            for offer, part in self._parts.get(near, ()):
                found[offer] = max(found.get(offer, 0.0), weight * part)
        for offer, part in self._parts.get(word, ()):
            found[offer] = self.weight(word) * part
        return found

    def weight(self, word: str) -> float:
        """Return how much a word tells: the rarer among the offers, the more."""
        return self._weights.get(word, self._unknown)


def _best_first(one: Ranked) -> tuple[float, float, str]:
    price = math.inf if one.offer.price is None else one.offer.price
    succeeded = one.offer.succeeded
    proven = 1 + _PROVEN * succeeded / (succeeded + _OFTEN)
    return -one.score * proven, price, one.offer.capability_id


def said_by(offer: Offer) -> frozenset[str]:
    """Return the stems of what an offer says of itself: its description and its id."""
    return frozenset(stems(offer.description[:DESCRIPTION_LENGTH_MAX])) | named_by(offer)


def named_by(offer: Offer) -> frozenset[str]:
    """Return the stems of what an offer's id says."""
    words = name_stems(offer.capability_id)
    return frozenset(word for word in words if word not in ("cap", "v") and not word.isdigit())


def _counts_of(offer: Offer) -> Counter[str]:
    """Return what each word of an offer counts."""
    counts: Counter[str] = Counter()
    for found, each in (
        (stems(offer.description[:DESCRIPTION_LENGTH_MAX]), _IN_DESCRIPTION),
        (named_by(offer), _IN_ID),
        ((word for member in offer.outputs for word in name_stems(member.name)), _IN_OUTPUT),
    ):
        counts.update(dict.fromkeys(found, each))
    return counts
