"""Suggesting a workflow: from a description in words to a draft that publish takes as it stands.

The draft is planned by `core/planning` from what agents offer, then run dry: so it is known to be
accepted, what it would cost and whether anyone is there for each node. Nothing is stored.
Spec: suggest; contract.md section 6; decision 0290.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import orjson

from actors.transport.messages import PublishReply
from core.errors import ErrorCode, ServiceError
from core.money import MICRO_PER_CREDIT, credits_number
from core.planning.offers import Offer
from core.planning.plan import Plan, plan
from core.records.api.planning import Suggestion, SuggestRequest
from core.records.manifest import parse_manifest
from core.trust.access import SUGGEST
from ledger.agents.offer_reads import offers_for_draft
from serve_app.callers.limits import RateClass
from serve_app.http.calls import Call, Operation, Reply
from serve_app.http.compiling import IN_LOOP_BYTES_MAX, in_thread
from serve_app.operations.work.publishing import publish_request, workflow_limits

T = TypeVar("T")

# What a node that is paid by tokens may cost, unless the caller says otherwise.
_LIMIT_MICRO: Final = 10 * MICRO_PER_CREDIT


@dataclass(frozen=True, slots=True)
class _Tried:
    """A draft that publish takes, and what it would do."""

    nodes: dict[str, dict[str, Any]]
    reply: PublishReply


async def suggest(call: Call) -> Reply:
    """Draft a workflow."""
    description = call.given(SuggestRequest).description.strip()
    found = await _offers(call, description)
    draft = await _in_thread(partial(plan, description, found))
    # What makes a needed input may be named by nothing but that input.
    missing = " ".join(name for names in draft.open_inputs().values() for name in names)
    if missing:
        known = {offer.capability_id for offer in found}
        more = [one for one in await _offers(call, missing) if one.capability_id not in known]
        if more:
            draft = await _in_thread(partial(plan, description, [*found, *more]))
    if not draft.steps:
        raise ServiceError(
            ErrorCode.NO_CAPABILITY_MATCH,
            "no registered capability fits any part of the description",
        )
    return Reply(_suggestion(draft, await _tried(call, draft)))


async def _in_thread(work: Callable[[], T]) -> T:
    """Do what takes milliseconds in the thread of large manifests, one after the other."""
    return await in_thread(IN_LOOP_BYTES_MAX + 1, work)


async def _offers(call: Call, words: str) -> list[Offer]:
    services = call.services
    parse = await offers_for_draft(
        services.reader, services.gateway.offers, words, caller=call.caller.did
    )
    return await _in_thread(parse)


async def _tried(call: Call, draft: Plan) -> _Tried:
    """Run a draft dry, with limits of cost where publish asks for them.

    Raises:
        ServiceError: as publish.
    """
    nodes = draft.nodes()
    by_tokens = [step.name for step in draft.steps if step.offer.price is None]
    for limited in (by_tokens, list(nodes)):
        for name in limited:
            nodes[name].setdefault("maxCostCredits", _limit(draft, name))
        try:
            return _Tried(nodes, await _run_dry(call, draft.intent, nodes))
        except ServiceError as refusal:
            # An agent that is paid by tokens may offer what another has a fixed price for.
            if refusal.code is not ErrorCode.BUDGET_REQUIRED or limited is not by_tokens:
                raise
    raise AssertionError("the second try returns or raises")


def _limit(draft: Plan, name: str) -> int | float | str:
    price = next(step.offer.price for step in draft.steps if step.name == name) or 0
    return credits_number(max(_LIMIT_MICRO, 10 * price))


async def _run_dry(call: Call, intent: str, nodes: dict[str, dict[str, Any]]) -> PublishReply:
    services = call.services
    manifest = {"intent": intent, "nodes": nodes, "dryRun": True}
    request = publish_request(
        services,
        call.caller,
        parse_manifest(manifest),
        orjson.dumps(manifest),
        limits=workflow_limits(services.settings),
        command_key=None,
        body_hash=call.request_hash,
    )
    return await services.gateway.publish(request)


def _suggestion(draft: Plan, tried: _Tried) -> dict[str, Any]:
    offers = {step.name: step.offer for step in draft.steps}
    return {
        "draft": {"intent": draft.intent, "nodes": tried.nodes},
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
        "unavailable": [name for name in tried.nodes if not tried.reply.candidates.get(name)],
        "estimatedCredits": credits_number(tried.reply.estimate_micro),
        "estimatedMs": draft.latency_ms,
    }


def _credits(micro: int | None) -> int | float | str | None:
    return None if micro is None else credits_number(micro)


OPERATIONS = (
    Operation(
        method="POST",
        path="/v1/workflows/suggest",
        handler=suggest,
        summary="Draft a workflow from a description in words; nothing is stored",
        scope=SUGGEST,
        rate=RateClass.READ,
        tag="workflows",
        body=SuggestRequest,
        reply=Suggestion,
        errors=(ErrorCode.NO_CAPABILITY_MATCH, ErrorCode.OVERLOADED),
    ),
)
