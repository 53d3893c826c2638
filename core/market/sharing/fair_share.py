"""How much of a process's room one payer may fill: most of it alone, never all of it.

Theory of operation: dynamic thresholds, as switches share their buffers. A payer may hold `ALONE`
times what is free, so one payer alone fills 8/9 of the room, and the next ones parts of the rest. A
payer that holds less than `SMALL` of the room is let in although others have filled it; so the
room is no hard bound, but twice the room is. Pure. Decision ledger-writer.
"""

from __future__ import annotations

from typing import Final

ALONE: Final = 8
SMALL: Final = 64
HARD: Final = 2


class Held:
    """How much each holder has of something, and all of them together.

    A holder that has nothing is not kept.
    """

    __slots__ = ("_by_holder", "total")

    def __init__(self) -> None:
        self._by_holder: dict[str, int] = {}
        self.total = 0

    def __len__(self) -> int:
        """Return the number of holders."""
        return len(self._by_holder)

    def of(self, holder: str) -> int:
        """Return how much a holder has."""
        return self._by_holder.get(holder, 0)

    def add(self, holder: str, amount: int = 1) -> None:
        """Count what a holder has got, 0 or more."""
        self._by_holder[holder] = self._by_holder.get(holder, 0) + amount
        self.total += amount

    def remove(self, holder: str, amount: int = 1) -> None:
        """Count what a holder has given back, 0 or more."""
        left = self._by_holder.get(holder, 0) - amount
        assert left >= 0, "more is given back than was taken"
        self.total -= amount
        if left:
            self._by_holder[holder] = left
        else:
            self._by_holder.pop(holder, None)


def has_room(held: int, taken: int, room: int) -> bool:
    """Return whether a payer may take one more place.

    Args:
        held: places that this payer holds, 0 or more.
        taken: places that all payers hold.
        room: places for all, 1 or more.
    """
    return taken < HARD * room and held < max(room // SMALL, ALONE * (room - taken))
