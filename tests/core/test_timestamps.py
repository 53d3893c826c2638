"""Times between text and milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from core.records.bounds import TIME_MS_MAX
from core.timestamps import iso_ms, unix_ms


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("9999-12-31T23:59:59.999999+00:00", "9999-12-31T23:59:59.999Z"),
        ("1969-12-31T23:59:59.999999+00:00", "1969-12-31T23:59:59.999Z"),
        ("2026-01-31T12:00:00.001000+01:00", "2026-01-31T11:00:00.001Z"),
        ("0001-01-01T00:00:00+00:00", "0001-01-01T00:00:00.000Z"),
    ],
)
def test_every_time_that_can_be_read_can_be_written(written: str, shown: str) -> None:
    """A float of seconds took the first of these for the year 10000, which nothing writes."""
    assert iso_ms(unix_ms(datetime.fromisoformat(written))) == shown


def test_last_time_is_the_bound() -> None:
    assert unix_ms(datetime.max.replace(tzinfo=UTC)) == TIME_MS_MAX
