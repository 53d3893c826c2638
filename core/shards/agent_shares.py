"""The share of an agent's concurrency that each owner may use at once.

With n owners and a limit m, each owner may have m // n calls open at the agent, and the m % n
owners with the highest hash(agent, owner) one more. With m < n this leaves m owners that call the
agent, and the others send these their dispatches. Owners compute shares by themselves, from the
members that live. While all know the same members, the shares add up to the limit at most. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from functools import lru_cache


class AgentShares:
    """The shares as one owner knows them; no owner has any until `set_owners`.

    Args:
        owner: the id of this owner.
        limit_of: returns an agent's concurrency over all owners.
    """

    def __init__(self, owner: str, limit_of: Callable[[str], int]) -> None:
        self._owner = owner
        self._limit_of = limit_of
        self.owners: tuple[str, ...] = ()
        self._ready: tuple[str, ...] = ()

    def set_owners(self, owners: Collection[str], draining: Collection[str] = ()) -> bool:
        """Replace the owners that share each agent; return whether a share may have changed.

        Args:
            owners: all that live, with this one.
            draining: those of them that take no dispatches of others.
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
        """Return the other owners that call an agent and take dispatches."""
        return [one for one in self._ready if one != self._owner and self.of(agent, one)]


@lru_cache(maxsize=10_000)
def _highest(agent: str, owners: tuple[str, ...]) -> list[str]:
    """Return these owners, the one with the highest hash(agent, owner) first."""

    def weight(owner: str) -> bytes:
        return hashlib.blake2b(f"{agent}|{owner}".encode(), digest_size=8).digest()

    return sorted(owners, key=weight, reverse=True)
