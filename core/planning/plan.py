"""A draft of a workflow from a description and what agents offer. Pure and deterministic.

Steps: (1) cut the description into phrases; (2) choose the best offer of each, neighbours of one
capability are one node; (3) fill inputs with the values of the description, and add a producer
where a needed input has none; (4) fill inputs by earlier outputs, which makes the edges: what needs
nothing of another runs beside it. Steps 3 and 4 are repeated while they add nodes. The draft is a
manifest's `intent` and `nodes`. Reference: features.md (Planning); decision planning.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from core.money import MICRO_MAX, credits_number
from core.planning.chaining import Step, best_source, connect, connect_later, give
from core.planning.makers import Makers
from core.planning.offers import Member, Offer
from core.planning.phrases import Phrase, Value, phrases
from core.planning.ranking import OfferRanking, Ranked
from core.planning.words import name_stems

# What a phrase must reach of the best possible to be taken for work.
SHARE_MIN: Final = 0.18
NODES_MAX: Final = 24
# Of its price a node may cost at most, where a limit is asked for.
LIMIT_TIMES: Final = 10
# What costs more is not planned with: the limits of all nodes must be an amount that there can be.
PRICE_MICRO_MAX: Final = MICRO_MAX // (LIMIT_TIMES * NODES_MAX)
# Of a node that no phrase asks for by itself.
SURENESS_IMPLIED: Final = 0.5
# How deep producers of producers are looked for, and how often after inputs were filled.
_PRODUCERS_DEEP: Final = 4
_ROUNDS: Final = 3
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
    it is not the model's. `addresses`: web and e-mail addresses of the description. `planner`: who
    made it.
    """

    intent: str
    steps: list[Step] = field(default_factory=list)
    chosen: list[Chosen] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    addresses: list[Value] = field(default_factory=list)
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
        left = {step.name: [one.name for one in step.open_inputs()] for step in self.steps}
        return {name: inputs for name, inputs in left.items() if inputs}

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
        draft.addresses += [one for one in phrase.values if one.kind in ("uri", "email")]
        ranked = ranking.rank(phrase)
        if not ranked or ranked[0].share < SHARE_MIN:
            draft.unmatched.append(phrase.text)
            continue
        if not draft.is_full:
            _take(draft, phrase, ranked)  # (2)
    for place, step in enumerate(draft.steps):
        give(step, draft.steps[:place], draft.addresses)
    for number in range(_ROUNDS):
        before = len(draft.steps)
        for step in list(draft.steps):
            _add_producers(draft, step, makers, _PRODUCERS_DEEP, is_connected=number > 0)  # (3)
        if number > 0 and len(draft.steps) == before:
            break
        for place, step in enumerate(draft.steps):
            step.sources = {}
            connect(step, draft.steps[:place])  # (4)
        for place, step in enumerate(draft.steps):
            connect_later(step, draft.steps[place + 1 :])
    _leave_out_unused(draft)
    draft.steps = in_order(draft.steps)
    return draft


def _leave_out_unused(draft: Plan) -> None:
    """Leave out nodes that no phrase asks for and whose outputs nothing takes."""
    while True:
        used = {source.name for step in draft.steps for source, _ in step.sources.values()}
        kept = [step for step in draft.steps if not step.is_implied or step.name in used]
        if len(kept) == len(draft.steps):
            return
        draft.steps = kept
        names = {step.name for step in kept}
        draft.chosen = [one for one in draft.chosen if one.node in names]


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


def _add_producers(
    draft: Plan, step: Step, makers: Makers, deep: int, *, is_connected: bool
) -> None:
    for wanted in step.offer.inputs:
        before = draft.steps[: draft.steps.index(step)]
        if draft.is_full or wanted.name in step.payload or wanted.name in step.sources:
            continue
        source = best_source(step, wanted, before)
        if source is not None and not is_connected:
            adapter = makers.adapter(step, wanted, source.place, before)
            if adapter is not None:
                _insert(draft, step, adapter)
                continue
        if source is not None and not is_connected and not source.is_weak:
            continue
        if deep == 0 or not _is_to_be_made(step, wanted):
            continue
        has_address = any(one.kind == "uri" for one in draft.addresses)
        made = makers.producer(step, wanted, draft.steps, has_address=has_address)
        if made is None or (source is not None and made[1] != wanted.name):
            continue
        added = _insert(draft, step, made[0])
        _add_producers(draft, added, makers, deep - 1, is_connected=is_connected)


def _is_to_be_made(step: Step, wanted: Member) -> bool:
    """Say whether an input is for another step to fill, and not for the caller."""
    name = name_stems(wanted.name)
    if name & step.given or not (wanted.is_required or name & step.said):
        return False
    return not (wanted.kind in ("number", "integer") and step.has_number())


def _insert(draft: Plan, step: Step, offer: Offer) -> Step:
    """Put a node before a step whose input it fills."""
    place = draft.steps.index(step)
    added = Step(
        name_node(draft, offer), offer, step.phrases, step.said, step.given, is_implied=True
    )
    give(added, draft.steps[:place], draft.addresses)
    draft.steps.insert(place, added)
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
