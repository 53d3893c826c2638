"""Calendar months: the same day of a later month, or its last one."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from core.timestamps import iso_ms, unix_ms
from core.trust.identity.name_terms import add_months


@pytest.mark.parametrize(
    ("at", "months", "expected"),
    [
        ("2026-01-31T12:00:00.123", 1, "2026-02-28T12:00:00.123Z"),
        ("2027-12-31T23:59:59.999", 2, "2028-02-29T23:59:59.999Z"),
        ("2026-12-01T00:00:00.000", 1, "2027-01-01T00:00:00.000Z"),
        ("2026-11-26T10:00:00.000", 12, "2027-11-26T10:00:00.000Z"),
        ("2024-02-29T10:00:00.000", 120, "2034-02-28T10:00:00.000Z"),
    ],
)
def test_a_month_later_is_the_same_day_or_the_last_one(at: str, months: int, expected: str) -> None:
    at_ms = unix_ms(datetime.fromisoformat(at).replace(tzinfo=UTC))
    assert iso_ms(add_months(at_ms, months)) == expected
