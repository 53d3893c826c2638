"""Suggests a workflow: drafts a manifest, ready to publish, from a description in plain language.

`core/planning` drafts a workflow: it matches the words of the description with the capabilities
that agents offer. A dry run of the draft then shows that publish accepts the draft, what the
workflow would cost, and which nodes have no available agent. Nothing is stored. If the deployment
has a language model, the model's draft is preferred. If the model gives no usable draft, the draft
by word matching is returned.
Reference: features.md (Planning); decision planning.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from actors.transport.messages import PublishReply
from core.errors import ErrorCode, ServiceError
from core.json_text import write_json
from core.money import credits_number
from core.planning.draft_repairs import leave_out_mappings, limit_costs, repair
from core.planning.offers import Offer
from core.planning.plan import Plan, plan
from core.planning.synonyms import ADDED_CHARS_MAX, widened
from core.records.api.workflows import Suggestion, SuggestRequest
from core.records.manifest import parse_manifest
from core.trust.access import SUGGEST
from ledger.features.discovery import DESCRIPTION_MAX, offers_for_draft
from serve_app.callers.limits import RateClass
from serve_app.http.calls import Call, Json, Operations
from serve_app.http.worker_thread import IN_LOOP_BYTES_MAX, in_thread
from serve_app.operations.work.model_drafts import ModelDrafts, NoModelDraft
from serve_app.operations.work.publishing import publish_request

T = TypeVar("T")

# The most dry runs of one draft. A refused dry run lists at most 20 problems, so correcting all
# mappings may need many tries. When `_TRIES_WITHOUT_MAPPINGS` tries are left, all mappings are
# removed. The last try is for the cost limit, which publish checks after the mappings.
TRIES_MAX: Final = 6
_TRIES_WITHOUT_MAPPINGS: Final = 2
# The search uses so many characters of a description. Together with the related words that
# `widened` adds, the search text has at most `DESCRIPTION_MAX` characters.
_SAID_CHARS_MAX: Final = DESCRIPTION_MAX - ADDED_CHARS_MAX - 1
# This word is added to the search for missing inputs, because most chains that produce an input
# begin with a fetch.
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
    """Return the draft by word matching, and the offers that were found for the draft."""
    planned = partial(plan, description, nodes_max=call.services.settings.nodes_max)
    found = await _offers(call, widened(description[:_SAID_CHARS_MAX]))
    draft = await _in_thread(call, partial(planned, found))
    # A capability that produces a missing input may share no word with the description. So a second
    # search uses the names of the missing inputs.
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
    """Run work that takes some milliseconds in the compiler thread, one job per caller."""
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
    """Change a draft until publish accepts it, and return the reply of the last dry run.

    Args:
        draft: the draft, which is changed in place. Its nodes with a price by tokens first get a
            cost limit.
        run_dry: publishes the nodes as a dry run.

    Raises:
        ServiceError: the last refusal of the dry run.
    """
    limit_costs(step for step in draft.steps if step.offer.price is None)
    for tries_left in reversed(range(TRIES_MAX)):
        try:
            return await run_dry(draft.nodes())
        except ServiceError as refusal:
            is_changed = repair(draft, refusal)
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
