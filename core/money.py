"""Credits as whole micro-credits: parsing, bounds and the way back to JSON.

Money is an `int` of micro-credits from the first byte parsed to the last row stored; this file is
the only place that knows how many there are in a credit or a cent. It must not know accounts or
fees.
Reference: money.md (Entries, Units).
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache
from typing import Final

from core.wording import kind_of

MICRO_PER_CREDIT: Final = 1_000_000
CENTS_PER_CREDIT: Final = 100
MICRO_PER_CENT: Final = MICRO_PER_CREDIT // CENTS_PER_CREDIT
CURRENCY: Final = "CREDITS"

# At most 15 significant digits, so that every JSON client keeps the value exactly (IEEE doubles).
MICRO_MAX: Final = 10**15
# The most that can ever be issued, hence the largest possible balance: it fits into a BIGINT.
ISSUED_MICRO_MAX: Final = 9 * 10**18

_DECIMALS: Final = re.compile(r"(-?)([0-9]{1,12})(?:\.([0-9]{1,6}))?", re.ASCII)


def micro_from_credits(value: object) -> int:
    """Parse an amount of credits, a JSON number or string with at most 6 decimals.

    Returns: micro-credits, possibly negative or zero; whether that is allowed is the caller's rule.
    Raises: ValueError with what was got and expected. Reference: money.md (Entries).
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise ValueError(f"got {kind_of(value)}, expected a number of credits")
    if isinstance(value, float):
        # repr is the shortest text of this double: the client's text if that had at most 15 digits.
        # Exponents ("1e-06") are expanded before the check.
        text = format(Decimal(repr(value)), "f")
        text = text[:-2] if text.endswith(".0") else text
    elif isinstance(value, Decimal):
        text = format(value, "f")
    else:
        text = str(value) if isinstance(value, str) or abs(value) < 10**13 else "too large"
    match = _DECIMALS.fullmatch(text)
    if match is None:
        raise ValueError(f"got {str(value)[:40]!r}, expected credits with at most 6 decimals")
    sign, whole, decimals = match.groups()
    micro = int(whole) * MICRO_PER_CREDIT + int((decimals or "").ljust(6, "0"))
    if micro > MICRO_MAX:
        raise ValueError(
            f"got {str(value)[:40]!r}, expected at most {MICRO_MAX // MICRO_PER_CREDIT}"
        )
    return -micro if sign else micro


def credits_number(micro: int) -> int | float | str:
    """Return micro-credits as the JSON value of credits: always exact.

    A number within ±10^15 micro-credits; beyond, where a double would round, decimal text.
    """
    if abs(micro) > MICRO_MAX:
        return credits_text(micro)
    whole, rest = divmod(micro, MICRO_PER_CREDIT)
    # Division of two integers is correctly rounded: the result is the double nearest to the decimal
    # value and prints as that decimal.
    return whole if rest == 0 else micro / MICRO_PER_CREDIT


@lru_cache(maxsize=4096)  # few prices, many payments
def credits_text(micro: int) -> str:
    """Return micro-credits as a decimal text of credits, as audit records carry it ("0.05")."""
    sign = "-" if micro < 0 else ""
    whole, rest = divmod(abs(micro), MICRO_PER_CREDIT)
    if rest == 0:
        return f"{sign}{whole}"
    return f"{sign}{whole}.{rest:06d}".rstrip("0")


def micro_from_cents(cents: int) -> int:
    """Return whole cents as micro-credits.

    Raises: ValueError outside ±10^15 micro-credits.
    """
    micro = cents * MICRO_PER_CENT
    if abs(micro) > MICRO_MAX:
        raise ValueError(f"got {cents} cents, expected at most {MICRO_MAX // MICRO_PER_CENT}")
    return micro


def cents_half_up(micro: int) -> int:
    """Return non-negative micro-credits as cents, half a cent rounds up (money.md, Invoices)."""
    assert micro >= 0, micro
    return (micro + MICRO_PER_CENT // 2) // MICRO_PER_CENT


def cents_ceil(micro: int) -> int:
    """Return non-negative micro-credits as cents, rounded up (money.md, Quotas)."""
    assert micro >= 0, micro
    return -(-micro // MICRO_PER_CENT)
