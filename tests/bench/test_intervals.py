"""The interval of a ratio: known quantiles, symmetry, and how often it holds the truth."""

from __future__ import annotations

import math
import random

import pytest

from bench.figures.intervals import ratio_interval, t_quantile


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(3, 3.1824), (5, 2.5706), (9, 2.2622), (19, 2.0930), (99, 1.9842)]
)
def test_t_quantile_is_that_of_the_tables(freedom: int, quantile: float) -> None:
    assert t_quantile(freedom) == pytest.approx(quantile, rel=2e-3)


def test_equal_ratios_have_an_interval_of_no_width() -> None:
    found = ratio_interval([0.97] * 10)
    assert (found.low, found.mean, found.high) == pytest.approx((0.97, 0.97, 0.97))


def test_the_interval_of_the_reciprocals_is_the_reciprocal_interval() -> None:
    ratios = [0.9, 1.0, 1.1, 1.3, 0.8]
    found, turned = ratio_interval(ratios), ratio_interval([1 / ratio for ratio in ratios])
    assert (1 / turned.high, 1 / turned.low) == pytest.approx((found.low, found.high))


def test_the_interval_holds_the_truth_about_nineteen_times_in_twenty() -> None:
    """Goal: the level is 95 %. Method: 2,000 sets of 10 noisy pairs, each side 10 % off."""
    draw = random.Random(17)
    held = 0
    for _ in range(2_000):
        ratios = [0.9 * math.exp(draw.gauss(0, 0.1) - draw.gauss(0, 0.1)) for _ in range(10)]
        found = ratio_interval(ratios)
        held += found.low <= 0.9 <= found.high
    assert 0.93 <= held / 2_000 <= 0.97
