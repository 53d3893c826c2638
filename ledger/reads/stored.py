"""The types that reads return besides plain rows: a workflow with its nodes, a balance.

Reference: features.md (Workflows), money.md (Accounts).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from core.workflow.transitions import WorkflowStatus
from ledger.schema import workflow

RowDict = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoredWorkflow:
    """A workflow's row, and the rows of its nodes that are not `pending` any more."""

    row: RowDict
    nodes: list[RowDict] = field(default_factory=list)

    @property
    def id(self) -> str:
        """The workflow's id."""
        return str(self.row["id"])

    @property
    def task_id(self) -> str:
        """The workflow's task id."""
        return str(self.row["task_id"])

    @property
    def status(self) -> WorkflowStatus:
        """The workflow's status."""
        return WorkflowStatus(self.row["status"])

    @property
    def payer_did(self) -> str:
        """The DID of the payer."""
        return str(self.row["payer_did"])


@dataclass(frozen=True, slots=True)
class WorkflowHead:
    """The fields that decide who may see a workflow, and the size of its record.

    `workflow`: a part of the workflow's row, without nodes. `is_agent`: whether the requested DID
    is the agent of one of its nodes. `record_bytes`: the approximate bytes of its record.
    """

    workflow: StoredWorkflow
    is_agent: bool
    record_bytes: int


@dataclass(frozen=True, slots=True)
class Balance:
    """An owner's wallet, and the sum of its held escrows, micro-credits."""

    balance_micro: int
    pending_micro: int


# What a row of `callboard.workflow` has spent so far, as SQL. While the escrow is held, it is
# computed from the escrow.
SPENT: Final = """coalesce(workflow.spent_micro, (
    SELECT e.amount - a.balance
    FROM callboard.escrow e JOIN callboard.account a ON a.id = e.account_id
    WHERE e.workflow_id = workflow.id AND e.status = 'held'), 0)"""


_COLUMNS: Final = ", ".join(f"workflow.{c.name}" for c in workflow.c if c.name != "spent_micro")
# The rows of all workflows, with what they have spent so far; a condition follows.
WORKFLOWS: Final = f"SELECT {_COLUMNS}, {SPENT} AS spent_micro FROM callboard.workflow"
