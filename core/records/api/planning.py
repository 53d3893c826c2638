"""Drafts of workflows from descriptions. Reference: features.md (Planning)."""

from __future__ import annotations

from typing import Annotated

from core.records.api.kinds import CapabilityId, Credits, Ratio, text, words
from core.records.api.record import Record
from core.records.api.shape import Body, Json
from core.records.bounds import TEXT_CHARS_MAX


class SuggestRequest(Body, is_closed=True):
    """Description of the work, in words."""

    description: Annotated[
        str, text(1, TEXT_CHARS_MAX), "What the workflow should do, 1 to 10,000 characters."
    ]


class Draft(Record):
    """A draft that publish accepts unchanged."""

    intent: str
    nodes: Annotated[Json, "Node definitions, by name."]


class DraftChoice(Record):
    """Why a capability was chosen for a node."""

    node: Annotated[str, "Name of the node."]
    capability_id: CapabilityId
    phrase: Annotated[str, "Part of the description that the node covers."]
    confidence: Annotated[Ratio, "How well the capability matches, 0 to 1."]
    price_credits: Annotated[Credits | None, "Price of one agent; null for prices per token."]
    alternative: Annotated[str | None, "The second-best capability; null without one."]


class Suggestion(Record):
    """A draft and the reasons for it. Nothing is stored."""

    draft: Annotated[Draft, "The drafted workflow."]
    choices: Annotated[list[DraftChoice], "One choice per node."]
    unmatched: Annotated[list[str], "Phrases that no agent's capability matches."]
    open_inputs: Annotated[Json, "For each node the inputs that the caller must add as `payload`."]
    unavailable: Annotated[list[str], "Nodes that no agent would take now."]
    estimated_credits: Annotated[Credits, "Estimated cost of the draft."]
    estimated_ms: Annotated[
        float | None,
        "Estimated duration of the longest chain in milliseconds; null when agents have no"
        " history.",
    ]
    planner: Annotated[
        str, words(("words", "model")), "Whether words or a language model made the draft."
    ]
    notes: Annotated[
        list[str],
        "What was removed or replaced to make the draft publishable, and why no model was used.",
    ]
