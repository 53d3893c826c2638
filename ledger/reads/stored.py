"""What reads return besides plain rows: a workflow with its nodes, a balance.

Reference: features.md (Workflows), money.md (Accounts).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from core.workflow.transitions import WorkflowStatus

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
