"""The numbers of an invoice. Spec: Settlement rules 5; money.md (Invoices)."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.market.invoice import invoice_totals

AMOUNTS = st.lists(st.integers(0, 10**12), max_size=20)


@given(AMOUNTS, AMOUNTS)
def test_each_number_is_rounded_once_and_half_up(payments: list[int], refunds: list[int]) -> None:
    totals = invoice_totals(payments, refunds)
    exact = Fraction(totals.subtotal_micro, 10_000)
    assert -Fraction(1, 2) < totals.subtotal_cents - exact <= Fraction(1, 2)
    fee = Fraction(totals.subtotal_cents * 3, 1_000)
    assert -Fraction(1, 2) < totals.fee_cents - fee <= Fraction(1, 2)
    assert totals.total_cents == totals.subtotal_cents + totals.fee_cents


@given(AMOUNTS, AMOUNTS)
def test_case_34_the_subtotal_is_payments_less_refunds_and_never_negative(
    payments: list[int], refunds: list[int]
) -> None:
    subtotal = invoice_totals(payments, refunds).subtotal_micro
    assert subtotal == max(0, sum(payments) - sum(refunds))


def test_case_34_more_refunds_than_payments_bill_nothing() -> None:
    totals = invoice_totals([10_000], [30_000])
    assert (totals.subtotal_micro, totals.subtotal_cents, totals.total_cents) == (0, 0, 0)


@pytest.mark.parametrize(
    ("cents", "fee"), [(0, 0), (166, 0), (167, 1), (499, 1), (500, 2), (100_000, 300)]
)
def test_case_36_the_fee_is_rounded_once_on_the_subtotal(cents: int, fee: int) -> None:
    # A cent at a time: per line, every one of these fees would be 0.
    totals = invoice_totals([10_000] * cents, [])
    assert (totals.subtotal_cents, totals.fee_cents) == (cents, fee)


def test_half_a_cent_of_the_subtotal_rounds_up() -> None:
    assert invoice_totals([4_999], []).subtotal_cents == 0
    assert invoice_totals([2_500, 2_500], []).subtotal_cents == 1
