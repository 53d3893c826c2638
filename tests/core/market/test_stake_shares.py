"""Whose credits a stake is: shares lose in proportion and always add up to the stake."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from core.market.slashing import settle_shares

amounts = st.integers(0, 10**15)


def test_without_a_loss_nothing_changes() -> None:
    assert settle_shares({"a": 2, "b": 5}, 7) == {"a": 2, "b": 5}
    assert settle_shares({}, 0) == {}


def test_a_loss_is_shared_in_proportion_and_the_rest_goes_to_the_largest() -> None:
    assert settle_shares({"a": 100, "b": 300}, 200) == {"a": 50, "b": 150}
    assert settle_shares({"a": 1, "b": 1, "c": 1}, 2) == {"a": 1, "b": 1, "c": 0}
    assert settle_shares({"a": 3, "b": 4}, 5) == {"a": 2, "b": 3}


def test_who_deposits_after_a_total_loss_shares_with_nobody() -> None:
    assert settle_shares({"a": 5}, 0) == {"a": 0}


@given(st.dictionaries(st.sampled_from("abcde"), amounts), st.integers(0, 10**4))
def test_settled_shares_are_the_stake_and_none_grows_by_more_than_a_rounding(
    shares: dict[str, int], bps: int
) -> None:
    total = sum(shares.values()) * bps // 10_000
    settled = settle_shares(shares, total)
    assert sum(settled.values()) == total
    for did, micro in settled.items():
        assert 0 <= micro <= shares[did]
