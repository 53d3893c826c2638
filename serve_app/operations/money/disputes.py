"""Disputes: the parties of a workflow open them; operators resolve them.

Reference: money.md (Disputes and refunds); decision refunds-disputes-invoices-quotas.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from core.errors import ErrorCode, ServiceError
from core.json_text import write_json
from core.money import credits_number
from core.records.api.review import (
    Dispute,
    DisputeOpened,
    DisputePage,
    DisputeRequest,
    DisputeResolved,
    DisputesQuery,
    Resolution,
)
from core.trust.access import RESOLVE_DISPUTES
from ledger.features.disputes import OpenDispute, ResolveDispute, dispute_row, dispute_rows
from ledger.reads.reader import RowDict, StoredWorkflow
from serve_app.http.calls import (
    Call,
    Json,
    Operations,
    canonical_object,
    found,
    invalid,
)
from serve_app.http.lists import id_after, listed, page_of
from serve_app.operations.views import shown
from serve_app.operations.visibility import check_money_party, visible_record

# The types of disputes that need no workflow.
TYPES_AT_LARGE: Final = ("fraud", "other")

OPERATIONS = Operations("disputes", "ledger")


@dataclass(frozen=True, slots=True)
class _Subject:
    """The subject of a dispute. A part that the dispute does not name is None."""

    workflow_id: str | None
    respondent_did: str | None
    node_id: str | None


@OPERATIONS.add(
    "POST", "/v1/disputes", body=DisputeRequest, reply=DisputeOpened, errors=(ErrorCode.NOT_FOUND,)
)
async def open_dispute(call: Call) -> Json:
    """Open a dispute about a workflow."""
    body = call.given(DisputeRequest)
    evidence = canonical_object("evidence", body.evidence or {})
    subject = await _subject(call, body)
    command = OpenDispute(
        dispute_id=call.services.new_id(),
        workflow_id=subject.workflow_id,
        complainant_did=call.caller.did,
        respondent_did=subject.respondent_did,
        node_id=subject.node_id,
        dispute_type=body.dispute_type,
        description=body.description,
        evidence_json=write_json(evidence).decode(),
    )
    outcome = await call.commit(command)
    return await _shown(call, outcome.result["disputeId"])


@OPERATIONS.add(
    "POST",
    "/v1/disputes/{dispute_id}/resolve",
    scope=RESOLVE_DISPUTES,
    body=Resolution,
    reply=DisputeResolved,
)
async def resolve(call: Call) -> Json:
    """Resolve a dispute (operators).

    A refund is taken from the agent and from the fee, as far as they have the credits.
    """
    body = call.given(Resolution)
    # Operators with this right are not parties of the dispute, so parties are not checked.
    row = await _stored(call)
    command = ResolveDispute(
        dispute_id=row["id"],
        status=body.status,
        resolution=body.resolution,
        refund_micro=body.credits_refunded,
        slash_bps=call.services.settings.slash_fraud_bps,
    )
    outcome = await call.commit(command)
    slashed = {"creditsSlashed": credits_number(outcome.result["slashedMicro"])}
    return await _shown(call, row["id"], **slashed)


@OPERATIONS.add("GET", "/v1/disputes/{dispute_id}", reply=Dispute)
async def get(call: Call) -> Json:
    """Read a dispute."""
    return dispute_record(await _readable(call))


@OPERATIONS.add("GET", "/v1/disputes", query=DisputesQuery, reply=DisputePage)
async def list_disputes(call: Call) -> Json:
    """List the caller's disputes, newest first."""
    query = call.given(DisputesQuery)
    page = page_of(call, query)
    rows = await dispute_rows(
        call.services.reader,
        party_did=call.party_did,
        status=query.status,
        workflow_id=query.workflow_id,
        before_id=id_after(page),
        **page.rows,
    )
    return listed("disputes", rows, page, lambda row: row["id"], form=dispute_record)


async def _subject(call: Call, body: DisputeRequest) -> _Subject:
    """Return the subject of a dispute. A payer accuses an agent; an agent accuses the payer.

    Raises:
        ServiceError: INVALID_REQUEST, NOT_FOUND or FORBIDDEN.
    """
    accused, node_id, workflow_id = body.respondent_did, body.node_id, body.workflow_id
    if workflow_id is None:
        if body.dispute_type not in TYPES_AT_LARGE:
            raise invalid(
                "workflowId", "nothing", f"the id of a workflow, which {body.dispute_type} requires"
            )
        if node_id is not None:
            raise invalid("nodeId", str(node_id), "no nodeId without a workflowId")
        return _Subject(None, accused, None)
    stored = found(await visible_record(call, workflow_id), f"the workflow {workflow_id}")
    nodes = {node["name"]: node for node in stored.nodes}
    if node_id is not None and node_id not in nodes:
        raise invalid("nodeId", str(node_id), "a node of the workflow that was dispatched")
    disputed = [nodes[node_id]] if node_id is not None else list(nodes.values())
    if call.is_party((stored.payer_did,)):
        return _Subject(stored.id, _accused_agent(stored, disputed, accused), node_id)
    if not any(call.is_party(_agents_of(node)) for node in disputed):
        raise ServiceError(
            ErrorCode.FORBIDDEN, "only the payer and the agents of a workflow may dispute it"
        )
    return _Subject(stored.id, stored.payer_did, node_id)


def _accused_agent(stored: StoredWorkflow, nodes: list[RowDict], accused: str | None) -> str | None:
    """Return the agent that the payer accuses: the named agent, else the only agent, else None.

    Raises:
        ServiceError: INVALID_REQUEST: the named DID is not an agent of the disputed nodes.
    """
    agents = {did for node in nodes for did in _agents_of(node)} - {stored.payer_did}
    if accused is not None:
        if accused not in agents:
            raise invalid("respondentDid", accused, "an agent of the disputed nodes")
        return accused
    primaries = {node["agent_did"] for node in nodes if node["agent_did"]} - {stored.payer_did}
    return primaries.pop() if len(primaries) == 1 else None


def _agents_of(node: RowDict) -> set[str]:
    return {did for did in (node["agent_did"], node["verifier_did"]) if did}


async def _readable(call: Call) -> RowDict:
    """Return the dispute in the path. The caller or one of its agents must be a party.

    Raises:
        ServiceError: NOT_FOUND if the dispute does not exist or is hidden from the caller.
    """
    row = await _stored(call)
    parties = (row["complainant_did"], row["respondent_did"])
    await check_money_party(call, parties, _what(call))
    return row


async def _stored(call: Call) -> RowDict:
    """Return the dispute in the path without checking the caller.

    Raises:
        ServiceError: NOT_FOUND.
    """
    row = await dispute_row(call.services.reader, call.path_values["dispute_id"])
    return found(row, _what(call))


def _what(call: Call) -> str:
    return f"the dispute {call.path_values['dispute_id']}"


async def _shown(call: Call, dispute_id: str, **more: Any) -> Json:
    row = await dispute_row(call.services.reader, dispute_id)
    assert row is not None, dispute_id
    return {"success": True, **dispute_record(row), **more}


def dispute_record(row: RowDict) -> dict[str, Any]:
    """Return a dispute's JSON record. Reference: money.md (Disputes and refunds)."""
    asked = row["refund_asked_micro"]
    return shown(
        Dispute,
        row,
        dispute_id=row["id"],
        credits_asked=None if asked is None else credits_number(asked),
        credits_refunded=credits_number(row["refunded_micro"]),
        credits_short=credits_number(row["short_micro"]),
        resolved_by=row["resolved_by_did"],
    )
