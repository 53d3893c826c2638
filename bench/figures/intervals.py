"""The 95 % confidence interval of a ratio that was measured in pairs.

The two sides of a pair run one after the other, so that other load on the machine affects both;
ratios are averaged as logarithms, because 2 and 1/2 are equally far from 1. Decision
tests-and-benchmarks.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_Z: float = statistics.NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, slots=True)
class RatioInterval:
    """The geometric mean of ratios, and the ends of its 95 % interval."""

    mean: float
    low: float
    high: float


def ratio_interval(ratios: Sequence[float]) -> RatioInterval:
    """Return the t interval of the mean of the ratios' logarithms, as ratios.

    Args:
        ratios: one per pair, above 0; at least 4.
    """
    assert len(ratios) >= 4, f"got {len(ratios)} pairs, expected at least 4"
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.fmean(logs)
    reach = t_quantile(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return RatioInterval(math.exp(middle), math.exp(middle - reach), math.exp(middle + reach))


def t_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t distribution.

    By the expansion of Cornish and Fisher in the normal quantile: exact to 0.2 % from 3 degrees of
    freedom on (Abramowitz and Stegun 26.7.5).

    Args:
        freedom: degrees of freedom, 3 or more.
    """
    terms = (
        (_Z**3 + _Z) / 4,
        (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / 96,
        (3 * _Z**7 + 19 * _Z**5 + 17 * _Z**3 - 15 * _Z) / 384,
        (79 * _Z**9 + 776 * _Z**7 + 1482 * _Z**5 - 1920 * _Z**3 - 945 * _Z) / 92_160,
    )
    return _Z + math.fsum(term / freedom**power for power, term in enumerate(terms, 1))
