"""Times as everybody outside sees them: UTC, milliseconds, `Z` (contract.md, Times)."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache


def iso_ms(at_ms: int) -> str:
    """Return Unix milliseconds as `YYYY-MM-DDTHH:MM:SS.sssZ`."""
    seconds, ms = divmod(at_ms, 1_000)
    return f"{_to_the_second(seconds)}.{ms:03d}Z"


@lru_cache(maxsize=256)
def _to_the_second(seconds: int) -> str:
    # Times that are written together lie close together.
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"
