"""Agents: register, read, list, change and deregister agent cards.

Public cards can be read without a credential. Reference: features.md (Registration).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from actors.process.slices import Slices
from core.errors import ErrorCode, ServiceError
from core.records.agent import without_standing_bids
from core.records.agent_forms import BulkRegistration, CardChange, FlatRegistration, Registration
from core.records.api.agents import (
    Agent,
    AgentPage,
    AgentQuery,
    AgentsQuery,
    BulkRegistered,
    CardPlace,
    Deregistered,
    Lineage,
    Registered,
)
from core.records.api.record import PageQuery
from core.records.api.shape import parsed
from core.trust.tokens import heartbeat_token
from ledger.commands import Outcome
from ledger.features.agents import DeregisterAgent, RegisterAgent, card_rows
from ledger.reads.reader import RowDict
from serve_app.callers.limits import RateClass
from serve_app.http.bulk import judged, refusal
from serve_app.http.calls import Call, Json, Operations, Reply, found, not_found
from serve_app.http.lists import listed, number_after, page_of
from serve_app.http.worker_thread import in_thread
from serve_app.operations.agents.endpoints import endpoint_refusals
from serve_app.operations.agents.registration import (
    changed,
    check_size,
    registration,
    registration_before_endpoint,
)
from serve_app.operations.views import agent_record, current_card, shown
from serve_app.operations.visibility import card_for

_REGISTER_ERRORS = (ErrorCode.POLICY_DENIED, ErrorCode.INVALID_SIGNATURE)
OPERATIONS = Operations("agents")


def _check_size(call: Call) -> None:
    check_size(call.json, len(call.body))


@OPERATIONS.add(
    "POST",
    "/v1/agents/register",
    body=Registration,
    check=_check_size,
    reply=Registered,
    errors=_REGISTER_ERRORS,
)
async def register(call: Call) -> Json:
    """Register an agent card, or replace it."""
    return await _register_one(call, call.given(Registration))


@OPERATIONS.add(
    "POST",
    "/v1/agent/register",
    body=FlatRegistration,
    check=_check_size,
    reply=Registered,
    errors=_REGISTER_ERRORS,
)
async def register_flat(call: Call) -> Json:
    """Register an agent with the members of its card in the body."""
    return await _register_one(call, call.given(FlatRegistration))


async def _register_one(call: Call, body: Registration) -> Json:
    services = call.services
    command = await registration(services, call.caller, body, call.account)
    # Standing bids are confidential, so the card that the agent serves need not contain them.
    card = without_standing_bids(body.acard.parsed.to_json())
    looked = asyncio.ensure_future(
        services.served_cards.compare(card, call.caller.did, services.clock_ms())
    )
    try:
        reply = await _committed(call, command)
        reply["servedCard"] = await looked
    finally:
        looked.cancel()
    return reply


async def _committed(call: Call, command: RegisterAgent) -> Json:
    outcome = await call.commit(command)
    await _known(call, [command])
    return _registered(call, command, outcome)


async def _known(call: Call, commands: Sequence[RegisterAgent]) -> None:
    """Wait until owner processes and searches have read the registrations, within a timeout."""
    gateway = call.services.gateway
    dids = [command.did for command in commands]
    await asyncio.gather(gateway.offers.followed(dids), gateway.owners.refresh())


@OPERATIONS.add(
    "POST",
    "/v1/agents/register/bulk",
    rate=RateClass.BULK,
    body=BulkRegistration,
    is_bulk_body=True,
    reply=BulkRegistered,
)
async def register_bulk(call: Call) -> Reply:
    """Register up to 1,000 agent cards."""
    services = call.services
    base_key = call.command_key("")

    async def judge(index: int, body: Any, size: int) -> RegisterAgent:
        check_size(body, size)
        form = Registration if isinstance(body, dict) and "acard" in body else FlatRegistration
        read = await in_thread(call.account, size, partial(parsed, form, body))
        command = await registration_before_endpoint(services, call.caller, read, call.account)
        return replace(command, key=f"{base_key}:{index}") if base_key else command

    def result(command: RegisterAgent, outcome: Outcome) -> dict[str, Any]:
        if outcome.error is not None:
            return refusal(call, ServiceError(outcome.error, outcome.detail))
        return _registered(call, command, outcome)

    found = await judged(call, "agents", judge)
    endpoints = [command.endpoint for command in found.accepted]
    found.refuse(call, await endpoint_refusals(services, call.caller, endpoints))
    commands = [call.authorized(command) for command in found.accepted]
    outcomes = await services.to_the_end(services.gateway.commit_many(commands))
    await _known(call, commands)
    return await found.answer(outcomes, result)


@OPERATIONS.add(
    "GET",
    "/v1/agents",
    scope=None,
    query=AgentsQuery,
    reply=AgentPage,
    errors=(ErrorCode.FORBIDDEN,),
)
async def list_agents(call: Call) -> Json:
    """List agents."""
    query = call.given(AgentsQuery)
    page = page_of(call, query)
    owner_did = query.owner_did
    if query.status != "active" and not call.may(()):
        # Deregistered agents are shown only to their owner and administrators.
        call.require(None, owner_did or (call.principal.did if call.principal else ""))
        owner_did = call.caller.did
    rows = await call.services.reader.agents(
        capability_id=query.capability_id,
        owner_did=owner_did,
        status=query.status,
        name=query.name,
        author=query.author,
        model=query.model,
        after_did=page.after,
        bytes_max=page.bytes_max,
        viewer=call.viewer_did,
        **page.rows,
    )
    shown = await _shown(call, rows)
    return listed("agents", shown, page, lambda row: row["did"], is_cut=rows.is_cut)


@OPERATIONS.add("GET", "/v1/agent/{did}", scope=None, query=AgentQuery, reply=Agent)
@OPERATIONS.add("GET", "/v1/agents/{did}", scope=None, query=AgentQuery, reply=Agent)
async def get_agent(call: Call) -> Json:
    """Read an agent.

    A deregistered agent is shown only to its owner and administrators, with `includeInactive`.
    """
    row = await _stored(call)
    if row["status"] != "active":
        is_asked = call.given(AgentQuery).include_inactive
        if not (is_asked and call.may((row["owner_did"],))):
            raise not_found(f"the agent {row['did']}")
    (shown,) = await _shown(call, [row])
    return shown


@OPERATIONS.add("GET", "/v1/agents/{did}/versions", query=PageQuery, reply=Lineage)
async def card_versions(call: Call) -> Json:
    """List the lineage of an agent's cards.

    A deregistered agent still has its lineage.
    """
    row = await _stored(call)
    page = page_of(call, call.given(PageQuery))
    rows = await card_rows(call.services.reader, row["did"], before=number_after(page), **page.rows)
    records = [shown(CardPlace, one) for one in rows]
    return listed("versions", records, page, lambda record: record["number"])


@OPERATIONS.add(
    "PATCH",
    "/v1/agents/{did}",
    body=CardChange,
    check=_check_size,
    reply=Registered,
    errors=_REGISTER_ERRORS,
)
async def change(call: Call) -> Json:
    """Change members of an agent's card.

    The resulting card is checked like a new registration.
    """
    row = await _owned(call)
    if row["status"] != "active":
        raise ServiceError(ErrorCode.CONFLICT, f"{row['did']} was deregistered; register it again")
    services, patch = call.services, call.object_body()

    def judged_whole() -> Registration:
        body = changed(row["did"], current_card(row), patch)
        return parsed(FlatRegistration, {**body, "ownerDid": row["owner_did"]})

    whole = await in_thread(call.account, len(call.body) + len(row["card"]), judged_whole)
    command = await registration(services, call.caller, whole, call.account)
    # `revision_expected` prevents lost updates: of two concurrent changes of the same card one is
    # refused. `proof` is None, because a change is no evidence of ownership: the owner in the body
    # was added above, only for the checks.
    return await _committed(call, replace(command, revision_expected=row["revision"], proof=None))


@OPERATIONS.add("DELETE", "/v1/agents/{did}", reply=Deregistered)
async def deregister(call: Call) -> Json:
    """Deregister an agent: it gets no more work."""
    row = await _owned(call)
    await call.commit(DeregisterAgent(owner_did=call.caller.did, did=row["did"]), until_known=True)
    return {**_named(row["did"]), "status": "inactive"}


async def _owned(call: Call) -> RowDict:
    """Return the row of the agent in the path. The caller must be its owner or an administrator.

    Raises:
        ServiceError: FORBIDDEN for another owner's agent; NOT_FOUND if that agent was deregistered.
    """
    row = await _stored(call)
    if row["status"] != "active":
        call.require_party((row["owner_did"],), f"the agent {row['did']}")
    call.require(call.right, row["owner_did"])
    return row


async def _stored(call: Call) -> RowDict:
    """Return the row of the agent in the path.

    Raises:
        ServiceError: NOT_FOUND if the agent does not exist or is hidden from the caller.
    """
    did = call.path_values["did"]
    row = found(await call.services.reader.heard_agent(did), f"the agent {did[:255]}")
    if row["subnet_id"] is not None and await call.is_hidden(did):
        raise not_found(f"the agent {did[:255]}")
    return row


async def _shown(call: Call, rows: list[RowDict]) -> list[dict[str, Any]]:
    now_ms = call.services.now_ms()
    shown, slices = [], Slices()
    for row in rows:
        card = await in_thread(call.account, len(row["card"]), partial(current_card, row))
        card = card_for(call, row, card)
        shown.append(agent_record(row, card, now_ms))
        await slices.pause()
    return shown


def _named(did: str) -> dict[str, Any]:
    """Return the members that begin a reply to a write: `id`, `agentId` and `did` are the DID."""
    return {"ok": True, "success": True, "id": did, "agentId": did, "did": did}


def _registered(call: Call, command: RegisterAgent, outcome: Outcome) -> dict[str, Any]:
    reply = {
        **_named(command.did),
        "registered": len(command.capability_ids),
        "ownerDid": outcome.result["ownerDid"],
        "isNew": outcome.result["isNew"],
    }
    if command.is_unchanged:
        # Any caller who has seen a signed card can submit it again. So the reply has no credential.
        return reply
    keys = call.services.settings.deployment_keys
    revision = int(outcome.result["tokenRevision"])
    return {**reply, "heartbeatToken": heartbeat_token(keys, command.did, revision)}
