"""Receipts that agents, their owners and payers submit, kept with the deployment's own.

The first one of a node and a submitter is kept for ever. Reference: features.md (Receipts).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import sqlalchemy as sql

from core.canonical import hash_bytes
from core.ids import composed_key
from core.records.audit import AuditEventType
from ledger.authority import AuthorizedCommand
from ledger.reads.reader import LedgerReader, RowDict
from ledger.schema import submitted_receipt
from ledger.tables.proof_tables import SUBMITTED_RECEIPTS
from ledger.writer.batch import Batch, Result
from ledger.writer.command_kind import plans
from ledger.writer.read_set import ReadSet

# Of a page of the deployment's receipts; a node usually has 3: of its payer, agent and owner.
_SHOWN_MAX: Final = 1_000


class SubmitReceipt(AuthorizedCommand, frozen=True, kw_only=True):
    """Store the receipt of a node that its agent, the agent's owner or the payer submits.

    Its key is made of the workflow, the node and the submitter, so that each submits one.
    `body`: the receipt in canonical form; `request_hash`: over it. `is_verified`: whether its
    signature is valid; None: it cannot be checked. Rejection: KEY_REUSED (another was submitted
    before). Result: {"id"}.
    """

    request_hash: bytes
    receipt_id: str
    workflow_id: str
    node_id: str
    agent_did: str
    body: str
    is_verified: bool | None


def submit_receipt_key(workflow_id: str, node_id: str, submitter_did: str) -> str:
    """Return the key under which a submitter submits the receipt of a node, once."""
    return composed_key("receipt", workflow_id, node_id, submitter_did)


def add_submit_reads(command: SubmitReceipt, read_set: ReadSet) -> None:
    """Add what tells the payer of the workflow, and the owner of its agent."""
    read_set.workflow_ids.add(command.workflow_id)
    read_set.agent_dids.add(command.agent_did)


@plans(SubmitReceipt, reads=add_submit_reads, is_asked_again=True)
def plan_submit_receipt(command: SubmitReceipt, batch: Batch) -> Result:
    """Store a receipt. The chain carries its hash, not the receipt."""
    own = {"id": command.receipt_id, "submitter_did": command.actor_did}
    batch.store(SUBMITTED_RECEIPTS, command.receipt_id, command, **own)
    batch.record(
        AuditEventType.RECEIPT_SUBMITTED,
        ("receipt", command.receipt_id),
        workflowId=command.workflow_id,
        nodeId=command.node_id,
        agentDid=command.agent_did,
        receiptHash=hash_bytes(command.body.encode()),
    )
    return {"id": command.receipt_id}


async def submitted_rows(reader: LedgerReader, nodes: Collection[tuple[str, str]]) -> list[RowDict]:
    """Return the receipts of some nodes, the first `_SHOWN_MAX` that were submitted.

    Args:
        nodes: ids of workflows, each with the name of a node.
    """
    place = sql.tuple_(submitted_receipt.c.workflow_id, submitted_receipt.c.node_id)
    query = sql.select(submitted_receipt).where(place.in_(list(nodes)))
    return await reader.rows(query.order_by(submitted_receipt.c.created_ms).limit(_SHOWN_MAX))
