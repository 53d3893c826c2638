"""The cache of agents' stakes in a workflow owner; computes the stake that a node requires.

The cache is up to half a second behind the ledger. Only the ledger decides whether it can
lock a part of a stake.
Reference: money.md (Slashing, Stakes). Decision stakes-and-slashing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from core.market.reputation import price_reach_micro, stake_required_micro

UNDER_STAKED: Final = "under_staked"
STAKE_LOCKED: Final = "stake_locked"


class Stakes:
    """The free and locked stakes of each agent.

    Args:
        bps: the setting `stake_bps`, from which `stake_required_micro` computes the stake that a
            node requires, in basis points of its price. If it is 0, no stake is required.
        on_changed: called with the DID of each agent whose stake has changed.
    """

    def __init__(self, bps: int, on_changed: Callable[[str], None]) -> None:
        self._bps = bps
        self._on_changed = on_changed
        self._parts: dict[str, tuple[int, int]] = {}

    @property
    def is_required(self) -> bool:
        """Say whether this deployment requires stakes."""
        return self._bps > 0

    def apply_parts(self, stakes: Mapping[str, tuple[int, int]]) -> None:
        """Store the free and the locked stake of each agent, micro-credits."""
        for did, parts in stakes.items():
            if self._parts.get(did) != parts:
                self._parts[did] = parts
                self._on_changed(did)

    def staked_micro(self, did: str, *, counts_locked: bool) -> int:
        """Return the free stake of an agent; `counts_locked`: add its locked stake."""
        free_micro, locked_micro = self._parts.get(did, (0, 0))
        return free_micro + locked_micro if counts_locked else free_micro

    def required_micro(self, price_micro: int, score: float) -> int:
        """Return the stake that a node of this price requires of an agent with this score."""
        if not self._bps:
            return 0
        return stake_required_micro(price_micro, stake_bps=self._bps, score=score)

    def find_limits(self, did: str, score: float) -> tuple[int, int]:
        """Return two prices: the highest that an agent's free stake covers, and its whole stake.

        The whole stake is the free stake and the stake that other work has locked. Call this only
        if the deployment requires stakes.
        """
        free_micro, locked_micro = self._parts.get(did, (0, 0))
        return self._reach(free_micro, score), self._reach(free_micro + locked_micro, score)

    def _reach(self, stake_micro: int, score: float) -> int:
        return price_reach_micro(stake_micro, stake_bps=self._bps, score=score)

    def find_shortage(self, did: str, required_micro: int) -> str | None:
        """Return why an agent's free stake is too small; None if it suffices.

        The reason is `STAKE_LOCKED` if free and locked stake together suffice, because the locked
        stake may be free soon; otherwise it is `UNDER_STAKED`.
        """
        free_micro, locked_micro = self._parts.get(did, (0, 0))
        if required_micro <= free_micro:
            return None
        return STAKE_LOCKED if required_micro <= free_micro + locked_micro else UNDER_STAKED
