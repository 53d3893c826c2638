"""How an owner follows rows that carry the time of their change."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from actors.directory.directory_sync import _Poll

pytestmark = pytest.mark.anyio

AT = 1_700_000_000_000
YEAR_MS = 365 * 86_400_000


async def test_row_dated_by_a_clock_that_was_ahead_hides_no_later_change() -> None:
    """Else no heartbeat is seen for a year, however often it is sent."""
    rows = {"did:test:first": AT + YEAR_MS}
    seen: list[str] = []

    async def read(since_ms: int | None) -> AsyncIterator[list[int]]:
        found = {did: at for did, at in rows.items() if since_ms is None or at >= since_ms}
        seen.extend(found)
        yield list(found.values())

    poll = _Poll(read, now_ms=lambda: AT)
    await poll.read_changes()
    rows["did:test:second"] = AT
    await poll.read_changes()
    assert "did:test:second" in seen
