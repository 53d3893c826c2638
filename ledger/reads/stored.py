"""What reads return besides plain rows: a workflow with its nodes, a balance.

Reference: features.md (Workflows), money.md (Accounts).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import sqlalchemy as sql
from sqlalchemy import Uuid
from sqlalchemy.dialects.postgresql import ARRAY

from core.workflow.transitions import WorkflowStatus
from ledger.schema import account, escrow, node, workflow

# What reads return besides plain rows: a workflow with its nodes, a balance. md (Accounts).

RowDict = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoredWorkflow:
    """A workflow's row and those of its nodes that have left `pending`."""

    row: RowDict
    nodes: list[RowDict] = field(default_factory=list)

    @property
    def id(self) -> str:
        """The workflow's id."""
        return str(self.row["id"])

    @property
    def workflow_id(self) -> str:
        """The workflow's id."""
        return str(self.row["id"])

    @property
    def task_id(self) -> str:
        """The workflow's task id."""
        return str(self.row["task_id"])

    @property
    def status(self) -> WorkflowStatus:
        """Where it stands."""
        return WorkflowStatus(self.row["status"])

    @property
    def payer_did(self) -> str:
        """Who pays."""
        return str(self.row["payer_did"])


@dataclass(frozen=True, slots=True)
class WorkflowHead:
    """What decides who may see a workflow, and what its record weighs; no results.

    `workflow`: without manifest, intent and nodes. `is_agent`: whether the DID that was asked with
    it is the agent of one of its nodes. `record_bytes`: about as many as its record is read with.
    """

    workflow: StoredWorkflow
    is_agent: bool
    record_bytes: int


@dataclass(frozen=True, slots=True)
class Balance:
    """What an owner can spend and what their running workflows hold, micro-credits."""

    balance_micro: int
    pending_micro: int


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
