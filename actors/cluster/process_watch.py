"""Which processes are silent, which owners are alive, who takes over from those that are gone.

Three things are told apart. Ready: it has answered that it takes work. Busy: its answer is late,
but its counter of progress, which another of its threads tells, has moved since; that stands for an
answer for `BUSY_MS_MAX` at most, because a loop may turn and never answer. Silent: neither an
answer nor progress for too long, however often it was asked; only that is given up. Pure
bookkeeping over times that the caller measures; `actors/cluster/timekeeper.py` and
`actors/cluster/ledger_watch.py` act on it.
design.md section 3 (Starting and owning). Decision 0092.
"""

from __future__ import annotations

from dataclasses import dataclass

from actors.cluster.names import pooled_owner

# A process on a machine under full load was seen to need 20 s.
START_MS_MAX = 60_000
MISSES_MIN = 3
# No turn of a loop takes long, so one that works answers some time.
BUSY_MS_MAX = 60_000


@dataclass(frozen=True, slots=True)
class Claim:
    """`to_owner` takes over everything unfinished of `from_owner`."""

    from_owner: str
    from_epoch: int
    to_owner: str
    to_epoch: int


class Silence:
    """Of one process that should answer: whether it has been silent for too long.

    Time alone does not tell: a watcher that was frozen itself finds much of it gone. So several
    questions in a row must have been asked in vain as well.

    Args:
        silence_ms_max: how long one that has answered before may say nothing.
        now_ms: since when it is awaited.
        start_ms_max: as for `OwnerWatch`.
    """

    def __init__(
        self, silence_ms_max: int, *, now_ms: int, start_ms_max: int = START_MS_MAX
    ) -> None:
        self._silence_ms_max = silence_ms_max
        self._start_ms_max = max(start_ms_max, silence_ms_max)
        self.reset(now_ms)

    def reset(self, now_ms: int) -> None:
        """Note that a new process is awaited, which has not answered yet."""
        self.heard_ms, self._misses, self.has_answered = now_ms, 0, False
        self._progress, self._answered_ms = 0, now_ms

    def note_answer(self, now_ms: int, progress: int = 0) -> None:
        """Note an answer, and the process's counter of progress in it."""
        self._note_sign_of_life(now_ms, progress)
        self._answered_ms = now_ms

    def note_progress(self, progress: int, now_ms: int) -> bool:
        """Note what the counter of progress says of a late answer; returns whether it has moved.

        It counts for nothing once no answer has come for `BUSY_MS_MAX`.
        """
        if progress == self._progress or now_ms - self._answered_ms > BUSY_MS_MAX:
            return False
        self._note_sign_of_life(now_ms, progress)
        return True

    def note_miss(self, now_ms: int) -> bool:
        """Note a question that was not answered; returns whether to give the process up."""
        self._misses += 1
        most_ms = self._silence_ms_max if self.has_answered else self._start_ms_max
        return now_ms - self.heard_ms > most_ms and self._misses >= MISSES_MIN

    def _note_sign_of_life(self, now_ms: int, progress: int) -> None:
        self.heard_ms, self._misses, self.has_answered = now_ms, 0, True
        self._progress = progress


@dataclass(slots=True)
class OwnerState:
    """What is known of one owner that should run."""

    silence: Silence
    epoch: int = 0
    is_ready: bool = False
    is_silent: bool = False


class OwnerWatch:
    """Owners that should run, and when each was last heard.

    Args:
        silence_ms_max: an owner that has answered and then says nothing for longer is restarted.
        start_ms_max: how long one may take until it answers for the first time. Killing a process
            that is slow to start, because the machine is busy, makes the machine busier.
    """

    def __init__(self, *, silence_ms_max: int, start_ms_max: int = START_MS_MAX) -> None:
        self._silence_ms_max = silence_ms_max
        self._start_ms_max = start_ms_max
        self._owners: dict[str, OwnerState] = {}
        self._sent_peers: dict[str, tuple[tuple[str, int], ...]] = {}
        self._claimed: set[tuple[str, int]] = set()
        self._unadopted: set[str] = set()

    def note_created(self, name: str, now_ms: int) -> None:
        """Note that an owner should run and has been created."""
        silence = Silence(self._silence_ms_max, now_ms=now_ms, start_ms_max=self._start_ms_max)
        self._owners[name] = OwnerState(silence)

    def note_ended(self, name: str, now_ms: int) -> None:
        """Note that an owner's process is not there: from its end on another is awaited."""
        owner = self._owners.get(name)
        if owner is not None and owner.silence.has_answered:
            self.note_created(name, now_ms)
        else:
            self.note_unanswered(name, now_ms)

    def note_starting(self, name: str, now_ms: int, progress: int = 0) -> None:
        """Note that an owner answered and is not ready yet."""
        self.note_created(name, now_ms)
        self._owners[name].silence.note_answer(now_ms, progress)

    def note_progress(self, name: str, progress: int, now_ms: int) -> bool:
        """Note what an owner's counter of progress says of a late answer.

        Returns: whether it has moved, and its answer is not too late even so; then the owner works,
        and is as ready as it was.
        """
        owner = self._owners.get(name)
        return owner is not None and owner.silence.note_progress(progress, now_ms)

    def note_unanswered(self, name: str, now_ms: int) -> None:
        """Note that an owner was asked in vain: neither an answer nor progress."""
        owner = self._owners.get(name)
        if owner is not None:
            owner.is_silent = owner.silence.note_miss(now_ms)

    def note_answered(self, name: str, epoch: int, now_ms: int, progress: int = 0) -> None:
        """Note that an owner is ready and answered with its epoch."""
        known = self._owners.get(name)
        if known is None or known.epoch != epoch:
            self._sent_peers.pop(name, None)  # a new process knows nobody
            # What an earlier watch had claimed for it, it may not have been told to adopt.
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
        """Return the owners that are ready and were heard lately, in a stable order."""
        return sorted(
            name
            for name, owner in self._owners.items()
            if owner.is_ready and now_ms - owner.silence.heard_ms <= self._silence_ms_max
        )

    def silent_owners(self) -> list[str]:
        """Return the owners that should run and have said nothing for too long."""
        return sorted(name for name, owner in self._owners.items() if owner.is_silent)

    def list_claims(self, stored_epochs: dict[str, int], now_ms: int) -> list[Claim]:
        """Return who takes over from stored owners that will not come back.

        An owner comes back as long as its machine is there, because Ray restarts its actor; only
        names without a machine are claimed. The orphans are dealt out in turn. A workflow's own
        process ends with the owner that made it, which then claims for itself.
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
        """Note that a claim was committed; it made the orphan's epoch grow by one."""
        self._claimed.add((claim.from_owner, claim.from_epoch + 1))
        self._unadopted.add(claim.to_owner)

    def owners_to_adopt(self, now_ms: int) -> list[str]:
        """Return the live owners that may own workflows which they do not drive yet."""
        return [name for name in self.live_owners(now_ms) if name in self._unadopted]

    def note_adopted(self, name: str) -> None:
        """Note that an owner drives everything that was its own when it was asked to."""
        self._unadopted.discard(name)

    def pending_peer_updates(self, now_ms: int) -> list[tuple[str, tuple[tuple[str, int], ...]]]:
        """Return (owner, its live peers) for each owner that does not know its peers yet.

        With their epochs: what a peer held for others is lost when it is started anew, however
        quickly that happens.
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
        """Note that an owner did not hear of its peers."""
        self._sent_peers.pop(name, None)
