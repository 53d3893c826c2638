"""Leases of members, in the ledger's memory: who lives, and whose shards may be taken.

Theory of operation. Each member renews twice a second; one that is silent for `LEASE_MS` of the
ledger's own running time has lost its lease, and its shards may be taken. Running time is what
passed while this process ran: a tick after a long freeze counts as one ordinary tick, so a ledger
that was suspended does not find everybody dead. A new ledger process grants every member a first
lease, because it does not know when they renewed: a full one, and the time for which the writer
before may have acknowledged renewals without knowing that it was replaced (`PROOF_MS`), because
what it acknowledged last lets a member send for `SELF_FENCE_MS` more.

A member that fences itself stops sending 0.5 s before its lease can expire (`SELF_FENCE_MS`,
counted from the sending of a renewal that was acknowledged), so nothing is sent for a shard after
another member's Take. If more than half of the
members fall silent at once, starvation is likelier than death: none of them may be taken from for
`STARVED_MS`. Those that have been silent for longer than that are not counted: they did not fall
silent at once with the others, and a few that never come back must not make half of all.

A process that registers at an address ends the lease of its predecessor there: whoever starts
processes has seen that one end.

Pure: the caller measures the time. shards.md (Lease, Self-fence). Decision 0200.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LEASE_MS: Final = 3_000
SELF_FENCE_MS: Final = 2_500
RENEWAL_MS: Final = 500
STARVED_MS: Final = 15_000
# A ledger acknowledges renewals only for so long after it has asked Postgres, successfully, whether
# it is the writer.
PROOF_MS: Final = 2_000
FIRST_LEASE_MS: Final = LEASE_MS + PROOF_MS
assert SELF_FENCE_MS < LEASE_MS, "a member stops sending before its shards are taken"
assert SELF_FENCE_MS + PROOF_MS < FIRST_LEASE_MS, "whichever ledger has acknowledged"
# The longest time that one tick counts for.
TICK_MS_MAX: Final = 1_000


@dataclass(slots=True)
class _Life:
    renewed_ms: int  # running time
    is_ended: bool = False


class LeaseTable:
    """The leases of all members that are not GONE.

    Args:
        now_ms: of a monotonic clock; all later times are of the same clock.
    """

    def __init__(self, now_ms: int) -> None:
        self._running_ms = 0
        self._seen_ms = now_ms
        self._lives: dict[str, _Life] = {}
        self._starved_until_ms = 0

    def __repr__(self) -> str:
        live = sum(self.is_live(member) for member in self._lives)
        return f"<LeaseTable members={len(self._lives)} live={live}>"

    def tick(self, now_ms: int) -> None:
        """Let running time pass; called several times a second, and before each question."""
        self._running_ms += min(max(0, now_ms - self._seen_ms), TICK_MS_MAX)
        self._seen_ms = max(self._seen_ms, now_ms)
        present = [life for life in self._lives.values() if self._is_counted(life)]
        silent = [life for life in present if self._is_silent(life)]
        if 2 * len(silent) > len(present) and len(present) > 1 and not self._is_starved:
            newest_ms = max(life.renewed_ms for life in silent)
            # Counted from the last sign of life of these members, and once for each silence.
            self._starved_until_ms = max(self._starved_until_ms, newest_ms + STARVED_MS)

    def grant(self, member: str) -> None:
        """Grant a member a full lease: it has registered."""
        self._lives[member] = _Life(self._running_ms)

    def grant_first(self, member: str) -> None:
        """Grant a member a first lease: another ledger may have acknowledged its renewals."""
        self._lives[member] = _Life(self._running_ms + PROOF_MS)

    def renew(self, member: str) -> bool:
        """Renew a member's lease; return whether it is known and has not ended.

        An expired lease is renewed as well, as long as its shards stand: whether a shard was taken
        meanwhile, its epoch tells.
        """
        life = self._lives.get(member)
        if life is None or life.is_ended:
            return False
        # A first lease reaches further than a renewal may.
        life.renewed_ms = max(life.renewed_ms, self._running_ms)
        return True

    def end(self, member: str) -> None:
        """End a member's lease at once: its process is known to have ended."""
        life = self._lives.get(member)
        if life is not None:
            life.is_ended = True

    def forget(self, member: str) -> None:
        """Forget a member that is GONE."""
        self._lives.pop(member, None)

    def is_live(self, member: str) -> bool:
        """Say whether a member's shards may not be taken; of an unknown one they may."""
        life = self._lives.get(member)
        if life is None or life.is_ended:
            return False
        return self._is_starved or not self._is_silent(life)

    def silent_ms(self, member: str) -> int:
        """Return the running time since a member's last renewal, 0 for one that is not known."""
        life = self._lives.get(member)
        return 0 if life is None else max(0, self._running_ms - life.renewed_ms)

    @property
    def _is_starved(self) -> bool:
        return self._running_ms < self._starved_until_ms

    def _is_counted(self, life: _Life) -> bool:
        return not life.is_ended and self._running_ms - life.renewed_ms <= STARVED_MS

    def _is_silent(self, life: _Life) -> bool:
        return not life.is_ended and self._running_ms - life.renewed_ms > LEASE_MS
