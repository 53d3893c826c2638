"""A draft of a workflow from a description and what agents offer. Pure and deterministic.

Steps: (1) cut the description into phrases; (2) choose the best offer of each, neighbours of one
capability are one node; (3) add a producer where a needed input has none and the phrase speaks of
one; (4) fill inputs by earlier outputs, which makes the edges: what needs nothing of another runs
beside it. The draft is a manifest's `intent` and `nodes`. Spec: suggest; decision 0290.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from core.money import MICRO_MAX, credits_number
from core.planning.chaining import Step, best_source, connect, connect_later
from core.planning.makers import Makers
from core.planning.offers import ANY, Offer
from core.planning.phrases import Phrase, phrases
from core.planning.ranking import OfferRanking, Ranked
from core.planning.words import name_stems, stems

# What a phrase must reach of the best possible to be taken for work.
SHARE_MIN: Final = 0.18
NODES_MAX: Final = 24
# Of its price a node may cost at most, where a limit is asked for.
LIMIT_TIMES: Final = 10
# What costs more is not planned with: the limits of all nodes must be an amount that there can be.
PRICE_MICRO_MAX: Final = MICRO_MAX // (LIMIT_TIMES * NODES_MAX)
# Of a node that no phrase asks for by itself.
SURENESS_IMPLIED: Final = 0.5
# How deep producers of producers are looked for.
_PRODUCERS_DEEP: Final = 3
# What is left of a node's name, which has 128 characters, for a number.
_NAME_CHARS_MAX: Final = 120
_VERSION: Final = re.compile(r"\.v\d+$")


@dataclass(frozen=True, slots=True)
class Chosen:
    """How a node's capability was chosen. `sureness`: 0 to 1. `second`: the next best id, or ""."""

    node: str
    phrase: str
    sureness: float
    second: str


@dataclass(slots=True)
class Plan:
    """A draft with its reasons.

    `unmatched`: phrases for which there is no capability. `notes`: what was changed in it, and why
    it is not the model's. `planner`: who made it.
    """

    intent: str
    steps: list[Step] = field(default_factory=list)
    chosen: list[Chosen] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    nodes_max: int = NODES_MAX
    planner: Literal["words", "model"] = "words"

    @property
    def is_full(self) -> bool:
        """Whether it has as many nodes as it may have."""
        return len(self.steps) >= self.nodes_max

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Return the nodes in the form that publish takes."""
        return {step.name: _definition(step) for step in self.steps}

    def open_inputs(self) -> dict[str, list[str]]:
        """Return by node the needed inputs that nothing fills."""
        found = {}
        for step in self.steps:
            left = [
                one.name
                for one in step.offer.inputs
                if one.is_required and one.name not in step.sources and one.name not in step.payload
            ]
            if left:
                found[step.name] = left
        return found

    @property
    def latency_ms(self) -> float | None:
        """How long the longest chain usually takes; None when that is not known of a node."""
        ends: dict[str, float] = {}
        for step in self.steps:
            if step.offer.latency_ms is None:
                return None
            begin = max((ends[source.name] for source, _ in step.sources.values()), default=0.0)
            ends[step.name] = begin + step.offer.latency_ms
        return max(ends.values(), default=0.0)


def plan(description: str, offers: Sequence[Offer], *, nodes_max: int = NODES_MAX) -> Plan:
    """Draft a workflow.

    Args:
        description: what is to be done, in English.
        offers: among which capabilities are chosen.
        nodes_max: of the draft, 1 to 24.

    Returns: the draft; without steps when no phrase names what anyone offers.
    """
    offers = affordable(offers)
    ranking = OfferRanking(offers)
    makers = Makers(offers, ranking)
    draft = Plan(description.strip(), nodes_max=min(nodes_max, NODES_MAX))
    for phrase in phrases(description):  # (1)
        ranked = ranking.rank(phrase)
        if not ranked or ranked[0].share < SHARE_MIN:
            draft.unmatched.append(phrase.text)
            continue
        _take(draft, phrase, ranked)  # (2)
        if draft.is_full:
            break
    for step in list(draft.steps):
        _add_producers(draft, step, makers, _PRODUCERS_DEEP)  # (3)
    for place, step in enumerate(draft.steps):
        step.payload = _given(step.offer, step.phrases)
        connect(step, draft.steps[:place])  # (4)
    for place, step in enumerate(draft.steps):
        connect_later(step, draft.steps[place + 1 :])
    draft.steps = in_order(draft.steps)
    return draft


def affordable(offers: Sequence[Offer]) -> list[Offer]:
    """Return the offers that a draft may have, by their ids."""
    kept = [one for one in offers if (one.price or 0) <= PRICE_MICRO_MAX]
    return sorted(kept, key=lambda one: one.capability_id)


def in_order(steps: Sequence[Step]) -> list[Step]:
    """Return each step after those that it needs, else as they are spoken of."""
    done: dict[str, Step] = {}

    def take(step: Step) -> None:
        if step.name not in done:
            for source, _ in step.sources.values():
                take(source)
            done[step.name] = step

    for step in steps:
        take(step)
    return list(done.values())


def _take(draft: Plan, phrase: Phrase, ranked: list[Ranked]) -> None:
    best = ranked[0]
    for step in draft.steps:
        # What a later phrase says of the same capability is more of the same work.
        if step.offer.capability_id == best.offer.capability_id:
            step.add(phrase)
            return
    step = Step(name_node(draft, best.offer), best.offer)
    step.add(phrase)
    draft.steps.append(step)
    sure = sureness(best, ranked[1] if len(ranked) > 1 else None)
    draft.chosen.append(Chosen(step.name, phrase.text, sure, _second(ranked)))


def _second(ranked: list[Ranked]) -> str:
    """Return the next best capability: another owner's, where one fits, else any, else ""."""
    best, *others = ranked
    foreign = [
        one for one in others if one.offer.owner != best.offer.owner and one.share >= SHARE_MIN
    ]
    return next((one.offer.capability_id for one in (*foreign, *others)), "")


