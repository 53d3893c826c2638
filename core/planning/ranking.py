"""Ranks the offers for a phrase with BM25 over the words of the offers. Pure.

A word counts once for each place in which it occurs: the description, the id, and the names of the
outputs. Repeating a word does not improve an offer's rank. The first word of a phrase counts 1.5
times, because `translate the summary` asks for a translation. Past successes multiply the score of
an offer by up to 1.5. Of equally ranked offers, the cheaper one comes first.
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
# First words that do not say which work is meant; they get no higher weight.
_VAGUE: Final = frozenset(map(stem, ("find", "get", "give", "list", "make", "show", "take")))
# How much a word counts in a description, in an id and in the name of an output.
_IN_DESCRIPTION: Final = 1
_IN_ID: Final = 2
_IN_OUTPUT: Final = 1
# The lowest weight of a word. Without this minimum, a person could register very many offers with a
# word and so make the word worthless for all other offers.
_WEIGHT_MIN: Final = 0.5
# The factor for a related word: `_RELATED` if no offer has the word itself, else
# `_RELATED_TO_KNOWN`.
_RELATED: Final = 0.7
_RELATED_TO_KNOWN: Final = 0.4
# Past successes add at most this share to a score, and half of it after `_OFTEN` successes.
_PROVEN: Final = 0.5
_OFTEN: Final = 5
# The characters of a description that count, because some authors fill the whole card with text.
DESCRIPTION_LENGTH_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class Ranked:
    """An offer that was ranked for a phrase.

    `score`: 0 or more. `share`: the score divided by the best score that is possible for the
    phrase, 0 to 1.
    """

    offer: Offer
    score: float
    share: float


class OfferRanking:
    """The index of all offers, which ranks them for a phrase."""

    def __init__(self, offers: Sequence[Offer]) -> None:
        counted = [(offer, _counts_of(offer)) for offer in offers]
        total = len(counted)
        mean = sum(counts.total() for _, counts in counted) / max(1, total)
        # By word, the offers that have the word, each with the word's part of the score.
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
        """Return the offers that have a word of a phrase or a related word, the best first."""
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
        """Return the score of a word for each offer.

        If an offer does not have the word, the best of the related words counts.
        """
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
        """Return the weight of a word; a word that fewer offers have has a higher weight."""
        return self._weights.get(word, self._unknown)


def _best_first(one: Ranked) -> tuple[float, float, str]:
    price = math.inf if one.offer.price is None else one.offer.price
    succeeded = one.offer.succeeded
    proven = 1 + _PROVEN * succeeded / (succeeded + _OFTEN)
    return -one.score * proven, price, one.offer.capability_id


def said_by(offer: Offer) -> frozenset[str]:
    """Return the stems of an offer's description and id."""
    return frozenset(stems(offer.description[:DESCRIPTION_LENGTH_MAX])) | named_by(offer)


def named_by(offer: Offer) -> frozenset[str]:
    """Return the stems of an offer's id, without `cap`, `v` and numbers."""
    words = name_stems(offer.capability_id)
    return frozenset(word for word in words if word not in ("cap", "v") and not word.isdigit())


def _counts_of(offer: Offer) -> Counter[str]:
    """Return the count of each word of an offer, by the places in which it occurs."""
    counts: Counter[str] = Counter()
    for found, each in (
        (stems(offer.description[:DESCRIPTION_LENGTH_MAX]), _IN_DESCRIPTION),
        (named_by(offer), _IN_ID),
        ((word for member in offer.outputs for word in name_stems(member.name)), _IN_OUTPUT),
    ):
        counts.update(dict.fromkeys(found, each))
    return counts
