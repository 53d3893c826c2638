"""A weighted round-robin queue over payers.

Theory of operation: payers with waiting items form a ring; the first is served `weight` times, then
moves to the ring's end. Between two turns of a payer, every other payer is served at most its own
weight. A new payer is inserted before the payer that was served last, if that is the ring's end, so
that it waits for no second turn of the same payer. Every operation is O(1), and nothing is kept of
an item that was taken or dropped, nor of a payer without items.
Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)

WEIGHT_MAX = 1_000


@dataclass(slots=True)
class _PayerQueue(Generic[Key, Item]):
    """One payer's waiting items, and how many of a turn's services are left."""

    turns: int
    turns_left: int
    items: OrderedDict[Key, Item] = field(default_factory=OrderedDict)


class FairQueue(Generic[Key, Item]):
    """Items by key, served round robin over payers.

    Args:
        weight_of: a payer's weight, 1 or more: its services per turn.
    """

    def __init__(self, weight_of: Callable[[str], int] = lambda _: 1) -> None:
        self._weight_of = weight_of
        self._payers: dict[Key, str] = {}
        self._ring: OrderedDict[str, _PayerQueue[Key, Item]] = OrderedDict()
        self._last: str | None = None  # whose turn has ended last

    def __len__(self) -> int:
        return len(self._payers)

    def put(self, payer: str, key: Key, item: Item) -> None:
        """Add an item to the end of its payer's queue; its key must not be waiting."""
        assert key not in self._payers, f"{key} waits already"
        queue = self._ring.get(payer)
        if queue is None:
            is_last_at_end = self._last in self._ring and self._last == next(reversed(self._ring))
            weight = self._weight(payer)
            queue = self._ring[payer] = _PayerQueue(weight, weight)
            if is_last_at_end:
                assert self._last is not None
                self._ring.move_to_end(self._last)
        queue.items[key] = item
        self._payers[key] = payer

    def take(self, may: Callable[[str, Item], bool] | None = None) -> Item | None:
        """Remove and return the next item; None without an item of a payer that may be served.

        Args:
            may: whether a payer may be served now, with its first item; others wait until their
                next turn; None: every payer.
        """
        for _ in range(len(self._ring)):
            payer, queue = next(iter(self._ring.items()))
            if may is not None and not may(payer, next(iter(queue.items.values()))):
                self._ring.move_to_end(payer)
                continue
            key, item = queue.items.popitem(last=False)
            del self._payers[key]
            queue.turns_left -= 1
            if not queue.items:
                self._leave(payer, queue)
            elif queue.turns_left == 0:
                queue.turns = queue.turns_left = self._weight(payer)
                self._ring.move_to_end(payer)
                self._last = payer
            return item
        return None

    def take_of(self, payer: str) -> Item | None:
        """Return the payer's first item out of its turn; None when the payer has none."""
        queue = self._ring.get(payer)
        return None if queue is None else self.drop(next(iter(queue.items)))

    def drop(self, key: Key) -> Item | None:
        """Remove an item; None when it does not wait."""
        payer = self._payers.pop(key, None)
        if payer is None:
            return None
        queue = self._ring[payer]
        item = queue.items.pop(key)
        if not queue.items:
            self._leave(payer, queue)
        return item

    def waiting_of(self, payer: str) -> int:
        """Return how many items of a payer wait."""
        queue = self._ring.get(payer)
        return 0 if queue is None else len(queue.items)

    def _leave(self, payer: str, queue: _PayerQueue[Key, Item]) -> None:
        """Take a payer without items off the ring; it returns at the end, so it gains nothing."""
        del self._ring[payer]
        if queue.turns_left < queue.turns:
            self._last = payer

    def _weight(self, payer: str) -> int:
        return max(1, min(self._weight_of(payer), WEIGHT_MAX))


def parse_weights(texts: Iterable[str]) -> Mapping[str, int]:
    """Return weights by payer from `did=weight` texts.

    Raises:
        ValueError: a text has another form, or a weight is outside 1 to 1,000.
    """
    weights = {}
    for text in texts:
        payer, separator, number = text.rpartition("=")
        if not separator or not payer or not number.isdecimal():
            raise ValueError(f"got {text!r}, expected did=weight")
        weights[payer] = int(number)
        if not 1 <= weights[payer] <= WEIGHT_MAX:
            raise ValueError(f"got the weight {number} of {payer}, expected 1 to {WEIGHT_MAX}")
    return weights
