"""The result of one node, and what a result that is handed in is judged by, without the rest of
the workflow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import ARRAY

from core.workflow.transitions import NodeStatus
from ledger.reads.prepared import PreparedStatement
from ledger.reads.reader import LedgerReader, RowDict
from ledger.schema import columns, command, node, workflow
from ledger.workflows.workflow_statements import IDS

_ASKED: Final = (
    sql.func.unnest(
        sql.bindparam("ids", type_=ARRAY(sql.Uuid(as_uuid=False))),
        sql.bindparam("names", type_=ARRAY(sql.Text)),
    )
    .table_valued(sql.column("id", sql.Uuid(as_uuid=False)), sql.column("name", sql.Text))
    .render_derived()
)
_DISPATCHED: Final = PreparedStatement.of(
    sql.select(
        *columns(node, "workflow_id name status attempt verify_attempt agent_did verifier_did"),
        node.c.key_version,
    ).join(_ASKED, sql.and_(node.c.workflow_id == _ASKED.c.id, node.c.name == _ASKED.c.name))
)
_WORKFLOWS: Final = PreparedStatement.of(
    sql.select(workflow.c.id, workflow.c.status, workflow.c.manifest).where(workflow.c.id == IDS)
)


async def dispatched_nodes(
    reader: LedgerReader, asked: Sequence[tuple[str, str]]
) -> list[RowDict | None]:
    """Return what tells the tokens of each node's dispatches, None for an unknown node.

    Args:
        asked: ids of workflows, in their usual spelling, each with the name of a node.
    """
    keys = list(set(asked))
    values = {"ids": [key[0] for key in keys], "names": [key[1] for key in keys]}
    rows = await reader.lookups.rows(_DISPATCHED, values)
    found = {(str(row["workflow_id"]), row["name"]): row for row in rows}
    return [found.get(key) for key in asked]


async def is_stored_command(reader: LedgerReader, key: str) -> bool:
    """Say whether the command of a key is stored."""
    return bool(await reader.rows(sql.select(command.c.id).where(command.c.id == key)))


async def workflow_rows(reader: LedgerReader, ids: Sequence[str]) -> list[RowDict | None]:
    """Return id, status and manifest of each workflow, None for an unknown one.

    Args:
        ids: of workflows, in their usual spelling.
    """
    rows = await reader.lookups.rows(_WORKFLOWS, {"ids": list(set(ids))})
    found = {str(row["id"]): row for row in rows}
    return [found.get(workflow_id) for workflow_id in ids]


async def result_row(reader: LedgerReader, workflow_id: str, name: str) -> RowDict | None:
    """Return the result of a node that has succeeded, its agent and its workflow's payer, or None.

    Args:
        workflow_id: in its usual spelling.
        name: the node's.
    """
    query = (
        sql.select(workflow.c.payer_did, node.c.agent_did, node.c.result_json, node.c.result_ref)
        .join(workflow, workflow.c.id == node.c.workflow_id)
        .where(
            node.c.workflow_id == workflow_id,
            node.c.name == name,
            node.c.status == NodeStatus.SUCCESS.value,
        )
    )
    return await reader.row(query)
