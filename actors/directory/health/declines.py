"""Agents that have declined a dispatch: full, or refusing connections; left out for a while.

Each owner's own experience, kept in memory. An agent is left out for all payers for the time that
it asks for, else for 1 s, doubling to 60 s with each further decline in a row. A dispatch that it
takes ends that. Declines of dispatches that were on their way when it was left out say nothing new.
Pure; times come in. money.md (Full agents).
"""

from __future__ import annotations

import math
from typing import Final

LEFT_OUT_MS_MIN: Final = 1_000
LEFT_OUT_MS_MAX: Final = 60_000
# Agents that are known to have declined; the one that did so longest ago is forgotten.
AGENTS_MAX: Final = 10_000


class Declines:
    """The agents whose last dispatch was declined, and until when each is left out."""

    def __init__(self) -> None:
        # How often in a row, and until when; the latest decline last.
        self._known: dict[str, tuple[int, int]] = {}

    def __contains__(self, did: str) -> bool:
        return did in self._known

    def is_full(self, did: str, at_ms: int) -> bool:
        """Whether the agent is left out."""
        return at_ms < self._known.get(did, (0, 0))[1]

    def next_change_ms(self, did: str, at_ms: int) -> float:
        """Return when time alone ends that, infinity if the agent is not left out."""
        return self._known[did][1] if self.is_full(did, at_ms) else math.inf

    def note_declined(self, did: str, retry_after_ms: int, at_ms: int) -> int | None:
        """Leave an agent out. Return the end of the exclusion, None if it did not change.

        Args:
            retry_after_ms: for how long it asks to be left alone, 0: it does not say.
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
        """Let an agent have work again that was registered: it may have started anew."""
        if did in self._known:
            self._known[did] = (self._known[did][0], 0)

    def forget(self, did: str) -> None:
        """Forget an agent that has taken a dispatch."""
        self._known.pop(did, None)