def sureness(best: Ranked, rival: Ranked | None) -> float:
    """Return how sure a choice is, 0 to 1: the nearer a rival comes, the less."""
    near = 0.0 if rival is None else min(1.0, rival.score / best.score)
    return round(best.share * (1 - near / 2), 3)


def _add_producers(draft: Plan, step: Step, makers: Makers, deep: int) -> None:
    place = draft.steps.index(step)
    for wanted in step.offer.inputs:
        before = draft.steps[:place]
        source = best_source(step, wanted, before)
        if source is not None:
            adapter = makers.adapter(step, wanted, source, before)
            if adapter is not None and not draft.is_full:
                _insert(draft, step, adapter)
                place = draft.steps.index(step)
            continue
        if wanted.name in _given(step.offer, step.phrases):
            continue
        name = name_stems(wanted.name)
        if not wanted.is_required and not name & step.said:
            continue
        if name & step.given or deep == 0 or draft.is_full:
            continue
        if wanted.kind in ("number", "integer") and step.has_number():
            continue
        producer = makers.producer(step, wanted, draft.steps)
        if producer is None:
            continue
        added = _insert(draft, step, producer)
        _add_producers(draft, added, makers, deep - 1)
        place = draft.steps.index(step)


def _insert(draft: Plan, step: Step, offer: Offer) -> Step:
    """Put a node before a step whose input it fills."""
    added = Step(name_node(draft, offer), offer, step.phrases, step.said, step.given)
    draft.steps.insert(draft.steps.index(step), added)
    draft.chosen.append(Chosen(added.name, step.phrases[0].text, SURENESS_IMPLIED, ""))
    return added


def name_node(draft: Plan, offer: Offer) -> str:
    base = _VERSION.sub("", offer.capability_id).rpartition(".")[2] or "step"
    base = base[:_NAME_CHARS_MAX]
    taken = {step.name for step in draft.steps}
    name, number = base, 2
    while name in taken:
        name, number = f"{base}-{number}", number + 1
    return name


def _definition(step: Step) -> dict[str, Any]:
    node: dict[str, Any] = {"capabilityId": step.offer.capability_id}
    needed = sorted({source.name for source, _ in step.sources.values()})
    if needed:
        node["dependsOn"] = needed
        node["inputMappings"] = {
            name: f"$.{source.name}.result.{output}"
            for name, (source, output) in sorted(step.sources.items())
        }
    if step.payload:
        node["payload"] = step.payload
    if step.limit_micro is not None:
        node["maxCostCredits"] = credits_number(step.limit_micro)
    return node


def _given(offer: Offer, said: Sequence[Phrase]) -> dict[str, str]:
    """Return the inputs that the description itself gives: a web address, a quoted text."""
    address = next((one.address for one in said if one.address), "")
    quoted = next((one.quoted for one in said if one.quoted), "")
    found: dict[str, str] = {}
    for member in offer.inputs:
        if not member.kind.startswith(("string", ANY)):
            continue
        if member.kind == "string:uri" or stems(member.name)[:1] in (["url"], ["uri"], ["link"]):
            value, address = address, ""
        elif member.is_required:
            value, quoted = quoted, ""
        else:
            continue
        if value:
            found[member.name] = value
    return found
