"""Pairs are only compared under the same settings."""

from __future__ import annotations

from bench.pairs import differing


def test_a_setting_with_two_values_is_named_with_both() -> None:
    assert differing({"read_rate": 1, "fee_bps": 500}, {"read_rate": 2, "fee_bps": 500}) == [
        "read_rate: 1 and 2"
    ]


def test_a_setting_that_one_side_does_not_know_is_no_difference() -> None:
    assert not differing({"fee_bps": 500}, {"fee_bps": 500, "wait_max": 100})
