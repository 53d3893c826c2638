"""Liveness of the cluster's processes: silent processes, live owners, and claims on lost owners.

A process is in one of three states. Ready: its answer says that it takes work. Busy: its answer is
late, but its progress counter, read by another of its threads, has moved since; progress replaces
an answer for `BUSY_MS_MAX` at most, because a loop may turn and never answer. Silent: several
questions in a row brought neither an answer nor progress for too long; only then is it replaced.
Pure; the caller measures the times. `actors/cluster/timekeeper.py` and
`actors/cluster/ledger_watch.py` act on the result.
design.md section 3 (Starting and owning). Decision 0092.
"""

from __future__ import annotations

from dataclasses import dataclass

from actors.transport.names import pooled_owner

# A process on a machine under full load was seen to need 20 s. One that was replaced before its
# first answer may only be slow: its successors have twice the time each, up to the longest.
START_MS_MAX = 60_000
START_MS_LONGEST = 8 * START_MS_MAX
MISSES_MIN = 3
# No turn of a loop takes long, so a working one answers within this time.
BUSY_MS_MAX = 60_000


@dataclass(frozen=True, slots=True)
class Claim:
    """`to_owner` takes over the unfinished workflows of `from_owner`."""

    from_owner: str
    from_epoch: int
    to_owner: str
    to_epoch: int


class Silence:
    """Decides whether one process has been silent for too long.

    Time alone is no evidence, because the watcher itself may have been frozen. Several questions in
    a row must remain unanswered as well.

    Args:
        silence_ms_max: timeout of a process that has answered before.
        now_ms: the start of the wait.
        start_ms_max: as for `OwnerWatch`.
    """

    def __init__(
        self, silence_ms_max: int, *, now_ms: int, start_ms_max: int = START_MS_MAX
    ) -> None:
        self._silence_ms_max = silence_ms_max
        self._start_ms_max = self._start_ms = max(start_ms_max, silence_ms_max)
        self.reset(now_ms)

    def note_replaced(self, now_ms: int) -> None:
        """Note that the process was ended as silent; wait for its successor's first answer."""
        if not self.has_answered:
            self._start_ms = min(2 * self._start_ms, max(START_MS_LONGEST, self._start_ms_max))
        self.reset(now_ms)

    def reset(self, now_ms: int) -> None:
        """Start to wait for the first answer of a new process."""
        self.heard_ms, self._misses, self.has_answered = now_ms, 0, False
        self._progress, self._answered_ms = 0, now_ms

    def note_answer(self, now_ms: int, progress: int = 0) -> None:
        """Note an answer and the progress counter in it."""
        self._note_sign_of_life(now_ms, progress)
        self._answered_ms = now_ms

    def note_progress(self, progress: int, now_ms: int) -> bool:
        """Note the progress counter of a process whose answer is late; return whether it is busy.

        Progress does not count once no answer has come for `BUSY_MS_MAX`.
        """
        if progress == self._progress or now_ms - self._answered_ms > BUSY_MS_MAX:
            return False
        self._note_sign_of_life(now_ms, progress)
        return True

    def note_miss(self, now_ms: int) -> bool:
        """Note an unanswered question; return whether to replace the process."""
        self._misses += 1
        most_ms = self._silence_ms_max if self.has_answered else self._start_ms
        return now_ms - self.heard_ms > most_ms and self._misses >= MISSES_MIN

    def _note_sign_of_life(self, now_ms: int, progress: int) -> None:
        self.heard_ms, self._misses, self.has_answered = now_ms, 0, True
        self._progress, self._start_ms = progress, self._start_ms_max


@dataclass(slots=True)
class OwnerState:
    """The state of one owner that should run."""

    silence: Silence
    epoch: int = 0
    is_ready: bool = False
    is_silent: bool = False


