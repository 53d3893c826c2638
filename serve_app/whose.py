"""Whose money a path or body is about, and who may know of it.

What belongs to another is answered as what does not exist. contract.md section 2 (Ids in paths) and
section 3 (Caller = payer); decision 0073.
"""

from __future__ import annotations

from typing import Any

from core.money import MICRO_MAX, micro_from_credits
from core.records.bounds import DID_CHARS_MAX, is_did
from ledger.reads.stored import StoredWorkflow, WorkflowHead
from serve_app.calls import Call, invalid, kind_of, not_found


def did_in_path(call: Call, position: int) -> str:
    """Return the DID in a path, raw or percent-encoded, as its owner writes it.

    The path arrives decoded. A DID may itself hold percent signs (did:web): one that was sent raw,
    its colons show it, keeps them.

    Args:
        position: of the DID among the path's parts; 0 is the `v1`.
    """
    sent = call.raw_segment(position)
    if sent.startswith("did:") and "%25" not in sent:
        return sent
    return call.path_values["did"]


def own_did_in_path(call: Call, position: int, what: str) -> str:
    """Return the DID in a path whose money only itself and administrators may see.

    Raises:
        ServiceError: NOT_FOUND for another's.
    """
    did = did_in_path(call, position)
    call.require_party((did,), f"{what} of {did[:DID_CHARS_MAX]}")
    return did


async def paid_workflow(call: Call, workflow_id: str) -> StoredWorkflow:
    """Return a workflow whose money only its payer and administrators may see; as in its head.

    Raises:
        ServiceError: NOT_FOUND, also for another's.
    """
    head = await call.services.gateway.workflow_head(workflow_id, call.caller.did)
    if head is None or not call.may((head.workflow.payer_did,)):
        raise not_found(f"the workflow {workflow_id[:100]}")
    return head.workflow


async def visible_head(call: Call, workflow_id: str) -> WorkflowHead | None:
    """Return the head of a workflow, None when the caller may not know of it.

    The payer and administrators may, and the agents of its nodes.
    """
    head = await call.services.gateway.workflow_head(workflow_id, call.caller.did)
    if head is None or not (head.is_agent or call.may((head.workflow.payer_did,))):
        return None
    return head


async def visible_record(call: Call, workflow_id: str) -> StoredWorkflow | None:
    """Return a workflow with its nodes, None when the caller may not know of it.

    Whether they may is looked up first: who may not costs no reading of results.
    """
    head = await visible_head(call, workflow_id)
    if head is None:
        return None
    return await call.services.gateway.workflow_record(
        workflow_id, call.caller.did, head.record_bytes
    )


def did_of(path: str, value: Any) -> str:
    """Return a DID of a body or a path.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    if not isinstance(value, str) or not is_did(value):
        got = value[:100] if isinstance(value, str) else kind_of(value)
        raise invalid(path, got, f"a DID of at most {DID_CHARS_MAX} characters")
    return value


def positive_micro(path: str, value: Any) -> int:
    """Return an amount of credits above 0, as micro-credits.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    try:
        amount_micro = micro_from_credits(value)
    except ValueError as error:
        raise invalid(path, str(value)[:40], str(error).partition("expected ")[2]) from None
    if not 0 < amount_micro <= MICRO_MAX:
        raise invalid(path, str(value)[:40], "more than 0 credits")
    return amount_micro
