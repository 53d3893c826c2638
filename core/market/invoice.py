"""The totals of an invoice: payments less refunds, in whole cents, and the fee on the subtotal.

The subtotal and the fee are each rounded half up once; the lines of an invoice are not rounded. An
invoice moves no money, because the work is already paid.
Reference: money.md (Invoices).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from core.money import cents_half_up

INVOICE_FEE_BPS: Final = 30  # 0.3 percent, fixed by the specification
BPS: Final = 10_000


@dataclass(frozen=True, slots=True)
class InvoiceTotals:
    """The totals of an invoice. `subtotal_micro`: the subtotal before rounding, micro-credits."""

    subtotal_micro: int
    subtotal_cents: int
    fee_cents: int

    @property
    def total_cents(self) -> int:
        """The sum of the subtotal and the fee, cents."""
        return self.subtotal_cents + self.fee_cents


def invoice_totals(payments_micro: Iterable[int], refunds_micro: Iterable[int]) -> InvoiceTotals:
    """Return the totals of an invoice; if the refunds exceed the payments, the subtotal is 0.

    Args:
        payments_micro: gross payments, fees included, micro-credits.
        refunds_micro: refunds to the payer, micro-credits.

    Reference: money.md (Invoices).
    """
    subtotal_micro = max(0, sum(payments_micro) - sum(refunds_micro))
    subtotal_cents = cents_half_up(subtotal_micro)
    fee_cents = (subtotal_cents * INVOICE_FEE_BPS + BPS // 2) // BPS
    return InvoiceTotals(subtotal_micro, subtotal_cents, fee_cents)
