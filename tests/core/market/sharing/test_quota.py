"""Quotas: what a payer may publish. money.md cases 37 and 38."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.market.sharing.quota import (
    DAY_MS,
    NO_QUOTA,
    WITHIN_QUOTA,
    QuotaLimits,
    QuotaUsage,
    day_start_ms,
    judge_quota,
    resets_at_ms,
)

TIMES = st.integers(0, 4 * 10**12)
LIMITS = st.builds(
    QuotaLimits,
    st.none() | st.integers(0, 6),
    st.none() | st.integers(0, 4),
    st.none() | st.integers(0, 5),
)
# A publish of so many micro-credits, or the end of the oldest running one that cost this much.
STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 30_000)), max_size=30)


@given(TIMES)
def test_case_37_counters_start_again_at_the_next_utc_midnight(at_ms: int) -> None:
    now = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=at_ms)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    assert day_start_ms(at_ms) == round(midnight.timestamp() * 1_000)
    assert resets_at_ms(at_ms) == round((midnight + timedelta(days=1)).timestamp() * 1_000)


def test_case_37_midnight_belongs_to_the_day_that_begins() -> None:
    assert resets_at_ms(DAY_MS - 1) == DAY_MS
    assert resets_at_ms(DAY_MS) == 2 * DAY_MS


def test_case_37_a_workflow_over_midnight_counts_on_its_publish_day_only() -> None:
    today = QuotaUsage(workflows_running=1).after_publish(50)
    ended = today.after_end(40, was_published_today=False)
    assert ended == QuotaUsage(1, 50, 1)


def test_case_38_what_is_released_is_given_back_to_the_publish_day() -> None:
    usage = QuotaUsage().after_publish(50_000)
    assert usage == QuotaUsage(1, 50_000, 1)
    assert usage.after_end(20_000, was_published_today=True) == QuotaUsage(1, 30_000, 0)


@given(LIMITS, STEPS)
def test_case_38_checked_and_counted_together_no_order_overshoots(
    limits: QuotaLimits, steps: list[tuple[bool, int]]
) -> None:
    usage = QuotaUsage()
    running: list[int] = []
    counts: Counter[str] = Counter()
    for is_publish, micro in steps:
        if is_publish and judge_quota(limits, usage, micro).is_allowed:
            usage = usage.after_publish(micro)
            running.append(micro)
            counts["published"] += 1
            counts["spent"] += micro
        elif running and not is_publish:
            returned = min(micro, running.pop(0))
            usage = usage.after_end(returned, was_published_today=True)
            counts["spent"] -= returned
        assert usage == QuotaUsage(counts["published"], counts["spent"], len(running))
        assert usage.workflows_today <= (limits.workflows_per_day or 0) or (
            limits.workflows_per_day is None
        )
        assert limits.workflows_concurrent is None or len(running) <= limits.workflows_concurrent
        if limits.spend_cents_per_day is not None:
            assert usage.spend_cents_today <= limits.spend_cents_per_day


def test_case_38_the_last_micro_credit_of_the_day_may_be_spent() -> None:
    limits, usage = QuotaLimits(spend_cents_per_day=2), QuotaUsage(1, 4_999, 0)
    assert judge_quota(limits, usage, 15_001).is_allowed
    assert not judge_quota(limits, usage, 15_002).is_allowed


@given(LIMITS, st.integers(0, 8), st.integers(0, 80_000), st.integers(0, 6), st.integers(0, 60_000))
def test_a_refusal_is_never_without_a_limit_that_would_be_broken(
    limits: QuotaLimits, today: int, spent: int, running: int, spend: int
) -> None:
    usage = QuotaUsage(today, spent, running)
    after = usage.after_publish(spend)
    broken = (
        (limits.workflows_per_day is not None and after.workflows_today > limits.workflows_per_day)
        or (
            limits.workflows_concurrent is not None
            and after.workflows_running > limits.workflows_concurrent
        )
        or (
            limits.spend_cents_per_day is not None
            and after.spend_cents_today > limits.spend_cents_per_day
        )
    )
    assert judge_quota(limits, usage, spend).is_allowed is not broken


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (None, NO_QUOTA),
        (QuotaLimits(), WITHIN_QUOTA),
        (QuotaLimits(3, 3, 3), WITHIN_QUOTA),
        (QuotaLimits(workflows_per_day=2), "Daily workflows: 2 of 2 are published"),
        (QuotaLimits(workflows_concurrent=1), "Concurrent workflows: 1 of 1 are running"),
        (QuotaLimits(spend_cents_per_day=2), "Daily spend: 2 of 2 cents used, 2 wanted"),
    ],
)
def test_case_38_a_verdict_says_which_limit_with_cents_rounded_up(
    limits: QuotaLimits | None, reason: str
) -> None:
    verdict = judge_quota(limits, QuotaUsage(2, 10_001, 1), 10_001)
    assert verdict.reason == reason
    assert verdict.is_allowed is (reason in (NO_QUOTA, WITHIN_QUOTA))
