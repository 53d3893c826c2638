"""Leases of members, in the ledger's memory: which leases are valid, and whose shards may be taken.

Theory of operation. Each member renews its lease twice a second. A lease expires if the member is
silent for `LEASE_MS` of running time. Other members may then take its shards with the command
`TakeShards`, here called a Take. Running time is the time in which the ledger process has run. A
time above `TICK_MS_MAX` between two ticks does not count. So the leases do not expire while the
ledger process is suspended, even if this happens repeatedly.

A member must not dispatch for a shard after another member has taken the shard. The member
therefore stops dispatching `SELF_FENCE_MS` after it sent its last acknowledged renewal, which is
0.5 s before the lease can expire. This requires two more rules:

- A new ledger process does not know when the members last renewed. It grants each of them a first
  lease. The previous writer may acknowledge renewals for up to `PROOF_MS` without knowing that it
  was replaced. After the last of these acknowledgements a member may dispatch for `SELF_FENCE_MS`.
  So a first lease lasts longer than `PROOF_MS` plus `SELF_FENCE_MS`.
- While a Take from a member is being committed, the ledger does not acknowledge the member's
  renewals. The lease had expired when the Take was planned, and a renewal does not undo this.

If more than half of the members are silent for `QUIET_MS` at the same time, overload is more likely
than a crash. In this case, no shards are taken from a member until the member has been silent for
`STARVED_MS`. `QUIET_MS` plus the renewal interval is less than a lease, so the overload is noticed
before the first lease expires. Members that have been silent for longer than `STARVED_MS` are
ignored in this comparison. If they counted, a few members that never return could be half of all
members.

When a process registers at an address, the lease of its predecessor at this address ends. The
program that started the new process has noticed the end of the predecessor.

The rules are safe while the ratio of the clock speeds of the ledger and of a member is below
`LEASE_MS / SELF_FENCE_MS`. Pure: the caller measures the time.
Decisions workflow-owners-and-shards and tests-and-benchmarks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

LEASE_MS: Final = 3_000
SELF_FENCE_MS: Final = 2_500
RENEWAL_MS: Final = 500
STARVED_MS: Final = 15_000
QUIET_MS: Final = 2_000
# A ledger acknowledges renewals only for this time after Postgres has confirmed that the ledger is
# still the writer.
PROOF_MS: Final = 2_000
# The last factor is the margin for clocks of different speeds; a normal lease has the same margin.
FIRST_LEASE_MS: Final = (SELF_FENCE_MS + PROOF_MS) * LEASE_MS // SELF_FENCE_MS
assert QUIET_MS + RENEWAL_MS < LEASE_MS, "starvation is seen before a lease expires"
assert SELF_FENCE_MS < LEASE_MS, "a member stops sending before its shards are taken"
assert SELF_FENCE_MS + PROOF_MS < FIRST_LEASE_MS, "whichever ledger has acknowledged"
# A longer time between two ticks does not count as running time.
TICK_MS_MAX: Final = 1_000


@dataclass(slots=True)
class _Life:
    renewed_ms: int  # in running time
    is_ended: bool = False
    is_being_taken: bool = False


class LeaseTable:
    """The leases of all members that are not GONE.

    Args:
        now_ms: the current time of a monotonic clock. All later calls use the same clock.
    """

    def __init__(self, now_ms: int) -> None:
        self._running_ms = 0
        self._seen_ms = now_ms
        self._lives: dict[str, _Life] = {}
        self._starved_until_ms = 0

    def tick(self, now_ms: int) -> None:
        """Advance the running time; called several times a second, and before each query."""
        passed_ms = max(0, now_ms - self._seen_ms)
        self._running_ms += passed_ms if passed_ms <= TICK_MS_MAX else 0
        self._seen_ms = max(self._seen_ms, now_ms)
        present = [life for life in self._lives.values() if self._is_counted(life)]
        quiet = [life for life in present if self._silence_ms(life) > QUIET_MS]
        if 2 * len(quiet) > len(present) > 1:
            newest_ms = max(life.renewed_ms for life in quiet)
            self._starved_until_ms = max(self._starved_until_ms, newest_ms + STARVED_MS)

    def grant(self, member: str) -> None:
        """Grant a full lease to a member that has registered."""
        self._lives[member] = _Life(self._running_ms)

    def grant_first(self, member: str) -> None:
        """Grant a first lease, because another ledger may have acknowledged this member."""
        self._lives[member] = _Life(self._running_ms + FIRST_LEASE_MS - LEASE_MS)

    def renew(self, member: str) -> bool:
        """Renew a member's lease; return False if the member is unknown or its lease was ended.

        An expired lease is renewed, too. If a shard of the member was taken in the meantime, the
        shard's epoch shows this.
        """
        life = self._lives.get(member)
        if life is None or life.is_ended:
            return False
        # A first lease may last longer than a renewed one.
        life.renewed_ms = max(life.renewed_ms, self._running_ms)
        return True

    def may_take(self, member: str) -> bool:
        """Return whether a Take may take shards of a member; called by the plan of the Take.

        If it returns True, the member's renewals are not acknowledged until `end_takes`.
        """
        if self.is_live(member):
            return False
        life = self._lives.get(member)
        if life is not None:
            life.is_being_taken = True
        return True

    def may_acknowledge(self, member: str) -> bool:
        """Return whether a member's renewal may be acknowledged: no Take from it is pending."""
        life = self._lives.get(member)
        return life is None or not life.is_being_taken

    def end_takes(self) -> None:
        """Allow renewals again: the outcome of every planned Take is known."""
        for life in self._lives.values():
            life.is_being_taken = False

    def end(self, member: str) -> None:
        """End the lease of a member whose process is known to have ended."""
        life = self._lives.get(member)
        if life is not None:
            life.is_ended = True

    def forget(self, member: str) -> None:
        """Remove a member that is GONE."""
        self._lives.pop(member, None)

    def is_live(self, member: str) -> bool:
        """Return whether a member keeps its shards; False for an unknown member.

        True if its lease is valid, or if it is spared because of an overload.
        """
        life = self._lives.get(member)
        if life is None or life.is_ended:
            return False
        is_spared = self._running_ms < self._starved_until_ms and self._is_counted(life)
        return is_spared or not self._is_silent(life)

    def _is_counted(self, life: _Life) -> bool:
        return not life.is_ended and self._silence_ms(life) <= STARVED_MS

    def _is_silent(self, life: _Life) -> bool:
        return self._silence_ms(life) > LEASE_MS

    def _silence_ms(self, life: _Life) -> int:
        return self._running_ms - life.renewed_ms


def cluster_version(members: Iterable[str], ledgers: int) -> int:
    """Return the lowest code version among the members and the ledger.

    No process sends or stores data that only a later version understands. The cluster version rises
    when the last member of the older version ends. It falls when a member of an older version
    joins, so an upgrade can be rolled back.

    Args:
        members: the version of each member that is not GONE, as digits. Other text counts as 0.
        ledgers: the version of the ledger's code.
    """
    return min([ledgers, *(int(text) if text.isdecimal() else 0 for text in members)])
