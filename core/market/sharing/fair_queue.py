"""A weighted round-robin queue over payers.

Theory of operation: payers with waiting items form a ring; the first is served `weight` times, then
moves to the ring's end. Between two turns of a payer, every other payer is served at most its own
weight. A new payer is inserted before the payer that was served last, if that is the ring's end, so
that it waits for no second turn of the same payer. Taking and putting are O(1); a dropped item
stays in its payer's queue and is skipped without using up the turn.
Pure. design.md section 3 (Fairness).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)

WEIGHT_MAX = 1_000


@dataclass(slots=True)
class _PayerQueue(Generic[Key]):
    """One payer's waiting keys and the services left in its turn."""

    turns_left: int
    keys: deque[Key] = field(default_factory=deque)


class FairQueue(Generic[Key, Item]):
    """Items by key, served round robin over payers.

    Args:
        weight_of: a payer's weight, 1 or more: its services per turn.
    """

    def __init__(self, weight_of: Callable[[str], int] = lambda _: 1) -> None:
        self._weight_of = weight_of
        self._items: dict[Key, Item] = {}
        self._queues: dict[str, _PayerQueue[Key]] = {}
        self._ring: deque[str] = deque()
        self._last: str | None = None  # whose turn has ended last

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"<FairQueue items={len(self._items)} payers={len(self._ring)}>"

    def put(self, payer: str, key: Key, item: Item) -> None:
        """Add an item to the end of its payer's queue; its key must not be waiting."""
        assert key not in self._items, f"{key} waits already"
        queue = self._queues.get(payer)
        if queue is None:
            queue = self._queues[payer] = _PayerQueue(self._weight(payer))
            self._ring.append(payer)
            if len(self._ring) > 1 and self._ring[-2] == self._last:
                self._ring[-2], self._ring[-1] = self._ring[-1], self._ring[-2]
        queue.keys.append(key)
        self._items[key] = item

    def take(self, may: Callable[[str], bool] = lambda _: True) -> Item | None:
        """Remove and return the next item; None without an item of a payer that may be served.

        Args:
            may: whether a payer may be served now; others wait until their next turn.
        """
        passed = 0
        while passed < len(self._ring):
            payer = self._ring[0]
            if not may(payer):
                self._ring.rotate(-1)
                passed += 1
                continue
            queue = self._queues[payer]
            item = self._items.pop(queue.keys.popleft(), None) if queue.keys else None
            if not queue.keys:
                # A payer that returns starts at the ring's end, so leaving gains nothing.
                self._ring.popleft()
                self._last = payer
                del self._queues[payer]
            elif item is not None:
                queue.turns_left -= 1
                if queue.turns_left == 0:
                    queue.turns_left = self._weight(payer)
                    self._ring.rotate(-1)
                    self._last = payer
            if item is not None:
                return item
        return None

    def take_of(self, payer: str) -> Item | None:
        """Return the payer's first item out of its turn; None when the payer has none."""
        queue = self._queues.get(payer)
        while queue is not None and queue.keys:
            item = self.drop(queue.keys.popleft())
            if item is not None:
                return item
        return None

    def drop(self, key: Key) -> Item | None:
        """Remove an item; None when it does not wait."""
        item = self._items.pop(key, None)
        if not self._items:
            self._queues.clear()
            self._ring.clear()
        return item

    def waiting_of(self, payer: str) -> int:
        """Return how many items of a payer wait; those dropped count until their turn."""
        queue = self._queues.get(payer)
        return 0 if queue is None else len(queue.keys)

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
