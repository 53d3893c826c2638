"""Who may see a workflow, looked up before its record is read: strangers cost no results.

Decision messages-and-large-values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import ARRAY

from core.ids import canonical_uuid
from ledger.reads.prepared import PreparedStatement
from ledger.reads.reader import LedgerReader
from ledger.reads.stored import StoredWorkflow, WorkflowHead
from ledger.schema import columns, node, workflow
from ledger.workflows.workflow_statements import SPENT

_ASKED: Final = (
    sql.func.unnest(
        sql.bindparam("ids", type_=ARRAY(sql.Uuid(as_uuid=False))),
        sql.bindparam("dids", type_=ARRAY(sql.Text)),
    )
    .table_valued(sql.column("id", sql.Uuid(as_uuid=False)), sql.column("did", sql.Text))
    .render_derived(name="asked")
)
# The size of a stored text is known without reading the text.
_NODES: Final = (
    sql.select(
        sql.func.coalesce(sql.func.bool_or(node.c.agent_did == _ASKED.c.did), sql.false()).label(
            "is_agent"
        ),
        sql.func.coalesce(
            sql.func.sum(
                sql.func.coalesce(sql.func.octet_length(node.c.result_json), 0)
                + sql.func.coalesce(sql.func.octet_length(node.c.selection_json), 0)
            ),
            0,
        ).label("node_bytes"),
    )
    .where(node.c.workflow_id == _ASKED.c.id)
    .lateral("nodes")
)
_HEADS: Final = PreparedStatement.of(
    sql.select(
        _ASKED.c.did.label("asked_did"),
        *columns(workflow, "id task_id payer_did status hold_micro quarantined_ms"),
        SPENT.label("spent_micro"),
        sql.func.octet_length(workflow.c.manifest).label("manifest_bytes"),
        _NODES.c.is_agent,
        _NODES.c.node_bytes,
    ).select_from(_ASKED.join(workflow, workflow.c.id == _ASKED.c.id).join(_NODES, sql.true()))
)


async def workflow_heads(
    reader: LedgerReader, asked: Sequence[tuple[str, str]]
) -> list[WorkflowHead | None]:
    """Return one head or None per question, in their order: one statement for all of them.

    Args:
        asked: ids of workflows, each with the DID of who asks, "" for the service itself.
    """
    known = {key: canonical for key in asked if (canonical := canonical_uuid(key[0])) is not None}
    if not known:
        return [None] * len(asked)
    keys = list({(workflow_id, did) for (_, did), workflow_id in known.items()})
    values = {"ids": [key[0] for key in keys], "dids": [key[1] for key in keys]}
    found = {}
    for row in await reader.lookups.rows(_HEADS, values):
        key = (str(row["id"]), row.pop("asked_did"))
        record_bytes = row.pop("manifest_bytes") + int(row.pop("node_bytes"))
        found[key] = WorkflowHead(StoredWorkflow(row), row.pop("is_agent"), record_bytes)
    return [found.get((known.get(key, ""), key[1])) for key in asked]
