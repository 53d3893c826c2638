"""Rules of ends: what a workflow still has at work or open goes with it, and its money returns."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from core.errors import ErrorCode
from core.money import MICRO_MAX
from core.workflow.events import AuctionClosed, Record, WorkflowChanged
from core.workflow.transitions import NodeStatus, WorkflowStatus
from tests.ledger.machine.base import any_index, few
from tests.ledger.machine.work import WorkRules, bps
from tests.ledger.making import AT


class EndRules(WorkRules):
    """Cancelled, timed out, or done."""

    @precondition(lambda self: self.flows)
    @rule(
        index=any_index,
        status=st.sampled_from([WorkflowStatus.CANCELLED, WorkflowStatus.TIMEOUT]),
        agent=few,
        slash_bps=bps,
        more=st.integers(0, 1),
    )
    def end(
        self, index: int, status: WorkflowStatus, agent: int, slash_bps: int, more: int
    ) -> None:
        """A workflow is over, with all that is at work: locks end whole, nothing is slashed, and
        whatever still comes is refused. One with nothing at work has succeeded. What was at work
        counts as its owner says."""
        flow = self.flows.pop(index % len(self.flows))
        works = list(self.contract(flow).works.values())
        status = status if works else WorkflowStatus.SUCCESS
        is_cancelled = status is WorkflowStatus.CANCELLED
        code = "CANCELLED" if is_cancelled else "WORKFLOW_TIMEOUT"
        counts_as = "cancelled" if slash_bps % 3 else None
        records: list[Record] = []
        for work in works:
            if work.is_at_work:
                records += [*self.freed(work), self.finished(work, "discarded", code)]
            if work.round is not None:
                self.model.free_bids(work.round)
                records.append(
                    AuctionClosed(work.name, work.round.number, None, None, is_cancelled=True)
                )
            is_timeout = work.is_at_work and not is_cancelled
            end = NodeStatus.TIMEOUT if is_timeout else NodeStatus.SKIPPED
            told = counts_as if work.is_at_work else None
            records.append(self.ended(work, end, {"code": code}, told))
        over = flow.advance(*records, WorkflowChanged(status, AT + 100), bps=slash_bps)
        late = flow.pay(1, node="late", agent=self.agents[agent])
        outcome, too_late, twice = self.commit(over, late, flow.end())
        for work in works:
            if work.is_at_work:
                self.stops(flow, work)
                if counts_as is not None:
                    self.model.count(work.agent, "cancelled", price=work.price)
        assert outcome.result == {"releasedMicro": self.model.end(flow.id)}
        assert too_late.error is twice.error is ErrorCode.ESCROW_RELEASED
        room = self.model.room_of_day(flow.payer, self.now)
        if room is not None:
            # What came back may be held again to the last micro-credit, and not one `more`.
            hold = min(max(0, room) + more, MICRO_MAX)
            self.publishes(flow.payer, hold, 500, [])
