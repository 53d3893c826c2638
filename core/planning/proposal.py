"""Converts a model's answer into a draft, with repairs if needed, or refuses it. Pure.

The model is not trusted, because it reads texts that any agent owner can write. It can only choose
offers and connect them. This module names the nodes. It keeps a text of the model only if the text
also occurs in the caller's description. So an offer that contains instructions for the model can at
most influence a draft. The caller sees this draft with its prices, and only the caller can publish
it. Reference: features.md (Planning); decision planning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct, field

from core.planning.chaining import Step, depends
from core.planning.offers import ANY, Offer, fits
from core.planning.phrases import phrases
from core.planning.plan import (
    NODES_MAX,
    SHARE_MIN,
    SURENESS_IMPLIED,
    Chosen,
    Plan,
    affordable,
    in_order,
    name_node,
    sureness,
)
from core.planning.ranking import OfferRanking, Ranked

ANSWER_CHARS_MAX: Final = 128 * 1024

_Name = Annotated[str, Meta(max_length=128)]
_Text = Annotated[str, Meta(max_length=2_000)]


class _Source(Struct, frozen=True, forbid_unknown_fields=True):
    """The source of an input: the output of another node, or a value."""

    node: _Name = ""
    output: _Name = ""
    value: _Text = ""


class _Node(Struct, frozen=True, forbid_unknown_fields=True):
    name: _Name
    capability: _Text
    phrase: _Text = ""
    inputs: Annotated[dict[_Name, _Source], Meta(max_length=64)] = field(default_factory=dict)


class _Answer(Struct, frozen=True, forbid_unknown_fields=True):
    nodes: Annotated[list[_Node], Meta(min_length=1, max_length=64)]
    unmatched: Annotated[list[_Text], Meta(max_length=64)] = field(default_factory=list)


class UnusableAnswer(Exception):
    """A model's answer cannot be converted into a draft; the text tells callers the reason."""


def plan_of_answer(
    text: str, description: str, offers: Sequence[Offer], *, nodes_max: int = NODES_MAX
) -> Plan:
    """Return the draft that a model's answer describes.

    1. Read the answer.
    2. Find the offer of each node. If its capability is unknown, use the offer that fits the words
       of the node best, or leave the node out.
    3. Connect the nodes where the outputs and inputs fit.
    4. Refuse a cycle.
    5. Sort the nodes.

    Args:
        text: the answer of the model.
        description: the description that the model was given.
        offers: the offers to choose from, at least those that the model was given.
        nodes_max: the most nodes of the draft.

    Raises:
        UnusableAnswer: the answer has a wrong form, too many nodes, two nodes of one name, a cycle,
            or no node that an offer fits.
    """
    answer = _read(text)  # (1)
    offers = affordable(offers)
    known = {offer.capability_id: offer for offer in offers}
    ranking = OfferRanking(offers)
    draft = Plan(description.strip(), nodes_max=min(nodes_max, NODES_MAX), planner="model")
    steps: dict[str, tuple[_Node, Step]] = {}
    for node in answer.nodes:  # (2)
        if node.name in steps:
            raise UnusableAnswer("two of its nodes have one name")
        ranked = _rank(ranking, node)
        offer = known.get(node.capability) or _nearest(ranked)
        if offer is None:
            draft.notes.append("a node whose capability no agent offers is left out")
            continue
        if draft.is_full:
            raise UnusableAnswer(f"it has more than {draft.nodes_max} nodes")
        steps[node.name] = node, _add(draft, node, offer, ranked)
    if not draft.steps:
        raise UnusableAnswer("no agent offers what its nodes ask for")
    for node, step in steps.values():  # (3)
        if _connect(step, node, {name: one for name, (_, one) in steps.items()}, draft.intent):
            draft.notes.append(f"{step.name}: what cannot fill its inputs is left out")
    if any(depends(step, step) for step in draft.steps):  # (4)
        raise UnusableAnswer("its nodes form a cycle")
    draft.steps = in_order(draft.steps)  # (5)
    draft.unmatched = [one for one in answer.unmatched if one and one in draft.intent]
    return draft


def _read(text: str) -> _Answer:
    """Parse an answer; a Markdown code fence around it, which models often write, is removed.

    Raises:
        UnusableAnswer: the answer has another form.
    """
    if len(text) > ANSWER_CHARS_MAX:
        raise UnusableAnswer(f"it has more than {ANSWER_CHARS_MAX} characters")
    text = text.strip()
    if text.startswith("```") and text.endswith("```"):
        text = text[3:-3].removeprefix("json")
    try:
        return msgspec.json.decode(text, type=_Answer)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        raise UnusableAnswer("its form is not the requested form") from None


def _rank(ranking: OfferRanking, node: _Node) -> list[Ranked]:
    """Return the offers ranked for a node's phrase; without a phrase, for its capability's id."""
    for text in (node.phrase, node.capability):
        for phrase in phrases(text)[:1]:
            return ranking.rank(phrase)
    return []


def _nearest(ranked: Sequence[Ranked]) -> Offer | None:
    return ranked[0].offer if ranked and ranked[0].share >= SHARE_MIN else None


def _add(draft: Plan, node: _Node, offer: Offer, ranked: Sequence[Ranked]) -> Step:
    step = Step(name_node(draft, offer), offer)
    draft.steps.append(step)
    phrase = node.phrase if node.phrase in draft.intent else ""
    own = next((one for one in ranked if one.offer is offer), None)
    rival = next((one for one in ranked if one.offer is not offer), None)
    sure = SURENESS_IMPLIED if own is None else sureness(own, rival)
    second = rival.offer.capability_id if rival is not None else ""
    draft.chosen.append(Chosen(step.name, phrase, sure, second))
    if offer.capability_id != node.capability:
        draft.notes.append(f"{step.name} replaces a requested capability that no agent offers")
    return step


def _connect(step: Step, node: _Node, steps: Mapping[str, Step], description: str) -> bool:
    """Fill the inputs of a step as a node describes; return whether an input was left out."""
    wanted = {one.name: one for one in step.offer.inputs}
    is_left_out = False
    for name, given in node.inputs.items():
        kind = wanted[name].kind if name in wanted else None
        source = steps.get(given.node)
        outputs = {one.name: one.kind for one in source.offer.outputs} if source else {}
        if kind is None:
            is_left_out = True
        elif source is not None and given.output in outputs and fits(outputs[given.output], kind):
            step.sources[name] = source, given.output
        elif given.value and given.value in description and kind.startswith(("string", ANY)):
            step.payload[name] = given.value
        else:
            is_left_out = True
    return is_left_out
