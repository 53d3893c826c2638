"""Rules of extremes: amounts at their bounds, clocks that step back, times and texts beyond use.

What an owner has in all is bounded as money comes in; what it earns is not, because all that was
issued is bounded. Time as it is committed never goes back. Issue 8, row 3.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from msgspec.structs import replace

from core.money import MICRO_MAX
from core.workflow.events import AttemptFinished
from core.workflow.transitions import NodeStatus
from tests.ledger.machine.base import any_index, few, four
from tests.ledger.machine.work import WorkRules
from tests.ledger.making import deposit

STEPS_BETWEEN_EXTREMES = 15
# Latencies that clocks, or agents, have told.
LATENCIES_MS = (-1, -86_400_000, 0, 2**31, 10**15)
# What is counted of a latency at most: 30 days.
LATENCY_MS_MAX = 30 * 86_400_000
TEXT_CHARACTERS = 10_000


class ExtremeRules(WorkRules):
    """What is at a bound, or beyond it."""

    @precondition(lambda self: self.is_due("bound", STEPS_BETWEEN_EXTREMES))
    @rule(payer=four, more=st.integers(0, 2))
    def deposit_up_to_the_bound(self, payer: int, more: int) -> None:
        """Exactly what an owner may have is taken, and not one micro-credit more."""
        self.done_now("bound")
        did = self.payers[payer]
        room = self.model.room(did)
        if room > 0:
            self.deposits(did, room)
        self.deposits(did, 1 + more)

    @precondition(lambda self: self.is_due("full", STEPS_BETWEEN_EXTREMES))
    @rule(payer=four, agent=few)
    def pay_into_a_full_wallet(self, payer: int, agent: int) -> None:
        """Income has no bound: an agent that has all it may deposit is paid as any other."""
        self.done_now("full")
        did, worker = self.payers[payer], self.agents[agent]
        room = self.model.room(worker)
        if room > 0:
            self.deposits(worker, room)
        held = min(self.model.wallets[did], MICRO_MAX)
        if self.model.publish_error(did, held, self.now) is not None:
            return
        one = self.attempt(self.new_work(), worker, held, 0)
        self.publishes(did, held, 500, [one])
        flow = self.flows[-1]
        self.applies(flow.advance(*(paid := self.done(one.work, held, latency_ms=1))))
        self.pays(flow, paid)
        self.stops(flow, one.work)
        self.model.count(worker, "successful", 1, price=held)
        del self.contract(flow).works[one.work.name]

    @precondition(lambda self: self.works(at_work=True))
    @rule(index=any_index, latency_ms=st.sampled_from(LATENCIES_MS))
    def succeed_at_an_odd_time(self, index: int, latency_ms: int) -> None:
        """A latency is counted within its bounds; a node is paid whatever it took."""
        busy = self.works(at_work=True)
        flow, work = busy[index % len(busy)]
        records = (*self.freed(work), *self.done(work, work.price, latency_ms=latency_ms))
        self.applies(flow.advance(*records))
        self.pays(flow, records)
        self.stops(flow, work)
        counted_ms = min(max(0, latency_ms), LATENCY_MS_MAX)
        self.model.count(work.agent, "successful", counted_ms, price=work.price)
        del self.contract(flow).works[work.name]

    @precondition(lambda self: self.works(at_work=True))
    @rule(index=any_index)
    def fail_with_a_long_message(self, index: int) -> None:
        """The longest text that an agent may say is kept whole."""
        busy = self.works(at_work=True)
        flow, work = busy[index % len(busy)]
        failed = self.finished(work, "error", "AGENT_ERROR")
        assert isinstance(failed, AttemptFinished)
        said = replace(failed, error_message="\U0001f4a5" * TEXT_CHARACTERS)
        self.applies(flow.advance(said))
        stored = self.auditor.one(
            "SELECT length(error_message) FROM attempt WHERE workflow_id = %s AND node = %s"
            " AND attempt = %s AND kind = 'primary'",
            flow.id, work.name, work.attempt,
        )  # fmt: skip
        assert stored == TEXT_CHARACTERS
        # Its attempt has ended in the history: the next one has the next number.
        self.applies(flow.advance(*self.freed(work), self.ended(work, NodeStatus.READY, None)))
        self.stops(flow, work)
        if work.rounds:
            self.may_lose_the_node(work)

    @precondition(lambda self: self.is_due("clock", STEPS_BETWEEN_EXTREMES))
    @rule(back_ms=st.sampled_from([1, 2_000, 86_400_000]), payer=four)
    def clock_steps_back(self, back_ms: int, payer: int) -> None:
        """What is committed next carries no earlier time than what was committed before."""
        self.done_now("clock")
        newest = "SELECT max(created_ms) FROM audit"
        before_ms = self.auditor.one(newest)
        did = self.payers[payer]
        micro = min(1, max(0, self.model.room(did)))
        if micro:
            back = deposit(micro, owner_did=did)
            (outcome,) = self.run(self.store.commit([back], self.now - back_ms))
            assert outcome.error is None
            self.model.wallets[did] += micro
            last = "SELECT created_ms FROM audit ORDER BY id DESC LIMIT 1"
            assert self.auditor.one(last) >= before_ms, "time has gone back"
