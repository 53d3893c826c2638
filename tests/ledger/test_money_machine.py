"""Money is conserved: random histories against the real Postgres and a model of plain integers.

After every step: balances sum to 0, each balance is the sum of its entries, every hold is
paid + fee + refund + rest, the chain verifies, and the database agrees with the model. Any earlier
command may come again at any time, in the same batch as others or after a crash of the writer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from core.errors import ErrorCode
from core.workflow.transitions import WorkflowStatus
from ledger.commands import Command, Outcome, OutcomeStatus, RegisterOwner
from ledger.errors import LedgerFenced, LedgerUnavailable
from ledger.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.making import AT, OWNER, Flow, deposit, new_id, new_key, open_store

T = TypeVar("T")

amounts = st.one_of(st.integers(1, 40), st.integers(1, 10**12))
few = st.integers(0, 2)


class LedgerMachine(RuleBasedStateMachine):
    """Deposits, holds, payments, ends, repeats, crashes; the model holds wallets and escrows."""

    database: ClassVar[Database]

    @initialize()
    def open(self) -> None:
        self.runner = asyncio.Runner()
        self.auditor = Auditor(self.database.superuser_url)
        self.store = self.run(open_store(self.database.service_url))
        (owner,) = self.run(
            self.store.commit([RegisterOwner(key="o", owner=OWNER, address="")], AT)
        )
        self.epoch = int(owner.result["epoch"])
        run_name = new_id()
        self.payers = [f"did:payer:{run_name}:{number}" for number in range(3)]
        self.agents = [f"did:agent:{run_name}:{number}" for number in range(3)]
        self.wallets = dict.fromkeys([*self.payers, *self.agents], 0)
        self.escrows: dict[str, int] = {}
        self.flows: list[Flow] = []
        self.nodes = 0
        self.history: list[tuple[Command, Outcome]] = []

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def commit(self, *commands: Command) -> list[Outcome]:
        outcomes = self.run(self.store.commit(commands, AT))
        for command, outcome in zip(commands, outcomes, strict=True):
            if outcome.status in (OutcomeStatus.APPLIED, OutcomeStatus.REJECTED):
                self.history.append((command, outcome))
        return outcomes

    @rule(payer=few, micro=amounts)
    def deposit(self, payer: int, micro: int) -> None:
        (outcome,) = self.commit(deposit(micro, owner_did=self.payers[payer]))
        self.wallets[self.payers[payer]] += micro
        assert outcome.result["balanceMicro"] == self.wallets[self.payers[payer]]

    @rule(payer=few, share=st.integers(0, 110), bps=st.sampled_from([0, 500, 500, 10_000]))
    def hold(self, payer: int, share: int, bps: int) -> None:
        """Hold a share (percent) of the wallet; above 100 it must be refused."""
        owned = self.wallets[self.payers[payer]]
        micro = (owned * share + 99) // 100 + (share > 100)
        flow = Flow(self.epoch, hold=micro, estimate=micro, payer=self.payers[payer])
        flow.fee_bps = bps
        (outcome,) = self.commit(flow.publish())
        if micro > self.wallets[flow.payer]:
            assert outcome.error is ErrorCode.INSUFFICIENT_CREDITS
            return
        assert outcome.status is OutcomeStatus.APPLIED
        self.wallets[flow.payer] -= micro
        self.escrows[flow.id] = micro
        self.flows.append(flow)

    @precondition(lambda self: self.flows)
    @rule(index=st.integers(0), agent=few, share=st.integers(0, 120))
    def pay(self, index: int, agent: int, share: int) -> None:
        """Pay a share (percent) of what is left; above 100 it must be refused whole."""
        flow = self.flows[index % len(self.flows)]
        self.nodes += 1
        gross = (self.escrows[flow.id] * share + 99) // 100 + (share > 100)
        command = flow.pay(gross, node=f"n{self.nodes}", agent=self.agents[agent])
        (outcome,) = self.commit(command)
        if gross > self.escrows[flow.id]:
            assert outcome.status is OutcomeStatus.REJECTED
            return
        assert outcome.status is OutcomeStatus.APPLIED
        self.settle(flow, gross, self.agents[agent])

    def settle(self, flow: Flow, gross: int, agent: str) -> None:
        fee = gross * flow.fee_bps // 10_000
        self.escrows[flow.id] -= gross
        self.wallets[agent] += gross - fee

    @precondition(lambda self: self.flows)
    @rule(index=st.integers(0), agent=few, micro=amounts)
    def pay_one_node_twice_in_a_batch(self, index: int, agent: int, micro: int) -> None:
        flow = self.flows[index % len(self.flows)]
        self.nodes += 1
        gross = min(micro, self.escrows[flow.id] // 2)
        twins = [
            flow.pay(gross, node=f"n{self.nodes}", agent=self.agents[agent], key=new_key())
            for _ in range(2)
        ]
        one, two = self.commit(*twins)
        assert one.status is OutcomeStatus.APPLIED
        assert two.error is ErrorCode.ALREADY_SETTLED
        self.settle(flow, gross, self.agents[agent])

    @precondition(lambda self: self.flows)
    @rule(
        index=st.integers(0),
        status=st.sampled_from(
            [WorkflowStatus.SUCCESS, WorkflowStatus.CANCELLED, WorkflowStatus.TIMEOUT]
        ),
    )
    def end(self, index: int, status: WorkflowStatus) -> None:
        flow = self.flows.pop(index % len(self.flows))
        rest = self.escrows.pop(flow.id)
        outcome, late, twice = self.commit(flow.end(status), flow.pay(0, node="late"), flow.end())
        assert outcome.result == {"releasedMicro": rest}
        assert late.error is twice.error is ErrorCode.ESCROW_RELEASED
        self.wallets[flow.payer] += rest

    @precondition(lambda self: self.history)
    @rule(data=st.data(), is_crashed=st.booleans(), payer=few)
    def repeat(self, data: st.DataObject, is_crashed: bool, payer: int) -> None:
        """Earlier commands come again, with a new one between them."""
        chosen = data.draw(st.lists(st.integers(0, len(self.history) - 1), max_size=4))
        if is_crashed:
            self.crash()
        fresh = deposit(7, owner_did=self.payers[payer])
        outcomes = self.commit(*(self.history[index][0] for index in chosen), fresh)
        self.wallets[self.payers[payer]] += 7
        for index, outcome in zip(chosen, outcomes, strict=False):
            first = self.history[index][1]
            assert outcome.status is OutcomeStatus.REPEATED
            assert (outcome.result, outcome.error) == (first.result, first.error)

    @rule()
    def crash(self) -> None:
        """The writer's connection dies; a new writer takes over."""
        self.auditor.one("SELECT pg_terminate_backend(%s, 5000)", self.store.backend_pid)
        lost = deposit(1, owner_did=self.payers[0])
        with pytest.raises(LedgerUnavailable):
            self.run(self.store.commit([lost], AT))
        self.reopen()

    @rule()
    def take_over(self) -> None:
        """A second writer opens while the first lives: the first can write nothing more."""
        old = self.store
        self.store = self.run(open_store(self.database.service_url))
        with pytest.raises(LedgerFenced):
            self.run(old.commit([deposit(1, owner_did=self.payers[0])], AT))
        self.run(old.close())

    def reopen(self) -> None:
        self.run(self.store.close())
        self.store: LedgerStore = self.run(open_store(self.database.service_url))

    @invariant()
    def books_are_sound(self) -> None:
        if not hasattr(self, "auditor"):
            return
        self.auditor.check()
        stored = dict(
            self.auditor.connection.execute(
                "SELECT address, balance FROM account WHERE address = ANY(%s)",
                ([*(f"wallet:{did}" for did in self.wallets),
                  *(f"escrow:{name}" for name in self.escrows)],),
            ).fetchall()
        )  # fmt: skip
        for did, balance in self.wallets.items():
            assert stored.get(f"wallet:{did}", 0) == balance, did
        for name, rest in self.escrows.items():
            assert stored[f"escrow:{name}"] == rest
        keys = [command.key for command, _ in self.history]
        assert self.auditor.one("SELECT count(*) FROM command WHERE id = ANY(%s)", keys) == len(
            set(keys)
        )

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.run(self.store.close())
            self.auditor.close()
            self.runner.close()


@pytest.mark.slow
def test_money_is_conserved_in_every_history(shared_database: Database) -> None:
    LedgerMachine.database = shared_database
    run_state_machine_as_test(
        LedgerMachine,
        settings=settings(
            max_examples=10,
            stateful_step_count=30,
            deadline=None,
            # A failure is shown as found: making it smaller against a database takes minutes.
            phases=(Phase.explicit, Phase.reuse, Phase.generate),
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.soak
def test_money_is_conserved_for_long(shared_database: Database) -> None:
    """≥ 10,000 steps (money.md section 7)."""
    LedgerMachine.database = shared_database
    run_state_machine_as_test(
        LedgerMachine,
        settings=settings(
            max_examples=300,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
