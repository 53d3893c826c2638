"""The bytes of dispatches on their way: counted per payer and bounded by fair shares.

A body counts from the start of its order until the agent's socket has taken it. Its size is first
estimated, because a body is built when its order begins, and then corrected. A payer without room
starts no further order. design.md section 3 (Fairness); decision 0153.
"""

from __future__ import annotations

from typing import Any, Final

from actors.ports import DispatchOrder
from core.market.sharing.fair_share import Held, has_room
from core.workflow.blob_ref import BlobRef

# Values that are looked at for an estimate; what has more is taken for the largest body.
SAMPLED_MAX: Final = 256
# Of the members besides inputs and parents.
ENVELOPE_BYTES: Final = 1_024


class InflightBytes:
    """The bodies of one dispatcher.

    Args:
        room: bytes for all payers, 8/9 of them for one alone.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._held = Held()

    def __repr__(self) -> str:
        return f"<InflightBytes {self.total} of {self._room}>"

    @property
    def total(self) -> int:
        """How many bytes are held."""
        return self._held.total

    def has_room(self, payer: str) -> bool:
        """Whether a payer may start another order; of each, the last may exceed its share."""
        return has_room(self._held.of(payer), self._held.total, self._room)

    def change(self, payer: str, before: int, after: int) -> None:
        """Count an order's bytes as `after`, where `before` were counted."""
        if after > before:
            self._held.add(payer, after - before)
        else:
            self._held.remove(payer, before - after)


def estimate_bytes(order: DispatchOrder, bytes_max: int) -> int:
    """Return about how large an order's body is, at the cost of a few values.

    Args:
        bytes_max: the largest body.
    """
    left, size = SAMPLED_MAX, ENVELOPE_BYTES
    if order.large is None:
        # Inputs are in a body under two names.
        waiting: list[Any] = [order.inputs, order.inputs, order.parents]
    else:
        waiting = [*order.large.results.values(), order.large.unverified] * 2
    while waiting:
        value = waiting.pop()
        left -= 1
        if left < 0:
            return bytes_max
        kind = type(value)
        if kind is str:
            size += len(value)
        elif kind is dict or kind is list:
            if len(value) > left:
                return bytes_max
            waiting.extend(value.values() if kind is dict else value)
        elif kind is BlobRef:
            size += value.size
    return min(size, bytes_max)
