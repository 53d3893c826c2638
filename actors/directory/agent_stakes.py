"""What agents have staked, as an owner knows it, and what it asks of them for a node.

A cache of the ledger's stakes, half a second behind; only the ledger says whether a lock succeeds.
Spec: Settlement rules 8; contract.md section 6 (Reputation inputs); money.md case 26. Decision
0074.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from core.market.reputation import stake_required_micro

UNDER_STAKED: Final = "under_staked"
STAKE_LOCKED: Final = "stake_locked"


class Stakes:
    """Free and locked stakes by agent.

    Args:
        bps: the stake that a node asks, basis points of its price; 0: none.
    """

    def __init__(self, bps: int) -> None:
        self._bps = bps
        self._parts: dict[str, tuple[int, int]] = {}

    def __repr__(self) -> str:
        return f"<Stakes bps={self._bps} agents={len(self._parts)}>"

    @property
    def is_required(self) -> bool:
        """Whether work asks for a stake at all."""
        return self._bps > 0

    def apply_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take over rows (`agent_did, free_micro, locked_micro`)."""
        for row in rows:
            self._parts[row["agent_did"]] = (row["free_micro"], row["locked_micro"])

    def staked_micro(self, did: str, *, counts_locked: bool) -> int:
        """Return what no work has locked, or all that is staked, as far as is known."""
        free_micro, locked_micro = self._parts.get(did, (0, 0))
        return free_micro + locked_micro if counts_locked else free_micro

    def required_micro(self, price_micro: int, score: float) -> int:
        """Return what a node of this price asks of an agent of this score, micro-credits."""
        if not self._bps:
            return 0
        return stake_required_micro(price_micro, stake_bps=self._bps, score=score)

    def find_shortage(self, did: str, required_micro: int) -> str | None:
        """Return why an agent does not put up so much now; what is locked may be free soon."""
        free_micro, locked_micro = self._parts.get(did, (0, 0))
        if required_micro <= free_micro:
            return None
        return STAKE_LOCKED if required_micro <= free_micro + locked_micro else UNDER_STAKED
