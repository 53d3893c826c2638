"""What is drawn for property tests, and how it is judged. Decision tests-and-benchmarks."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st


def drawn() -> list[int]:
    """Return what hypothesis gives one and the same test."""
    seen: list[int] = []

    @settings(max_examples=20, phases=[Phase.generate])
    @given(st.integers())
    def look(number: int) -> None:
        seen.append(number)

    look()
    return seen


def test_examples_are_the_same_in_every_run_unless_a_seed_was_given(
    pytestconfig: pytest.Config,
) -> None:
    assert settings().derandomize is (pytestconfig.getoption("--hypothesis-seed") is None)
    assert drawn() == drawn()


def test_no_example_is_judged_by_how_long_it_takes() -> None:
    assert settings().deadline is None
    assert HealthCheck.too_slow in settings().suppress_health_check
