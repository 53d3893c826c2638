"""Money is conserved: random histories against the real Postgres and a model of plain integers.

After every step: balances sum to 0, each balance is the sum of its entries, the chain goes on, and
the database agrees with the model. Every now and then, and at the end, all books are checked whole.
Any earlier command may come again at any time, among others or after the writer was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from core.errors import ErrorCode
from core.market.quota import QuotaLimits
from core.money import cents_ceil
from core.workflow.transitions import WorkflowStatus
from ledger.commands import Command, Outcome, OutcomeStatus, RegisterOwner
from ledger.errors import LedgerFenced, LedgerUnavailable
from ledger.market_commands import SetQuota
from ledger.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import Auditor, EntrySums
from tests.ledger.disputing import about, decide
from tests.ledger.making import AT, OWNER, Flow, card, deposit, new_id, new_key, open_store
from tests.ledger.money_model import Limits, MoneyModel
from tests.ledger.money_stakes import StakeRules, few, share_of, shares

T = TypeVar("T")

amounts = st.one_of(st.integers(1, 40), st.integers(1, 10**12))
# Mostly none: a payer who may not publish has no history.
limits = st.one_of(st.none(), st.none(), st.none(), st.integers(1, 6))
# Losing the writer costs as much as thirty other steps, and a look at all books as ten.
STEPS_BETWEEN_LOSSES = 60
STEPS_BETWEEN_QUOTAS = 15
STEPS_BETWEEN_CHECKS = 100


class LedgerMachine(StakeRules):
    """Everything that moves money, repeats, lost writers; the model says what must come of it."""

    database: ClassVar[Database]
    auditor: ClassVar[Auditor]
    sums: ClassVar[EntrySums]
    steps: ClassVar[int]

    @classmethod
    def start(cls, database: Database) -> None:
        """Begin with another database."""
        cls.database, cls.auditor = database, Auditor(database.superuser_url)
        cls.sums, cls.steps = EntrySums(), 0

    @initialize()
    def open(self) -> None:
        self.runner = asyncio.Runner()
        self.store = self.run(open_store(self.database.service_url))
        self.own_steps = self.since_loss = self.since_quota = 0
        (owner,) = self.run(
            self.store.commit([RegisterOwner(key="o", owner=OWNER, address="")], AT)
        )
        self.epoch = int(owner.result["epoch"])
        run_name = new_id()
        self.payers = [f"did:payer:{run_name}:{number}" for number in range(3)]
        self.agents = [f"did:agent:{run_name}:{number}" for number in range(3)]
        # The first payer owns the first agent; the others own themselves.
        self.run(self.store.commit([card(self.agents[0], owner_did=self.payers[0])], AT))
        self.sums.add_new(self.auditor)  # what a failing run before left behind
        fee = self.auditor.one("SELECT balance FROM account WHERE address = 'fee'")
        self.model = MoneyModel([*self.payers, *self.agents], fee=fee)
        self.flows = []
        self.attempts = []
        self.nodes = 0
        self.history: list[tuple[Command, Outcome]] = []

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def commit(self, *commands: Command) -> list[Outcome]:
        outcomes = self.run(self.store.commit(commands, AT))
        for command, outcome in zip(commands, outcomes, strict=True):
            is_first = outcome.status in (OutcomeStatus.APPLIED, OutcomeStatus.REJECTED)
            # A quota's refusal leaves no trace: its key is free.
            if is_first and outcome.error is not ErrorCode.QUOTA_EXCEEDED:
                self.history.append((command, outcome))
        return outcomes

    def flow(self, index: int) -> Flow:
        return self.flows[index % len(self.flows)]

    # -- wallets and workflows --------------------------------------------------------------------

    @rule(payer=few, micro=amounts)
    def deposit(self, payer: int, micro: int) -> None:
        did = self.payers[payer]
        (outcome,) = self.commit(deposit(micro, owner_did=did))
        self.model.wallets[did] += micro
        assert outcome.result["balanceMicro"] == self.model.wallets[did]

    @rule(payer=few, share=shares, bps=st.sampled_from([0, 500, 500, 10_000]))
    def publish(self, payer: int, share: int, bps: int) -> None:
        """Hold a share (percent) of the wallet; above 100 it must be refused."""
        did = self.payers[payer]
        micro = share_of(self.model.wallets[did], share)
        flow = Flow(self.epoch, hold=micro, estimate=micro, payer=did, fee_bps=bps)
        (outcome,) = self.commit(flow.publish())
        assert outcome.error is self.model.publish_error(did, micro)
        if outcome.error is None:
            self.model.publish(flow.id, did, micro, bps)
            self.flows.append(flow)

    @precondition(lambda self: self.flows)
    @rule(index=st.integers(0, 99), agent=few, share=st.integers(0, 120))
    def pay(self, index: int, agent: int, share: int) -> None:
        """Pay a share (percent) of what is left; above 100 it must be refused whole."""
        flow, did = self.flow(index), self.agents[agent]
        self.nodes += 1
        gross = share_of(self.model.contracts[flow.id].rest, share)
        node = f"n{self.nodes}"
        (outcome,) = self.commit(flow.pay(gross, node=node, agent=did))
        if gross > self.model.contracts[flow.id].rest:
            assert outcome.status is OutcomeStatus.REJECTED
        else:
            assert outcome.status is OutcomeStatus.APPLIED
            self.model.pay(flow.id, node, did, gross)

    @precondition(lambda self: self.flows)
    @rule(index=st.integers(0, 99), agent=few, micro=amounts)
    def pay_one_node_twice_in_a_batch(self, index: int, agent: int, micro: int) -> None:
        flow, did = self.flow(index), self.agents[agent]
        self.nodes += 1
        gross = min(micro, self.model.contracts[flow.id].rest // 2)
        node = f"n{self.nodes}"
        twins = [flow.pay(gross, node=node, agent=did, key=new_key()) for _ in range(2)]
        one, two = self.commit(*twins)
        assert one.status is OutcomeStatus.APPLIED
        assert two.error is ErrorCode.ALREADY_SETTLED
        self.model.pay(flow.id, node, did, gross)

    @precondition(lambda self: self.flows)
    @rule(
        index=st.integers(0, 99),
        status=st.sampled_from(
            [WorkflowStatus.SUCCESS, WorkflowStatus.CANCELLED, WorkflowStatus.TIMEOUT]
        ),
    )
    def end(self, index: int, status: WorkflowStatus) -> None:
        flow = self.flows.pop(index % len(self.flows))
        self.end_attempts(flow)
        outcome, late, twice = self.commit(flow.end(status), flow.pay(0, node="late"), flow.end())
        assert outcome.result == {"releasedMicro": self.model.end(flow.id)}
        assert late.error is twice.error is ErrorCode.ESCROW_RELEASED

    # -- refunds, quotas ---------------------------------------------------------------------------

    @precondition(lambda self: any(line.left for line in self.model.lines))
    @rule(index=st.integers(0, 99), share=st.integers(1, 110))
    def refund(self, index: int, share: int) -> None:
        """A dispute gives a share (percent) of a payment back; above 100 it must be refused."""
        lines = [line for line in self.model.lines if line.left]
        line = lines[index % len(lines)]
        micro = share_of(line.left, share)
        dispute = about(
            None,
            workflow_id=line.workflow_id,
            node_id=line.node,
            complainant_did=line.payer,
            respondent_did=line.agent,
        )
        _, outcome = self.commit(dispute, decide(dispute, micro))
        if micro > line.left:
            assert outcome.error is ErrorCode.INVALID_REQUEST
            return
        split = self.model.refund(line, micro)
        assert outcome.result["refundedMicro"] == split.refunded_micro
        assert outcome.result["shortMicro"] == split.short_micro

    @precondition(lambda self: self.since_quota >= STEPS_BETWEEN_QUOTAS)
    @rule(payer=few, per_day=limits, at_once=limits, quarters=limits)
    def set_quota(
        self, payer: int, per_day: int | None, at_once: int | None, quarters: int | None
    ) -> None:
        """Limit a payer close to what it uses; `quarters` of its wallet may go today."""
        self.since_quota = 0
        did = self.payers[payer]
        own, _, spend = self.model.usage(did)
        per_day = None if per_day is None else own + per_day
        more = self.model.wallets[did] * (quarters or 0) // 4
        cents = None if quarters is None else cents_ceil(spend + more)
        self.commit(
            SetQuota(
                key=new_key(),
                actor_did="did:test:admin",
                did=did,
                limits=QuotaLimits(per_day, at_once, cents),
            )
        )
        self.model.limits[did] = Limits(per_day, at_once, cents)

    # -- repeats and lost writers -----------------------------------------------------------------

    @precondition(lambda self: self.history)
    @rule(indexes=st.lists(st.integers(0, 999), max_size=4), payer=few)
    def repeat(self, indexes: list[int], payer: int) -> None:
        """Earlier commands come again, with a new one behind them."""
        chosen = [self.history[index % len(self.history)] for index in indexes]
        new = deposit(7, owner_did=self.payers[payer])
        outcomes = self.commit(*(command for command, _ in chosen), new)
        self.model.wallets[self.payers[payer]] += 7
        for (_, first), outcome in zip(chosen, outcomes, strict=False):
            assert outcome.status is OutcomeStatus.REPEATED
            assert (outcome.result, outcome.error) == (first.result, first.error)

    @precondition(lambda self: self.since_loss >= STEPS_BETWEEN_LOSSES)
    @rule()
    def crash(self) -> None:
        """The writer's connection dies; a new writer takes over."""
        self.since_loss = 0
        self.auditor.one("SELECT pg_terminate_backend(%s, 5000)", self.store.backend_pid)
        lost = deposit(1, owner_did=self.payers[0])
        with pytest.raises(LedgerUnavailable):
            self.run(self.store.commit([lost], AT))
        self.run(self.store.close())
        self.store: LedgerStore = self.run(open_store(self.database.service_url))

    @precondition(lambda self: self.since_loss >= STEPS_BETWEEN_LOSSES)
    @rule()
    def take_over(self) -> None:
        """A second writer opens while the first lives: the first can write nothing more."""
        self.since_loss = 0
        old = self.store
        self.store = self.run(open_store(self.database.service_url))
        with pytest.raises(LedgerFenced):
            self.run(old.commit([deposit(1, owner_did=self.payers[0])], AT))
        self.run(old.close())

    # -- what must hold ---------------------------------------------------------------------------

    @invariant()
    def books_are_sound(self) -> None:
        if not hasattr(self, "model"):
            return
        type(self).steps += 1
        self.own_steps += 1
        self.since_loss += 1
        self.since_quota += 1
        touched = self.sums.add_new(self.auditor)
        expected = self.model.balances()
        rows = self.auditor.connection.execute(
            "SELECT id, address, balance FROM account WHERE address = ANY(%s) OR id = ANY(%s)"
            " UNION ALL SELECT 0, '', sum(balance) FROM account",
            (list(expected), list(touched)),
        ).fetchall()
        assert rows.pop()[2] == 0, "the balances do not sum to 0"
        stored = {address: balance for _, address, balance in rows}
        for account_id, address, balance in rows:
            assert balance == self.sums.by_account[account_id], address
        for address, balance in expected.items():
            assert stored.get(address, 0) == balance, address
        assert set(stored) <= {*expected, "world"}, "an account moved that the model does not know"
        self.auditor.check_chain()
        if self.own_steps % STEPS_BETWEEN_CHECKS == 0:
            self.auditor.check()

    def teardown(self) -> None:
        if not hasattr(self, "model"):
            return
        self.auditor.check()
        keys = [command.key for command, _ in self.history]
        found = self.auditor.one("SELECT count(*) FROM command WHERE id = ANY(%s)", keys)
        assert found == len(set(keys))
        self.run(self.store.close())
        self.runner.close()


@pytest.mark.slow
def test_money_is_conserved_in_every_history(shared_database: Database) -> None:
    """10,000 steps and more (money.md section 7)."""
    LedgerMachine.start(shared_database)
    while LedgerMachine.steps < 10_000:
        run_state_machine_as_test(
            LedgerMachine,
            settings=settings(
                max_examples=10,
                stateful_step_count=200,
                deadline=None,
                # A failure is shown as found: making it smaller against a database takes minutes.
                phases=(Phase.explicit, Phase.reuse, Phase.generate),
                suppress_health_check=list(HealthCheck),
            ),
        )
    LedgerMachine.auditor.close()


@pytest.mark.soak
def test_money_is_conserved_for_long(shared_database: Database) -> None:
    """Twenty times as many, and a failure made smaller."""
    LedgerMachine.start(shared_database)
    run_state_machine_as_test(
        LedgerMachine,
        settings=settings(
            max_examples=1_200,
            stateful_step_count=200,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    LedgerMachine.auditor.close()
