"""The result of one node, read without the rest of its workflow. contract.md section 6."""

from __future__ import annotations

import sqlalchemy as sql

from ledger.queries.reader import LedgerReader, RowDict
from ledger.schema import node, workflow


async def result_row(reader: LedgerReader, workflow_id: str, name: str) -> RowDict | None:
    """Return a node's result, its agent and its workflow's payer; None without such a node.

    Args:
        workflow_id: in its usual spelling.
        name: the node's.
    """
    query = (
        sql.select(workflow.c.payer_did, node.c.agent_did, node.c.result_json, node.c.result_ref)
        .join(workflow, workflow.c.id == node.c.workflow_id)
        .where(node.c.workflow_id == workflow_id, node.c.name == name)
    )
    rows = await reader.rows(query)
    return rows[0] if rows else None
