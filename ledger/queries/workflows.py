"""The statements that read workflows: for a record, and for an owner to go on with them.

To go on, an owner needs to know which agents have had a node. Its row names those that failed it
finally and the one that had it last; the others that had an attempt, of whom there may be three
altogether, are in the history. Spec: Workflow record; design.md section 3 (Recovery); contract.md
section 5 (agents per node).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sql
from sqlalchemy import Uuid
from sqlalchemy.dialects.postgresql import ARRAY, aggregate_order_by

from ledger.schema import account, attempt, escrow, node, workflow


def workflow_select(*, with_manifest: bool) -> sql.Select[Any]:
    """Select workflow columns; what is spent so far follows from the escrow while it is held."""
    left_out = {"spent_micro"} if with_manifest else {"spent_micro", "manifest"}
    columns = [column for column in workflow.c if column.name not in left_out]
    live = (
        sql.select(escrow.c.amount - account.c.balance)
        .select_from(escrow.join(account, account.c.id == escrow.c.account_id))
        .where(escrow.c.workflow_id == workflow.c.id, escrow.c.status == "held")
        .scalar_subquery()
    )
    spent = sql.func.coalesce(workflow.c.spent_micro, live, 0)
    return sql.select(*columns, spent.label("spent_micro"))


def nodes_to_resume(workflow_ids: Sequence[str]) -> sql.Select[Any]:
    """Read these workflows' node rows, with the agents of each node's attempts, repeated, in order.

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
        sql.select(node)
        .where(node.c.workflow_id.in_(list(workflow_ids)))
        .add_columns(used.c.dids.label("agents_used"))
        .outerjoin(used, is_its_own)
    )


_IDS: Final = sql.any_(sql.bindparam("ids", type_=ARRAY(Uuid(as_uuid=False))))
# Made once: making a statement costs as much as running it. `ids` is a list of workflows.
WORKFLOWS: Final = workflow_select(with_manifest=True).where(workflow.c.id == _IDS)
NODES: Final = (
    sql.select(node).where(node.c.workflow_id == _IDS).order_by(node.c.workflow_id, node.c.name)
)
