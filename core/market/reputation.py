"""An agent's reputation: outcome counts, rates, the score, and the stake that the score requires.

All arithmetic is on integers until a figure is rounded to six decimals. A rebuild from history
therefore gives exactly the same figures. `core/workflow/rules/node_ends.py` decides how a node's
end counts. `slashing.py` decides which failures cost stake.
Reference: money.md (Reputation, Promised time). Decision reputation-and-ranking.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct

from core.market.settlement import FEE_BPS_MAX

# The promised time of an agent whose bid and card have no `etaMs`. If the payer ends an attempt
# before the promised time has passed, the agent is not at fault.
PROMISED_MS: Final = 10_000
# The average latency at which the speed is 0.
LATENCY_MS_MAX: Final = 60_000

NEUTRAL: Final = 0.5
_MILLION: Final = 1_000_000
# Weights of success, speed and completion in tenths (spec: Settlement rules 9).
_SUCCESS, _SPEED, _COMPLETION = 5, 3, 2
_Ratio = tuple[int, int]
_NEUTRAL_RATIO: Final[_Ratio] = (1, 2)


class Outcome(StrEnum):
    """The outcome of a node for the agent of the node's last attempt."""

    SUCCESSFUL = "successful"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Tally(Struct, frozen=True, gc=False):
    """Counts of an agent's final outcomes, and the total latency of its successes.

    The fields `paid_…` count only outcomes of nodes with a price above 0. The other fields count
    all outcomes.
    """

    successful: int = 0
    failed: int = 0
    cancelled: int = 0
    latency_ms_sum: int = 0
    paid_successful: int = 0
    paid_failed: int = 0
    paid_cancelled: int = 0
    paid_latency_ms_sum: int = 0

    def counted(self, *, asks_price: bool) -> Tally:
        """Return a tally of only the outcomes that count for the agent's reputation.

        Unpaid work does not count for an agent that asks a price (money.md, Reputation).

        Args:
            asks_price: whether the agent currently asks a price; otherwise all outcomes count.
        """
        if not asks_price:
            return Tally(self.successful, self.failed, self.cancelled, self.latency_ms_sum)
        return Tally(
            self.paid_successful,
            self.paid_failed,
            self.paid_cancelled,
            self.paid_latency_ms_sum,
        )

    @property
    def total(self) -> int:
        """The number of final outcomes."""
        return self.successful + self.failed + self.cancelled

    @property
    def success_rate(self) -> float:
        """Successes divided by successes and failures, 0 to 1; 0.5 while there are neither."""
        return _millionths(_success(self)) / _MILLION

    @property
    def completion_rate(self) -> float:
        """Outcomes that were not cancelled divided by all outcomes, 0 to 1; 0.5 without any."""
        return _millionths(_completion(self)) / _MILLION

    @property
    def latency_ms_avg(self) -> int | None:
        """Average latency of the successes, milliseconds, rounded half up; None without one."""
        if self.successful == 0:
            return None
        return (2 * self.latency_ms_sum + self.successful) // (2 * self.successful)


def score(tally: Tally, *, latency_ms_max: int) -> float:
    """Return the overall score, 0 to 1, rounded half up to 6 decimals.

    The score is 0.5 × success rate + 0.3 × speed + 0.2 × completion rate. A part without data is
    0.5 (neutral). The speed of an agent with failures and without a success is 0. With a neutral
    speed, the agent's first success could lower its score.

    Args:
        latency_ms_max: the average latency at which the speed is 0, milliseconds, 0 or more.

    Reference: money.md (Reputation).
    """
    parts = (
        (_SUCCESS, _success(tally)),
        (_SPEED, _speed(tally, latency_ms_max)),
        (_COMPLETION, _completion(tally)),
    )
    numerator, denominator = 0, 1
    for weight, (part, whole) in parts:
        numerator = numerator * whole + weight * part * denominator
        denominator *= whole
    return _millionths((numerator, 10 * denominator)) / _MILLION


def speed(tally: Tally, *, latency_ms_max: int) -> float:
    """Return the speed, one part of the score, 0 to 1 (see `score`)."""
    return _millionths(_speed(tally, latency_ms_max)) / _MILLION


def stake_required_micro(price_micro: int, *, stake_bps: int, score: float) -> int:
    """Return the stake that a node requires of its agent, micro-credits, rounded up.

    The stake is price × stake_bps / 10,000 × (1.5 − score), and at most the price. Because of this
    maximum, a slash never pays a payer more than the node's price.

    Args:
        price_micro: the node's price, micro-credits, 0 or more.
        stake_bps: the stake at a score of 0.5, basis points of the price, 0 to 10,000.
        score: the agent's score, 0 to 1; only 6 decimals count.

    Reference: money.md (Slashing).
    """
    assert price_micro >= 0, price_micro
    assert 0 <= stake_bps <= FEE_BPS_MAX, stake_bps
    assert 0 <= score <= 1, score
    whole = FEE_BPS_MAX * _MILLION
    return -(-price_micro * min(stake_bps * _stake_factor(score), whole) // whole)


def price_reach_micro(stake_micro: int, *, stake_bps: int, score: float) -> int:
    """Return the highest price for which an agent's stake suffices, micro-credits.

    This is the inverse of `stake_required_micro`.

    Args:
        stake_micro: the agent's stake, micro-credits, 0 or more.
        stake_bps: the stake at a score of 0.5, basis points of the price, 1 to 10,000.
        score: the agent's score, 0 to 1; only 6 decimals count.
    """
    whole = FEE_BPS_MAX * _MILLION
    return stake_micro * whole // min(stake_bps * _stake_factor(score), whole)


def _stake_factor(score: float) -> int:
    """Return 1.5 − score, in millionths."""
    return 3 * _MILLION // 2 - round(score * _MILLION)


def _success(tally: Tally) -> _Ratio:
    judged = tally.successful + tally.failed
    return (tally.successful, judged) if judged else _NEUTRAL_RATIO


def _completion(tally: Tally) -> _Ratio:
    total = tally.total
    return (total - tally.cancelled, total) if total else _NEUTRAL_RATIO


def _speed(tally: Tally, latency_ms_max: int) -> _Ratio:
    if tally.successful == 0:
        return (0, 1) if tally.failed else _NEUTRAL_RATIO
    limit_ms = tally.successful * latency_ms_max
    return (
        (limit_ms - tally.latency_ms_sum, limit_ms) if tally.latency_ms_sum < limit_ms else (0, 1)
    )


def _millionths(ratio: _Ratio) -> int:
    part, whole = ratio
    return (2 * _MILLION * part + whole) // (2 * whole)
