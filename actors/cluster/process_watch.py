"""Liveness of the cluster's processes: decides whether a process is silent and must be replaced.

A process is in one of three states:
- Answering: it answers health checks in time.
- Busy: its answer is late, but its progress counter has moved. Another thread of the process
  returns this counter. Progress replaces an answer for at most `BUSY_MS_MAX`, because a process may
  make progress without ever answering.
- Silent: several checks in a row found neither an answer nor progress, and the timeout is over.
  Only a silent process is replaced.

Leases (`core/shards/leases.py`), not this module, decide whose shards may be taken. This module is
pure; the caller measures the times. `actors/cluster/timekeeper.py` and
`actors/cluster/ledgers/ledger_watch.py` act on the result. Decisions process-liveness-and-standby
and workflow-owners-and-shards.
"""

from __future__ import annotations

# The timeout of a process's first answer: on a machine under full load, a start has taken 20 s. A
# process that is replaced before its first answer may only be slow. So each successor gets twice
# the timeout of its predecessor, up to `START_MS_LONGEST`.
START_MS_MAX = 60_000
START_MS_LONGEST = 8 * START_MS_MAX
MISSES_MIN = 3
# The longest time for which progress replaces an answer. A process that works answers earlier,
# because no iteration of its event loop is long.
BUSY_MS_MAX = 60_000


class Silence:
    """Decides whether one process has been silent for too long.

    Elapsed time alone proves nothing, because the checking process itself may have been frozen.
    Therefore several checks in a row must also be unanswered.

    Args:
        silence_ms_max: the timeout of a process that has answered before, milliseconds.
        now_ms: the start of the wait, milliseconds of a monotonic clock.
        start_ms_max: the timeout of the first answer, milliseconds. It is longer than
            `silence_ms_max`, because restarting a slow process makes a busy machine busier.
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

        If the process had answered, the timeout of the first answer starts again. If it had not
        answered, the timeout continues, so that it also covers a series of failed starts.
        """
        if self.has_answered:
            self.reset(now_ms)
            return False
        return self.note_miss(now_ms)

    def note_answer(self, now_ms: int, progress: int = 0) -> None:
        """Note an answer and its progress counter."""
        self._note_sign_of_life(now_ms, progress)
        self._answered_ms = now_ms

    def note_work(self, work: int, now_ms: int) -> bool:
        """Note an answer with a counter of completed work; return whether to replace the process.

        An answer with an unchanged counter counts as no answer.
        """
        if work == self._progress:
            return self.note_miss(now_ms)
        self.note_answer(now_ms, work)
        return False

    def note_progress(self, progress: int, now_ms: int) -> bool:
        """Note the progress counter of a process whose answer is late; return whether it is busy.

        Progress no longer counts when the last answer is older than `BUSY_MS_MAX`.
        """
        if progress == self._progress or now_ms - self._answered_ms > BUSY_MS_MAX:
            return False
        self._note_sign_of_life(now_ms, progress)
        return True

    def note_miss(self, now_ms: int) -> bool:
        """Note an unanswered check; return whether to replace the process."""
        self._misses += 1
        most_ms = self._silence_ms_max if self.has_answered else self._start_ms
        return now_ms - self.heard_ms > most_ms and self._misses >= MISSES_MIN

    def _note_sign_of_life(self, now_ms: int, progress: int) -> None:
        self.heard_ms, self._misses, self.has_answered = now_ms, 0, True
        self._progress, self._start_ms = progress, self._start_ms_max
