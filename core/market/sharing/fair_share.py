"""Limits how many places of a shared capacity one payer may hold.

Theory of operation. The limit is a dynamic threshold, as in the shared buffers of network switches:
a payer may hold `ALONE` times the number of free places. A single payer can therefore hold 8/9 of
all places, and further payers share the rest. A payer that holds less than 1/`SMALL` of the places
gets one more even if no place is free. The capacity is therefore not a hard limit, but `HARD` times
the capacity is. Pure. Decision ledger-writer.
"""

from __future__ import annotations

from typing import Final

ALONE: Final = 8
SMALL: Final = 64
HARD: Final = 2


class Held:
    """The amount of a resource that each holder has, and the total.

    Holders that have nothing are not stored.
    """

    __slots__ = ("_by_holder", "total")

    def __init__(self) -> None:
        self._by_holder: dict[str, int] = {}
        self.total = 0

    def __len__(self) -> int:
        """Return the number of holders."""
        return len(self._by_holder)

    def of(self, holder: str) -> int:
        """Return the amount that a holder has; 0 for an unknown holder."""
        return self._by_holder.get(holder, 0)

    def add(self, holder: str, amount: int = 1) -> None:
        """Add an amount, 0 or more, to a holder."""
        self._by_holder[holder] = self._by_holder.get(holder, 0) + amount
        self.total += amount

    def remove(self, holder: str, amount: int = 1) -> None:
        """Subtract an amount, 0 or more, that a holder returns."""
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
        held: the number of places that this payer holds, 0 or more.
        taken: the number of places that all payers hold together.
        room: the capacity: the number of places for all payers, 1 or more.
    """
    return taken < HARD * room and held < max(room // SMALL, ALONE * (room - taken))
