"""The reputation score and what it asks for. Reference: money.md (Reputation)."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from core.market.reputation import (
    NEUTRAL,
    Outcome,
    Tally,
    price_reach_micro,
    score,
    stake_required_micro,
)

MAX_MS = 60_000
OUTCOMES = st.lists(st.tuples(st.sampled_from(Outcome), st.integers(0, 2 * MAX_MS)), max_size=40)
TALLIES = st.builds(
    Tally,
    st.integers(1, 10**6),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.integers(0, 10**11),
)


def after(tally: Tally, outcome: Outcome, latency_ms: int = 0) -> Tally:
    """Return the tally with one more outcome."""
    counted = {outcome.value: getattr(tally, outcome.value) + 1}
    if outcome is Outcome.SUCCESSFUL:
        counted["latency_ms_sum"] = tally.latency_ms_sum + latency_ms
    return replace(tally, **counted)


def tally_of(history: list[tuple[Outcome, int]]) -> Tally:
    """Return the tally of a history, event by event."""
    tally = Tally()
    for outcome, latency_ms in history:
        tally = after(tally, outcome, latency_ms)
    return tally


@given(OUTCOMES)
def test_score_is_a_number_of_the_range_whatever_happened(
    history: list[tuple[Outcome, int]],
) -> None:
    assert 0 <= score(tally_of(history), latency_ms_max=MAX_MS) <= 1


@given(OUTCOMES, st.randoms(use_true_random=False))
def test_history_in_any_order_gives_identical_numbers(
    history: list[tuple[Outcome, int]], random: object
) -> None:
    tally = tally_of(history)
    random.shuffle(history)  # type: ignore[attr-defined]
    again = tally_of(history)
    assert again == tally
    assert tally.total == len(history)
    assert score(again, latency_ms_max=MAX_MS) == score(tally, latency_ms_max=MAX_MS)


@given(TALLIES)
def test_score_is_the_specifications_formula_rounded_once(tally: Tally) -> None:
    average = Fraction(tally.latency_ms_sum, tally.successful)
    exact = (
        Fraction(tally.successful, tally.successful + tally.failed) / 2
        + Fraction(3, 10) * max(Fraction(0), 1 - average / MAX_MS)
        + Fraction(1, 5) * Fraction(tally.total - tally.cancelled, tally.total)
    )
    found = Fraction(score(tally, latency_ms_max=MAX_MS)).limit_denominator(10**6)
    assert -Fraction(1, 2 * 10**6) < found - exact <= Fraction(1, 2 * 10**6)


@given(OUTCOMES)
def test_a_success_never_lowers_the_score_of_an_agent_without_one(
    history: list[tuple[Outcome, int]],
) -> None:
    before = tally_of([step for step in history if step[0] is not Outcome.SUCCESSFUL])
    better = after(before, Outcome.SUCCESSFUL, MAX_MS)
    if before.failed:
        assert score(better, latency_ms_max=MAX_MS) >= score(before, latency_ms_max=MAX_MS)


@given(OUTCOMES.filter(bool))
def test_a_failure_never_raises_the_score(history: list[tuple[Outcome, int]]) -> None:
    before = tally_of([*history, (Outcome.SUCCESSFUL, 5)])
    without_cancels = Tally(before.successful, before.failed, 0, before.latency_ms_sum)
    worse = after(without_cancels, Outcome.FAILED)
    assert score(worse, latency_ms_max=MAX_MS) <= score(without_cancels, latency_ms_max=MAX_MS)


def test_case_41_an_agent_without_tasks_is_neutral() -> None:
    assert score(Tally(), latency_ms_max=MAX_MS) == NEUTRAL
    assert score(Tally(), latency_ms_max=0) == NEUTRAL
    assert Tally().success_rate == Tally().completion_rate == NEUTRAL
    assert Tally().latency_ms_avg is None


def test_case_41_speed_is_clamped() -> None:
    assert score(Tally(1, 0, 0, MAX_MS), latency_ms_max=MAX_MS) == 0.7
    assert score(Tally(1, 0, 0, 9 * MAX_MS), latency_ms_max=MAX_MS) == 0.7
    assert score(Tally(1, 0, 0, 0), latency_ms_max=MAX_MS) == 1.0
    assert score(Tally(1, 0, 0, 0), latency_ms_max=0) == 0.7
    assert score(Tally(1, 0, 0, 5), latency_ms_max=0) == 0.7


def test_case_41_cancelled_tasks_lower_the_completion_rate_only() -> None:
    tally = Tally(2, 0, 2, 0)
    assert tally.completion_rate == 0.5
    assert tally.success_rate == 1.0
    assert score(tally, latency_ms_max=MAX_MS) == 0.9


def test_rates_and_averages_are_what_they_say() -> None:
    tally = Tally(3, 1, 2, 100)
    assert (tally.total, tally.success_rate, tally.latency_ms_avg) == (6, 0.75, 33)
    assert tally.completion_rate == 0.666667
    assert Tally(2, 0, 0, 5).latency_ms_avg == 3
    assert score(Tally(0, 5, 0, 0), latency_ms_max=MAX_MS) == 0.2
    assert score(Tally(0, 0, 5, 0), latency_ms_max=MAX_MS) == 0.4


def test_of_an_agent_that_asks_a_price_what_was_done_for_nothing_does_not_count() -> None:
    tally = Tally(9, 8, 7, 600, paid_successful=4, paid_failed=5, paid_cancelled=6,
                  paid_latency_ms_sum=400)  # fmt: skip
    assert tally.counted(asks_price=True) == Tally(4, 5, 6, 400)
    assert tally.counted(asks_price=False) == Tally(9, 8, 7, 600)


# -- stake ----------------------------------------------------------------------------------------


@given(st.integers(0, 10**15), st.integers(0, 10_000), st.integers(0, 10**6))
def test_stake_required_is_the_exact_product_rounded_up_and_at_most_the_price(
    price: int, bps: int, ppm: int
) -> None:
    exact = Fraction(price * bps, 10_000) * (Fraction(3, 2) - Fraction(ppm, 10**6))
    found = stake_required_micro(price, stake_bps=bps, score=ppm / 10**6)
    assert 0 <= found - min(exact, price) < 1
    assert found <= price


@given(st.integers(0, 10**12), st.integers(1, 10_000), st.integers(0, 10**6), st.data())
def test_a_stake_reaches_exactly_the_prices_that_it_suffices_for(
    price: int, bps: int, ppm: int, data: st.DataObject
) -> None:
    points = ppm / 10**6
    required = stake_required_micro(price, stake_bps=bps, score=points)
    stake = max(0, required + data.draw(st.integers(-2, 2)))
    reach = price_reach_micro(stake, stake_bps=bps, score=points)
    assert (price <= reach) == (required <= stake)
