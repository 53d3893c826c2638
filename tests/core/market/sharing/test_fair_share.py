"""Shares of a process's room: no payer alone has all of it, and newcomers always get in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.market.sharing.fair_share import HARD, SMALL, has_room


def filled(payers: int, room: int) -> list[int]:
    """Let payers come one after another, each taking all that it may."""
    held = [0] * payers
    for payer in range(payers):
        while has_room(held[payer], sum(held), room):
            held[payer] += 1
    return held


def test_one_payer_alone_has_eight_ninths() -> None:
    assert filled(1, 900) == [800]


def test_each_next_payer_has_as_large_a_part_of_the_rest() -> None:
    first, second, third = filled(3, 8_100)
    assert (first, second, third) == (7_200, 800, 126)


@pytest.mark.parametrize("room", [1, 2, 5])
def test_the_smallest_room_takes_as_much_as_it_is(room: int) -> None:
    assert filled(1, room) == [room]


@given(st.integers(SMALL, 500), st.integers(1, 200))
def test_twice_the_room_is_the_bound_and_newcomers_get_in_below_it(room: int, payers: int) -> None:
    held = filled(payers, room)
    assert sum(held) <= HARD * room
    if sum(held) < HARD * room:
        assert has_room(0, sum(held), room)
