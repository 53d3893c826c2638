"""Decides for each due time of a schedule whether to start a run or to skip the due time.

A due time is skipped if it overlaps an earlier run or was missed. Pure.
Reference: features.md (Schedules).
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from core.triggers.cron import parse_cron

CATCH_UP_MS_DEFAULT: Final = 3_600_000
# A due time counts as missed only if its run would start later than this.
ON_TIME_MS: Final = 60_000
_MINUTE_MS: Final = 60_000

# Returns the first due time after a time, None if there is none; both are Unix milliseconds.
NextAfter = Callable[[int], int | None]


def next_due_of(config: Mapping[str, Any]) -> NextAfter:
    """Return a function that returns the next due time of a schedule.

    Args:
        config: the stored configuration of the schedule. `core/records/trigger_config.py` has
            checked it.

    Raises:
        ServiceError: the expression or the time zone is no longer valid (INVALID_REQUEST).
    """
    return parse_cron(config["cronExpression"], config["timezone"]).next_after


def due_times(due_ms: int | None, next_after: NextAfter, *, count: int, until_ms: int) -> list[int]:
    """Return the first due time, and the later due times before `until_ms`, in order.

    Args:
        due_ms: the first due time, Unix milliseconds; None without one. It is returned even if it
            is not before `until_ms`.
        next_after: the result of `next_due_of`.
        count: the most due times to return, 1 or more.
        until_ms: the end of the period, Unix milliseconds.
    """
    times: list[int] = []
    while due_ms is not None and len(times) < count and (not times or due_ms < until_ms):
        times.append(due_ms)
        due_ms = next_after(due_ms)
    return times


def delay_of(trigger_id: str, config: Mapping[str, Any]) -> int:
    """Return the delay of a schedule's runs after their due times: 0 to its jitter, milliseconds.

    The delay is computed from the trigger's id. It is the same for all due times of a schedule, so
    the runs keep the order of the due times.
    """
    digest = hashlib.sha256(trigger_id.encode()).digest()
    jitter_ms: int = config.get("jitterMs", 0)
    return int.from_bytes(digest[:8], "big") % (jitter_ms + 1)


class Decision(NamedTuple):
    """The decision for a due time.

    `skipped`: why no run is started, `overlap` or `missed`; None: a run is started. `next_due_ms`:
    the due time to decide next; None if the expression has no later due time. `missed_until_ms`:
    the last missed due time; None if none was missed. Times are Unix milliseconds.
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
    """Decide whether a due time starts a run; called when the due time and the delay have passed.

    Args:
        due_ms: the earliest due time of the schedule that is not decided yet, Unix milliseconds.
        next_after: the result of `next_due_of`.
        delay_ms: the result of `delay_of`.
        policy: the overlap policy: `skip`, `queue` or `allow`. With `queue`, the caller waits until
            no run is running.
        catch_up_ms: how late a run may start, milliseconds.
        is_running: whether a run of the schedule has not ended.
        now_ms: the current time, Unix milliseconds.
    """
    oldest_ms = now_ms - delay_ms - max(catch_up_ms, ON_TIME_MS)
    if due_ms < oldest_ms:
        next_ms = next_after(oldest_ms - 1)
        minutes = range(due_ms, oldest_ms, _MINUTE_MS)
        last = bisect_left(minutes, True, key=lambda at_ms: next_after(at_ms) == next_ms)
        return Decision("missed", next_ms, minutes[last])
    is_overlap = is_running and policy == "skip"
    return Decision("overlap" if is_overlap else None, next_after(due_ms))
