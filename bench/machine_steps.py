"""CPU of one step of a workflow's machine: `python -m bench.machine_steps [ROUNDS]`.

Drives chains of three nodes through the machine alone, from `WorkflowAccepted` to success: seven
steps a workflow, selections answered at once. Prints the microseconds of processor time per step,
of the best round and the median. To compare two checkouts, run it in turns in both (decision 0122).
"""

from __future__ import annotations

import gc
import statistics
import sys
import time

from core.records.manifest import parse_manifest
from core.workflow.dag import CompiledWorkflow, compile_workflow
from core.workflow.events import AgentSelected, AttemptSucceeded, WorkflowAccepted
from core.workflow.machine import WorkflowMachine

WORKFLOWS, ROUNDS = 2_000, 15
NAMES = ("a", "b", "c")
STEPS = 1 + 2 * len(NAMES)
MANIFEST = {
    "nodes": {
        "a": {"capabilityId": "cap.a"},
        "b": {"capabilityId": "cap.b", "dependsOn": ["a"]},
        "c": {"capabilityId": "cap.c", "dependsOn": ["b"]},
    },
}


def drive(compiled: CompiledWorkflow, accepted: WorkflowAccepted, answers: list[object]) -> None:
    """Drive one workflow to its end."""
    machine = WorkflowMachine(
        "w",
        compiled,
        hold_micro=30_000,
        reserved=dict.fromkeys(NAMES, 10_000),
        deadline_ms=10_000_000,
    )
    machine.step(accepted)
    for event in answers:
        machine.step(event)  # type: ignore[arg-type]
    assert machine.is_finished


def main() -> None:
    """Print what a step costs."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    compiled = compile_workflow(parse_manifest(MANIFEST))
    accepted = WorkflowAccepted(1_000)
    answers: list[object] = []
    for name in NAMES:
        answers.append(AgentSelected(name, "did:x:one", 10_000, 1_000))
        answers.append(AttemptSucceeded(name, 1, '{"v":1}', "i", "o", 1_000, 1_005, {}))
    spent_us = []
    gc.disable()
    for _ in range(rounds):
        began = time.process_time()
        for _ in range(WORKFLOWS):
            drive(compiled, accepted, answers)
        spent_us.append((time.process_time() - began) / WORKFLOWS / STEPS * 1e6)
        gc.collect()
    print(f"{min(spent_us):.3f} µs best, {statistics.median(spent_us):.3f} µs median a step")


if __name__ == "__main__":
    main()
