"""The share of an agent's concurrency limit that each owner process may use.

With n owners and a limit m, each owner may have m // n calls open at the agent. The m % n owners
with the highest hash(agent, owner) may have one more. If m < n, only m owners can call the agent.
The other owners send their dispatches to these m owners. Each owner computes the shares itself,
from the owners with a valid lease. While all owners know the same members, the shares add up to at
most the limit. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from functools import lru_cache


class AgentShares:
    """The shares, computed by one owner; every share is 0 until `set_owners` is called.

    Args:
        owner: the id of this owner.
        limit_of: returns the concurrency limit of an agent, for all owners together.
    """

    def __init__(self, owner: str, limit_of: Callable[[str], int]) -> None:
        self._owner = owner
        self._limit_of = limit_of
        self.owners: tuple[str, ...] = ()
        self._ready: tuple[str, ...] = ()

    def set_owners(self, owners: Collection[str], draining: Collection[str] = ()) -> bool:
        """Replace the owners that share each agent; return whether a share may have changed.

        Args:
            owners: the ids of all owners with a valid lease, including this owner.
            draining: the owners among them that take no dispatches from others.
        """
        known = self.owners, self._ready
        self.owners = tuple(sorted(owners))
        self._ready = tuple(owner for owner in self.owners if owner not in draining)
        return known != (self.owners, self._ready)

    def own(self, agent: str) -> int:
        """Return how many calls this owner may have open at an agent."""
        return self.of(agent, self._owner)

    def of(self, agent: str, owner: str) -> int:
        """Return how many calls an owner may have open at an agent."""
        if owner not in self.owners:
            return 0
        share, extra = divmod(self._limit_of(agent), len(self.owners))
        return share + (extra > 0 and owner in _highest(agent, self._ready)[:extra])

    def others(self, agent: str) -> list[str]:
        """Return the other owners that may call an agent and take dispatches from this owner."""
        return [one for one in self._ready if one != self._owner and self.of(agent, one)]


@lru_cache(maxsize=10_000)
def _highest(agent: str, owners: tuple[str, ...]) -> list[str]:
    """Return the owners, sorted by descending hash(agent, owner)."""

    def weight(owner: str) -> bytes:
        return hashlib.blake2b(f"{agent}|{owner}".encode(), digest_size=8).digest()

    return sorted(owners, key=weight, reverse=True)
