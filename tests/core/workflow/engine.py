"""A runner for tests: answers selections, keeps what was committed, checks it, and can crash.

Everything that may never happen is asserted in `_commit`, so every test that drives a machine
through this class checks it too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from msgspec.structs import replace

from core.errors import NodeErrorCode
from core.market.pricing import TokenPrice
from core.records.manifest import parse_manifest
from core.workflow.actions import (
    AbortDispatch,
    Action,
    AwaitAgent,
    AwaitResult,
    Decision,
    DispatchNode,
    ScheduleRetry,
    SelectAgent,
    SelectBidder,
    SelectVerifier,
)
from core.workflow.dag import compile_workflow
from core.workflow.events import (
    AgentNotSelected,
    AgentRevoked,
    AttemptAccepted,
    AttemptFailed,
    AttemptFinished,
    AttemptSucceeded,
    CancelRequested,
    Event,
    Failure,
    NodeChanged,
    NodePaid,
    Record,
    RetryDue,
    RuntimeExceeded,
    Verdict,
    VerificationFinished,
    WorkflowAccepted,
    WorkflowChanged,
)
from core.workflow.machine import WorkflowMachine
from core.workflow.terms import NodeTerms
from core.workflow.transitions import NodeStatus, WorkflowStatus, is_terminal
from tests.core.workflow.node_inputs import build_inputs
from tests.core.workflow.offers import answer
from tests.core.workflow.stake_book import StakeBook

Selection = SelectAgent | SelectBidder | SelectVerifier


@dataclass
class Engine:
    """One workflow with its agents. `agents`: capability → {did: price}."""

    manifest: dict[str, Any]
    agents: Mapping[str, Mapping[str, int | TokenPrice]]
    hold_micro: int = 1_000_000
    reserved: dict[str, int] = field(default_factory=dict)
    terms: dict[str, NodeTerms] = field(default_factory=dict)
    at_ms: int = 1_000_000
    stakes: StakeBook = field(default_factory=StakeBook)
    first_away: Collection[str] = ()

    def __post_init__(self) -> None:
        self.compiled = compile_workflow(parse_manifest(self.manifest))
        self.deadline_ms = self.at_ms + self.compiled.max_runtime_ms
        self.machine = self._machine()
        self.rows: dict[str, NodeChanged] = {}
        self.status = WorkflowStatus.PENDING
        self.changes: list[WorkflowChanged] = []
        self.payments: dict[str, NodePaid] = {}
        self.history: list[AttemptFinished] = []
        self.open: list[DispatchNode] = []
        self.dispatched: list[DispatchNode] = []
        self.aborted: list[AbortDispatch] = []
        self.timers: dict[str, int] = {}
        self.awaited: dict[str, AwaitResult] = {}
        self.heard: list[Event] = []
        self.selections: list[Selection] = []
        self.has_failure = False
        self.revoked: set[str] = set()
        self.away: set[str] = set(self.first_away)

    def _machine(self) -> WorkflowMachine:
        return WorkflowMachine(
            "wf",
            self.compiled,
            hold_micro=self.hold_micro,
            reserved=self.reserved,
            deadline_ms=self.deadline_ms,
            terms=self.terms,
        )

    # -- what happens -----------------------------------------------------------------------------

    def accept(self) -> Engine:
        self.hear(WorkflowAccepted(self.at_ms))
        return self

    def hear(self, event: Event) -> Decision:
        """Step, answer what the machine asks, commit and act; returns all of it."""
        self.heard.append(event)
        return self._settle(self.machine.step(event))

    def crash(self) -> Decision:
        """Forget everything that was not committed and restore."""
        self.open.clear()
        self.timers.clear()
        self.awaited.clear()
        self.machine = WorkflowMachine(
            "wf",
            self.compiled,
            hold_micro=self.hold_micro,
            reserved=self.reserved,
            deadline_ms=self.deadline_ms,
            terms=self.terms,
        )
        decision = self.machine.restore(
            self.status,
            list(self.rows.values()),
            {
                name: [
                    one.agent_did
                    for one in self.history
                    if (one.node, one.kind) == (name, "primary")
                ]
                for name in self.rows
            },
            self.at_ms,
        )
        for name in self.compiled.nodes:
            state = self.machine.node(name)
            if state.is_accepted:  # the agent is still at it and is not asked again
                self.open.append(DispatchNode(name, state.attempt, state.agent_did or "", 1))
        return self._settle(decision)

    def succeed(self, node: str, result: Any = None, **metrics: int) -> Decision:
        """The node's agent delivers."""
        dispatch = self.find(node)
        assert not dispatch.verify_attempt
        value = {"from": node} if result is None else result
        return self.hear(
            AttemptSucceeded(
                node,
                dispatch.attempt,
                orjson.dumps(value).decode(),
                "sha256:in",
                "sha256:out",
                self.at_ms,
                self.at_ms + 5,
                {"latency_ms": 5, **metrics},
            )
        )

    def settle(self, node: str, named_micro: int | None) -> Decision:
        """The payer ends the attempt that the node's agent has accepted."""
        attempt, at_ms = self.find(node).attempt, self.at_ms
        return self.hear(
            AttemptSucceeded(
                node,
                attempt,
                "{}",
                None,
                "sha256:out",
                at_ms,
                at_ms,
                is_settled=True,
                named_micro=named_micro,
            )
        )

    def accept_later(self, node: str) -> Decision:
        """The node's agent, or its verifier, will hand its answer in."""
        dispatch = self.find(node)
        return self.hear(
            AttemptAccepted(node, dispatch.attempt, self.at_ms, self.at_ms, dispatch.verify_attempt)
        )

    def fail(
        self,
        node: str,
        verdict: Verdict = Verdict.RETRYABLE,
        code: NodeErrorCode = NodeErrorCode.AGENT_ERROR,
        retry_after_ms: int = 0,
    ) -> Decision:
        """The node's attempt fails."""
        dispatch = self.find(node)
        assert not dispatch.verify_attempt
        failure = Failure(code, "it failed", verdict, retry_after_ms=retry_after_ms)
        return self.hear(AttemptFailed(node, dispatch.attempt, failure, self.at_ms, self.at_ms + 5))

    def judge(
        self, node: str, approved: bool | None = False, failure: Failure | None = None
    ) -> Decision:
        """The node's verifier answers."""
        dispatch = self.find(node)
        assert dispatch.verify_attempt
        return self.hear(
            VerificationFinished(
                node,
                dispatch.attempt,
                approved,
                failure,
                self.at_ms,
                self.at_ms + 5,
                dispatch.verify_attempt,
            )
        )

    def wait_retry(self, node: str) -> Decision:
        """Let the node's back-off pass."""
        due_ms = self.timers.pop(node)
        self.at_ms = max(self.at_ms, due_ms)
        return self.hear(RetryDue(node, due_ms))

    def wake(self, node: str) -> Decision:
        """Let a node that waits for an agent ask for one."""
        return self.hear(RetryDue(node, self.at_ms))

    def revoke(self, did: str) -> Decision:
        """An agent is revoked: no node asks it any more, and nothing it has is taken."""
        self.revoked.add(did)
        return self.hear(AgentRevoked(did, self.at_ms))

    def cancel(self) -> Decision:
        return self.hear(CancelRequested("user_request", "enough", "did:x:payer", self.at_ms))

    def exceed_runtime(self) -> Decision:
        self.at_ms = self.deadline_ms
        return self.hear(RuntimeExceeded(self.at_ms))

    def run_to_end(self) -> Engine:
        """Answer everything well until the workflow has ended."""
        for _ in range(10_000):
            if self.machine.is_finished:
                return self
            if self.open:
                dispatch = self.open[0]
                if dispatch.verify_attempt:
                    self.judge(dispatch.node, approved=True)
                else:
                    self.succeed(dispatch.node)
            else:
                assert self.timers, f"stuck: {self.machine!r}"
                self.wait_retry(next(iter(self.timers)))
        raise AssertionError(f"no end: {self.machine!r}")

    # -- reading ----------------------------------------------------------------------------------

    def find(self, node: str) -> DispatchNode:
        return next(dispatch for dispatch in self.open if dispatch.node == node)

    def statuses(self) -> dict[str, str]:
        """Return what a reader of the stored rows sees."""
        return {
            name: str(self.rows[name].status) if name in self.rows else "pending"
            for name in self.compiled.nodes
        }

    def error_code(self, node: str) -> str:
        error = self.rows[node].error
        assert error is not None
        return str(error["code"])

    @property
    def paid_micro(self) -> int:
        return sum(payment.gross_micro for payment in self.payments.values())

    # -- the inside -------------------------------------------------------------------------------

    def _settle(self, decision: Decision) -> Decision:
        whole = Decision(list(decision.records))
        waiting = deque(decision.actions)
        while waiting:
            action = waiting.popleft()
            if isinstance(action, SelectAgent | SelectBidder | SelectVerifier):
                self.selections.append(action)
                answer = self.machine.step(self._answer(action))
                whole.records += answer.records
                waiting.extend(answer.actions)
            else:
                whole.actions.append(action)
        whole.records, refused = self.stakes.commit(whole.records)
        self._commit(whole.records)
        for action in whole.actions:
            self._perform(action)
        for node in refused:
            unstaked = Failure(NodeErrorCode.NO_CANDIDATE, "no stake", is_stake_in_use=True)
            self.hear(
                AttemptFailed(node, self.rows[node].attempt, unstaked, self.at_ms, self.at_ms)
            )
        self.open = [dispatch for dispatch in self.open if not self._is_over(dispatch.node)]
        return whole

    def _answer(self, action: Selection) -> Event:
        offers = self.agents.get(action.capability_id, {})
        here = {did: price for did, price in offers.items() if did not in self.revoked}
        assert not isinstance(action, SelectBidder), action
        there = {did: price for did, price in here.items() if did not in self.away}
        answered = answer(action, there, self.at_ms, stake_micro=self.stakes.stake_micro)
        again = answer(action, here, self.at_ms, stake_micro=self.stakes.stake_micro)
        if isinstance(answered, AgentNotSelected) and not isinstance(again, AgentNotSelected):
            failure = replace(answered.failure, is_temporary=True)
            return replace(answered, failure=failure)
        return answered

    def _commit(self, records: list[Record]) -> None:
        changed: set[str] = set()
        for record in records:
            assert not is_terminal(self.status), f"{record} after {self.status}"
            match record:
                case NodeChanged():
                    assert record.node not in changed, f"two rows of {record.node} in one step"
                    changed.add(record.node)
                    self._store_row(record)
                case WorkflowChanged():
                    self.status = record.status
                    self.changes.append(record)
                case NodePaid():
                    assert record.line not in self.payments, f"{record.line} is paid twice"
                    assert record.gross_micro > 0
                    assert record.agent_did not in self.revoked
                    self.payments[record.line] = record
                    assert self.paid_micro <= self.hold_micro
                case AttemptFinished():
                    key = (record.node, record.kind, record.attempt)
                    known = [(line.node, line.kind, line.attempt) for line in self.history]
                    assert key not in known, f"two lines for {key}"
                    is_theirs = record.outcome in ("success", "rejected")
                    assert not (is_theirs and record.agent_did in self.revoked), record
                    self.history.append(record)
        self.stakes.check(self.rows)
        if is_terminal(self.status):
            assert not self.stakes.locked
            assert all(is_terminal(NodeStatus(s)) for s in self.statuses().values())
        costs = sum(row.cost_micro for row in self.rows.values())
        assert costs == self.paid_micro == self.machine.spent_micro

    def _store_row(self, row: NodeChanged) -> None:
        before = self.rows.get(row.node)
        assert before is None or not is_terminal(before.status), f"{row} after {before}"
        if row.status is NodeStatus.DISPATCHED:
            assert not self.has_failure, f"{row.node} was dispatched after a failure"
            assert row.agent_did not in self.revoked
            for parent in self.compiled.nodes[row.node].depends_on:
                assert self.rows[parent].status is NodeStatus.SUCCESS
        if row.status in (NodeStatus.FAILED, NodeStatus.TIMEOUT):
            self.has_failure = True
        self.rows[row.node] = row

    def _perform(self, action: Action) -> None:
        match action:
            case DispatchNode():
                assert action.timeout_ms >= 1
                assert self.at_ms + action.timeout_ms <= max(self.deadline_ms, self.at_ms + 1)
                self.open = [other for other in self.open if other.node != action.node]
                self.open.append(action)
                self.dispatched.append(action)
                self.awaited.pop(action.node, None)
            case ScheduleRetry(node, due_ms):
                self.open = [other for other in self.open if other.node != node]
                self.timers[node] = due_ms
            case AwaitAgent(node, _, until_ms):
                assert self.at_ms < until_ms <= self.deadline_ms
                self.timers[node] = until_ms
            case AwaitResult(node, _, _, began_ms, due_ms):
                assert began_ms <= self.at_ms
                assert began_ms < due_ms < self.deadline_ms
                assert any(other.node == node for other in self.open)
                self.awaited[node] = action
            case AbortDispatch():
                self.aborted.append(action)
                self.open = [other for other in self.open if other.node != action.node]
            case _:
                raise AssertionError(f"{action} was not answered")

    def _is_over(self, node: str) -> bool:
        return node in self.rows and is_terminal(self.rows[node].status)


def inputs_of(run: Engine, name: str) -> object:
    """Return the inputs of a dispatch of a node, or why they cannot be built."""
    node, texts = run.machine.compiled.nodes[name], run.machine.results_for(name)
    results = {key: orjson.loads(text) for key, text in texts.items() if isinstance(text, str)}
    return build_inputs(node, results)


def chain(*names: str, **options: Any) -> dict[str, Any]:
    """Return a manifest where each node depends on the one before."""
    nodes: dict[str, Any] = {}
    for name in names:
        nodes[name] = {"capabilityId": "cap.work", "dependsOn": list(nodes)[-1:], **options}
    return {"nodes": nodes}


AGENTS: dict[str, dict[str, int]] = {
    "cap.work": {"did:x:one": 10, "did:x:two": 20, "did:x:three": 30, "did:x:four": 40},
    "cap.verify.generic.v1": {"did:x:judge": 3, "did:x:judge2": 4},
}


def engine(manifest: dict[str, Any], **options: Any) -> Engine:
    """Return an accepted workflow with the usual agents."""
    return Engine(manifest, options.pop("agents", AGENTS), **options).accept()