class OwnerWatch:
    """The owners that should run and the time of each one's last answer.

    Args:
        silence_ms_max: timeout after which an owner that has answered before is restarted.
        start_ms_max: timeout of an owner's first answer. Killing a process that starts slowly on a
            busy machine makes the machine busier.
    """

    def __init__(self, *, silence_ms_max: int, start_ms_max: int = START_MS_MAX) -> None:
        self._silence_ms_max = silence_ms_max
        self._start_ms_max = start_ms_max
        self._owners: dict[str, OwnerState] = {}
        self._sent_peers: dict[str, tuple[tuple[str, int], ...]] = {}
        self._claimed: set[tuple[str, int]] = set()
        self._unadopted: set[str] = set()

    def note_created(self, name: str, now_ms: int) -> None:
        """Note that an owner was created and should run."""
        silence = Silence(self._silence_ms_max, now_ms=now_ms, start_ms_max=self._start_ms_max)
        self._owners[name] = OwnerState(silence)

    def note_replaced(self, name: str, now_ms: int) -> None:
        """Note that a silent owner's process was ended; its successor's first answer is awaited."""
        silence = self._owners[name].silence
        silence.note_replaced(now_ms)
        self._owners[name] = OwnerState(silence)

    def note_ended(self, name: str, now_ms: int) -> None:
        """Note that an owner's process has ended; its successor's first answer is awaited."""
        owner = self._owners.get(name)
        if owner is not None and owner.silence.has_answered:
            self.note_created(name, now_ms)
        else:
            self.note_unanswered(name, now_ms)

    def note_starting(self, name: str, now_ms: int, progress: int = 0) -> None:
        """Note an answer of an owner that is not ready yet."""
        self.note_created(name, now_ms)
        self._owners[name].silence.note_answer(now_ms, progress)

    def note_progress(self, name: str, progress: int, now_ms: int) -> bool:
        """Note the progress counter of an owner whose answer is late.

        Returns: whether the owner is busy; then its readiness does not change.
        """
        owner = self._owners.get(name)
        return owner is not None and owner.silence.note_progress(progress, now_ms)

    def note_unanswered(self, name: str, now_ms: int) -> None:
        """Note that an owner gave neither an answer nor progress."""
        owner = self._owners.get(name)
        if owner is not None:
            owner.is_silent = owner.silence.note_miss(now_ms)

    def note_answered(self, name: str, epoch: int, now_ms: int, progress: int = 0) -> None:
        """Note an answer of a ready owner, with its epoch."""
        known = self._owners.get(name)
        if known is None or known.epoch != epoch:
            self._sent_peers.pop(name, None)  # a new process knows no peers
            # An earlier timekeeper may have claimed workflows for it without calling `adopt`.
            self._unadopted.add(name)
        self.note_created(name, now_ms)
        owner = self._owners[name]
        owner.epoch, owner.is_ready = epoch, True
        owner.silence.note_answer(now_ms, progress)

    def remove_owner(self, name: str) -> None:
        """Note that an owner's machine is gone."""
        self._owners.pop(name, None)
        self._sent_peers.pop(name, None)
        self._unadopted.discard(name)

    def live_owners(self, now_ms: int) -> list[str]:
        """Return the ready owners that answered recently, in a stable order."""
        return sorted(
            name
            for name, owner in self._owners.items()
            if owner.is_ready and now_ms - owner.silence.heard_ms <= self._silence_ms_max
        )

    def silent_owners(self) -> list[str]:
        """Return the owners that should run and are silent."""
        return sorted(name for name, owner in self._owners.items() if owner.is_silent)

    def list_claims(self, stored_epochs: dict[str, int], now_ms: int) -> list[Claim]:
        """Return the claims on stored owners that will not come back.

        Ray restarts an owner as long as its machine is alive, so only the names of lost machines
        are claimed, round robin over the live owners. The parent of a dedicated process claims that
        process's workflows itself.
        """
        live = self.live_owners(now_ms)
        if not live:
            return []
        claims = []
        orphans = sorted(name for name in stored_epochs if pooled_owner(name) not in self._owners)
        for index, name in enumerate(orphans):
            epoch = stored_epochs[name]
            if (name, epoch) in self._claimed:
                continue
            to_owner = live[index % len(live)]
            claims.append(Claim(name, epoch, to_owner, self._owners[to_owner].epoch))
        return claims

    def note_claimed(self, claim: Claim) -> None:
        """Note that a claim was committed, which raised the lost owner's epoch by one."""
        self._claimed.add((claim.from_owner, claim.from_epoch + 1))
        self._unadopted.add(claim.to_owner)

    def owners_to_adopt(self, now_ms: int) -> list[str]:
        """Return the live owners that may own workflows they do not drive yet."""
        return [name for name in self.live_owners(now_ms) if name in self._unadopted]

    def note_adopted(self, name: str) -> None:
        """Note that an owner has started to restore its claimed workflows."""
        self._unadopted.discard(name)

    def pending_peer_updates(self, now_ms: int) -> list[tuple[str, tuple[tuple[str, int], ...]]]:
        """Return (owner, its live peers and their epochs) for each owner with outdated peers.

        The epoch shows a restart, by which a peer loses the orders it held for others.
        """
        live = self.live_owners(now_ms)
        news = []
        for name in live:
            peers = tuple((other, self._owners[other].epoch) for other in live if other != name)
            if self._sent_peers.get(name, ()) != peers:
                self._sent_peers[name] = peers
                news.append((name, peers))
        return news

    def note_peer_update_failed(self, name: str) -> None:
        """Note that a peer update did not reach an owner."""
        self._sent_peers.pop(name, None)
