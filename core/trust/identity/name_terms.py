"""The terms of names: they are registered for calendar months, at most ten years ahead.

Pure. Reference: features.md (Names). Decision agent-identity.
"""

from __future__ import annotations

import calendar
from datetime import UTC, datetime
from typing import Final

from core.timestamps import unix_ms

# A name may expire at most this many months in the future, renewals included.
AHEAD_MONTHS_MAX: Final = 120


def add_months(at_ms: int, months: int) -> int:
    """Return the same day and time `months` calendar months later, in UTC, Unix milliseconds.

    If the later month does not have that day, the result is the last day of the month.
    """
    at = datetime.fromtimestamp(at_ms // 1_000, UTC).replace(microsecond=at_ms % 1_000 * 1_000)
    years, month = divmod(at.month - 1 + months, 12)
    year, month = at.year + years, month + 1
    day = min(at.day, calendar.monthrange(year, month)[1])
    return unix_ms(at.replace(year=year, month=month, day=day))
