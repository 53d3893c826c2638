"""Leaves out agents that have declined a dispatch, because they are full or refuse connections.

Each owner has its own declines, in memory. After a decline, an agent is left out for all payers. It
is left out for the time that it requests. If it requests no time, it is left out for 1 s, and with
each further decline in a row for twice as long, up to 60 s. When the agent accepts a dispatch, it
is no longer left out. Declines of dispatches that were sent before the agent was left out do not
count as further declines.
The functions read no clock; the caller passes times. Reference: money.md (Full agents).
"""

from __future__ import annotations

import math
from typing import Final

LEFT_OUT_MS_MIN: Final = 1_000
LEFT_OUT_MS_MAX: Final = 60_000
# Maximum number of agents with known declines. Beyond it, the agent whose latest decline is the
# oldest is forgotten.
AGENTS_MAX: Final = 10_000


class Declines:
    """The agents that have declined their latest dispatch, each with the end of its exclusion."""

    def __init__(self) -> None:
        # By agent: the number of declines in a row, and the end of the exclusion, Unix ms. The
        # agent with the latest decline is last.
        self._known: dict[str, tuple[int, int]] = {}

    def __contains__(self, did: str) -> bool:
        return did in self._known

    def is_full(self, did: str, at_ms: int) -> bool:
        """Say whether the agent is left out at this time."""
        return at_ms < self._known.get(did, (0, 0))[1]

    def next_change_ms(self, did: str, at_ms: int) -> float:
        """Return when the agent is no longer left out; infinity if it is not left out now."""
        return self._known[did][1] if self.is_full(did, at_ms) else math.inf

    def note_declined(self, did: str, retry_after_ms: int, at_ms: int) -> int | None:
        """Leave an agent out; return the end of the exclusion, or None if it did not change.

        Args:
            retry_after_ms: the time for which the agent requests no dispatches; 0: no request.
        """
        count, known_ms = self._known.pop(did, (0, 0))
        until_ms = max(known_ms, at_ms + retry_after_ms)
        if at_ms >= known_ms:
            count += 1
            doubled_ms = min(LEFT_OUT_MS_MIN << min(count - 1, 6), LEFT_OUT_MS_MAX)
            until_ms = at_ms + (retry_after_ms or doubled_ms)
        if len(self._known) == AGENTS_MAX:
            del self._known[next(iter(self._known))]
        self._known[did] = (count, until_ms)
        return None if until_ms == known_ms else until_ms

    def note_registered(self, did: str) -> None:
        """End the exclusion of an agent that has registered, because it may have been restarted."""
        if did in self._known:
            self._known[did] = (self._known[did][0], 0)

    def forget(self, did: str) -> None:
        """Forget the declines of an agent that has accepted a dispatch."""
        self._known.pop(did, None)
