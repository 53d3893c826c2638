"""When the next renewal is due: twice a second, and sooner while orders wait for permits.

Decision 0204.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from core.shards.leases import RENEWAL_MS

# Between two renewals, whatever is asked for; and at most while orders wait for permits.
RENEWAL_MS_MIN: Final = 50
POLL_MS_MAX: Final = 200


class RenewalTimes:
    """The times of one process's renewals, or of a child's questions.

    Args:
        wants_permits: says whether orders wait for permits.
    """

    def __init__(self, wants_permits: Callable[[], bool]) -> None:
        self._wants_permits = wants_permits
        self._soon = asyncio.Event()
        self._poll_ms = RENEWAL_MS_MIN

    def __repr__(self) -> str:
        return f"<RenewalTimes poll_ms={self._poll_ms} is_soon={self._soon.is_set()}>"

    def soon(self) -> None:
        """Let the next renewal be due as soon as one may follow the last."""
        self._soon.set()

    async def pause(self) -> None:
        """Return when the next renewal is due: `RENEWAL_MS` after the last, or sooner.

        While orders wait for permits it is due sooner, but less and less soon.
        """
        await asyncio.sleep(RENEWAL_MS_MIN / 1_000)  # mostly the answer has come by now
        if self._wants_permits():
            self._poll_ms = min(2 * self._poll_ms, POLL_MS_MAX)
            due_ms = self._poll_ms
        else:
            self._poll_ms, due_ms = RENEWAL_MS_MIN, RENEWAL_MS
        with suppress(TimeoutError):
            async with asyncio.timeout((due_ms - RENEWAL_MS_MIN) / 1_000):
                await self._soon.wait()
        self._soon.clear()
