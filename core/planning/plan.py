"""Drafts a workflow from a description and from the offers of agents. Pure and deterministic.

1. Cut the description into phrases.
2. Choose the best offer for each phrase. Phrases with the same capability share one node.
3. Fill inputs with values of the description. If a required input has no source, add a node that
   produces it.
4. Fill inputs from the outputs of other nodes. These mappings are the edges of the graph. Nodes
   that do not depend on each other run in parallel.

The draft consists of the `intent` and the `nodes` of a manifest.
Reference: features.md (Planning); decision planning.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from core.money import MICRO_MAX, credits_number
from core.planning.chaining import Step, best_source, connect, connect_later, give
from core.planning.offers import Member, Offer
from core.planning.phrases import Phrase, Value, phrases
from core.planning.producers import Producers
from core.planning.ranking import OfferRanking, Ranked
from core.planning.words import name_stems

# An offer fits a phrase if its `Ranked.share` is at least this.
SHARE_MIN: Final = 0.18
NODES_MAX: Final = 24
# If a node needs a cost limit, the limit is this factor times its price (at least `LIMIT_MICRO`).
LIMIT_TIMES: Final = 10
# Offers with a higher price are not used, because the sum of all limits must be a valid amount.
PRICE_MICRO_MAX: Final = MICRO_MAX // (LIMIT_TIMES * NODES_MAX)
# The sureness of a node that no phrase asks for.
SURENESS_IMPLIED: Final = 0.5
# The longest chain of producers for one input.
_PRODUCERS_DEEP: Final = 4
# A node's name may have 128 characters. The rest is for a number that makes the name unique.
_NAME_CHARS_MAX: Final = 120
_VERSION: Final = re.compile(r"\.v\d+$")


@dataclass(frozen=True, slots=True)
class Chosen:
    """How the capability of a node was chosen.

    `node`: the name of the node. `phrase`: the phrase that asks for it. `sureness`: how certain the
    choice is, 0 to 1. `second`: the id of the next best capability, "" without one.
    """

    node: str
    phrase: str
    sureness: float
    second: str


@dataclass(slots=True)
class Plan:
    """A draft of a workflow, with the reasons for it.

    `unmatched`: phrases for which no offer fits. `notes`: texts that tell the caller what was
    changed in the draft, or why the model's draft is not used. `addresses`: the web and e-mail
    addresses in the description. `planner`: whether the draft is from matching words or from a
    model.
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
        """Whether the draft has the maximal number of nodes."""
        return len(self.steps) >= self.nodes_max

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Return the nodes in the form of a manifest, by name."""
        return {step.name: _definition(step) for step in self.steps}

    def open_inputs(self) -> dict[str, list[str]]:
        """Return the required inputs that nothing fills, by node; other nodes are left out."""
        left = {step.name: [one.name for one in step.open_inputs()] for step in self.steps}
        return {name: inputs for name, inputs in left.items() if inputs}

    @property
    def latency_ms(self) -> float | None:
        """The usual time of the longest chain of nodes; None if a node's latency is unknown."""
        ends: dict[str, float] = {}
        for step in self.steps:
            if step.offer.latency_ms is None:
                return None
            begin = max((ends[source.name] for source, _ in step.sources.values()), default=0.0)
            ends[step.name] = begin + step.offer.latency_ms
        return max(ends.values(), default=0.0)


def plan(description: str, offers: Sequence[Offer], *, nodes_max: int = NODES_MAX) -> Plan:
    """Draft a workflow by matching words.

    Args:
        description: the work to do, in English.
        offers: the offers to choose from.
        nodes_max: the most nodes of the draft, 1 to `NODES_MAX`.

    Returns:
        The draft; it has no steps if no offer fits a phrase.
    """
    offers = affordable(offers)
    ranking = OfferRanking(offers)
    makers = Producers(offers, ranking)
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
    for step in list(draft.steps):
        _add_producers(draft, step, makers, _PRODUCERS_DEEP)  # (3)
    for place, step in enumerate(draft.steps):
        connect(step, draft.steps[:place])  # (4)
    for place, step in enumerate(draft.steps):
        connect_later(step, draft.steps[place + 1 :])
    _leave_out_unused(draft)
    draft.steps = in_order(draft.steps)
    return draft


def _leave_out_unused(draft: Plan) -> None:
    """Remove the nodes that no phrase asks for and whose outputs no node uses."""
    while True:
        used = {source.name for step in draft.steps for source, _ in step.sources.values()}
        kept = [step for step in draft.steps if not step.is_implied or step.name in used]
        if len(kept) == len(draft.steps):
            return
        draft.steps = kept
        names = {step.name for step in kept}
        draft.chosen = [one for one in draft.chosen if one.node in names]


def affordable(offers: Sequence[Offer]) -> list[Offer]:
    """Return the offers that a draft may use, sorted by capability id."""
    kept = [one for one in offers if (one.price or 0) <= PRICE_MICRO_MAX]
    return sorted(kept, key=lambda one: one.capability_id)


def in_order(steps: Sequence[Step]) -> list[Step]:
    """Return the steps, each after the steps on which it depends; otherwise in the given order."""
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
        # A later phrase with the same capability describes more of the same work.
        if step.offer.capability_id == best.offer.capability_id:
            step.add(phrase)
            return
    step = Step(name_node(draft, best.offer), best.offer)
    step.add(phrase)
    draft.steps.append(step)
    sure = sureness(best, ranked[1] if len(ranked) > 1 else None)
    draft.chosen.append(Chosen(step.name, phrase.text, sure, _second(ranked)))


def _second(ranked: list[Ranked]) -> str:
    """Return the id of the next best capability, "" without one.

    A fitting capability of another owner comes first.
    """
    best, *others = ranked
    foreign = [
        one for one in others if one.offer.owner != best.offer.owner and one.share >= SHARE_MIN
    ]
    return next((one.offer.capability_id for one in (*foreign, *others)), "")


def sureness(best: Ranked, rival: Ranked | None) -> float:
    """Return how certain a choice is, 0 to 1.

    Args:
        best: the chosen offer.
        rival: the next best offer, None without one. The higher its score, the lower the result.
    """
    near = 0.0 if rival is None else min(1.0, rival.score / best.score)
    return round(best.share * (1 - near / 2), 3)


def _add_producers(draft: Plan, step: Step, makers: Producers, deep: int) -> None:
    for wanted in step.offer.inputs:
        before = draft.steps[: draft.steps.index(step)]
        if draft.is_full or wanted.name in step.payload:
            continue
        source = best_source(step, wanted, before)
        if source is not None:
            adapter = makers.adapter(step, wanted, source.place, before)
            if adapter is not None:
                _insert(draft, step, adapter)
                continue
        if source is not None and not source.is_weak:
            continue
        if deep == 0 or not _is_to_be_made(step, wanted):
            continue
        has_address = any(one.kind == "uri" for one in draft.addresses)
        made = makers.producer(step, wanted, draft.steps, has_address=has_address)
        if made is None or (source is not None and made[1] != wanted.name):
            continue
        added = _insert(draft, step, made[0])
        _add_producers(draft, added, makers, deep - 1)


def _is_to_be_made(step: Step, wanted: Member) -> bool:
    """Return whether another node should fill an input, instead of the caller."""
    name = name_stems(wanted.name)
    if name & step.given or not (wanted.is_required or name & step.said):
        return False
    return not (wanted.kind in ("number", "integer") and step.has_number())


def _insert(draft: Plan, step: Step, offer: Offer) -> Step:
    """Insert a node for an offer before the step whose input the node fills; return the node."""
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
