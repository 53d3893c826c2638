"""A queue that serves payers in turn, each by its weight: nobody waits behind another's thousand.

Theory of operation: weighted round robin. Payers that wait stand in a ring; the first one is served
`weight` times, then goes to the ring's end. So between two turns of a payer every other one is
served at most its own weight. A payer that comes new stands before the one that was served last, if
that is the ring's end: it waits for no second turn of the same one. Taking and putting are O(1); an
item that is dropped stays in its payer's line and is passed over when its turn comes, without using
the turn up.
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
class _Line(Generic[Key]):
    """One payer's waiting keys and how often it may still be served in this turn."""

    turns_left: int
    keys: deque[Key] = field(default_factory=deque)


class FairQueue(Generic[Key, Item]):
    """Items by key, served round robin over payers.

    Args:
        weight_of: a payer's weight, 1 or more: how many it is served before the next payer is.
    """

    def __init__(self, weight_of: Callable[[str], int] = lambda _: 1) -> None:
        self._weight_of = weight_of
        self._items: dict[Key, Item] = {}
        self._lines: dict[str, _Line[Key]] = {}
        self._ring: deque[str] = deque()
        self._last: str | None = None  # whose turn has ended last

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"<FairQueue items={len(self._items)} payers={len(self._ring)}>"

    def put(self, payer: str, key: Key, item: Item) -> None:
        """Let an item wait at the end of its payer's line; its key must not be waiting."""
        assert key not in self._items, f"{key} waits already"
        line = self._lines.get(payer)
        if line is None:
            line = self._lines[payer] = _Line(self._weight(payer))
            self._ring.append(payer)
            if len(self._ring) > 1 and self._ring[-2] == self._last:
                self._ring[-2], self._ring[-1] = self._ring[-1], self._ring[-2]
        line.keys.append(key)
        self._items[key] = item

    def take(self, may: Callable[[str], bool] = lambda _: True) -> Item | None:
        """Return the item whose turn it is; None when nothing waits for a payer that may be served.

        Args:
            may: whether a payer may be served now; one that may not waits until its next turn.
        """
        passed = 0
        while passed < len(self._ring):
            payer = self._ring[0]
            if not may(payer):
                self._ring.rotate(-1)
                passed += 1
                continue
            line = self._lines[payer]
            item = self._items.pop(line.keys.popleft(), None) if line.keys else None
            if not line.keys:
                # Who comes back later starts at the ring's end: leaving gains nothing.
                self._ring.popleft()
                self._last = payer
                del self._lines[payer]
            elif item is not None:
                line.turns_left -= 1
                if line.turns_left == 0:
                    line.turns_left = self._weight(payer)
                    self._ring.rotate(-1)
                    self._last = payer
            if item is not None:
                return item
        return None

    def take_of(self, payer: str) -> Item | None:
        """Return the payer's first item, whosever turn it is; None when none of theirs waits."""
        line = self._lines.get(payer)
        while line is not None and line.keys:
            item = self.drop(line.keys.popleft())
            if item is not None:
                return item
        return None

    def drop(self, key: Key) -> Item | None:
        """Take an item out of its line; None when no such item waits."""
        item = self._items.pop(key, None)
        if not self._items:
            self._lines.clear()
            self._ring.clear()
        return item

    def waiting_of(self, payer: str) -> int:
        """Return how many items of a payer wait; those dropped count until their turn."""
        line = self._lines.get(payer)
        return 0 if line is None else len(line.keys)

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
