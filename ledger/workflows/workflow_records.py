"""Workflows with as much of their nodes' results as a record shows.

A record has a bound, so no more than that is read: of results beyond it the database returns hash
and size. Decision messages-and-large-values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sql

from core.ids import canonical_uuid
from ledger.reads.prepared import PreparedStatement
from ledger.reads.reader import LedgerReader, StoredWorkflow
from ledger.schema import node, workflow
from ledger.workflows.workflow_statements import IDS, WORKFLOWS

_SIZE: Final = sql.func.octet_length(node.c.result_json)
# The size of a compressed value is known without reading the value.
_FITS: Final = sql.func.coalesce(
    sql.func.sum(_SIZE).over(partition_by=node.c.workflow_id, order_by=node.c.name), 0
) <= sql.bindparam("bytes_max", type_=sql.BigInteger)
_HASH: Final = sql.func.encode(
    sql.func.sha256(sql.func.convert_to(node.c.result_json, "UTF8")), "hex"
)
_REF: Final = sql.func.json_build_object(
    "$blob", sql.literal("sha256:").concat(_HASH), "size", _SIZE, type_=node.c.result_ref.type
)
_OTHERS: Final = [c for c in node.c if c.name not in ("result_json", "result_ref")]
_WORKFLOWS: Final = PreparedStatement.of(WORKFLOWS)
_NODES: Final = PreparedStatement.of(
    sql.select(
        *_OTHERS,
        sql.case((_FITS, node.c.result_json)).label("result_json"),
        sql.case((_FITS | node.c.result_json.is_(None), node.c.result_ref), else_=_REF).label(
            "result_ref"
        ),
    )
    .where(node.c.workflow_id == IDS)
    .order_by(node.c.workflow_id, node.c.name)
)


async def workflow_records(
    reader: LedgerReader, ids: Sequence[str], *, bytes_max: int
) -> list[StoredWorkflow | None]:
    """Return one workflow or None per id, in their order: two statements for all of them.

    Of each workflow's nodes, in the order of their names, the results up to `bytes_max` are there;
    the others stand by reference although they are in their rows.
    """
    known = {text: canonical for text in ids if (canonical := canonical_uuid(text)) is not None}
    if not known:
        return [None] * len(ids)
    values = {"ids": list(set(known.values()))}
    found = {
        str(row["id"]): StoredWorkflow(row) for row in await reader.records.rows(_WORKFLOWS, values)
    }
    limits = {**values, "bytes_max": bytes_max}
    rows = await reader.records.rows(_NODES, limits) if found else ()
    for row in rows:
        found[row["workflow_id"]].nodes.append(row)
    return [found.get(known.get(text, "")) for text in ids]


async def task_workflow_id(reader: LedgerReader, task_id: str) -> str | None:
    """Return the id of the workflow that is read as this task, None for an unknown one.

    Args:
        task_id: in its usual spelling.
    """
    rows = await reader.rows(sql.select(workflow.c.id).where(workflow.c.task_id == task_id))
    return str(rows[0]["id"]) if rows else None
