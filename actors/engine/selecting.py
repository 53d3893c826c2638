"""Answers every selection that a machine asks for, in the same step. design.md section 3."""

from __future__ import annotations

from collections import deque

from actors.engine.ports import Clock, DirectoryPort
from actors.engine.steps import newest_rows
from core.workflow.actions import Action, SelectAgent, SelectBidder, SelectVerifier
from core.workflow.events import Record
from core.workflow.machine import WorkflowMachine


def complete(
    machine: WorkflowMachine,
    directory: DirectoryPort,
    clock: Clock,
    records: list[Record],
    asked: list[Action],
) -> tuple[list[Record], list[Action]]:
    """Let the machine decide further until only outward actions are left; return all of the step.

    Args:
        records: what the step has decided so far.
        asked: its actions so far, selections among them.
    """
    if not asked:
        return records, asked
    records = list(records)
    actions: list[Action] = []
    waiting = deque(asked)
    while waiting:
        action = waiting.popleft()
        now_ms = clock.now_ms()
        if isinstance(action, SelectAgent):
            decision = machine.step(directory.select(action, now_ms))
        elif isinstance(action, SelectBidder):
            decision = machine.step(directory.select_bidder(action, now_ms))
        elif isinstance(action, SelectVerifier):
            decision = machine.step(directory.select_verifier(action, now_ms))
        else:
            actions.append(action)
            continue
        records += decision.records
        waiting.extend(decision.actions)
    return newest_rows(records), actions
