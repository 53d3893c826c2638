"""Names of agents: register, renew, transfer, release and resolve them.

The owner of an agent registers its names. Names expire. Any caller with the scope `identity:read`
can resolve a name. Reference: features.md (Names). Decision agent-identity.
"""

from __future__ import annotations

from typing import Final

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
from core.records.api.record import PageQuery
from ledger.commands import Command
from ledger.features.identity_reads import name_row, name_rows
from ledger.features.names import RegisterName, ReleaseName, RenewName, TransferName
from serve_app.http.calls import Call, Json, Operations, found, not_found
from serve_app.http.lists import listed, page_of
from serve_app.operations.views import shown, shown_result
from serve_app.operations.visibility import known_did

NAMES_PER_OWNER_MAX: Final = 100
NAMES_PER_AGENT_MAX: Final = 10

_NAME = "/v1/identity/names/{name}"
OPERATIONS = Operations("identity")


@OPERATIONS.add(
    "POST",
    "/v1/identity/names",
    body=NameRegistration,
    reply=NameChanged,
    errors=(ErrorCode.NOT_FOUND, ErrorCode.NAME_TAKEN),
)
async def register(call: Call) -> Json:
    """Register a name for an agent."""
    body, settings = call.given(NameRegistration), call.services.settings
    return await _changed(
        call,
        body.name,
        RegisterName(
            name=body.name,
            agent_did=body.agent_did,
            months=body.duration_months,
            owner_names_max=NAMES_PER_OWNER_MAX,
            agent_names_max=NAMES_PER_AGENT_MAX,
            needs_proof=settings.needs_proof,
        ),
    )


@OPERATIONS.add(
    "POST", f"{_NAME}/renew", body=NameRenewal, is_body_optional=True, reply=NameChanged
)
async def renew(call: Call) -> Json:
    """Renew a name."""
    name = call.path_values["name"]
    command = RenewName(name=name, months=call.given(NameRenewal).duration_months)
    return await _changed(call, name, command)


@OPERATIONS.add("POST", f"{_NAME}/transfer", body=NameTransfer, reply=NameTransferred)
async def transfer(call: Call) -> Json:
    """Transfer a name to another agent, or offer it to another owner's agent."""
    name, settings = call.path_values["name"], call.services.settings
    agent_did = call.given(NameTransfer).agent_did
    if await call.is_hidden(agent_did):
        await resolve(call)
        raise not_found(f"the agent {agent_did}")
    command = TransferName(
        name=name,
        agent_did=agent_did,
        owner_names_max=NAMES_PER_OWNER_MAX,
        agent_names_max=NAMES_PER_AGENT_MAX,
        needs_proof=settings.needs_proof,
    )
    return await _changed(call, name, command)


@OPERATIONS.add("DELETE", _NAME, reply=NameReleased)
async def release(call: Call) -> Json:
    """Release a name before it expires."""
    name = call.path_values["name"]
    outcome = await call.commit(ReleaseName(name=name))
    return shown_result(NameReleased, outcome, id=name, name=name)


@OPERATIONS.add("GET", _NAME, reply=Name)
async def resolve(call: Call) -> Json:
    """Look up the agent of a name."""
    name = call.path_values["name"]
    row = await name_row(call.services.reader, name, at_ms=call.services.now_ms())
    if row is not None and await call.is_hidden(row["agent_did"]):
        row = None
    return shown(Name, found(row, f"the name {name}"))


@OPERATIONS.add(
    "GET", "/v1/agents/{did}/names", scope="agents:read", query=PageQuery, reply=NamePage
)
async def names_of_agent(call: Call) -> Json:
    """List the names of an agent."""
    page = page_of(call, call.given(PageQuery))
    rows = await name_rows(
        call.services.reader,
        await known_did(call, call.path_values["did"]),
        at_ms=call.services.now_ms(),
        after_name=page.after,
        **page.rows,
    )
    records = [shown(Name, row) for row in rows]
    return listed("names", records, page, lambda record: record["name"])


async def _changed(call: Call, name: str, command: Command) -> Json:
    outcome = await call.commit(command)
    record = NameTransferred if "isTransferred" in outcome.result else NameChanged
    return shown_result(record, outcome, id=name, name=name)
