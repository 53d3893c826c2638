"""Names of agents: registered by the agent's owner, resolved by anyone with a key, for a time.

Spec: Name, /v1/identity/names. Decision agent-identity.
"""

from __future__ import annotations

from typing import Any, Final

from core.errors import ErrorCode
from core.records.api.identity import (
    Name,
    NameChanged,
    NamePage,
    NameRegistration,
    NameReleased,
    NameRenewal,
    NameTransfer,
    NameTransferred,
)
from core.records.api.path_values import AnyDidPath, NamePath
from core.records.api.record import PageQuery
from ledger.commands import Command
from ledger.identity.identity_reads import name_row, name_rows
from ledger.identity.name_commands import RegisterName, ReleaseName, RenewName, TransferName
from serve_app.callers.limits import RateClass
from serve_app.http.calls import Call, Operation, Repeats, Reply, not_found
from serve_app.http.lists import listed, page_of
from serve_app.operations.views import iso_time, shown

NAMES_PER_OWNER_MAX: Final = 100
NAMES_PER_AGENT_MAX: Final = 10


async def register(call: Call) -> Reply:
    """Register a name for an agent."""
    body, settings = call.given(NameRegistration), call.services.settings
    return await _changed(
        call,
        body.name,
        RegisterName(
            key=_key(call),
            actor_did=call.caller.did,
            is_admin=call.caller.is_admin,
            name=body.name,
            agent_did=body.agent_did,
            months=body.duration_months,
            owner_names_max=NAMES_PER_OWNER_MAX,
            agent_names_max=NAMES_PER_AGENT_MAX,
            needs_proof=settings.needs_proof,
        ),
    )


async def renew(call: Call) -> Reply:
    """Let a name expire later."""
    name = call.given(NamePath).name
    command = RenewName(
        key=_key(call),
        actor_did=call.caller.did,
        is_admin=call.caller.is_admin,
        name=name,
        months=call.given(NameRenewal).duration_months,
    )
    return await _changed(call, name, command)


async def transfer(call: Call) -> Reply:
    """Give a name to another agent, or offer it, or take what was offered."""
    name, settings = call.given(NamePath).name, call.services.settings
    command = TransferName(
        key=_key(call),
        actor_did=call.caller.did,
        is_admin=call.caller.is_admin,
        name=name,
        agent_did=call.given(NameTransfer).agent_did,
        owner_names_max=NAMES_PER_OWNER_MAX,
        agent_names_max=NAMES_PER_AGENT_MAX,
        needs_proof=settings.needs_proof,
    )
    return await _changed(call, name, command)


async def release(call: Call) -> Reply:
    """End a name before its time."""
    name = call.given(NamePath).name
    command = ReleaseName(
        key=f"release:{call.services.new_id()}",
        actor_did=call.caller.did,
        is_admin=call.caller.is_admin,
        name=name,
    )
    outcome = await call.commit(command)
    released_at = iso_time(outcome.result["releasedMs"])
    return Reply({"success": True, "id": name, "name": name, "releasedAt": released_at})


async def resolve(call: Call) -> Reply:
    """Say which agent has a name."""
    name = call.given(NamePath).name
    row = await name_row(call.services.reader, name, at_ms=call.services.now_ms())
    if row is None:
        raise not_found(f"the name {name}")
    return Reply(shown(Name, row))


async def names_of_agent(call: Call) -> Reply:
    """List the names of an agent."""
    page = page_of(call, call.given(PageQuery))
    rows = await name_rows(
        call.services.reader,
        call.given(AnyDidPath).did,
        at_ms=call.services.now_ms(),
        limit=page.limit + 1,
        offset=page.offset,
        after_name=page.after,
    )
    records = [shown(Name, row) for row in rows]
    return Reply(listed("names", records, page, lambda record: record["name"]))


def _key(call: Call) -> str:
    return call.command_key(f"name:{call.services.new_id()}")


async def _changed(call: Call, name: str, command: Command) -> Reply:
    outcome = await call.commit(command)
    result = outcome.result
    reply: dict[str, Any] = {
        "success": True,
        "id": name,
        "name": name,
        "agentDid": result["agentDid"],
        "ownerDid": result["ownerDid"],
        "registeredAt": iso_time(result["registeredMs"]),
        "expiresAt": iso_time(result["expiresMs"]),
    }
    if "isTransferred" in result:
        reply["isTransferred"] = result["isTransferred"]
    return Reply(reply)


_NAME = "/v1/identity/names/{name}"

OPERATIONS = (
    Operation(
        method="POST",
        path="/v1/identity/names",
        handler=register,
        summary="Register a name for an agent",
        scope="identity:write",
        rate=RateClass.WRITE,
        tag="identity",
        body=NameRegistration,
        reply=NameChanged,
        errors=(
            ErrorCode.NOT_FOUND,
            ErrorCode.FORBIDDEN,
            ErrorCode.NAME_TAKEN,
            ErrorCode.CONFLICT,
        ),
        repeats=Repeats.BY_REPLY,
    ),
    Operation(
        method="GET",
        path=_NAME,
        path_values=NamePath,
        handler=resolve,
        summary="Look up the agent of a name",
        scope="identity:read",
        rate=RateClass.READ,
        tag="identity",
        reply=Name,
        errors=(ErrorCode.NOT_FOUND,),
    ),
    Operation(
        method="POST",
        path=f"{_NAME}/renew",
        path_values=NamePath,
        handler=renew,
        summary="Renew a name",
        scope="identity:write",
        rate=RateClass.WRITE,
        tag="identity",
        body=NameRenewal,
        is_body_optional=True,
        reply=NameChanged,
        errors=(ErrorCode.NOT_FOUND, ErrorCode.FORBIDDEN),
        repeats=Repeats.BY_REPLY,
    ),
    Operation(
        method="POST",
        path=f"{_NAME}/transfer",
        path_values=NamePath,
        handler=transfer,
        summary="Transfer a name to another agent, or offer it to another owner's agent",
        scope="identity:write",
        rate=RateClass.WRITE,
        tag="identity",
        body=NameTransfer,
        reply=NameTransferred,
        errors=(ErrorCode.NOT_FOUND, ErrorCode.FORBIDDEN, ErrorCode.CONFLICT),
        repeats=Repeats.BY_REPLY,
    ),
    Operation(
        method="DELETE",
        path=_NAME,
        path_values=NamePath,
        handler=release,
        summary="Release a name before it expires",
        scope="identity:write",
        rate=RateClass.WRITE,
        tag="identity",
        reply=NameReleased,
        errors=(ErrorCode.NOT_FOUND, ErrorCode.FORBIDDEN),
    ),
    Operation(
        method="GET",
        path="/v1/agents/{did}/names",
        path_values=AnyDidPath,
        handler=names_of_agent,
        summary="List the names of an agent",
        scope="agents:read",
        rate=RateClass.READ,
        tag="identity",
        query=PageQuery,
        reply=NamePage,
        errors=(ErrorCode.INVALID_REQUEST,),
    ),
)
