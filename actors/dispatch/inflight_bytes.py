"""The bytes of dispatches on their way: counted per payer and bounded by fair shares.

A body counts from the start of its order until the agent's socket has taken it. Its size is first
estimated, because a body is built when its order begins, and then corrected. Small bodies do not
count: the limit of open orders bounds them. A payer without room starts no further order.
design.md section 3 (Fairness); decision 0153.
"""

from __future__ import annotations

from typing import Any, Final

from actors.ports import DispatchOrder
from core.market.sharing.fair_share import ALONE, Held, has_room
from core.workflow.blob_ref import BlobRef

# Values that are looked at for an estimate; what has more is taken for the largest body.
SAMPLED_MAX: Final = 256
# Bodies up to this do not count: 2,048 open orders have 32 MiB of them at most.
UNCOUNTED_BYTES_MAX: Final = 16 * 1024


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

    def has_room(self, payer: str) -> bool:
        """Whether a payer may start another order; of each, the last may exceed its share."""
        total = self._held.total
        return total < self._roomy or has_room(self._held.of(payer), total, self._room)

    def change(self, payer: str, before: int, after: int) -> None:
        """Count an order's bytes as `after`, where `before` were counted."""
        if after > before:
            self._held.add(payer, after - before)
        else:
            self._held.remove(payer, before - after)


def estimate_bytes(order: DispatchOrder, bytes_max: int) -> int:
    """Return about how many bytes an order's body has that count, at the cost of a few values.

    Args:
        bytes_max: the largest body.
    """
    large = order.large
    if large is None:
        # Inputs are in a body under two names.
        size = 2 * _length([order.inputs], bytes_max) + _length([order.parents], bytes_max)
    else:
        size = 2 * _length([*large.results.values(), large.unverified], bytes_max)
    return 0 if size <= UNCOUNTED_BYTES_MAX else min(size, bytes_max)


def _length(waiting: list[Any], bytes_max: int) -> int:
    """Return the length of the texts in these values, or `bytes_max` where they are many."""
    left, size = SAMPLED_MAX, 0
    while waiting:
        value = waiting.pop()
        kind = type(value)
        if kind is str:
            size += len(value)
        elif kind is dict or kind is list:
            left -= len(value)
            if left < 0:
                return bytes_max
            waiting.extend(value.values() if kind is dict else value)
        elif kind is BlobRef:
            size += value.size
    return size
