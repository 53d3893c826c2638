"""A weighted round-robin queue over payers.

Theory of operation. Payers with waiting items form a ring. The first payer of the ring has the
turn: as many of its items as its weight are taken, then it moves to the end of the ring. Between
two turns of a payer, every other payer has at most one turn, if `may` refuses no item. A new payer
joins at the end of the ring. But if the payer at the end was the last to be served, the new payer
is inserted before it: otherwise that payer would be served twice before the new payer once. An
operation is O(1), except that `take` passes over the payers that `may` refuses. No I/O, no clock.
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
    """One payer's waiting items, and its turn.

    `per_turn`: the number of items of one turn. `left`: how many may still be taken in this turn.
    """

    per_turn: int
    left: int
    items: OrderedDict[Key, Item] = field(default_factory=OrderedDict)


class FairQueue(Generic[Key, Item]):
    """Items by key, taken round robin over payers.

    Args:
        weight_of: returns the weight of a payer: how many of its items are taken in one turn, 1 to
            `WEIGHT_MAX`.
    """

    def __init__(self, weight_of: Callable[[str], int] = lambda _: 1) -> None:
        self._weight_of = weight_of
        self._payers: dict[Key, str] = {}
        self._ring: OrderedDict[str, _PayerQueue[Key, Item]] = OrderedDict()
        self._last: str | None = None  # the payer whose turn ended last

    def __len__(self) -> int:
        return len(self._payers)

    def put(self, payer: str, key: Key, item: Item) -> None:
        """Add an item to the end of its payer's queue.

        Args:
            payer: the payer of the item.
            key: a key that no waiting item has.
            item: the item.
        """
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
        """Remove and return the next item; None if no item may be taken.

        Args:
            may: returns whether the first item of a payer may be taken now. If not, the payer moves
                to the end of the ring. None: every item may be taken.
        """
        for _ in range(len(self._ring)):
            payer, queue = next(iter(self._ring.items()))
            if may is not None and not may(payer, next(iter(queue.items.values()))):
                self._ring.move_to_end(payer)
                continue
            key, item = queue.items.popitem(last=False)
            del self._payers[key]
            queue.left -= 1
            if not queue.items:
                self._leave(payer, queue)
            elif queue.left == 0:
                queue.per_turn = queue.left = self._weight(payer)
                self._ring.move_to_end(payer)
                self._last = payer
            return item
        return None

    def take_of(self, payer: str) -> Item | None:
        """Remove and return a payer's first item in any turn; None if the payer has no items."""
        queue = self._ring.get(payer)
        return None if queue is None else self.drop(next(iter(queue.items)))

    def drop(self, key: Key) -> Item | None:
        """Remove an item by its key and return it; None if no item with this key waits."""
        payer = self._payers.pop(key, None)
        if payer is None:
            return None
        queue = self._ring[payer]
        item = queue.items.pop(key)
        if not queue.items:
            self._leave(payer, queue)
        return item

    def waiting_of(self, payer: str) -> int:
        """Return the number of a payer's waiting items."""
        queue = self._ring.get(payer)
        return 0 if queue is None else len(queue.items)

    def _leave(self, payer: str, queue: _PayerQueue[Key, Item]) -> None:
        """Remove a payer without items from the ring; note it as the last served if its turn began.

        If the payer returns with new items, it joins the ring as a new payer.
        """
        del self._ring[payer]
        if queue.left < queue.per_turn:
            self._last = payer

    def _weight(self, payer: str) -> int:
        return max(1, min(self._weight_of(payer), WEIGHT_MAX))


def parse_weights(texts: Iterable[str]) -> Mapping[str, int]:
    """Return the weights of payers, by DID.

    Args:
        texts: texts of the form `did=weight`.

    Raises:
        ValueError: a text does not have this form, or a weight is not 1 to `WEIGHT_MAX`.
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
