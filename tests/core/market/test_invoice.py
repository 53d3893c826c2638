"""The numbers of an invoice. Reference: money.md (Invoices)."""

from __future__ import annotations

from fractions import Fraction

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
