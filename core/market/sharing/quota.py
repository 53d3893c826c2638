"""Quotas of payers: workflows per day, spend per day, and concurrent workflows.

A workflow counts on the day of its publish (UTC). Its hold counts as spend until the workflow ends,
and its cost counts afterwards. The caller checks the quota and counts the workflow in one
transaction, so that parallel publishes cannot exceed the quota.
Reference: money.md (Quotas), http.md (Request limits).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from core.money import MICRO_PER_CENT, cents_ceil

DAY_MS: Final = 86_400_000
NO_QUOTA: Final = "No quota configured"
WITHIN_QUOTA: Final = "Within quota"


@dataclass(frozen=True, slots=True)
class QuotaLimits:
    """The limits of a payer; None: this limit does not exist."""

    workflows_per_day: int | None = None
    workflows_concurrent: int | None = None
    spend_cents_per_day: int | None = None


@dataclass(frozen=True, slots=True)
class QuotaUsage:
    """The usage of a payer.

    `workflows_today`: workflows published today. `spend_micro_today`: the sum of their holds or
    costs, micro-credits. `workflows_running`: workflows that have not ended.
    """

    workflows_today: int = 0
    spend_micro_today: int = 0
    workflows_running: int = 0

    @property
    def spend_cents_today(self) -> int:
        """Today's spend as users see it, cents, rounded up."""
        return cents_ceil(self.spend_micro_today)


@dataclass(frozen=True, slots=True)
class QuotaVerdict:
    """Whether a payer may publish one more workflow, and why."""

    is_allowed: bool
    reason: str


def judge_quota(limits: QuotaLimits | None, usage: QuotaUsage, spend_micro: int) -> QuotaVerdict:
    """Decide whether a payer may publish one more workflow now.

    Args:
        limits: the payer's limits, None without a quota.
        usage: the payer's usage without the new workflow.
        spend_micro: the new workflow's hold, micro-credits, 0 or more.

    Reference: money.md (Quotas).
    """
    if limits is None:
        return QuotaVerdict(True, NO_QUOTA)
    most = limits.workflows_per_day
    if most is not None and usage.workflows_today >= most:
        return QuotaVerdict(
            False, f"Daily workflows: {usage.workflows_today} of {most} are published"
        )
    most = limits.workflows_concurrent
    if most is not None and usage.workflows_running >= most:
        return QuotaVerdict(
            False, f"Concurrent workflows: {usage.workflows_running} of {most} are running"
        )
    most = limits.spend_cents_per_day
    # The sum is compared exactly, because rounded amounts would refuse workflows that still fit.
    if most is not None and usage.spend_micro_today + spend_micro > most * MICRO_PER_CENT:
        used, wanted = usage.spend_cents_today, cents_ceil(spend_micro)
        return QuotaVerdict(False, f"Daily spend: {used} of {most} cents used, {wanted} wanted")
    return QuotaVerdict(True, WITHIN_QUOTA)


def day_start_ms(at_ms: int) -> int:
    """Return the UTC midnight before a time; both are Unix milliseconds (money.md, Quotas)."""
    return at_ms - at_ms % DAY_MS


def resets_at_ms(at_ms: int) -> int:
    """Return the next UTC midnight after a time, when the daily counts start again.

    Args:
        at_ms: the time, Unix milliseconds.

    Reference: money.md (Quotas).
    """
    return day_start_ms(at_ms) + DAY_MS
