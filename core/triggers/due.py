"""What becomes of a due time: it runs, overlaps an earlier run, or was missed.

Pure: the caller gives the time, and says whether a run has not ended.
Reference: features.md (Schedules).
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from core.triggers.cron import parse_cron

CATCH_UP_MS_DEFAULT: Final = 3_600_000
# A run that starts at most this late is never missed.
ON_TIME_MS: Final = 60_000
_MINUTE_MS: Final = 60_000

# Returns the first due time after a time, Unix milliseconds; None: there is none.
NextAfter = Callable[[int], int | None]


def next_due_of(config: Mapping[str, Any]) -> NextAfter:
    """Return the function that gives the due times of a schedule.

    Args:
        config: as it is stored, judged by `core/records/trigger_config.py`.

    Raises:
        ServiceError: INVALID_REQUEST: the expression or the time zone is not valid any more.
    """
    return parse_cron(config["cronExpression"], config["timezone"]).next_after


def due_times(due_ms: int | None, next_after: NextAfter, *, count: int, until_ms: int) -> list[int]:
    """Return due times in order: the first one, and the later ones before `until_ms`.

    Args:
        due_ms: the first, Unix milliseconds; None: there is none.
        next_after: as `next_due_of` returns it.
        count: the most that are returned, 1 or more.
    """
    times: list[int] = []
    while due_ms is not None and len(times) < count and (not times or due_ms < until_ms):
        times.append(due_ms)
        due_ms = next_after(due_ms)
    return times


def delay_of(trigger_id: str, config: Mapping[str, Any]) -> int:
    """Return how many milliseconds after its due times a schedule starts: 0 to its jitter.

    The delay follows from the id, so it is the same for all due times and keeps their order.
    """
    digest = hashlib.sha256(trigger_id.encode()).digest()
    jitter_ms: int = config.get("jitterMs", 0)
    return int.from_bytes(digest[:8], "big") % (jitter_ms + 1)


class Decision(NamedTuple):
    """What becomes of a due time.

    `skipped`: the reason why it is skipped, `overlap` or `missed`; None: it runs. `next_due_ms`:
    the due time that is decided next; None: the expression has no later due time.
    `missed_until_ms`: the last due time that was missed; None if none was.
    """

    skipped: str | None
    next_due_ms: int | None
    missed_until_ms: int | None = None


def decide_due(
    due_ms: int,
    next_after: NextAfter,
    *,
    delay_ms: int,
    policy: str,
    catch_up_ms: int,
    is_running: bool,
    now_ms: int,
) -> Decision:
    """Return what becomes of a due time whose start has come.

    Args:
        due_ms: the schedule's earliest due time that was not taken, Unix milliseconds.
        next_after: as `next_due_of` returns it.
        delay_ms: as `delay_of` returns it.
        policy: `skip`, `queue` or `allow`; a due time of policy `queue` is not decided while a run
            has not ended.
        catch_up_ms: how late a run may start.
        is_running: whether a run of it has not ended.
    """
    oldest_ms = now_ms - delay_ms - max(catch_up_ms, ON_TIME_MS)
    if due_ms < oldest_ms:
        next_ms = next_after(oldest_ms - 1)
        minutes = range(due_ms, oldest_ms, _MINUTE_MS)
        last = bisect_left(minutes, True, key=lambda at_ms: next_after(at_ms) == next_ms)
        return Decision("missed", next_ms, minutes[last])
    is_overlap = is_running and policy == "skip"
    return Decision("overlap" if is_overlap else None, next_after(due_ms))
