"""A bounded stock shared by many holders, so that no holder, and no few of them, takes it all.

Theory of operation: a holder may have at most 1/n of what is free (dynamic thresholds, as switches
share their buffers). One holder alone gets 1/(n+1) of the stock; the next gets as large a part of
what is left, and as things are given back and taken again all come to equal parts, with one such
part always free for a newcomer. No holder has to be known before it comes, and nothing is kept of
one that has given all back. Decision fairness-and-long-work.
"""

from __future__ import annotations

from core.market.sharing.fair_share import Held


class Shares:
    """A stock of places or bytes.

    Args:
        total: the stock, 1 or more.
        part: n: a holder has at most 1/n of what is free, 2 or more.
    """

    def __init__(self, total: int, part: int) -> None:
        self._total = total
        self._part = part
        self._held = Held()

    def __repr__(self) -> str:
        return f"<Shares {self._held.total}/{self._total} holders={len(self._held)}>"

    @property
    def taken(self) -> int:
        """How much of the stock is taken."""
        return self._held.total

    def take(self, holder: str, amount: int = 1) -> bool:
        """Give a holder some of the stock; False, and nothing given, beyond its share.

        Args:
            amount: 1 or more.
        """
        # One of anything can be had while any is free, so that the smallest stock serves.
        most = max(1, (self._total - self._held.total) // self._part)
        if self._held.of(holder) + amount > most or self.is_taken(amount):
            return False
        self._held.add(holder, amount)
        return True

    def is_taken(self, amount: int = 1) -> bool:
        """Whether less than this amount is free."""
        return self._held.total + amount > self._total

    def give_back(self, holder: str, amount: int = 1) -> None:
        """Take back what a holder was given."""
        self._held.remove(holder, amount)
