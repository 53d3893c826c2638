"""Times in the API: ISO 8601 in UTC with milliseconds and `Z` (Times)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def unix_ms(at: datetime) -> int:
    """Return a time with a zone as Unix milliseconds, rounded down.

    Only integers are used: a float of seconds would round the end of the year 9999 to the year
    10000, which has no text form.
    """
    return (at - _EPOCH) // timedelta(milliseconds=1)


def iso_ms(at_ms: int) -> str:
    """Return Unix milliseconds as `YYYY-MM-DDTHH:MM:SS.sssZ`."""
    seconds, ms = divmod(at_ms, 1_000)
    return f"{_to_the_second(seconds)}.{ms:03d}Z"


@lru_cache(maxsize=256)
def _to_the_second(seconds: int) -> str:
    # Cached, because most times that are written together have the same second.
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")[:19]
