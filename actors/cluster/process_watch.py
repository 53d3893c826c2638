"""Liveness of the cluster's processes: which of them are silent and have to be started anew.

A process is in one of three states. Answering. Busy: its answer is late, but its progress counter,
read by another of its threads, has moved since; progress replaces an answer for `BUSY_MS_MAX` at
most, because a loop may turn and never answer. Silent: several questions in a row brought neither
an answer nor progress for too long; only then is it replaced. Whose workflows may be taken is not
asked here: leases decide that (`core/shards/leases.py`), by what members tell the ledger. Pure; the
caller measures the times. `actors/cluster/timekeeper.py` and
`actors/cluster/ledgers/ledger_watch.py` act on the result. Decisions process-liveness-and-standby
and workflow-owners-and-shards.
"""

from __future__ import annotations

# A process on a machine under full load was seen to need 20 s. One that was replaced before its
# first answer may only be slow: its successors have twice the time each, up to the longest.
START_MS_MAX = 60_000
START_MS_LONGEST = 8 * START_MS_MAX
MISSES_MIN = 3
# No turn of a loop takes long, so a working one answers within this time.
BUSY_MS_MAX = 60_000


class Silence:
    """Decides whether one process has been silent for too long.

    Time alone is no evidence, because the watcher itself may have been frozen. Several questions in
    a row must remain unanswered as well.

    Args:
        silence_ms_max: timeout of a process that has answered before.
        now_ms: the start of the wait.
        start_ms_max: timeout of the first answer. Killing a process that starts slowly on a busy
            machine makes the machine busier.
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

    def note_ended(self, now_ms: int) -> bool:
        """Note that the process has ended; return whether to replace its successor.

        The successor has the time of a start, once: it may end each time before it answers.
        """
        if self.has_answered:
            self.reset(now_ms)
            return False
        return self.note_miss(now_ms)

    def note_answer(self, now_ms: int, progress: int = 0) -> None:
        """Note an answer and the progress counter in it."""
        self._note_sign_of_life(now_ms, progress)
        self._answered_ms = now_ms

    def note_work(self, work: int, now_ms: int) -> bool:
        """Note an answer with a counter of what the process is there for; return whether to replace
        it. An answer without work since the last one counts as none."""
        if work == self._progress:
            return self.note_miss(now_ms)
        self.note_answer(now_ms, work)
        return False

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
