"""An invoice's totals: payments less refunds, in whole cents, and the fee on their sum.

Each number is rounded once and half up: the subtotal per invoice, the fee on the subtotal, never
per line. An invoice moves no money; the work is already paid (money.md, Invoices).
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
    """An invoice's totals. `subtotal_micro`: the exact sum before rounding."""

    subtotal_micro: int
    subtotal_cents: int
    fee_cents: int

    @property
    def total_cents(self) -> int:
        """Subtotal and fee."""
        return self.subtotal_cents + self.fee_cents


def invoice_totals(payments_micro: Iterable[int], refunds_micro: Iterable[int]) -> InvoiceTotals:
    """Return an invoice's totals: gross node payments less refunds, 0 at least.

    Args:
        payments_micro: gross payments, fees included, micro-credits.
        refunds_micro: refunds to the payer, micro-credits.

    Reference: money.md (Invoices).
    """
    subtotal_micro = max(0, sum(payments_micro) - sum(refunds_micro))
    subtotal_cents = cents_half_up(subtotal_micro)
    fee_cents = (subtotal_cents * INVOICE_FEE_BPS + BPS // 2) // BPS
    return InvoiceTotals(subtotal_micro, subtotal_cents, fee_cents)
