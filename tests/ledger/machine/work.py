"""Rules of workflows: held, worked on at a risk, verified, paid, failed, ended.

The rules act as the member that drives the workflows does: what ends an attempt frees what was
locked with it in the same command, whether or not the lock had been granted.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from msgspec.structs import replace

from core.errors import ErrorCode, NodeErrorCode, QuarantineCode
from core.money import MICRO_MAX
from core.workflow.events import (
    AttemptFinished,
    NodeChanged,
    NodePaid,
    Record,
    StakeLocked,
    StakeUnlocked,
    WorkflowChanged,
)
from core.workflow.rules.payment import payment_line
from core.workflow.transitions import NodeStatus, WorkflowStatus
from ledger.commands import OutcomeStatus
from ledger.features.workflow_commands import QuarantineWorkflow, ResumeWorkflow
from tests.ledger.machine.base import (
    MoneyMachine,
    any_index,
    four,
    share_of,
    shares,
)
from tests.ledger.machine.model import BLAMED, BPS, Work
from tests.ledger.making import AT, Flow, new_key, succeeded

STEPS_BETWEEN_QUARANTINES = 15
STARTED = WorkflowChanged(WorkflowStatus.RUNNING, AT)

# Who, and what percent of the unreserved budget and of the free stake it costs and risks.
attempts = st.tuples(four, st.integers(0, 100), st.integers(0, 110))
verifiers = st.one_of(st.none(), st.none(), st.tuples(four, st.integers(0, 100)))
codes = st.sampled_from([*sorted(BLAMED), "AGENT_UNAVAILABLE", "REVOKED", "POLICY_DENIED"])
bps = st.sampled_from([0, 1_000, 3_333, BPS])


@dataclass
class Attempt:
    """An attempt that is to begin: who, for how much, with how much at risk."""

    work: Work
    agent: str
    price: int
    stake: int

    def records(self) -> tuple[Record, ...]:
        work, number = self.work, self.work.attempt + 1
        lock = StakeLocked(work.name, number, self.agent, self.stake)
        row = NodeChanged(
            work.name,
            NodeStatus.DISPATCHED,
            attempt=number,
            agent_did=self.agent,
            price_micro=self.price,
            stake_micro=self.stake,
            auction_round=work.rounds,
        )
        return (lock, row) if self.stake else (row,)


class WorkRules(MoneyMachine):
    """Escrows and what is done with them."""

    def worker(self, index: int) -> str:
        """Return one of the agents, or a payer who works for itself as well."""
        return [*self.agents, self.payers[2]][index]

    def new_work(self) -> Work:
        self.nodes += 1
        return Work(f"n{self.nodes}")

    def attempt(self, work: Work, agent: str, price: int, percent: int) -> Attempt:
        stake = min(share_of(self.model.stakes.get(agent, 0), percent), MICRO_MAX)
        return Attempt(work, agent, price, stake)

    def begins(self, flow: Flow, *attempts: Attempt) -> list[str]:
        """Note that attempts have begun; return the nodes whose lock had to be refused."""
        unstaked = []
        for one in attempts:
            work = one.work
            work.attempt += 1
            work.agent, work.price, work.asked = one.agent, one.price, one.stake
            work.is_at_work = True
            self.contract(flow).works[work.name] = work
            place = (flow.id, work.name)
            if one.stake and not self.model.lock(place, one.agent, one.stake):
                unstaked.append(work.name)
        return unstaked

    def freed(self, work: Work, blamed_for: str | None = None) -> tuple[Record, ...]:
        if work.asked == 0:
            return ()
        code = None if blamed_for is None else NodeErrorCode(blamed_for)
        return (StakeUnlocked(work.name, work.attempt, work.agent, work.asked, failure_code=code),)

    def stops(self, flow: Flow, work: Work, lost_bps: int = 0) -> None:
        """Note that an attempt has ended, and its lock with it."""
        self.model.free((flow.id, work.name), work.agent, lost_bps)
        work.is_at_work, work.asked = False, 0

    # -- publishing -------------------------------------------------------------------------------

    @rule(
        payer=four,
        share=shares,
        fee_bps=st.sampled_from([0, 500, 500, 10_000]),
        first=st.lists(attempts, max_size=2),
    )
    def publish(
        self,
        payer: int,
        share: int,
        fee_bps: int,
        first: list[tuple[int, int, int]],
    ) -> None:
        """Hold a share (percent) of the wallet and begin some nodes."""
        did = self.payers[payer]
        micro = min(share_of(self.model.wallets[did], share), MICRO_MAX)
        begun = [
            self.attempt(self.new_work(), self.worker(agent), micro * percent // 200, risk)
            for agent, percent, risk in first
        ]
        self.publishes(did, micro, fee_bps, begun)

    def publishes(self, payer: str, micro: int, fee_bps: int, begun: list[Attempt]) -> None:
        flow = self.new_flow(hold=micro, estimate=micro, payer=payer, fee_bps=fee_bps)
        records = (STARTED, *(record for one in begun for record in one.records()))
        command = replace(flow.publish(records=records), created_ms=self.now)
        error = self.model.publish_error(payer, micro, self.now)
        outcome = self.one(command)
        assert outcome.error is error
        if error is None:
            self.model.publish(flow.id, payer, micro, fee_bps, command.created_ms)
            self.flows.append(flow)
            assert outcome.result.get("unstaked", []) == self.begins(flow, *begun)

    @precondition(lambda self: self.flows)
    @rule(index=any_index, planned=attempts)
    def begin_a_node(self, index: int, planned: tuple[int, int, int]) -> None:
        flow, (agent, percent, risk) = self.flow(index), planned
        price = share_of(self.contract(flow).unreserved, percent)
        one = self.attempt(self.new_work(), self.worker(agent), price, risk)
        result = self.applies(flow.advance(*one.records()))
        assert result.get("unstaked", []) == self.begins(flow, one)

    def due(self) -> list[tuple[Flow, Work]]:
        """Return the nodes whose next attempt may begin: one without a winner needs a round."""
        return [pair for pair in self.works(at_work=False) if not pair[1].lacks_winner]

    @precondition(lambda self: self.due())
    @rule(index=any_index, agent=four, risk=shares)
    def begin_again(self, index: int, agent: int, risk: int) -> None:
        """The next attempt of a node; the agent that has won it keeps it, at its price."""
        due = self.due()
        flow, work = due[index % len(due)]
        did = work.agent if work.has_winner else self.worker(agent)
        one = self.attempt(work, did, work.price, risk)
        result = self.applies(flow.advance(*one.records()))
        assert result.get("unstaked", []) == self.begins(flow, one)

    @precondition(lambda self: self.works(at_work=True))
    @rule(index=any_index)
    def go_on(self, index: int) -> None:
        """An attempt is accepted: its row says again what is locked, as far as its member knows."""
        busy = self.works(at_work=True)
        flow, work = busy[index % len(busy)]
        row = self.ended(work, NodeStatus.RUNNING, None)
        self.applies(flow.advance(replace(row, stake_micro=work.asked)))

    # -- success ----------------------------------------------------------------------------------

    @precondition(lambda self: self.works(at_work=True))
    @rule(
        index=any_index,
        verifier=verifiers,
        is_too_dear=st.sampled_from([False] * 9 + [True]),
        latency_ms=st.integers(0, 999),
        then=st.one_of(st.none(), attempts),
    )
    def succeed(
        self,
        index: int,
        verifier: tuple[int, int] | None,
        is_too_dear: bool,
        latency_ms: int,
        then: tuple[int, int, int] | None,
    ) -> None:
        """A node is done: its verifier and its agent are paid, its lock ends, another begins."""
        busy = self.works(at_work=True)
        flow, work = busy[index % len(busy)]
        contract = self.contract(flow)
        price = contract.rest + 1 if is_too_dear else work.price
        judging = () if is_too_dear else self.judged(flow, work, verifier, "success")
        command = flow.advance(
            *judging, *self.freed(work), *self.done(work, price, latency_ms=latency_ms)
        )
        if is_too_dear:
            self.refuses(command, ErrorCode.INTERNAL_ERROR)
            self.resume(flow)
            return
        begun = []
        if then is not None:
            free = contract.unreserved - sum(_paid(judging))
            price_then = max(0, free) * then[1] // 100
            begun = [self.attempt(self.new_work(), self.worker(then[0]), price_then, then[2])]
            records = (*command.records, *(record for one in begun for record in one.records()))
            command = replace(command, records=records)
        result = self.applies(command)
        self.pays(flow, command.records)
        self.stops(flow, work)
        self.model.count(work.agent, "successful", latency_ms, price=price)
        del contract.works[work.name]
        assert result.get("unstaked", []) == self.begins(flow, *begun)

    def done(self, work: Work, price: int, *, latency_ms: int) -> tuple[Record, ...]:
        """Return the records of a node that has succeeded."""
        finished, row, paid = succeeded(work.name, price, agent=work.agent)
        assert isinstance(finished, AttemptFinished)
        assert isinstance(row, NodeChanged)
        row = replace(
            row,
            attempt=work.attempt,
            metrics={"latency_ms": latency_ms},
            auction_round=work.rounds,
        )
        kept = (replace(finished, attempt=work.attempt), row)
        return (*kept, paid) if price else kept

    def judged(
        self, flow: Flow, work: Work, verifier: tuple[int, int] | None, outcome: str
    ) -> tuple[Record, ...]:
        """Return the records of a verification, which is paid out of what is not reserved."""
        if verifier is None:
            return ()
        work.verifications += 1
        did = self.worker(verifier[0])
        fee = self.contract(flow).unreserved * verifier[1] // 100
        number = work.verifications
        line = AttemptFinished(work.name, number, did, outcome, AT, AT + 5, "verify")
        paid = NodePaid(payment_line(work.name, number), did, fee)
        return (line, paid) if fee else (line,)

    def pays(self, flow: Flow, records: tuple[Record, ...]) -> None:
        for record in records:
            if isinstance(record, NodePaid):
                self.model.pay(flow.id, record.line, record.agent_did, record.gross_micro, self.now)

    @precondition(lambda self: self.works(at_work=True))
    @rule(index=any_index, agent=four, is_twin=st.booleans())
    def succeed_twice(self, index: int, agent: int, is_twin: bool) -> None:
        """Two agents hand in the same node, in one batch and after it: the first is paid."""
        busy = self.works(at_work=True)
        flow, work = busy[index % len(busy)]
        records = (*self.freed(work), *self.done(work, work.price, latency_ms=1))
        other = dataclasses.replace(work, agent=self.worker(agent))
        late = self.done(other, work.price, latency_ms=9)
        one = flow.advance(*records)
        two, three = flow.advance(*late, key=new_key()), flow.advance(*late, key=new_key())
        if is_twin:
            first, second = self.commit(one, two)
        else:
            first, second = self.one(one), self.one(two)
        assert first.status is OutcomeStatus.APPLIED
        self.pays(flow, records)
        self.stops(flow, work)
        self.model.count(work.agent, "successful", 1, price=work.price)
        del self.contract(flow).works[work.name]
        assert second.error is ErrorCode.ALREADY_SETTLED
        self.refuses(three, ErrorCode.CONFLICT)
        self.resume(flow)

    @precondition(lambda self: self.flows and self.is_due("quarantine", STEPS_BETWEEN_QUARANTINES))
    @rule(index=any_index)
    def be_given_up_by_its_member(self, index: int) -> None:
        """A workflow that its member cannot drive keeps its money, and goes on once resumed."""
        self.done_now("quarantine")
        flow = self.flow(index)
        command = QuarantineWorkflow(
            key=new_key(),
            member=flow.member,
            shard_epoch=flow.epoch,
            workflow_id=flow.id,
            code=QuarantineCode.STEP_FAILED,
        )
        assert self.applies(command) == {"quarantined": "STEP_FAILED"}
        self.resume(flow)

    def resume(self, flow: Flow) -> None:
        """End the quarantine of a workflow; only a fresh step is taken then."""
        self.refuses(flow.advance(key=new_key()), ErrorCode.CONFLICT)
        resume = ResumeWorkflow(
            key=new_key(),
            member=flow.member,
            shard_epoch=flow.epoch,
            workflow_id=flow.id,
            actor_did=flow.payer,
        )
        self.applies(resume)
        self.applies(replace(flow.advance(key=new_key()), is_fresh=True))

    # -- failure ----------------------------------------------------------------------------------

    @precondition(lambda self: self.works(at_work=True))
    @rule(
        index=any_index,
        code=codes,
        is_final=st.booleans(),
        is_given_up=st.booleans(),
        is_spared=st.sampled_from([False, False, True]),
        verifier=verifiers,
        slash_bps=bps,
        is_repeated=st.booleans(),
    )
    def fail(
        self,
        index: int,
        code: str,
        is_final: bool,
        is_given_up: bool,
        is_spared: bool,
        verifier: tuple[int, int] | None,
        slash_bps: int,
        is_repeated: bool,
    ) -> None:
        """An attempt fails. It costs stake, if it is its agent's doing and the agent is given up:
        with the node's end or for another agent. As the last node's end it is the workflow's."""
        busy = self.works(at_work=True)
        flow, work = busy[index % len(busy)]
        code = "VERIFICATION_REJECTED" if verifier is not None else code
        finished = self.finished(work, "error", code)
        judging = self.judged(flow, work, verifier, "rejected")
        row = self.ended(work, NodeStatus.READY, None)
        is_own_failure = code in BLAMED and not is_spared
        if is_final:
            status = NodeStatus.TIMEOUT if code == "AGENT_TIMEOUT" else NodeStatus.FAILED
            error = {"code": code, **({"isSpared": True} if is_spared else {})}
            row = self.ended(work, status, error, "failed" if is_own_failure else None)
        is_slashed = is_own_failure and (is_final or is_given_up)
        freed = self.freed(work, code if is_slashed else None)
        records: list[Record] = [finished, *judging, *freed, row]
        is_last = is_final and len(self.contract(flow).works) == 1
        if is_last:
            records.append(WorkflowChanged(WorkflowStatus.FAILED, AT + 9, error={"code": code}))
        command = flow.advance(*records, bps=slash_bps)
        outcomes = self.commit(command, command) if is_repeated else [self.one(command)]
        assert outcomes[0].status is OutcomeStatus.APPLIED, outcomes
        self.pays(flow, tuple(records))
        self.stops(flow, work, slash_bps if is_slashed else 0)
        if is_final and is_own_failure:
            self.model.count(work.agent, "failed", price=work.price)
        if is_final:
            del self.contract(flow).works[work.name]
        elif work.rounds:
            self.may_lose_the_node(work)
        if is_last:
            self.flows.remove(flow)
            assert outcomes[0].result == {"releasedMicro": self.model.end(flow.id)}

    def may_lose_the_node(self, work: Work) -> None:
        """Let some winners keep their node; the next round is without the others."""
        if work.attempt % 2 == 0:
            work.tried += (work.agent,)
            work.price = 0

    def finished(self, work: Work, outcome: str, code: str) -> AttemptFinished:
        return AttemptFinished(
            work.name, work.attempt, work.agent, outcome, AT, AT + 5, error_code=code
        )

    def ended(
        self,
        work: Work,
        status: NodeStatus,
        error: dict[str, object] | None,
        counts_as: str | None = None,
    ) -> NodeChanged:
        """Return the row of a node that no agent works on any more."""
        return NodeChanged(
            work.name,
            status,
            attempt=work.attempt,
            agent_did=work.agent or None,
            price_micro=work.price,
            error=error,
            auction_round=work.rounds,
            counts_as=counts_as,
        )


def _paid(records: tuple[Record, ...]) -> list[int]:
    return [record.gross_micro for record in records if isinstance(record, NodePaid)]
