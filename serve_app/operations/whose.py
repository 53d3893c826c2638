"""Whose money, cards and workflows a path is about, and who may know of them.

What belongs to another is answered as what does not exist. Decision prices-and-budgets.
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
    """Return the DID in a path whose money only itself and administrators may see.

    Raises:
        ServiceError: NOT_FOUND for another's.
    """
    did: str = call.path_values["did"]
    call.require_party((did,), f"{what} of {did[:DID_CHARS_MAX]}")
    return did


async def money_did_in_path(call: Call, what: str) -> str:
    """Return the DID in a path whose money the caller may see: as `check_money_party`.

    Raises:
        ServiceError: NOT_FOUND for another's.
    """
    did: str = call.path_values["did"]
    await check_money_party(call, (did,), f"{what} of {did[:DID_CHARS_MAX]}")
    return did


async def check_money_party(call: Call, dids: Collection[str | None], what: str) -> None:
    """Refuse unless one of these DIDs is the caller, or an agent whose money is the caller's.

    Args:
        what: the name of what is asked for: that it exists is not disclosed.

    Raises:
        ServiceError: NOT_FOUND.
    """
    if call.may(dids):
        return
    owners = [await money_owner(call.services.reader, did) for did in dids if did is not None]
    call.require_party([one.owner_did for one in owners if one and one.is_owners], what)


async def owns_agent(call: Call, did: str) -> bool:
    """Say whether the caller is the owner of an agent whose money the caller may see."""
    owner = await money_owner(call.services.reader, did)
    return owner is not None and owner.is_owners and call.is_party((owner.owner_did,))


async def work_viewer(call: Call, workflow_id: str) -> str | None:
    """Return whose attempts of a workflow the caller may see: its own and its agents', None: all.

    Raises:
        ServiceError: NOT_FOUND for a workflow of which the caller may see none.
    """
    head, viewer = await call.services.reads.head(workflow_id, call.caller.did), call.caller.did
    if head is not None and call.may((head.workflow.payer_did,)):
        return None
    reader = call.services.reader
    if head is None or not (head.is_agent or await is_worker(reader, workflow_id, viewer)):
        raise not_found(f"the workflow {workflow_id}")
    return viewer


def card_for(call: Call, row: RowDict, card: dict[str, Any]) -> dict[str, Any]:
    """Return a card as the caller may read it: with standing bids only the agent, its owner and
    administrators."""
    sealed = without_standing_bids(card)
    is_sealed = sealed is not card and not call.may((row["did"], row["owner_did"]))
    return sealed if is_sealed else card


async def known_did(call: Call, did: str) -> str:
    """Return a DID, or "", of which nothing is stored, for an agent that is hidden from the caller.

    What is read by it is then what is read for a DID that does not exist.
    """
    return "" if await call.is_hidden(did) else did


async def paid_workflow(call: Call, workflow_id: str) -> StoredWorkflow:
    """Return a workflow whose money only its payer and administrators may see; as in its head.

    Raises:
        ServiceError: NOT_FOUND, also for another's.
    """
    head = await call.services.reads.head(workflow_id, call.caller.did)
    if head is None or not call.may((head.workflow.payer_did,)):
        raise not_found(f"the workflow {workflow_id[:100]}")
    return head.workflow


async def visible_head(call: Call, workflow_id: str) -> WorkflowHead | None:
    """Return the head of a workflow, None when the caller may not know of it.

    The payer and administrators may, and the agents of its nodes.
    """
    head = await call.services.reads.head(workflow_id, call.caller.did)
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
    return await call.services.reads.record(workflow_id, call.caller.did, head.record_bytes)
