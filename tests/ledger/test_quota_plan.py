"""Quotas where publishes and ends are planned. money.md (Quotas)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from core.errors import ErrorCode
from core.market.sharing.quota import DAY_MS, QuotaLimits, day_start_ms
from core.money import MICRO_PER_CENT
from ledger.quotas.quota_plan import give_back, use_quota
from ledger.writer.batch import Batch, Refusal
from ledger.writer.state_cache import Account, Escrow, Head, StateCache, Usage
from tests.ledger.making import AT, PAYER, Flow, ToldLives

TODAY = day_start_ms(AT)
LIMITS = st.builds(
    QuotaLimits,
    st.none() | st.integers(0, 6),
    st.none() | st.integers(0, 4),
    st.none() | st.integers(0, 5),
)
# A publish of so many micro-credits, or the end of the oldest running one that gives this back.
STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 30_000)), max_size=30)


class Plan:
    """Plans the publishes and ends of one payer with a quota."""

    def __init__(self, limits: QuotaLimits) -> None:
        cache = StateCache(Head(1, 0, 0, b"", 0), ToldLives())
        cache.quotas[PAYER] = limits
        self.usage = cache.usage[PAYER] = Usage(0, {TODAY: (0, 0), TODAY + DAY_MS: (0, 0)})
        self.batch = Batch(cache, AT)

    def publish(self, hold_micro: int) -> Escrow:
        """Count a publish. Raises: Refusal."""
        use_quota(Flow(1).publish(), hold_micro, self.batch)
        return Escrow(Account(1, "escrow", hold_micro), PAYER, hold_micro, 0, AT)

    def end(self, escrow: Escrow, returned_micro: int) -> None:
        """Count the end of a workflow."""
        give_back(escrow, returned_micro, self.batch)


def test_case_37_a_workflow_over_midnight_counts_on_its_publish_day_only() -> None:
    plan = Plan(QuotaLimits())
    escrow = plan.publish(50)
    tomorrow = replace(Flow(1).publish(), created_ms=AT + DAY_MS)
    use_quota(tomorrow, 7, plan.batch)
    assert plan.usage == Usage(2, {TODAY: (1, 50), TODAY + DAY_MS: (1, 7)})
    plan.end(escrow, 40)
    assert plan.usage == Usage(1, {TODAY: (1, 10), TODAY + DAY_MS: (1, 7)})


def test_case_38_what_is_released_is_given_back_to_the_publish_day() -> None:
    plan = Plan(QuotaLimits(spend_cents_per_day=5))
    escrow = plan.publish(50_000)
    with pytest.raises(Refusal) as refused:
        plan.publish(1)
    assert refused.value.code is ErrorCode.QUOTA_EXCEEDED
    plan.end(escrow, 20_000)
    plan.publish(20_000)
    assert plan.usage.days[TODAY] == (2, 50_000)


@given(LIMITS, STEPS)
def test_case_38_checked_and_counted_together_no_order_overshoots(
    limits: QuotaLimits, steps: list[tuple[bool, int]]
) -> None:
    plan = Plan(limits)
    running: list[tuple[Escrow, int]] = []
    counts: Counter[str] = Counter()
    for is_publish, micro in steps:
        if is_publish:
            before = Usage(plan.usage.running, dict(plan.usage.days))
            try:
                running.append((plan.publish(micro), micro))
            except Refusal:
                assert plan.usage == before, "nothing is counted of what is refused"
                continue
            counts["published"] += 1
            counts["spent"] += micro
        elif running:
            escrow, hold_micro = running.pop(0)
            returned = min(micro, hold_micro)
            plan.end(escrow, returned)
            counts["spent"] -= returned
        assert plan.usage.days[TODAY] == (counts["published"], counts["spent"])
        assert plan.usage.running == len(running)
        for most, count in (
            (limits.workflows_per_day, counts["published"]),
            (limits.workflows_concurrent, len(running)),
        ):
            assert most is None or count <= most
        most = limits.spend_cents_per_day
        assert most is None or counts["spent"] <= most * MICRO_PER_CENT
