"""Counts workflows, nodes, attempts and payments of committed steps, for `/metrics`.

A command is counted when it is applied; its repeats are not counted. The counters are plain
increments, because the writer runs this code for every node. Reference: operations.md (Metrics).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from core.metric_families import DISPATCH, QUEUE, SETTLEMENT, VERIFICATION, Key, note_stage
from core.money import MICRO_PER_CREDIT
from core.workflow.events import AttemptFinished, NodeChanged, NodePaid, WorkflowChanged
from core.workflow.transitions import is_terminal
from ledger.commands import Command, Outcome, OutcomeStatus
from ledger.features.workflow_commands import AdvanceWorkflow, PublishWorkflow


class StepCounts:
    """The counters of one writer since it started."""

    def __init__(self) -> None:
        self.counters: defaultdict[Key, float] = defaultdict(float)

    def note(self, commands: Sequence[Command], outcomes: Sequence[Outcome], now_ms: int) -> None:
        """Count the commands of a committed batch."""
        for command, outcome in zip(commands, outcomes, strict=True):
            if outcome.status is not OutcomeStatus.APPLIED:
                continue
            if isinstance(command, PublishWorkflow):
                self.counters["callboard_workflows_published",] += 1
            if isinstance(command, AdvanceWorkflow | PublishWorkflow):
                for record in command.records:
                    self._note_record(record, now_ms)

    def _note_record(self, record: object, now_ms: int) -> None:
        counters = self.counters
        match record:
            case NodeChanged() if is_terminal(record.status):
                counters["callboard_nodes_finished", record.status.value] += 1
            case AttemptFinished():
                self._note_attempt(record, now_ms)
            case NodePaid():
                counters["callboard_payments",] += 1
                counters["callboard_paid_credits",] += record.gross_micro / MICRO_PER_CREDIT
            case WorkflowChanged() if is_terminal(record.status):
                counters["callboard_workflows_finished", record.status.value] += 1
            case _:
                pass

    def _note_attempt(self, record: AttemptFinished, now_ms: int) -> None:
        self.counters["callboard_attempts", record.kind, record.outcome] += 1
        stage = VERIFICATION if record.kind == "verify" else DISPATCH
        if record.queued_ms is not None:
            note_stage(self.counters, QUEUE, record.started_ms - record.queued_ms)
        note_stage(self.counters, stage, record.completed_ms - record.started_ms)
        note_stage(self.counters, SETTLEMENT, now_ms - record.completed_ms)
