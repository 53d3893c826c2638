"""Offers that make what an input needs, where no phrase asks for them by itself. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from core.planning.chaining import Step, is_generic
from core.planning.offers import Member, Offer, fits
from core.planning.ranking import OfferRanking, said_by
from core.planning.words import name_stems


class Makers:
    """The offers by the names of what they make.

    Args:
        offers: in the order in which they are preferred, other things equal.
        ranking: knows how much a word tells.
    """

    def __init__(self, offers: Sequence[Offer], ranking: OfferRanking) -> None:
        self._ranking = ranking
        self._by_output: dict[str, list[tuple[Offer, Member]]] = {}
        self._words: dict[str, frozenset[str]] = {}
        for offer in offers:
            self._words[offer.capability_id] = said_by(offer)
            for output in offer.outputs:
                self._by_output.setdefault(output.name, []).append((offer, output))

    def producer(self, step: Step, wanted: Member, steps: Sequence[Step]) -> Offer | None:
        """Return the offer that makes what is wanted and that the step's phrases speak of.

        A name of its own, as `transcript`, is enough where one offer makes it.
        """
        makers = self._makers(wanted, steps)
        is_any = is_generic(wanted) and (":" in wanted.kind or "string" in wanted.kind)
        said = step.said - self._words[step.offer.capability_id] - name_stems(wanted.name)
        best: tuple[float, Offer] | None = None
        for offer in makers:
            spoken = said & self._words[offer.capability_id]
            score = sum(self._ranking.weight(word) for word in sorted(spoken))
            if (score > 0 or not is_any) and (best is None or score > best[0]):
                best = score, offer
        if best is None or (best[0] == 0 and len(makers) > 1):
            return None  # several make it, and nothing says which
        return best[1]

    def adapter(
        self, step: Step, wanted: Member, source: tuple[Step, str], before: Sequence[Step]
    ) -> Offer | None:
        """Return the offer that makes what is wanted of what is there, where names say so.

        A fetched `body` is no `text` before it is extracted.
        """
        _, name = source
        if name == wanted.name or name_stems(name) <= step.said:
            return None
        there = {output.name for one in before for output in one.offer.outputs}
        for offer in self._makers(wanted, [*before, step]):
            if name in {one.name for one in offer.inputs if one.is_required} <= there:
                return offer
        return None

    def _makers(self, wanted: Member, steps: Sequence[Step]) -> list[Offer]:
        taken = {one.offer.capability_id for one in steps}
        return [
            offer
            for offer, output in self._by_output.get(wanted.name, ())
            if offer.capability_id not in taken and fits(output.kind, wanted.kind)
        ]
