"""Converts credits and cents to whole micro-credits and back, with their bounds.

Every amount of money in the code and in the database is an integer of micro-credits. Only this file
knows how many micro-credits a credit or a cent has. It must not know accounts or fees.
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
# The maximum of all issued credits, and so of any balance. It fits into a BIGINT.
ISSUED_MICRO_MAX: Final = 9 * 10**18

_DECIMALS: Final = re.compile(r"(-?)([0-9]{1,12})(?:\.([0-9]{1,6}))?", re.ASCII)


def micro_from_credits(value: object) -> int:
    """Parse an amount of credits, a JSON number or string with at most 6 decimals.

    Returns: micro-credits. The amount may be negative or zero; the caller checks the sign.
    Raises: ValueError with what was got and expected. Reference: money.md (Entries).
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise ValueError(f"got {kind_of(value)}, expected a number of credits")
    if isinstance(value, float):
        # `repr` returns the shortest text of a double. This is the client's text if the client
        # sent at most 15 digits. Exponents ("1e-06") are expanded before the check.
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
    """Return the exact JSON value in credits.

    The value is a number within ±10^15 micro-credits. Beyond this range a double would round, so
    the value is a decimal text.
    """
    if abs(micro) > MICRO_MAX:
        return credits_text(micro)
    whole, rest = divmod(micro, MICRO_PER_CREDIT)
    # The division of two integers is correctly rounded: its result is the double that is nearest to
    # the decimal value, and is printed as this decimal.
    return whole if rest == 0 else micro / MICRO_PER_CREDIT


@lru_cache(maxsize=4096)  # few prices, many payments
def credits_text(micro: int) -> str:
    """Return micro-credits as a decimal text of credits, such as "0.05"."""
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
    """Return micro-credits of 0 or more as cents, rounded half up (money.md, Invoices)."""
    assert micro >= 0, micro
    return (micro + MICRO_PER_CENT // 2) // MICRO_PER_CENT


def cents_ceil(micro: int) -> int:
    """Return non-negative micro-credits as cents, rounded up (money.md, Quotas)."""
    assert micro >= 0, micro
    return -(-micro // MICRO_PER_CENT)
