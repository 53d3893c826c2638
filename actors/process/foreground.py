"""Single requests before bulks: what of a process's work others wait for, and who lets it pass.

A replica judges a bulk and hands it to owners; the owner, the ledger and Postgres work on it behind
that, so what the replica holds back is held back everywhere. Design.md section 3 (Fairness);
decision ledger-writer.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Final

# At most between two slices of 4 ms, so that a bulk beside others has a third of the time.
LET_PASS_S: Final = 0.008
# A caller that publishes five times a second is in the foreground all the time.
RECENT_S: Final = 0.2


class Foreground:
    """The single requests under way in this process, which bulks let pass.

    A single request is decided and stored in a few milliseconds, on both cores; beside a bulk that
    uses both it takes several times that, however short the bulk's slices are.
    """

    __slots__ = ("_idle", "_last_s", "_under_way")

    def __init__(self) -> None:
        self._under_way = 0
        self._last_s = -math.inf
        self._idle = asyncio.Event()

    def __enter__(self) -> None:
        self._under_way += 1
        self._idle.clear()

    def __exit__(self, *_: object) -> None:
        self._under_way -= 1
        if not self._under_way:
            self._last_s = asyncio.get_running_loop().time()
            self._idle.set()

    @property
    def is_used(self) -> bool:
        """Whether a single request is under way, or was a moment ago."""
        if self._under_way:
            return True
        return asyncio.get_running_loop().time() - self._last_s < RECENT_S

    async def let_pass(self) -> None:
        """Return when no single request is under way, or after `LET_PASS_S`."""
        if self._under_way:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), LET_PASS_S)
