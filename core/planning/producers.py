"""Finds offers whose output can fill an input, although no phrase asks for these offers. Pure.

Such an offer is called a maker.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from core.planning.chaining import GENERIC, Step, is_generic, takes
from core.planning.offers import Member, Offer, fits
from core.planning.ranking import OfferRanking, named_by, said_by
from core.planning.synonyms import related
from core.planning.words import name_stems

# The longest chain of capabilities that begins with the fetch of a web address.
_CHAIN_MAX: Final = 3
# A maker with more than this share of the words of a step's phrases is chosen for the words alone.
_SHARED_MIN: Final = 0.5


class Producers:
    """The offers, by the names of their outputs.

    Args:
        offers: the offers; between equally good makers, the first is chosen.
        ranking: has the weights of the words.
    """

    def __init__(self, offers: Sequence[Offer], ranking: OfferRanking) -> None:
        self._ranking = ranking
        self._by_output: dict[str, list[tuple[Offer, Member]]] = {}
        # By the stem of a word, the names of outputs that contain this word.
        self._alike: dict[str, dict[str, None]] = {}
        self._words: dict[str, frozenset[str]] = {}
        for offer in offers:
            self._words[offer.capability_id] = said_by(offer)
            for output in offer.outputs:
                self._by_output.setdefault(output.name, []).append((offer, output))
                for one in name_stems(output.name):
                    self._alike.setdefault(one, {})[output.name] = None
        self._addressed = _addressed(offers)

    def producer(
        self, step: Step, wanted: Member, steps: Sequence[Step], *, has_address: bool
    ) -> tuple[Offer, str] | None:
        """Return the best maker for an input and the name of its output, None without one.

        A maker is chosen if the phrases of the step mention its words, or if the description has a
        web address from which a chain of capabilities leads to the maker. Otherwise a maker is
        chosen only in one of these cases: there is no other maker, its id contains the name of the
        input, or it contains most words of the phrases. For an input that takes arbitrary text,
        such as `text`, no maker is chosen in these cases if a phrase asks for the step, because the
        caller has this text.

        Args:
            step: the step that has the input.
            wanted: the input.
            steps: all steps of the draft; their capabilities are not used again.
            has_address: whether the description has a web address.
        """
        makers = self._makers(wanted, steps)
        name = name_stems(wanted.name)
        said = step.said - self._words[step.offer.capability_id] - name
        meant = name.union(*map(related, name))
        ranked: list[tuple[tuple[float, float, bool, int, float], Offer, str]] = []
        for offer, output in makers:
            words = self._words[offer.capability_id]
            score = self._weight(said & words)
            if has_address and offer.capability_id in self._addressed:
                score += self._ranking.weight("")
            is_named = not named_by(offer).isdisjoint(meant)
            price = math.inf if offer.price is None else offer.price
            shared = self._weight((step.said - name) & words)
            ranked.append(((score, shared, is_named, offer.succeeded, -price), offer, output))
        if not ranked:
            return None
        (score, shared, is_named, *_), offer, output = max(ranked, key=lambda one: one[0])
        is_any = is_generic(wanted) and (":" in wanted.kind or "string" in wanted.kind)
        if score > 0:
            return offer, output
        if is_any and (not step.is_implied or ":" in wanted.kind or len(makers) > 1):
            return None
        is_alike = shared > _SHARED_MIN * self._weight(step.said - name)
        return (offer, output) if is_alike or is_named or len(makers) == 1 else None

    def _weight(self, words: frozenset[str] | set[str]) -> float:
        return sum(self._ranking.weight(word) for word in sorted(words))

    def adapter(
        self, step: Step, wanted: Member, source: tuple[Step, str], before: Sequence[Step]
    ) -> Offer | None:
        """Return an offer that converts an existing output into an input, None without one.

        For example, a fetched `body` must be extracted before it can fill a `text`. The names of
        the offer's inputs and outputs decide.

        Args:
            step: the step that has the input.
            wanted: the input.
            source: the step and the name of the output that would fill the input directly.
            before: the steps before `step`.
        """
        _, name = source
        if name == wanted.name or name_stems(name) <= step.said:
            return None
        there = {output.name for one in before for output in one.offer.outputs}
        for offer, _ in self._makers(wanted, [*before, step]):
            if name in {one.name for one in offer.inputs if one.is_required} <= there:
                return offer
        return None

    def _makers(self, wanted: Member, steps: Sequence[Step]) -> list[tuple[Offer, str]]:
        """Return the makers for an input, each with the name of its output.

        The makers have an output with the name of the input. If no offer has one, the makers have
        an output with a similar name.
        """
        taken = {one.offer.capability_id for one in steps}
        stems = name_stems(wanted.name)
        alike = {
            one: None
            for word in sorted(stems - GENERIC)
            for near in (word, *sorted(related(word)))
            for one in self._alike.get(near, ())
        }
        for names in ((wanted.name,), alike):
            found = [
                (offer, output.name)
                for name in names
                for offer, output in self._by_output.get(name, ())
                if offer.capability_id not in taken
                and wanted.name not in offer.input_names
                and fits(output.kind, wanted.kind)
            ]
            if found:
                return found
        return []


def _addressed(offers: Sequence[Offer]) -> set[str]:
    """Return the ids of the offers that need a web address, or an output of such an offer."""
    found: set[str] = set()
    made: set[str] = set()
    for _ in range(_CHAIN_MAX):
        for offer in offers:
            needed = [one for one in offer.inputs if one.is_required]
            if any(takes(one, "uri") or one.name in made for one in needed):
                found.add(offer.capability_id)
        made = {
            one.name for offer in offers if offer.capability_id in found for one in offer.outputs
        }
    return found
