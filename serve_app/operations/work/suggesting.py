"""Suggesting a workflow: from a description in words to a draft that publish takes as it stands.

The draft is planned by `core/planning` from what agents offer, then run dry: so it is known to be
accepted, what it would cost and whether anyone is there for each node. Nothing is stored.
Where the deployment has a model, its draft comes first; the one by words takes its place when there
is none. Reference: features.md (Planning); decision planning.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from actors.transport.messages import PublishReply
from core.errors import ErrorCode, ServiceError
from core.json_text import write_json
from core.money import credits_number
from core.planning.mending import leave_out_mappings, limit_costs, mend
from core.planning.offers import Offer
from core.planning.plan import Plan, plan
from core.planning.synonyms import ADDED_CHARS_MAX, widened
from core.records.api.workflows import Suggestion, SuggestRequest
from core.records.manifest import parse_manifest
from core.trust.access import SUGGEST
from ledger.features.discovery import DESCRIPTION_MAX, offers_for_draft
from serve_app.callers.limits import RateClass
from serve_app.http.calls import Call, Json, Operations
from serve_app.http.compiling import IN_LOOP_BYTES_MAX, in_thread
from serve_app.operations.work.model_drafts import ModelDrafts, NoModelDraft
from serve_app.operations.work.publishing import publish_request

T = TypeVar("T")

# Dry runs of one draft. Publish names 20 problems, and looks at so many schemas: after some tries
# all mappings are left out. The last try is for a limit of costs, which is asked for after them.
TRIES_MAX: Final = 6
_TRIES_WITHOUT_MAPPINGS: Final = 2
# Of a description that a search looks for: with the related words it has no more than before.
_SAID_CHARS_MAX: Final = DESCRIPTION_MAX - ADDED_CHARS_MAX - 1
# With what most chains begin that make an input: looked for beside the names of inputs.
_BEGINNING: Final = "fetch"

OPERATIONS = Operations("workflows")


@OPERATIONS.add(
    "POST",
    "/v1/workflows/suggest",
    scope=SUGGEST,
    rate=RateClass.READ,
    body=SuggestRequest,
    reply=Suggestion,
    errors=(ErrorCode.NO_CAPABILITY_MATCH,),
)
async def suggest(call: Call) -> Json:
    """Draft a workflow from a description in words; nothing is stored."""
    description = call.given(SuggestRequest).description.strip()
    draft, offers = await _draft_by_words(call, description)
    if call.services.model_drafts is not None and offers:
        try:
            return await _suggestion_by_model(call, call.services.model_drafts, description, offers)
        except NoModelDraft as reason:
            draft.notes.append(str(reason))
        except ServiceError as refusal:
            draft.notes.append(f"the model's draft is not used: publish says {refusal.code}")
    if not draft.steps:
        raise ServiceError(
            ErrorCode.NO_CAPABILITY_MATCH,
            "no registered capability fits any part of the description",
        )
    return _suggestion(draft, await _try_out(call, draft))


async def _draft_by_words(call: Call, description: str) -> tuple[Plan, list[Offer]]:
    """Return the draft by words, and the offers that were found for it."""
    planned = partial(plan, description, nodes_max=call.services.settings.nodes_max)
    found = await _offers(call, widened(description[:_SAID_CHARS_MAX]))
    draft = await _in_thread(call, partial(planned, found))
    # What makes a needed input may be named by nothing but that input.
    missing = " ".join(name for names in draft.open_inputs().values() for name in names)
    if missing:
        known = {offer.capability_id for offer in found}
        named = await _offers(call, f"{widened(missing)} {_BEGINNING}", by_names=True)
        more = [one for one in named if one.capability_id not in known]
        if more:
            found += more
            draft = await _in_thread(call, partial(planned, found))
    return draft, found


async def _suggestion_by_model(
    call: Call, models: ModelDrafts, description: str, offers: Sequence[Offer]
) -> Json:
    clock_ms = call.services.clock_ms()
    draft = await models.propose(description, offers, call.caller, clock_ms)
    return _suggestion(draft, await _try_out(call, draft))


async def _try_out(call: Call, draft: Plan) -> PublishReply:
    return await try_out(draft, partial(_run_dry, call, draft.intent))


async def _in_thread(call: Call, work: Callable[[], T]) -> T:
    """Do what takes milliseconds in the thread of large manifests, one after the other."""
    return await in_thread(call.account, IN_LOOP_BYTES_MAX + 1, work)


async def _offers(call: Call, words: str, *, by_names: bool = False) -> list[Offer]:
    services = call.services
    parse = await offers_for_draft(
        services.reader, services.gateway.offers, words, caller=call.caller.did, by_names=by_names
    )
    return await _in_thread(call, parse)


async def try_out(
    draft: Plan, run_dry: Callable[[dict[str, dict[str, Any]]], Awaitable[PublishReply]]
) -> PublishReply:
    """Return what publish would do with a draft, which is changed until publish takes it.

    Args:
        draft: whose nodes with a price by tokens get a limit first.
        run_dry: tries nodes.

    Raises:
        ServiceError: as publish.
    """
    limit_costs(step for step in draft.steps if step.offer.price is None)
    for tries_left in reversed(range(TRIES_MAX)):
        try:
            return await run_dry(draft.nodes())
        except ServiceError as refusal:
            is_changed = mend(draft, refusal)
            if tries_left <= _TRIES_WITHOUT_MAPPINGS:
                is_changed = leave_out_mappings(draft) or is_changed
            if tries_left == 0 or not is_changed:
                raise
    raise AssertionError("the last try returns or raises")


async def _run_dry(call: Call, intent: str, nodes: dict[str, dict[str, Any]]) -> PublishReply:
    manifest = {"intent": intent, "nodes": nodes, "dryRun": True}
    request = publish_request(call, parse_manifest(manifest), write_json(manifest))
    return await call.services.gateway.publish(request)


def _suggestion(draft: Plan, reply: PublishReply) -> dict[str, Any]:
    nodes = draft.nodes()
    offers = {step.name: step.offer for step in draft.steps}
    return {
        "draft": {"intent": draft.intent, "nodes": nodes},
        "choices": [
            {
                "node": one.node,
                "capabilityId": offers[one.node].capability_id,
                "phrase": one.phrase,
                "confidence": one.sureness,
                "priceCredits": _credits(offers[one.node].price),
                "alternative": one.second or None,
            }
            for one in draft.chosen
        ],
        "unmatched": draft.unmatched,
        "openInputs": draft.open_inputs(),
        "unavailable": [name for name in nodes if not reply.candidates.get(name)],
        "estimatedCredits": credits_number(reply.estimate_micro),
        "estimatedMs": draft.latency_ms,
        "planner": draft.planner,
        "notes": draft.notes,
    }


def _credits(micro: int | None) -> int | float | str | None:
    return None if micro is None else credits_number(micro)
