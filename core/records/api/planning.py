"""Drafts of workflows from descriptions. Spec: suggest; contract.md section 6."""

from __future__ import annotations

from typing import Annotated

from core.records.api.kinds import CapabilityId, Credits, Ratio, text, words
from core.records.api.record import Record
from core.records.api.shape import Body, Json
from core.records.bounds import TEXT_CHARS_MAX


class SuggestRequest(Body, is_closed=True):
    """What is to be done, in words."""

    description: Annotated[str, text(1, TEXT_CHARS_MAX)]


class Draft(Record):
    """What publish takes as it stands."""

    intent: str
    nodes: Annotated[Json, "by name, as publish takes them"]


class DraftChoice(Record):
    """How a node's capability was chosen."""

    node: str
    capability_id: CapabilityId
    phrase: Annotated[str, "of the description"]
    confidence: Ratio
    price_credits: Annotated[Credits | None, "of one agent; null where tokens are paid"]
    alternative: Annotated[str | None, "the next best capability"]


class Suggestion(Record):
    """A draft with its reasons; nothing is stored."""

    draft: Draft
    choices: list[DraftChoice]
    unmatched: Annotated[list[str], "phrases for which no agent offers anything"]
    open_inputs: Annotated[Json, "by node, the inputs that the caller has to give as `payload`"]
    unavailable: Annotated[list[str], "nodes that no agent would take now"]
    estimated_credits: Credits
    estimated_ms: Annotated[float | None, "of the longest chain; null where agents are new"]
    planner: Annotated[str, words(("words", "model"))]
    notes: Annotated[
        list[str], "what was left out or replaced so that publish takes it; why no model made it"
    ]
