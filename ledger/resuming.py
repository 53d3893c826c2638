"""What an owner reads to go on with a workflow: its nodes, and which agents have had them.

Statements only. A node's row names the agents that failed it finally and the one that had it last;
the others that had an attempt, of whom there may be three altogether, are in the history.
design.md section 3 (Recovery); contract.md section 5 (agents per node).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import aggregate_order_by

from ledger.schema import attempt, node


def nodes_of(workflow_ids: Sequence[str]) -> sql.Select[Any]:
    """Return the statement that reads the node rows of these workflows."""
    return sql.select(node).where(node.c.workflow_id.in_(list(workflow_ids)))


def nodes_to_resume(workflow_ids: Sequence[str]) -> sql.Select[Any]:
    """As `nodes_of`, with the agents of each node's ended attempts, in their order, repeated.

    Grouped once for all of them: a look per node would read a large workflow's history each time.
    """
    used = (
        sql.select(
            attempt.c.workflow_id,
            attempt.c.node,
            sql.func.array_agg(aggregate_order_by(attempt.c.agent_did, attempt.c.id)).label("dids"),
        )
        .where(attempt.c.workflow_id.in_(list(workflow_ids)), attempt.c.kind == "primary")
        .group_by(attempt.c.workflow_id, attempt.c.node)
        .subquery()
    )
    is_its_own = sql.and_(used.c.workflow_id == node.c.workflow_id, used.c.node == node.c.name)
    return (
        nodes_of(workflow_ids)
        .add_columns(used.c.dids.label("agents_used"))
        .outerjoin(used, is_its_own)
    )
