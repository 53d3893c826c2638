"""Pairs are only compared under the same settings."""

from __future__ import annotations

from bench.pairs import list_differing_settings


def test_a_setting_with_two_values_is_named_with_both() -> None:
    assert list_differing_settings(
        {"read_rate": 1, "fee_bps": 500}, {"read_rate": 2, "fee_bps": 500}
    ) == ["read_rate: 1 and 2"]


def test_a_setting_that_one_side_does_not_know_is_no_difference() -> None:
    assert not list_differing_settings({"fee_bps": 500}, {"fee_bps": 500, "wait_max": 100})
