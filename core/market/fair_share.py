"""How much of a process's room one payer may fill: most of it alone, never all of it.

Theory of operation: dynamic thresholds, as switches share their buffers. A payer may hold `ALONE`
times what is free, so one payer alone fills 8/9 of the room, and the next ones parts of the rest. A
payer that holds less than `SMALL` of the room is let in although others have filled it; so the
room is no hard bound, but twice the room is. Pure. design.md section 3 (Fairness); decision 0119.
"""

from __future__ import annotations

from typing import Final

ALONE: Final = 8
SMALL: Final = 64
HARD: Final = 2


def has_room(held: int, taken: int, room: int) -> bool:
    """Return whether a payer may take one more place.

    Args:
        held: places that this payer holds, 0 or more.
        taken: places that all payers hold.
        room: places for all, 1 or more.
    """
    return taken < HARD * room and held < max(room // SMALL, ALONE * (room - taken))
