"""Leases of members, in the ledger's memory: who lives, and whose shards may be taken.

Theory of operation. Each member renews twice a second; one that is silent for `LEASE_MS` of the
ledger's own running time has lost its lease, and its shards may be taken. Running time is what
passed while this process ran: a long time between two ticks counts for nothing, so a ledger that
was suspended, even again and again, does not find everybody dead. A member that fences itself stops
sending 0.5 s before its lease can expire (`SELF_FENCE_MS`, counted from the sending of a renewal
that was acknowledged), so nothing is sent for a shard after another member's Take. That needs two
rules:

- A new ledger process grants every member a first lease, because it does not know when they
  renewed. The writer before may have acknowledged renewals for `PROOF_MS` without knowing that it
  was replaced, and what it acknowledged last lets a member send for `SELF_FENCE_MS` more: a first
  lease lasts longer than both together.
- A member is not acknowledged while a Take from it is being committed: its lease had expired when
  the Take was planned, and a renewal does not undo that.

If more than half of the members are silent at once, for `QUIET_MS`, starvation is likelier than
death: none may be taken from until it has been silent for `STARVED_MS`. `QUIET_MS` is shorter than
a lease by more than a renewal's interval, so that this is seen before the first of them expires.
Those that have been silent for longer than `STARVED_MS` are not counted: a few that never come back
must not make half of all.

A process that registers at an address ends the lease of its predecessor there: whoever starts
processes has seen that one end.

Safe while the clocks of a ledger and a member differ by a ratio below `LEASE_MS / SELF_FENCE_MS`.
Pure: the caller measures the time. Decisions workflow-owners-and-shards and tests-and-benchmarks.
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
# A ledger acknowledges renewals only for so long after it has asked Postgres, successfully, whether
# it is the writer.
PROOF_MS: Final = 2_000
# With the same margin for clocks that differ as a lease has.
FIRST_LEASE_MS: Final = (SELF_FENCE_MS + PROOF_MS) * LEASE_MS // SELF_FENCE_MS
assert QUIET_MS + RENEWAL_MS < LEASE_MS, "starvation is seen before a lease expires"
assert SELF_FENCE_MS < LEASE_MS, "a member stops sending before its shards are taken"
assert SELF_FENCE_MS + PROOF_MS < FIRST_LEASE_MS, "whichever ledger has acknowledged"
# The longest time between two ticks that counts as running.
TICK_MS_MAX: Final = 1_000


@dataclass(slots=True)
class _Life:
    renewed_ms: int  # running time
    is_ended: bool = False
    is_being_taken: bool = False


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

    def tick(self, now_ms: int) -> None:
        """Let running time pass; called several times a second, and before each question."""
        passed_ms = max(0, now_ms - self._seen_ms)
        self._running_ms += passed_ms if passed_ms <= TICK_MS_MAX else 0
        self._seen_ms = max(self._seen_ms, now_ms)
        present = [life for life in self._lives.values() if self._is_counted(life)]
        quiet = [life for life in present if self._silence_ms(life) > QUIET_MS]
        if 2 * len(quiet) > len(present) > 1:
            newest_ms = max(life.renewed_ms for life in quiet)
            self._starved_until_ms = max(self._starved_until_ms, newest_ms + STARVED_MS)

    def grant(self, member: str) -> None:
        """Grant a member a full lease: it has registered."""
        self._lives[member] = _Life(self._running_ms)

    def grant_first(self, member: str) -> None:
        """Grant a member a first lease: another ledger may have acknowledged its renewals."""
        self._lives[member] = _Life(self._running_ms + FIRST_LEASE_MS - LEASE_MS)

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

    def may_take(self, member: str) -> bool:
        """Say to the plan of a Take whether a member's shards may be taken.

        A member of which they may is not acknowledged until `end_takes`.
        """
        if self.is_live(member):
            return False
        life = self._lives.get(member)
        if life is not None:
            life.is_being_taken = True
        return True

    def may_acknowledge(self, member: str) -> bool:
        """Say whether a renewal of a member may be acknowledged: no Take from it is open."""
        life = self._lives.get(member)
        return life is None or not life.is_being_taken

    def end_takes(self) -> None:
        """Note that the outcome of every Take that was planned is known."""
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
        is_spared = self._running_ms < self._starved_until_ms and self._is_counted(life)
        return is_spared or not self._is_silent(life)

    def _is_counted(self, life: _Life) -> bool:
        return not life.is_ended and self._silence_ms(life) <= STARVED_MS

    def _is_silent(self, life: _Life) -> bool:
        return self._silence_ms(life) > LEASE_MS

    def _silence_ms(self, life: _Life) -> int:
        return self._running_ms - life.renewed_ms


def cluster_version(members: Iterable[str], ledgers: int) -> int:
    """Return the lowest version among the members and the ledger.

    What only code of a later version understands is neither sent nor stored until then. It is
    raised with the end of the last member of before, and lowered when one joins, which is how an
    upgrade is taken back.

    Args:
        members: of each that is not GONE, what it said when it joined: digits.
        ledgers: the version of the ledger's code.
    """
    return min([ledgers, *(int(text) if text.isdecimal() else 0 for text in members)])
