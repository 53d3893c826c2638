"""The comparison of both books: what is a difference, a loss or still open, and in which period.

Reference: money.md (Work of peers).
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.peers.books import OrderHere, OrderThere, compare

START, END = 1_000, 2_000


def here(outcome: str = "success", received: int = 5, at: int = 1_500) -> OrderHere:
    return OrderHere(outcome, at, received)


def there(charged: int = 5, at: int = 1_400, *, is_ended: bool = True) -> OrderThere:
    return OrderThere("w", at, is_ended, charged)


# The sums: orders, open orders, charged, received, lost; and whether the order is a difference.
CASES = {
    "paid as charged": (here(), there(), False, (1, 0, 5, 5, 0), False),
    "more charged for a success": (here(), there(7), False, (1, 0, 7, 5, 0), True),
    "less charged for a success": (here(), there(3), False, (1, 0, 3, 5, 0), True),
    "paid but not there": (here(), None, False, (0, 0, 0, 5, 0), True),
    "rejected, paid in part": (here("error", 2), there(5), False, (1, 0, 5, 2, 3), False),
    "rejected, paid whole": (here("error", 5), there(5), False, (1, 0, 5, 5, 0), False),
    "rejected, paid too much": (here("error", 5), there(2), False, (1, 0, 2, 5, 0), True),
    "charged after a timeout": (here("timeout", 0), there(), False, (1, 0, 5, 0, 5), False),
    "cancelled in time": (here("discarded", 0), there(0), False, (1, 0, 0, 0, 0), False),
    "declined there": (here("error", 0), None, False, (0, 0, 0, 0, 0), False),
    "unknown here": (None, there(), False, (1, 0, 5, 0, 0), True),
    "unknown here, for nothing": (None, there(0), False, (1, 0, 0, 0, 0), False),
    "open here": (None, there(), True, (0, 1, 0, 0, 0), False),
    "open there": (here("timeout", 0), there(0, is_ended=False), False, (0, 1, 0, 0, 0), False),
    "open on both sides": (None, there(0, is_ended=False), True, (0, 1, 0, 0, 0), False),
    "ended here before the period": (here(at=999), there(), False, (0, 0, 0, 0, 0), False),
    "ended here after the period": (here(at=2_000), there(9), False, (0, 0, 0, 0, 0), False),
    "published long before": (here(at=1_000), there(at=1), False, (1, 0, 5, 5, 0), False),
    "unknown, published before": (None, there(at=999), False, (0, 0, 0, 0, 0), False),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_order_is_equal_lost_open_or_a_difference(name: str) -> None:
    known, other, is_open, sums, is_difference = CASES[name]
    found = compare(
        {} if known is None else {"o": known},
        {} if other is None else {"o": other},
        {"o"} if is_open else (),
        start_ms=START,
        end_ms=END,
    )
    assert (
        found.order_count,
        found.open_orders,
        found.charged_micro,
        found.received_micro,
        found.lost_micro,
    ) == sums
    assert [one[0] for one in found.differences] == ["o"] * is_difference


@given(
    st.dictionaries(st.integers(0, 9), st.tuples(st.integers(0, 3_000), st.integers(0, 3_000))),
    st.integers(0, 3_000),
)
def test_each_order_is_in_one_of_two_periods_that_follow_each_other(
    times: dict[int, tuple[int, int]], border: int
) -> None:
    known = {str(one): here(at=ended) for one, (ended, _) in times.items() if one % 2}
    other = {str(one): there(at=created) for one, (_, created) in times.items()}
    parts = [
        compare(known, other, (), start_ms=start, end_ms=end)
        for start, end in ((0, border), (border, 3_001))
    ]
    assert sum(one.order_count for one in parts) == len(times)
    differences = [one[0] for part in parts for one in part.differences]
    assert sorted(differences) == sorted(other.keys() - known.keys())
