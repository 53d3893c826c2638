"""Asks a process how it is: its ping first; when that is late, its counter of progress.

A wrapper only; `actors/cluster/process_watch.py` judges what the answers mean. Decision
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

# What a process has answered: its counters; when these are late, its counter of progress alone,
# which another of its threads tells; None for nothing.
Answer = dict[str, Any] | int | None


async def ask(
    ping: Callable[[], Awaitable[dict[str, Any]]],
    progress: Callable[[], Awaitable[int]],
    *,
    timeout_s: float = ANSWER_TIMEOUT_S,
) -> Answer:
    """Ask a process how it is.

    Args:
        ping: asks its loop.
        progress: asks its other thread, when the loop is late.
        timeout_s: for each of the two answers.

    Raises: what `ping` raises: the process has ended, or is being started.
    """
    try:
        return await asyncio.wait_for(ping(), timeout_s)
    except TimeoutError:
        pass
    try:
        return await asyncio.wait_for(progress(), timeout_s)
    except Exception as error:  # any failure of another process is silence, nothing more
        log.info("no word of progress error=%s", type(error).__name__)
        return None


def is_silent(name: str, silence: Silence, answer: Answer, now_ms: int) -> bool:
    """Note what a process has answered; return whether it has been silent for too long.

    Args:
        name: of the process, for messages.
        silence: of this process.
        now_ms: of a monotonic clock.
    """
    if isinstance(answer, dict):
        silence.note_answer(now_ms, answer["progress"])
        return False
    if answer is None or not silence.note_progress(answer, now_ms):
        return silence.note_miss(now_ms)
    log.warning("a process is busy name=%s progress=%d", name, answer)
    return False
