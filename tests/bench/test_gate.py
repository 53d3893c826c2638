"""The throttle of an attack keeps to its share of a core, whatever a unit costs."""

from __future__ import annotations

import pytest

from bench.noise.gate import next_rate

CAP, CONTROL_S, SECONDS = 0.25, 0.25, 20.0


@pytest.mark.parametrize("unit_s", [0.0001, 0.002, 0.05])
def test_an_attack_uses_its_share_and_no_more(unit_s: float) -> None:
    """Method: units of a constant cost, begun at the rate that the control sets."""
    rate = first_rate = 20.0
    started = 0.0
    for tick in range(1, int(SECONDS / CONTROL_S) + 1):
        started += rate * CONTROL_S
        rate = next_rate(
            cap=CAP,
            elapsed_s=tick * CONTROL_S,
            spent_s=started * unit_s,
            started=int(started),
            rate=rate,
            first_rate=first_rate,
        )
    assert 0.8 * CAP <= started * unit_s / SECONDS <= 1.05 * CAP


def test_a_unit_that_costs_more_than_there_is_stays_the_only_one() -> None:
    spent_s = CAP * SECONDS + 1
    rate = next_rate(
        cap=CAP, elapsed_s=SECONDS / 2, spent_s=spent_s, started=1, rate=1.0, first_rate=1.0
    )
    assert rate == 0.0


def test_nothing_begun_leaves_the_first_rate() -> None:
    rate = next_rate(cap=CAP, elapsed_s=1.0, spent_s=0.0, started=0, rate=5.0, first_rate=2.0)
    assert rate == 2.0
