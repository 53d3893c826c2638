"""The rules of the money machine that are about stakes: put in and out, locked, freed, slashed.

What fraud and failure take is compared with a model that knows each node's part of what is locked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from core.errors import ErrorCode
from core.workflow.events import AttemptFinished, NodeChanged, Record, StakeFreed, StakeLocked
from core.workflow.transitions import NodeStatus
from ledger.commands import Command, Outcome
from ledger.market_commands import DepositStake, WithdrawStake
from tests.ledger.checking import Auditor
from tests.ledger.disputing import about, decide
from tests.ledger.making import AT, Flow, new_key
from tests.ledger.money_model import Lock, MoneyModel

few = st.integers(0, 2)
shares = st.integers(0, 110)
asking = st.sampled_from(["agent", "agent", "owner", "owner", "stranger"])
basis_points = st.sampled_from([0, 1_000, 10_000])


def share_of(whole: int, percent: int) -> int:
    """Return a share, rounded up; above 100 more than there is."""
    return (whole * percent + 99) // 100 + (percent > 100)


@dataclass
class Attempt:
    """A node's attempt as its owner believes it to be; `micro`: what it had locked with it."""

    flow: Flow
    node: str
    agent: str
    micro: int
    is_open: bool = True
    is_slashed: bool = False


class StakeRules(RuleBasedStateMachine):
    """Everything that moves stakes; the machine has the ledger, the model and the workflows."""

    auditor: ClassVar[Auditor]
    model: MoneyModel
    payers: list[str]
    agents: list[str]
    flows: list[Flow]
    attempts: list[Attempt]
    nodes: int

    def commit(self, *commands: Command) -> list[Outcome]:
        """Commit commands and keep them for repeats."""
        raise NotImplementedError

    def flow(self, index: int) -> Flow:
        """Return one of the workflows that run."""
        raise NotImplementedError

    @rule(agent=few, share=shares, asking=asking)
    def stake(self, agent: int, share: int, asking: str) -> None:
        """Stake a share (percent) of the agent's wallet, or of its owner's."""
        did = self.agents[agent]
        actor = self.actor(agent, asking)
        micro = max(1, share_of(self.model.wallets[actor], share))
        (outcome,) = self.commit(_stake(DepositStake, actor, did, micro))
        if actor not in (did, self.owner_of(agent)):
            assert outcome.error is ErrorCode.FORBIDDEN
        elif micro > self.model.wallets[actor]:
            assert outcome.error is ErrorCode.INSUFFICIENT_CREDITS
        else:
            self.model.wallets[actor] -= micro
            self.model.stakes[did] = self.model.stakes.get(did, 0) + micro
            assert outcome.result["freeMicro"] == self.model.stakes[did]

    @rule(agent=few, share=shares, asking=asking)
    def unstake(self, agent: int, share: int, asking: str) -> None:
        """Take a share (percent) of the stake out; above 100 it must be refused."""
        did = self.agents[agent]
        actor = self.actor(agent, asking)
        staked = self.model.stakes.get(did, 0)
        micro = max(1, share_of(staked, share))
        (outcome,) = self.commit(_stake(WithdrawStake, actor, did, micro))
        if actor not in (did, self.owner_of(agent)):
            assert outcome.error is ErrorCode.FORBIDDEN
        elif micro > staked:
            assert outcome.error is ErrorCode.STAKE_LOCKED
        else:
            self.model.stakes[did] -= micro
            self.model.wallets[actor] += micro
            assert outcome.result["balanceMicro"] == self.model.wallets[actor]

    def owner_of(self, agent: int) -> str:
        return self.payers[0] if agent == 0 else self.agents[agent]

    def actor(self, agent: int, asking: str) -> str:
        if asking == "stranger":
            return self.payers[2]
        return self.owner_of(agent) if asking == "owner" else self.agents[agent]

    @precondition(lambda self: self.flows)
    @rule(index=st.integers(0, 99), agent=few, share=shares)
    def open_attempt(self, index: int, agent: int, share: int) -> None:
        """Lock a share (percent) of the free stake; above 100 nothing is locked."""
        flow, did = self.flow(index), self.agents[agent]
        free = self.model.stakes.get(did, 0)
        micro = max(1, share_of(free, share))
        self.nodes += 1
        attempt = Attempt(flow, f"s{self.nodes}", did, micro)
        lock = StakeLocked(attempt.node, 1, did, micro)
        (outcome,) = self.commit(flow.advance(lock, _row(attempt, NodeStatus.DISPATCHED)))
        assert outcome.result == ({} if micro <= free else {"unstaked": [attempt.node]})
        self.attempts.append(attempt)
        if micro <= free:
            self.model.lock(attempt.node, Lock(flow.id, flow.payer, did, micro))

    @precondition(lambda self: any(attempt.is_open for attempt in self.attempts))
    @rule(index=st.integers(0, 99))
    def go_on(self, index: int) -> None:
        """An attempt is accepted; its owner has not heard of refusals and disputes."""
        running = [attempt for attempt in self.attempts if attempt.is_open]
        attempt = running[index % len(running)]
        self.commit(attempt.flow.advance(_row(attempt, NodeStatus.RUNNING)))

    @precondition(lambda self: any(attempt.is_open for attempt in self.attempts))
    @rule(index=st.integers(0, 99), is_failure=st.booleans(), bps=basis_points)
    def end_attempt(self, index: int, is_failure: bool, bps: int) -> None:
        """A node ends: by its agent's failure, which costs a share of its lock, or without."""
        running = [attempt for attempt in self.attempts if attempt.is_open]
        attempt = running[index % len(running)]
        code = "AGENT_ERROR" if is_failure else "CANCELLED"
        self.commit(attempt.flow.advance(*_end(attempt, code), bps=bps))
        lost = self.model.end_lock(attempt.node, bps if is_failure else 0)
        assert lost == 0 or not attempt.is_slashed

    def end_attempts(self, flow: Flow) -> None:
        """End what is open of a workflow, as its end does."""
        running = [one for one in self.attempts if one.is_open and one.flow is flow]
        if running:
            self.commit(flow.advance(*(r for one in running for r in _end(one, "CANCELLED"))))
        for attempt in running:
            self.model.end_lock(attempt.node, 0)

    @precondition(lambda self: self.attempts)
    @rule(index=st.integers(0, 999), is_of_node=st.booleans(), bps=basis_points)
    def uphold_fraud(self, index: int, is_of_node: bool, bps: int) -> None:
        """Fraud at a node, or in a whole workflow, running or ended: what is locked for it goes.

        Never more than the nodes' part, nothing of the free stake, of each node once: the model
        knows what every account must hold.
        """
        attempt = self.attempts[index % len(self.attempts)]
        dispute = about(
            attempt.flow,
            dispute_type="fraud",
            node_id=attempt.node if is_of_node else None,
            complainant_did=attempt.flow.payer,
            respondent_did=attempt.agent,
        )
        _, outcome = self.commit(dispute, decide(dispute, slash=bps))
        disputed = [
            one
            for one in self.attempts
            if one.flow is attempt.flow
            and one.agent == attempt.agent
            and one.node in self.model.locks
            and (one is attempt or not is_of_node)
        ]
        lost = [self.model.end_lock(one.node, bps) for one in sorted(disputed, key=_by_name)]
        assert outcome.result["slashedMicro"] == sum(lost)
        for one, micro in zip(sorted(disputed, key=_by_name), lost, strict=True):
            assert not one.is_slashed
            assert micro <= one.micro * bps // 10_000
            one.is_slashed = True

    @invariant()
    def rows_say_what_is_locked(self) -> None:
        """Only open attempts whose lock was not refused and has not ended have stake at risk."""
        if not hasattr(self, "model"):
            return
        rows = self.auditor.connection.execute(
            "SELECT name, stake_micro FROM node"
            " WHERE workflow_id = ANY(%s::uuid[]) AND stake_micro > 0",
            (list(self.model.contracts),),
        )
        assert dict(rows) == {node: lock.micro for node, lock in self.model.locks.items()}


def _by_name(attempt: Attempt) -> str:
    return attempt.node


def _row(attempt: Attempt, status: NodeStatus) -> NodeChanged:
    micro = attempt.micro
    return NodeChanged(attempt.node, status, attempt=1, agent_did=attempt.agent, stake_micro=micro)


def _end(attempt: Attempt, code: str) -> tuple[Record, ...]:
    attempt.is_open = False
    node, did = attempt.node, attempt.agent
    error: dict[str, Any] = {"code": code}
    return (
        StakeFreed(node, 1, did, attempt.micro),
        AttemptFinished(node, 1, did, "error", AT, AT + 5, error_code=code),
        NodeChanged(node, NodeStatus.FAILED, attempt=1, agent_did=did, error=error),
    )


def _stake(kind: type[DepositStake | WithdrawStake], actor: str, did: str, micro: int) -> Command:
    return kind(
        key=new_key(),
        request_hash=b"s",
        actor_did=actor,
        is_admin=False,
        agent_did=did,
        amount_micro=micro,
    )
