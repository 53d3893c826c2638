"""Proofs over any workflow: whatever happens, in whatever order, it ends, and each is paid once.

`Engine` asserts after every commit what may never be: a second payment of a line, more paid than
held, a dispatch after the first failure or before a parent's success, a row after its end.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from core.errors import NodeErrorCode
from core.workflow.actions import Decision, DispatchNode
from core.workflow.events import (
    AttemptAccepted,
    Failure,
    Verdict,
    WorkflowAccepted,
    WorkStarted,
)
from core.workflow.transitions import NodeStatus
from tests.core.workflow.engine import AGENTS, Engine
from tests.core.workflow.stake_book import StakeBook

NAMES = "abcdef"


@st.composite
def manifests(draw: st.DrawFn) -> dict[str, Any]:
    nodes: dict[str, Any] = {}
    for position, name in enumerate(NAMES[: draw(st.integers(1, len(NAMES)))]):
        parents = draw(st.lists(st.sampled_from(NAMES[:position] or " "), unique=True, max_size=3))
        nodes[name] = {
            "capabilityId": "cap.work",
            "dependsOn": [parent for parent in parents if parent != " "],
            "maxRetries": draw(st.integers(0, 3)),
            "requiresVerification": draw(st.booleans()),
            "targetAgentId": draw(st.sampled_from([None, "did:x:two", "did:x:gone"])),
            "allowBroadcastFallback": True,
        }
    return {"nodes": nodes, "settings": {"allowFallbackAgents": draw(st.booleans())}}


FAILURES = st.sampled_from(
    [
        (NodeErrorCode.AGENT_ERROR, Verdict.RETRYABLE),
        (NodeErrorCode.AGENT_TIMEOUT, Verdict.RETRYABLE),
        (NodeErrorCode.AGENT_UNAVAILABLE, Verdict.RETRYABLE),
        (NodeErrorCode.AGENT_ERROR, Verdict.FINAL_FOR_AGENT),
        (NodeErrorCode.INPUT_MAPPING_FAILED, Verdict.FINAL),
    ]
)


ALL_AGENTS = sorted({did for offers in AGENTS.values() for did in offers})
# Of what each agent has staked; a node asks 2.
SCARCE = st.integers(0, 5)


class AnyWorkflow(RuleBasedStateMachine):
    """Random replies, silence, crashes, repeats and cancels against one workflow."""

    run: Engine

    @initialize(
        manifest=manifests(),
        hold_micro=st.integers(0, 150),
        reserved=st.integers(0, 15),
        free=st.none() | st.fixed_dictionaries(dict.fromkeys(AGENTS["cap.work"], SCARCE)),
    )
    def publish(
        self, manifest: dict[str, Any], hold_micro: int, reserved: int, free: dict[str, int] | None
    ) -> None:
        self.run = Engine(
            manifest,
            AGENTS,
            hold_micro=hold_micro,
            reserved=dict.fromkeys(manifest["nodes"], reserved),
            stakes=StakeBook(free=free),
        ).accept()

    def _some_open(self, pick: int) -> DispatchNode:
        return self.run.open[pick % len(self.run.open)]

    @precondition(lambda self: self.run.open)
    @rule(pick=st.integers(0, 9))
    def accept_later(self, pick: int) -> None:
        self.run.accept_later(self._some_open(pick).node)

    @precondition(lambda self: self.run.open)
    @rule(pick=st.integers(0, 9))
    def reply_well(self, pick: int) -> None:
        dispatch = self._some_open(pick)
        if not dispatch.verify_attempt:
            self.run.succeed(dispatch.node)
        else:
            self.run.judge(dispatch.node, approved=True)

    @precondition(lambda self: self._accepted())
    @rule(pick=st.integers(0, 9), named_micro=st.none() | st.integers(1, 20))
    def settle(self, pick: int, named_micro: int | None) -> None:
        accepted = self._accepted()
        node = accepted[pick % len(accepted)]
        self.run.settle(node, named_micro)
        assert self.run.rows[node].status is NodeStatus.SUCCESS

    def _accepted(self) -> list[str]:
        return [
            dispatch.node
            for dispatch in self.run.open
            if not dispatch.verify_attempt and self.run.machine.node(dispatch.node).is_accepted
        ]

    @precondition(lambda self: self.run.open)
    @rule(pick=st.integers(0, 9), failure=FAILURES)
    def reply_badly(self, pick: int, failure: tuple[NodeErrorCode, Verdict]) -> None:
        dispatch = self._some_open(pick)
        code, verdict = failure
        if not dispatch.verify_attempt:
            self.run.fail(dispatch.node, verdict, code)
        else:
            self.run.judge(dispatch.node, failure=Failure(code, "no", verdict))

    @precondition(lambda self: any(d.verify_attempt for d in self.run.open))
    @rule()
    def reject(self) -> None:
        dispatch = next(d for d in self.run.open if d.verify_attempt)
        self.run.judge(dispatch.node, approved=False)

    @precondition(lambda self: any(not d.verify_attempt for d in self.run.open))
    @rule()
    def start_work(self) -> None:
        dispatch = next(d for d in self.run.open if not d.verify_attempt)
        event = WorkStarted(dispatch.node, dispatch.attempt, self.run.at_ms)
        assert self.run.hear(event) == Decision()

    @precondition(lambda self: self.run.timers)
    @rule(pick=st.integers(0, 9))
    def let_time_pass(self, pick: int) -> None:
        nodes = sorted(self.run.timers)
        self.run.wait_retry(nodes[pick % len(nodes)])

    @rule(pick=st.integers(0, 99))
    def repeat_an_event(self, pick: int) -> None:
        event = self.run.heard[pick % len(self.run.heard)]
        if isinstance(event, AttemptAccepted) and event.verify_attempt:
            return  # news again after a crash: the verification went out again as the same one
        if self.run.machine.is_finished or not isinstance(event, WorkflowAccepted):
            assert self.run.machine.step(event) == Decision()

    @rule(did=st.sampled_from(ALL_AGENTS), odds=st.integers(0, 3))
    def revoke(self, did: str, odds: int) -> None:
        if odds == 0:
            self.run.revoke(did)
            assert did not in self.run.machine.agents_at_work()

    @precondition(lambda self: not self.run.machine.is_finished)
    @rule()
    def crash(self) -> None:
        self.run.crash()

    @precondition(lambda self: not self.run.machine.is_finished)
    @rule(is_cancel=st.booleans(), odds=st.integers(0, 7))
    def end_early(self, is_cancel: bool, odds: int) -> None:
        if odds == 0:
            if is_cancel:
                self.run.cancel()
            else:
                self.run.exceed_runtime()

    @invariant()
    def stored_rows_are_what_the_machine_holds(self) -> None:
        run = getattr(self, "run", None)
        if run is None:
            return
        assert run.machine.status == run.status
        for name, row in run.rows.items():
            assert run.machine.node(name).attempt == row.attempt
            assert run.machine.node(name).cost_micro == row.cost_micro

    def teardown(self) -> None:
        if hasattr(self, "run"):
            self.run.run_to_end()


AnyWorkflow.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
TestAnyWorkflow = pytest.mark.slow(AnyWorkflow.TestCase)
