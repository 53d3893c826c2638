"""Reads of workflows: their records, results and ends, who may see them, and overdue escrows.

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
from ledger.schema import attempt, columns, command, escrow, node, workflow

# Reads who may see a workflow. This comes before its record, so that callers without the right do
# not cause reads of results.

_ASKED_HEADS: Final = (
    sql.func.unnest(
        sql.bindparam("ids", type_=ARRAY(sql.Uuid(as_uuid=False))),
        sql.bindparam("dids", type_=ARRAY(sql.Text)),
    )
    .table_valued(sql.column("id", sql.Uuid(as_uuid=False)), sql.column("did", sql.Text))
    .render_derived(name="asked")
)
# The size of a stored text is read without the text.
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
    """Return one head or None per pair, in their order, with one statement for all.

    Args:
        asked: (workflow id, DID of the caller) pairs; the DID is "" for the service itself.
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


# Reads workflows with as many of their nodes' results as fit into a record. For a result beyond the
# maximum the database returns only its hash and size.

_SIZE: Final = sql.func.octet_length(node.c.result_json)
# The size of a compressed value is read without the value.
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
    """Return one workflow or None per id, in their order, with two statements for all.

    The results of each workflow's nodes are returned in the order of the nodes' names, up to
    `bytes_max` bytes; later results are returned as references.
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
    """Return the id of the workflow with a task id, None if there is none.

    Args:
        task_id: as a canonical UUID.
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
    """Return the row from which the tokens of each node's dispatches follow, None if unknown.

    Args:
        asked: (workflow id as a canonical UUID, node name) pairs.
    """
    keys = list(set(asked))
    values = {"ids": [key[0] for key in keys], "names": [key[1] for key in keys]}
    rows = await reader.lookups.rows(_DISPATCHED, values)
    found = {(str(row["workflow_id"]), row["name"]): row for row in rows}
    return [found.get(key) for key in asked]


async def attempt_agent(
    reader: LedgerReader, workflow_id: str, name: str, number: int, *, is_verification: bool
) -> str | None:
    """Return the agent of an attempt or a verification that has ended, None if it is unknown.

    Args:
        workflow_id: as a canonical UUID.
        name: the name of the node.
        number: the number of the attempt or of the verification.
    """
    rows = await reader.rows(
        sql.select(attempt.c.agent_did).where(
            attempt.c.workflow_id == workflow_id,
            attempt.c.node == name,
            attempt.c.attempt == number,
            attempt.c.kind == ("verify" if is_verification else "primary"),
        )
    )
    return str(rows[0]["agent_did"]) if rows else None


async def is_stored_command(reader: LedgerReader, key: str) -> bool:
    """Say whether a command with this key is stored."""
    return bool(await reader.rows(sql.select(command.c.id).where(command.c.id == key)))


async def workflow_rows(reader: LedgerReader, ids: Sequence[str]) -> list[RowDict | None]:
    """Return id, status and manifest of each workflow, None if unknown.

    Args:
        ids: workflow ids as canonical UUIDs.
    """
    rows = await reader.lookups.rows(_RESULT_WORKFLOWS, {"ids": list(set(ids))})
    found = {str(row["id"]): row for row in rows}
    return [found.get(workflow_id) for workflow_id in ids]


async def result_row(reader: LedgerReader, workflow_id: str, name: str) -> RowDict | None:
    """Return the result of a node that has succeeded, its agent and its workflow's payer, or None.

    Args:
        workflow_id: as a canonical UUID.
        name: the name of the node.
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


# Reads which workflows have ended, without their nodes and results; used to wait for an end.

_ENDED: Final = sql.select(workflow.c.id, workflow.c.completed_ms).where(workflow.c.id == IDS)


async def have_ended(reader: LedgerReader, ids: Sequence[str]) -> list[bool]:
    """Return for each workflow whether it has ended or does not exist, with one statement for all.

    Args:
        ids: workflow ids as canonical UUIDs.
    """
    rows = await reader.rows(_ENDED, {"ids": list(set(ids))})
    running = {str(row["id"]) for row in rows if row["completed_ms"] is None}
    return [workflow_id not in running for workflow_id in ids]


# Reads escrows that are still held after their workflow's deadline: their money is stuck.


@dataclass(frozen=True, slots=True)
class Overdue:
    """The number of escrows held past their deadline, and the workflows with the oldest
    deadlines."""

    count: int
    oldest_ids: tuple[str, ...]


async def held_past_deadline(reader: LedgerReader, before_ms: int, *, limit: int) -> Overdue:
    """Return the held escrows whose workflow should have ended before a time.

    It uses the index of held escrows, so its cost grows with unfinished workflows only. The
    workflow's status does not matter: an ended workflow must not hold money either.

    Args:
        before_ms: the time, Unix milliseconds.
        limit: maximum number of workflow ids that are returned.
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
