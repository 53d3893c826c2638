"""Traces: reads workflows by trace id, the rows for their spans, and the workflows that have ended.

Callers choose trace ids, so many workflows of many payers may share one. Reference: features.md
(Traces).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sql

from core.workflow.traces import NodeRows
from ledger.reads.reader import LedgerReader
from ledger.reads.stored import RowDict
from ledger.schema import workflow

# Maximum workflows of a trace that a caller gets: the newest ones.
SHARING_MAX: Final = 100
# The place before every node of every workflow.
FIRST_PLACE: Final = ("00000000-0000-0000-0000-000000000000", "")

Place = tuple[str, str]

# Spelled as in the index, so that Postgres uses the index.
_traced_by: Final = sql.func.substring(
    workflow.c.traceparent, sql.literal_column("4"), sql.literal_column("32")
)
_WORKFLOWS: Final = sql.select(
    *(workflow.c[name] for name in ("id", "status", "created_ms", "completed_ms", "traceparent"))
)
# A page of nodes in the order of their places.
_NODES: Final = sql.text(
    """
    SELECT workflow_id::text, name, status, attempt, agent_did, verifier_did, verify_attempt,
        dispatched_ms, started_ms, completed_ms
    FROM callboard.node
    WHERE workflow_id = ANY(CAST(:ids AS uuid[]))
        AND (workflow_id, name) > (CAST(:after_id AS uuid), :after_node)
    ORDER BY workflow_id, name LIMIT :most OFFSET :skipped
    """
)
_IN_PAGE: Final = """
    workflow_id = ANY(CAST(:ids AS uuid[]))
        AND (workflow_id, {node}) >= (CAST(:first_id AS uuid), :first_node)
        AND (workflow_id, {node}) <= (CAST(:last_id AS uuid), :last_node)
    """
_ATTEMPTS: Final = sql.text(
    "SELECT workflow_id::text, node, attempt, kind, agent_did, outcome, queued_ms, started_ms,"
    f" completed_ms FROM callboard.attempt WHERE {_IN_PAGE.format(node='node')}"
    " ORDER BY workflow_id, id"
)
# The line of a payment is the node's name, for verifiers followed by `#verify` and a number.
_PAID_NODE: Final = "split_part(node_id, '#verify', 1)"
_PAYMENTS: Final = sql.text(
    f"SELECT workflow_id::text, {_PAID_NODE} AS node, node_id, created_ms FROM callboard.entry"
    f" WHERE kind = 'node_payment' AND {_IN_PAGE.format(node=_PAID_NODE)}"
)


async def trace_workflows(
    reader: LedgerReader,
    trace_id: str,
    *,
    payer_did: str | None = None,
    workflow_id: str | None = None,
) -> list[RowDict]:
    """Return the workflows of a trace without manifests, newest first, at most `SHARING_MAX`.

    Args:
        trace_id: 32 lowercase hexadecimal digits.
        payer_did: only workflows of this payer; None: of all payers.
        workflow_id: only this workflow; None: all.
    """
    derived = sql.and_(workflow.c.id == str(uuid.UUID(trace_id)), workflow.c.traceparent.is_(None))
    given = sql.and_(workflow.c.traceparent.is_not(None), _traced_by == trace_id)
    found: list[RowDict] = []
    for belongs in (derived, given):  # two queries, because each uses another index
        query = _WORKFLOWS.where(belongs)
        if payer_did is not None:
            query = query.where(workflow.c.payer_did == payer_did)
        if workflow_id is not None:
            query = query.where(workflow.c.id == workflow_id)
        found += await reader.rows(query.order_by(workflow.c.id.desc()).limit(SHARING_MAX))
    return sorted(found, key=lambda row: str(row["id"]), reverse=True)[:SHARING_MAX]


async def traced_workflows(reader: LedgerReader, ids: Sequence[str]) -> list[RowDict]:
    """Return these workflows without manifests."""
    return await reader.rows(_WORKFLOWS.where(workflow.c.id.in_(ids)))


async def traced_nodes(
    reader: LedgerReader,
    ids: Sequence[str],
    *,
    after: Place = FIRST_PLACE,
    limit: int,
    offset: int = 0,
) -> list[NodeRows]:
    """Return nodes of these workflows with their attempts and payments, by workflow id and name.

    Args:
        after: the place of the last node of the previous page.
    """
    values = {"ids": list(ids), "after_id": after[0], "after_node": after[1]}
    nodes = await reader.rows(_NODES, {**values, "most": limit, "skipped": offset})
    if not nodes:
        return []
    found = {place_of(row): NodeRows(row, [], []) for row in nodes}
    first, last = place_of(nodes[0]), place_of(nodes[-1])
    page: dict[str, Any] = {"ids": list({workflow_id for workflow_id, _ in found})}
    page |= {"first_id": first[0], "first_node": first[1]}
    page |= {"last_id": last[0], "last_node": last[1]}
    none = NodeRows({}, [], [])  # for a node that began after the page of nodes was read
    for row in await reader.rows(_ATTEMPTS, page):
        found.get((row["workflow_id"], row["node"]), none).attempts.append(row)
    for row in await reader.rows(_PAYMENTS, page):
        found.get((row["workflow_id"], row["node"]), none).payments.append(row)
    return list(found.values())


def place_of(row: Mapping[str, Any]) -> Place:
    """Return a node's place (workflow id, name) in the order of `traced_nodes`."""
    return row["workflow_id"], row["name"]


# -- for the export --------------------------------------------------------------------------------

_ENTRIES: Final = sql.text(
    """
    SELECT id, CASE WHEN event_types && ARRAY['workflow.finished', 'workflow.cancelled']
        THEN workflow_id::text END AS ended_id
    FROM callboard.audit WHERE id > :after ORDER BY id LIMIT :most
    """
)


async def ended_after(reader: LedgerReader, audit_id: int, most: int) -> tuple[int, list[str]]:
    """Return the id of the last audit entry that was read, and the workflows that ended.

    Args:
        audit_id: the id of the entry after which reading begins.
        most: maximum number of entries that are read.
    """
    rows = await reader.rows(_ENTRIES, {"after": audit_id, "most": most})
    ended = [row["ended_id"] for row in rows if row["ended_id"] is not None]
    return (rows[-1]["id"] if rows else audit_id), ended
