"""When the next renewal is due: twice a second, or sooner when that is asked for."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from core.shards.leases import RENEWAL_MS

# Between two renewals, whatever is asked for.
RENEWAL_MS_MIN: Final = 50


class RenewalTimes:
    """The times of one process's renewals."""

    def __init__(self) -> None:
        self._soon = asyncio.Event()

    def __repr__(self) -> str:
        return f"<RenewalTimes is_soon={self._soon.is_set()}>"

    def soon(self) -> None:
        """Let the next renewal be due as soon as one may follow the last."""
        self._soon.set()

    async def pause(self) -> None:
        """Return when the next renewal is due: `RENEWAL_MS` after the last, or sooner."""
        await asyncio.sleep(RENEWAL_MS_MIN / 1_000)  # mostly the answer has come by now
        with suppress(TimeoutError):
            async with asyncio.timeout((RENEWAL_MS - RENEWAL_MS_MIN) / 1_000):
                await self._soon.wait()
        self._soon.clear()
