"""Quotas: what a payer may publish. money.md (Quotas)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.market.sharing.quota import (
    NO_QUOTA,
    WITHIN_QUOTA,
    QuotaLimits,
    QuotaUsage,
    day_start_ms,
    judge_quota,
    resets_at_ms,
)
from core.money import MICRO_PER_CENT

TIMES = st.integers(0, 4 * 10**12)
LIMITS = st.builds(
    QuotaLimits,
    st.none() | st.integers(0, 6),
    st.none() | st.integers(0, 4),
    st.none() | st.integers(0, 5),
)


@given(TIMES)
def test_case_37_counters_start_again_at_the_next_utc_midnight(at_ms: int) -> None:
    now = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=at_ms)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    assert day_start_ms(at_ms) == round(midnight.timestamp() * 1_000)
    assert resets_at_ms(at_ms) == round((midnight + timedelta(days=1)).timestamp() * 1_000)


@given(LIMITS, st.integers(0, 8), st.integers(0, 80_000), st.integers(0, 6), st.integers(0, 60_000))
def test_a_refusal_is_never_without_a_limit_that_would_be_broken(
    limits: QuotaLimits, today: int, spent: int, running: int, spend: int
) -> None:
    usage = QuotaUsage(today, spent, running)
    broken = (
        (limits.workflows_per_day is not None and today + 1 > limits.workflows_per_day)
        or (limits.workflows_concurrent is not None and running + 1 > limits.workflows_concurrent)
        or (
            limits.spend_cents_per_day is not None
            and spent + spend > limits.spend_cents_per_day * MICRO_PER_CENT
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
