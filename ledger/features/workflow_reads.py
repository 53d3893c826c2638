"""Reads of workflows: their records, results and ends, who may see them, and overdue escrows.

Reference: features.md (Workflows), money.md (Settlement, Escrow).
Decision messages-and-large-values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sql

from core.ids import canonical_uuid
from ledger.reads.reader import LedgerReader, RowDict
from ledger.reads.stored import SPENT, WORKFLOWS, StoredWorkflow, WorkflowHead
from ledger.schema import attempt, command, node, typed, workflow

# Reads the facts that decide who may see a workflow. They are read before the workflow's record, so
# that a caller without the right does not cause reads of results.

# The size of a stored text is read without the text.
_HEADS: Final = f"""
    SELECT asked.did AS asked_did, workflow.id, workflow.task_id, workflow.payer_did,
        workflow.status, workflow.hold_micro, workflow.quarantined_ms, {SPENT} AS spent_micro,
        octet_length(workflow.manifest) AS manifest_bytes, nodes.is_agent, nodes.node_bytes
    FROM unnest(%(ids)s::uuid[], %(dids)s::text[]) AS asked (id, did)
    JOIN callboard.workflow ON workflow.id = asked.id
    CROSS JOIN LATERAL (
        SELECT coalesce(bool_or(n.agent_did = asked.did), false) AS is_agent,
            coalesce(sum(coalesce(octet_length(n.result_json), 0)
                + coalesce(octet_length(n.selection_json), 0)), 0) AS node_bytes
        FROM callboard.node n WHERE n.workflow_id = asked.id) AS nodes
"""


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

_OTHERS: Final = ", ".join(c.name for c in node.c if c.name not in ("result_json", "result_ref"))
_RECORD_WORKFLOWS: Final = f"{WORKFLOWS} WHERE workflow.id = ANY (%(ids)s::uuid[])"
# The size of a compressed value is read without the value.
_RECORD_NODES: Final = f"""
    SELECT {_OTHERS}, CASE WHEN fits THEN result_json END AS result_json,
        CASE WHEN fits OR result_json IS NULL THEN result_ref ELSE json_build_object(
            '$blob', 'sha256:' || encode(sha256(convert_to(result_json, 'UTF8')), 'hex'),
            'size', octet_length(result_json)) END AS result_ref
    FROM (
        SELECT *, coalesce(sum(octet_length(result_json)) OVER (
            PARTITION BY workflow_id ORDER BY name), 0) <= %(bytes_max)s::bigint AS fits
        FROM callboard.node WHERE workflow_id = ANY (%(ids)s::uuid[])
    ) AS sized ORDER BY workflow_id, name
"""


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


_DISPATCHED: Final = """
    SELECT n.workflow_id, n.name, n.status, n.attempt, n.verify_attempt, n.agent_did,
        n.verifier_did, n.key_version
    FROM callboard.node n JOIN unnest(%(ids)s::uuid[], %(names)s::text[]) AS asked (id, name)
        ON n.workflow_id = asked.id AND n.name = asked.name
"""
_RESULT_WORKFLOWS: Final = (
    "SELECT id, status, manifest FROM callboard.workflow WHERE id = ANY (%(ids)s::uuid[])"
)


async def dispatched_nodes(
    reader: LedgerReader, asked: Sequence[tuple[str, str]]
) -> list[RowDict | None]:
    """Return for each node the row from which the tokens of its dispatches are derived, None if
    unknown.

    Args:
        asked: (workflow id as a canonical UUID, node name) pairs.
    """
    keys = list(set(asked))
    values = {"ids": [key[0] for key in keys], "names": [key[1] for key in keys]}
    rows = await reader.lookups.rows(_DISPATCHED, values)
    found = {(str(row["workflow_id"]), row["name"]): row for row in rows}
    return [found.get(key) for key in asked]


# The most attempts of a workflow that are read for a late result.
ATTEMPTS_READ_MAX: Final = 1_000


async def attempt_agent(
    reader: LedgerReader, workflow_id: str, name: str, number: int, *, is_verification: bool
) -> str | None:
    """Return the agent of an attempt or a verification that has ended, None if it is unknown.

    It is found among the newest `ATTEMPTS_READ_MAX` attempts of the workflow.

    Args:
        workflow_id: as a canonical UUID.
        name: the name of the node.
        number: the number of the attempt or of the verification.
    """
    newest = (
        sql.select(attempt)
        .where(attempt.c.workflow_id == workflow_id)
        .order_by(attempt.c.id.desc())
        .limit(ATTEMPTS_READ_MAX)
        .subquery()
    )
    rows = await reader.rows(
        sql.select(newest.c.agent_did).where(
            newest.c.node == name,
            newest.c.attempt == number,
            newest.c.kind == ("verify" if is_verification else "primary"),
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


_RESULT: Final = sql.text("""
    SELECT w.payer_did, n.agent_did, n.result_json, n.result_ref
    FROM callboard.node n JOIN callboard.workflow w ON w.id = n.workflow_id
    WHERE n.workflow_id = CAST(:workflow_id AS uuid) AND n.name = :name AND n.status = 'success'
""")


async def result_row(reader: LedgerReader, workflow_id: str, name: str) -> RowDict | None:
    """Return the result of a node that has succeeded, its agent and its workflow's payer, or None.

    Args:
        workflow_id: as a canonical UUID.
        name: the name of the node.
    """
    values = {"workflow_id": workflow_id, "name": name}
    return await reader.row(_RESULT, values)


# Reads only whether workflows have ended, without nodes and results. Requests that wait for an end
# use it.

_ENDED: Final = sql.text(
    "SELECT id, completed_ms FROM callboard.workflow WHERE id = ANY (CAST(:ids AS uuid[]))"
)


async def have_ended(reader: LedgerReader, ids: Sequence[str]) -> list[bool]:
    """Return for each workflow whether it has ended or does not exist, with one statement for all.

    Args:
        ids: workflow ids as canonical UUIDs.
    """
    rows = await reader.rows(_ENDED, {"ids": list(set(ids))})
    running = {str(row["id"]) for row in rows if row["completed_ms"] is None}
    return [workflow_id not in running for workflow_id in ids]


# Reads escrows that are still held after their workflow's deadline: their money is stuck.


_OVERDUE: Final = sql.text("""
    SELECT w.id, count(*) OVER () AS found
    FROM callboard.workflow w JOIN callboard.escrow s ON s.workflow_id = w.id
    WHERE s.status = 'held' AND w.deadline_ms < :before_ms ORDER BY w.deadline_ms, w.id LIMIT :limit
""").bindparams(*typed(bigint="before_ms"))


@dataclass(frozen=True, slots=True)
class Overdue:
    """The number of escrows held past their deadline, and the workflows with the oldest
    deadlines."""

    count: int
    oldest_ids: tuple[str, ...]


async def held_past_deadline(reader: LedgerReader, before_ms: int, *, limit: int) -> Overdue:
    """Return the held escrows whose workflow should have ended before a time.

    The read uses the index of held escrows, so its cost grows only with unfinished workflows. The
    workflow's status does not matter, because an ended workflow must not hold money either.

    Args:
        before_ms: the time, Unix milliseconds.
        limit: maximum number of workflow ids that are returned.
    """
    rows = await reader.rows(_OVERDUE, {"before_ms": before_ms, "limit": limit})
    return Overdue(rows[0]["found"] if rows else 0, tuple(str(row["id"]) for row in rows))
