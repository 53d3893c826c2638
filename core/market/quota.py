"""How much a payer may publish: workflows and money a day, workflows at once.

A workflow counts on the day of its publish (UTC), with its whole hold at first and with what it
really cost once the rest is returned. The caller checks and counts in one transaction, so that
parallel publishes cannot overshoot. Spec: Quota check result, Limits; money.md cases 37 and 38.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from core.money import MICRO_PER_CENT, cents_ceil

DAY_MS: Final = 86_400_000
NO_QUOTA: Final = "No quota configured"
WITHIN_QUOTA: Final = "Within quota"


@dataclass(frozen=True, slots=True)
class QuotaLimits:
    """The most that a payer may use; None: no limit of this kind."""

    workflows_per_day: int | None = None
    workflows_concurrent: int | None = None
    spend_cents_per_day: int | None = None


@dataclass(frozen=True, slots=True)
class QuotaUsage:
    """What the workflows published today hold and have cost, and how many run now."""

    workflows_today: int = 0
    spend_micro_today: int = 0
    workflows_running: int = 0

    @property
    def spend_cents_today(self) -> int:
        """The day's spend as shown: whole cents, any rest counts as one."""
        return cents_ceil(self.spend_micro_today)

    def after_publish(self, hold_micro: int) -> QuotaUsage:
        """Return the usage with one more workflow of today."""
        return QuotaUsage(
            self.workflows_today + 1,
            self.spend_micro_today + hold_micro,
            self.workflows_running + 1,
        )

    def after_end(self, returned_micro: int, *, was_published_today: bool) -> QuotaUsage:
        """Return the usage after a workflow's end: what returns is given back to its own day."""
        assert self.workflows_running > 0, "none runs"
        ended = replace(self, workflows_running=self.workflows_running - 1)
        if not was_published_today:
            return ended
        assert 0 <= returned_micro <= self.spend_micro_today, (returned_micro, self)
        return replace(ended, spend_micro_today=self.spend_micro_today - returned_micro)


@dataclass(frozen=True, slots=True)
class QuotaVerdict:
    """Whether one more workflow may be published, and the sentence that says why."""

    is_allowed: bool
    reason: str


def judge_quota(limits: QuotaLimits | None, usage: QuotaUsage, spend_micro: int) -> QuotaVerdict:
    """Say whether a payer may publish one more workflow now.

    Args:
        limits: the payer's row, None without one.
        usage: what it uses already, this workflow not included.
        spend_micro: what this workflow would hold, micro-credits, 0 or more.

    Spec: Quota check result; money.md case 38.
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
    # Against the exact sum: rounding each workflow up would refuse what the day still has room for.
    if most is not None and usage.spend_micro_today + spend_micro > most * MICRO_PER_CENT:
        used, wanted = usage.spend_cents_today, cents_ceil(spend_micro)
        return QuotaVerdict(False, f"Daily spend: {used} of {most} cents used, {wanted} wanted")
    return QuotaVerdict(True, WITHIN_QUOTA)


def day_start_ms(at_ms: int) -> int:
    """Return the UTC midnight with which the day of this time began (money.md case 37)."""
    return at_ms - at_ms % DAY_MS


def resets_at_ms(at_ms: int) -> int:
    """Return the next UTC midnight, when the daily counters start again (money.md case 37)."""
    return day_start_ms(at_ms) + DAY_MS
