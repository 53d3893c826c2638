"""Leases of members, in the ledger's memory: who lives, and whose shards may be taken.

Theory of operation. Each member renews twice a second; one that is silent for `LEASE_MS` of the
ledger's own running time has lost its lease, and its shards may be taken. Running time is what
passed while this process ran and could acknowledge: a tick after a long freeze counts as one
ordinary tick, one while Postgres is silent does not count, so that neither makes anybody dead. A
member that fences itself stops sending 0.5 s before its lease can expire (`SELF_FENCE_MS`, counted
from the sending of a renewal that was acknowledged), so nothing is sent for a shard after another
member's Take. That holds as long as an acknowledgement means a lease:

- Only the head acknowledges: Postgres has said that it is, to a question asked at most
  `ACKNOWLEDGED_MS` ago. A ledger that was replaced does so for that long, and a fence of a member
  that heard it ends `SELF_FENCE_MS` later; the first leases that a new ledger grants are longer
  than both (`FIRST_LEASE_MS`). It grants one to everybody, because it does not know when they
  renewed.
- While a Take is being committed the member that it takes from is not acknowledged: its lease had
  expired when the Take was planned, and renewing it does not undo that.

If more than half of the members fall silent at once, starvation is likelier than death: none of
them may be taken from until it has been silent for `STARVED_MS`. "At once": when the first lease
expires, the others have been silent for `QUIET_MS`. A process that registers at an address ends the
lease of its predecessor there: whoever starts processes has seen that one end.

Safe while the clocks of a ledger and a member differ by a ratio below `LEASE_MS / SELF_FENCE_MS`.
Pure: the caller measures the time. shards.md (Lease, Self-fence). Decisions 0200, 0203.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

LEASE_MS: Final = 3_000
SELF_FENCE_MS: Final = 2_500
RENEWAL_MS: Final = 500
ACKNOWLEDGED_MS: Final = 2_000
FIRST_LEASE_MS: Final = LEASE_MS * (SELF_FENCE_MS + ACKNOWLEDGED_MS) // SELF_FENCE_MS
STARVED_MS: Final = 15_000
QUIET_MS: Final = 1_500
# The longest time that one tick counts for.
TICK_MS_MAX: Final = 1_000


@dataclass(slots=True)
class _Life:
    renewed_ms: int  # running time
    is_ended: bool = False
    is_being_taken: bool = False


class LeaseTable:
    """The leases of all members that are not GONE.

    Args:
        now_ms: of a monotonic clock that runs while the machine is suspended; all later times are
            of the same clock.
    """

    def __init__(self, now_ms: int) -> None:
        self._running_ms = 0
        self._seen_ms = now_ms
        self._head_ms = now_ms
        self._lives: dict[str, _Life] = {}
        self._starved_until_ms = 0

    def __repr__(self) -> str:
        live = sum(self.is_live(member) for member in self._lives)
        return f"<LeaseTable members={len(self._lives)} live={live}>"

    def tick(self, now_ms: int) -> None:
        """Let running time pass; called several times a second, and before each question."""
        if self.is_acknowledging(now_ms):
            self._running_ms += min(max(0, now_ms - self._seen_ms), TICK_MS_MAX)
        self._seen_ms = max(self._seen_ms, now_ms)
        present = [life for life in self._lives.values() if not life.is_ended]
        quiet = [life for life in present if self._silence_ms(life) > QUIET_MS]
        if 2 * len(quiet) > len(present) > 1 and any(map(self._is_silent, quiet)):
            newest_ms = max(life.renewed_ms for life in quiet)
            self._starved_until_ms = max(self._starved_until_ms, newest_ms + STARVED_MS)

    def note_head(self, asked_ms: int) -> None:
        """Note that Postgres has said that this ledger is the head.

        Args:
            asked_ms: when the question was sent: what was true when the answer came is not known.
        """
        self._head_ms = max(self._head_ms, asked_ms)

    def is_acknowledging(self, now_ms: int) -> bool:
        """Say whether this ledger can still be the only one that members believe."""
        return now_ms - self._head_ms <= ACKNOWLEDGED_MS

    def grant_all(self, members: Iterable[str]) -> None:
        """Grant first leases: this ledger has become the head, after another perhaps."""
        for member in members:
            self._lives[member] = _Life(self._running_ms + FIRST_LEASE_MS - LEASE_MS)

    def grant(self, member: str) -> None:
        """Grant a member that has registered a full lease."""
        self._lives[member] = _Life(self._running_ms)

    def renew(self, member: str) -> bool:
        """Renew a member's lease; return whether it is known and has not ended.

        An expired lease is renewed as well, as long as its shards stand: whether a shard was taken
        meanwhile, its epoch tells.
        """
        life = self._lives.get(member)
        if life is None or life.is_ended:
            return False
        assert not life.is_being_taken, member
        life.renewed_ms = max(life.renewed_ms, self._running_ms)
        return True

    def may_renew(self, member: str) -> bool:
        """Say whether a renewal may be acknowledged; not while a Take from the member is open."""
        life = self._lives.get(member)
        return life is None or not life.is_being_taken

    def may_take(self, member: str) -> bool:
        """Say whether a member's shards may be taken, to the plan of a Take.

        A member of which they may is not acknowledged until `takes_ended`.
        """
        life = self._lives.get(member)
        if life is not None and self.is_live(member):
            return False
        if life is not None:
            life.is_being_taken = True
        return True

    def takes_ended(self) -> None:
        """Note that the outcome of every planned Take is known: it is committed, or never will."""
        for life in self._lives.values():
            life.is_being_taken = False

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
        is_spared = self._running_ms < self._starved_until_ms
        return not self._is_silent(life) or (is_spared and self._silence_ms(life) <= STARVED_MS)

    def _is_silent(self, life: _Life) -> bool:
        return self._silence_ms(life) > LEASE_MS

    def _silence_ms(self, life: _Life) -> int:
        return self._running_ms - life.renewed_ms
