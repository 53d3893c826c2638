"""Divides a bounded resource between holders, so that a few holders cannot take all of it.

Theory of operation: a holder may have at most 1/n of the free amount (dynamic thresholds, as
network switches share their buffers). A single holder gets at most 1/(n+1) of the total. The second
holder gets at most the same fraction of the remaining amount. As holders release and take amounts,
their shares become equal, and some amount stays free for a new holder. Holders need not be known in
advance. Nothing is stored for a holder that has released everything. Decision
fairness-and-long-work.
"""

from __future__ import annotations

from core.market.sharing.fair_share import Held


class Shares:
    """A resource: a number of places or bytes.

    Args:
        total: the total amount, 1 or more.
        part: n, 2 or more: a holder may have at most 1/n of the free amount.
    """

    def __init__(self, total: int, part: int) -> None:
        self._total = total
        self._part = part
        self._held = Held()

    def __repr__(self) -> str:
        return f"<Shares {self._held.total}/{self._total} holders={len(self._held)}>"

    @property
    def taken(self) -> int:
        """The amount that all holders have taken."""
        return self._held.total

    def take(self, holder: str, amount: int = 1) -> bool:
        """Give a holder an amount, and return True. Return False if the holder's share, or the free
        amount, is too small.

        Args:
            holder: the DID or the address of the holder.
            amount: 1 or more.
        """
        # While an amount of 1 is free, a holder may have 1. So even a total of 1 can be used.
        most = max(1, (self._total - self._held.total) // self._part)
        if self._held.of(holder) + amount > most or self.is_taken(amount):
            return False
        self._held.add(holder, amount)
        return True

    def is_taken(self, amount: int = 1) -> bool:
        """Return whether less than this amount is free."""
        return self._held.total + amount > self._total

    def give_back(self, holder: str, amount: int = 1) -> None:
        """Release an amount that a holder has taken."""
        self._held.remove(holder, amount)
