"""The statements that read workflows for their records. Reference: features.md (Workflows)."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sql
from sqlalchemy import Uuid
from sqlalchemy.dialects.postgresql import ARRAY

from ledger.schema import account, escrow, node, workflow

_LIVE: Final = (
    sql.select(escrow.c.amount - account.c.balance)
    .select_from(escrow.join(account, account.c.id == escrow.c.account_id))
    .where(escrow.c.workflow_id == workflow.c.id, escrow.c.status == "held")
    .scalar_subquery()
)
# What is spent so far follows from the escrow while it is held.
SPENT: Final = sql.func.coalesce(workflow.c.spent_micro, _LIVE, 0)


def workflow_select(*, with_manifest: bool) -> sql.Select[Any]:
    """Select workflow columns, with what is spent so far."""
    left_out = {"spent_micro"} if with_manifest else {"spent_micro", "manifest"}
    columns = [column for column in workflow.c if column.name not in left_out]
    return sql.select(*columns, SPENT.label("spent_micro"))


# Any of the workflows in the parameter `ids`, a list.
IDS: Final = sql.any_(sql.bindparam("ids", type_=ARRAY(Uuid(as_uuid=False))))
# Made once: making a statement costs as much as running it.
WORKFLOWS: Final = workflow_select(with_manifest=True).where(workflow.c.id == IDS)
NODES: Final = (
    sql.select(node).where(node.c.workflow_id == IDS).order_by(node.c.workflow_id, node.c.name)
)
