"""Decides whether a caller may see the money, cards and workflows that a request names.

An object that the caller may not see gives the same NOT_FOUND as an object that does not exist.
Decision prices-and-budgets.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from core.records.agent import without_standing_bids
from core.records.bounds import DID_CHARS_MAX
from ledger.features.accounts import money_owner
from ledger.features.receipts import is_worker
from ledger.reads.reader import RowDict
from ledger.reads.stored import StoredWorkflow, WorkflowHead
from serve_app.http.calls import Call, not_found


def own_did_in_path(call: Call, what: str) -> str:
    """Return the DID in the path, which must be the caller's unless an administrator calls.

    Args:
        call: the request.
        what: the kind of object that the path names, for the refusal.

    Raises:
        ServiceError: NOT_FOUND for another DID.
    """
    did: str = call.path_values["did"]
    call.require_party((did,), f"{what} of {did[:DID_CHARS_MAX]}")
    return did


async def money_did_in_path(call: Call, what: str) -> str:
    """Return the DID in the path, after checking that the caller may see the money of this DID.

    Args:
        call: the request.
        what: the kind of object that the path names, for the refusal.

    Raises:
        ServiceError: NOT_FOUND if `check_money_party` refuses.
    """
    did: str = call.path_values["did"]
    await check_money_party(call, (did,), f"{what} of {did[:DID_CHARS_MAX]}")
    return did


async def check_money_party(call: Call, dids: Collection[str | None], what: str) -> None:
    """Refuse unless one of the DIDs is the caller, or an agent whose money the caller may see.

    An administrator is always permitted.

    Args:
        call: the request.
        dids: the DIDs of the object; None stands for a DID that the object does not have.
        what: the name of the object, for the refusal.

    Raises:
        ServiceError: NOT_FOUND, so that the refusal does not disclose that the object exists.
    """
    if call.may(dids):
        return
    owners = [await money_owner(call.services.reader, did) for did in dids if did is not None]
    call.require_party([one.owner_did for one in owners if one and one.is_owners], what)


async def owns_agent(call: Call, did: str) -> bool:
    """Return whether the caller is the owner of an agent, and may see the agent's money."""
    owner = await money_owner(call.services.reader, did)
    return owner is not None and owner.is_owners and call.is_party((owner.owner_did,))


async def work_viewer(call: Call, workflow_id: str) -> str | None:
    """Return the DID that limits which attempts of a workflow the caller may see.

    None for the payer and administrators, who may see all attempts. Other callers may see only the
    attempts of their own DID and of their agents. For them the result is the caller's DID.

    Raises:
        ServiceError: NOT_FOUND if the caller may see no attempt of the workflow.
    """
    head, viewer = await call.services.reads.head(workflow_id, call.caller.did), call.caller.did
    if head is not None and call.may((head.workflow.payer_did,)):
        return None
    reader = call.services.reader
    if head is None or not (head.is_agent or await is_worker(reader, workflow_id, viewer)):
        raise not_found(f"the workflow {workflow_id}")
    return viewer


def card_for(call: Call, row: RowDict, card: dict[str, Any]) -> dict[str, Any]:
    """Return an agent's card as the caller may see it.

    Only the agent, its owner and administrators see the standing bids in the card.
    """
    sealed = without_standing_bids(card)
    is_sealed = sealed is not card and not call.may((row["did"], row["owner_did"]))
    return sealed if is_sealed else card


async def known_did(call: Call, did: str) -> str:
    """Return the DID, or "" if it is an agent that is hidden from the caller.

    Nothing is stored under "", so a hidden agent gives the same reply as an unknown DID.
    """
    return "" if await call.is_hidden(did) else did


async def paid_workflow(call: Call, workflow_id: str) -> StoredWorkflow:
    """Return a workflow. The caller must be its payer or an administrator.

    The workflow has only the columns of `WorkflowHead`.

    Raises:
        ServiceError: NOT_FOUND, also for the workflow of another payer.
    """
    head = await call.services.reads.head(workflow_id, call.caller.did)
    if head is None or not call.may((head.workflow.payer_did,)):
        raise not_found(f"the workflow {workflow_id[:100]}")
    return head.workflow


async def visible_head(call: Call, workflow_id: str) -> WorkflowHead | None:
    """Return the head of a workflow; None if it does not exist or is hidden from the caller.

    The payer, administrators and the agents of the workflow's nodes may see it.
    """
    head = await call.services.reads.head(workflow_id, call.caller.did)
    if head is None or not (head.is_agent or call.may((head.workflow.payer_did,))):
        return None
    return head


async def visible_record(call: Call, workflow_id: str) -> StoredWorkflow | None:
    """Return a workflow with its nodes; None if it does not exist or is hidden from the caller.

    The permission is checked first, so a request that is not permitted reads no results.
    """
    head = await visible_head(call, workflow_id)
    if head is None:
        return None
    return await call.services.reads.record(workflow_id, call.caller.did, head.record_bytes)
