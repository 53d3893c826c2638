"""Reads of workflows: their records, results and ends, who may see them, and stuck escrows.

Reference: features.md (Workflows), money.md (Settlement, Escrow).
Decision messages-and-large-values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import ARRAY

from core.ids import canonical_uuid
from core.workflow.transitions import NodeStatus
from ledger.reads.prepared import PreparedStatement
from ledger.reads.reader import LedgerReader, RowDict
from ledger.reads.stored import IDS, SPENT, WORKFLOWS, StoredWorkflow, WorkflowHead
from ledger.schema import columns, command, escrow, node, workflow

# Who may see a workflow, looked up before its record is read: strangers cost no results.

_ASKED_HEADS: Final = (
    sql.func.unnest(
        sql.bindparam("ids", type_=ARRAY(sql.Uuid(as_uuid=False))),
        sql.bindparam("dids", type_=ARRAY(sql.Text)),
    )
    .table_valued(sql.column("id", sql.Uuid(as_uuid=False)), sql.column("did", sql.Text))
    .render_derived(name="asked")
)
# The size of a stored text is known without reading the text.
_HEAD_NODES: Final = (
    sql.select(
        sql.func.coalesce(
            sql.func.bool_or(node.c.agent_did == _ASKED_HEADS.c.did), sql.false()
        ).label("is_agent"),
        sql.func.coalesce(
            sql.func.sum(
                sql.func.coalesce(sql.func.octet_length(node.c.result_json), 0)
                + sql.func.coalesce(sql.func.octet_length(node.c.selection_json), 0)
            ),
            0,
        ).label("node_bytes"),
    )
    .where(node.c.workflow_id == _ASKED_HEADS.c.id)
    .lateral("nodes")
)
_HEADS: Final = PreparedStatement.of(
    sql.select(
        _ASKED_HEADS.c.did.label("asked_did"),
        *columns(workflow, "id task_id payer_did status hold_micro quarantined_ms"),
        SPENT.label("spent_micro"),
        sql.func.octet_length(workflow.c.manifest).label("manifest_bytes"),
        _HEAD_NODES.c.is_agent,
        _HEAD_NODES.c.node_bytes,
    ).select_from(
        _ASKED_HEADS.join(workflow, workflow.c.id == _ASKED_HEADS.c.id).join(
            _HEAD_NODES, sql.true()
        )
    )
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


# Workflows with as much of their nodes' results as a record shows. A record has a bound, so no
# more than that is read: of results beyond it the database returns hash and size.

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
_RECORD_WORKFLOWS: Final = PreparedStatement.of(WORKFLOWS)
_RECORD_NODES: Final = PreparedStatement.of(
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
        str(row["id"]): StoredWorkflow(row)
        for row in await reader.records.rows(_RECORD_WORKFLOWS, values)
    }
    limits = {**values, "bytes_max": bytes_max}
    rows = await reader.records.rows(_RECORD_NODES, limits) if found else ()
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


_ASKED_RESULTS: Final = (
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
    ).join(
        _ASKED_RESULTS,
        sql.and_(node.c.workflow_id == _ASKED_RESULTS.c.id, node.c.name == _ASKED_RESULTS.c.name),
    )
)
_RESULT_WORKFLOWS: Final = PreparedStatement.of(
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
    rows = await reader.lookups.rows(_RESULT_WORKFLOWS, {"ids": list(set(ids))})
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


# Which workflows have ended: what a wait looks at, without reading their nodes and results.

_ENDED: Final = sql.select(workflow.c.id, workflow.c.completed_ms).where(workflow.c.id == IDS)


async def have_ended(reader: LedgerReader, ids: Sequence[str]) -> list[bool]:
    """Return for each workflow whether it has ended, or does not exist: one statement for all.

    Args:
        ids: of workflows, in their usual spelling.
    """
    rows = await reader.rows(_ENDED, {"ids": list(set(ids))})
    running = {str(row["id"]) for row in rows if row["completed_ms"] is None}
    return [workflow_id not in running for workflow_id in ids]


# Escrows that no command has ended although their workflow's time is over: money that is stuck.


@dataclass(frozen=True, slots=True)
class Overdue:
    """How many escrows are held past their deadline, and the workflows that wait longest."""

    count: int
    oldest_ids: tuple[str, ...]


async def held_past_deadline(reader: LedgerReader, before_ms: int, *, limit: int) -> Overdue:
    """Return the held escrows whose workflow should have ended before this time.

    By the index of held escrows, so that it costs what runs and not what ever ran. Whatever the
    workflow's status: one that has ended must not hold money either.

    Args:
        before_ms: Unix time, ms.
        limit: how many workflows are named at most.
    """
    query = (
        sql.select(workflow.c.id, sql.func.count().over().label("found"))
        .join(escrow, escrow.c.workflow_id == workflow.c.id)
        .where(escrow.c.status == "held", workflow.c.deadline_ms < before_ms)
        .order_by(workflow.c.deadline_ms, workflow.c.id)
        .limit(limit)
    )
    rows = await reader.rows(query)
    return Overdue(rows[0]["found"] if rows else 0, tuple(str(row["id"]) for row in rows))
