"""Delays and changes of agent. Reference: features.md (Retries, Targeted routing)."""

from __future__ import annotations

import pytest

from core.workflow.rules.retry import delay_ms, may_change_agent


@pytest.mark.parametrize(
    ("attempt", "wanted"), [(1, 0), (2, 1_000), (3, 5_000), (4, 30_000), (5, 30_000), (99, 30_000)]
)
def test_delay(attempt: int, wanted: int) -> None:
    assert delay_ms(attempt) == wanted


@pytest.mark.parametrize(("asked", "wanted"), [(-5, 1_000), (10, 1_000), (9_000, 9_000)])
def test_retry_after_only_lengthens(asked: int, wanted: int) -> None:
    assert delay_ms(2, asked) == wanted


def test_retry_after_is_bounded() -> None:
    assert delay_ms(2, 10**9) == 30_000


@pytest.mark.parametrize(
    ("tried", "fallback", "targeted", "broadcast", "wanted"),
    [
        (1, True, False, False, True),
        (2, True, False, False, True),
        (3, True, False, False, False),
        (1, False, False, False, False),
        (1, True, True, False, False),
        (1, True, True, True, True),
        (3, True, True, True, False),
        (1, False, True, True, True),
        (2, False, True, True, False),
    ],
)
def test_change_of_agent(
    tried: int, fallback: bool, targeted: bool, broadcast: bool, wanted: bool
) -> None:
    assert (
        may_change_agent(
            tried,
            allow_fallback_agents=fallback,
            is_targeted=targeted,
            allow_broadcast_fallback=broadcast,
        )
        is wanted
    )


@pytest.mark.parametrize(
    ("tried", "fallback", "wanted"),
    [(3, True, True), (7, True, True), (8, True, False), (1, False, False)],
)
def test_inputs_may_be_refused_by_more_agents(tried: int, fallback: bool, wanted: bool) -> None:
    assert (
        may_change_agent(
            tried,
            allow_fallback_agents=fallback,
            is_targeted=False,
            allow_broadcast_fallback=False,
            is_refused=True,
        )
        is wanted
    )
