"""A stock shared by many: no holder takes it all, and each newcomer finds room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.callers.shares import Shares


def greedy(shares: Shares, holder: str) -> int:
    """Take until it is refused; return how much."""
    taken = 0
    while shares.take(holder):
        taken += 1
    return taken


@pytest.mark.parametrize("holders", [1, 3, 10, 40])
def test_as_work_ends_greedy_holders_come_to_equal_parts_and_leave_one(holders: int) -> None:
    shares = Shares(2_000, 4)
    held = {f"greedy {number}": 0 for number in range(holders)}
    for _ in range(50):
        for holder in held:
            for _ in range(held[holder]):
                shares.give_back(holder)
            held[holder] = greedy(shares, holder)
    assert max(held.values()) <= 2 * min(held.values())
    assert greedy(shares, "newcomer") >= min(held.values()) // 2 > 0


def test_one_of_the_smallest_stock_can_be_had() -> None:
    shares = Shares(1, 4)
    assert shares.take("a")
    assert shares.is_taken()
    assert not shares.take("b")


@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 30), st.booleans())),
    st.integers(1, 200),
    st.integers(2, 8),
)
def test_the_stock_is_never_exceeded_and_nothing_is_lost(
    steps: list[tuple[str, int, bool]], total: int, part: int
) -> None:
    shares = Shares(total, part)
    held: list[tuple[str, int]] = []
    for holder, amount, is_taking in steps:
        if is_taking:
            if shares.take(holder, amount):
                held.append((holder, amount))
        elif held:
            shares.give_back(*held.pop())
        assert shares.taken == sum(amount for _, amount in held) <= total
    for taken in held:
        shares.give_back(*taken)
    assert repr(shares).startswith("<Shares 0/") and "holders=0" in repr(shares)
