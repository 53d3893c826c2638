"""Revocations as the ledger's model knows them, and the workflows that they have halted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from core.errors import ErrorCode
from core.workflow.events import AttemptFinished, NodeChanged, NodePaid, Record, WorkflowChanged
from core.workflow.transitions import is_terminal
from ledger.commands import Outcome, OutcomeStatus
from ledger.features.trust import RevokeAgent, UnrevokeAgent
from ledger.features.workflow_commands import AdvanceWorkflow
from tests.simulation.money_model import Refused


class Untraced(Exception):
    """A step of a halted or quarantined workflow; nothing of it is stored."""

    def __init__(self, quarantined: str | None = None) -> None:
        super().__init__(quarantined)
        result = {} if quarantined is None else {"quarantined": quarantined}
        self.outcome = Outcome(OutcomeStatus.REJECTED, result, ErrorCode.CONFLICT, "halted")


@dataclass(slots=True)
class TrustModel:
    """`revoked`: by agent, who has done it and until when; `halted`: workflows; `quarantined`: by
    workflow, why."""

    revoked: dict[str, tuple[str, int | None]] = field(default_factory=dict)
    halted: set[str] = field(default_factory=set)
    quarantined: dict[str, str] = field(default_factory=dict)

    def is_revoked(self, did: str | None, at_ms: int) -> bool:
        """Say whether an agent is revoked at a time."""
        if did not in self.revoked:
            return False
        _, expires_ms = self.revoked[did]
        return expires_ms is None or at_ms < expires_ms

    def change(self, command: RevokeAgent | UnrevokeAgent, at_ms: int) -> None:
        """Revoke an agent or take it back. An agent owns itself."""
        why_not = self._why_not(command, at_ms)
        if why_not is not None:
            raise Refused(why_not, "not to be done")
        if isinstance(command, RevokeAgent):
            self.revoked[command.did] = (command.actor_did, command.expires_ms)
        else:
            del self.revoked[command.did]

    def _why_not(self, command: RevokeAgent | UnrevokeAgent, at_ms: int) -> ErrorCode | None:
        did, is_revoked = command.did, self.is_revoked(command.did, at_ms)
        if isinstance(command, UnrevokeAgent):
            if not is_revoked:
                return ErrorCode.NOT_FOUND
            if not (command.is_admin or command.actor_did == self.revoked[did][0]):
                return ErrorCode.FORBIDDEN
            return None
        if not command.is_admin and command.actor_did != did:
            return ErrorCode.FORBIDDEN
        if is_revoked:
            return ErrorCode.ALREADY_REVOKED
        if command.expires_ms is not None and command.expires_ms <= at_ms:
            return ErrorCode.INVALID_REQUEST
        return None

    def refuses(self, command: AdvanceWorkflow, at_ms: int) -> bool:
        """Say whether a step tells what a revoked agent has done, which halts its workflow.

        Raises:
            Untraced: it was halted before, and the step was not decided since.
        """
        code = self.quarantined.get(command.workflow_id)
        if code is not None and not (command.is_fresh and _is_end(command)):
            raise Untraced(code)
        if command.workflow_id in self.halted and not command.is_fresh:
            raise Untraced
        told = {record.agent_did for record in command.records if _is_told(record)}
        if any(self.is_revoked(did, at_ms) for did in told):
            self.halted.add(command.workflow_id)
            return True
        return False

    def quarantine(self, workflow_id: str, code: str) -> str:
        """Stop a workflow; return why it is stopped, which is its first reason."""
        self.halted.add(workflow_id)
        return self.quarantined.setdefault(workflow_id, code)

    def end_quarantine(self, workflow_id: str) -> None:
        """Let a workflow go on with a fresh step."""
        if workflow_id not in self.quarantined:
            raise Untraced
        del self.quarantined[workflow_id]

    def resume(self, command: AdvanceWorkflow) -> None:
        """Take a step, after which its workflow is not halted."""
        self.halted.discard(command.workflow_id)

    def given(self, records: Sequence[Record], at_ms: int) -> list[str]:
        """Return the nodes that are given to revoked agents."""
        return [
            record.node
            for record in records
            if isinstance(record, NodeChanged)
            and record.status == "dispatched"
            and self.is_revoked(record.agent_did, at_ms)
        ]


def _is_end(command: AdvanceWorkflow) -> bool:
    return any(
        isinstance(record, WorkflowChanged) and is_terminal(record.status)
        for record in command.records
    )


def _is_told(record: Record) -> TypeGuard[NodePaid | AttemptFinished]:
    if isinstance(record, AttemptFinished):
        return record.outcome in ("success", "rejected")
    return isinstance(record, NodePaid)
