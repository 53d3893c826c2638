"""Health check of one process: calls `ping`; if `ping` is late, reads the progress counter.

This module only makes the calls; `actors/cluster/process_watch.py` judges the answers. Decision
process-liveness-and-standby.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from actors.cluster.process_watch import Silence

log = logging.getLogger("callboard.timekeeper")

ANSWER_TIMEOUT_S: Final = 2.0

# The answer of a process to a health check. dict: `ping` returned these counters in time. int:
# `ping` was late, and another thread of the process returned this progress counter. None: neither
# call was answered.
Answer = dict[str, Any] | int | None


async def check_health(
    ping: Callable[[], Awaitable[dict[str, Any]]],
    progress: Callable[[], Awaitable[int]],
    *,
    timeout_s: float = ANSWER_TIMEOUT_S,
) -> Answer:
    """Return the answer of a process to a health check.

    Args:
        ping: calls the event loop of the process.
        progress: calls another thread of the process; used when `ping` is late.
        timeout_s: the timeout of each of the two calls, seconds.

    Raises: the exception of `ping`, when the process has ended or is being started.
    """
    try:
        return await asyncio.wait_for(ping(), timeout_s)
    except TimeoutError:
        pass
    try:
        return await asyncio.wait_for(progress(), timeout_s)
    except Exception as error:  # any failure of another process counts as no answer
        log.info("no word of progress error=%s", type(error).__name__)
        return None


def is_silent(name: str, silence: Silence, answer: Answer, now_ms: int) -> bool:
    """Note the answer of a process; return whether it has been silent for too long.

    Args:
        name: the name of the process, for log messages.
        silence: the previous answers and missed checks of this process; this function updates it.
        answer: the result of `ask`.
        now_ms: the time of a monotonic clock, milliseconds.
    """
    if isinstance(answer, dict):
        silence.note_answer(now_ms, answer["progress"])
        return False
    if answer is None or not silence.note_progress(answer, now_ms):
        return silence.note_miss(now_ms)
    log.warning("a process is busy name=%s progress=%d", name, answer)
    return False
