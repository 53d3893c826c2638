"""The bytes of dispatches on their way: counted per payer and bounded by fair shares.

A body counts from the start of its order until the agent's socket has taken it. Its size is first
estimated, because a body is built when its order begins, and then corrected. Small bodies do not
count: the limit of open orders bounds them. A payer without room starts no further order.
Pure. Decision dispatch.
"""

from __future__ import annotations

from core.market.sharing.fair_share import ALONE, Held, has_room


class InflightBytes:
    """The bodies of one dispatcher.

    Args:
        room: bytes for all payers, 8/9 of them for one alone.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._held = Held()
        # Below this, a payer has room whatever it holds.
        self._roomy = room * ALONE // (ALONE + 1)

    def __repr__(self) -> str:
        return f"<InflightBytes {self.total} of {self._room}>"

    @property
    def total(self) -> int:
        """How many bytes are held."""
        return self._held.total

    @property
    def is_roomy(self) -> bool:
        """Whether each payer has room, whatever it holds."""
        return self._held.total < self._roomy

    def has_room(self, payer: str) -> bool:
        """Whether a payer may start another order; of each, the last may exceed its share."""
        return self.is_roomy or has_room(self._held.of(payer), self._held.total, self._room)

    def change(self, payer: str, before: int, after: int) -> None:
        """Count an order's bytes as `after`, where `before` were counted."""
        if after > before:
            self._held.add(payer, after - before)
        else:
            self._held.remove(payer, before - after)
