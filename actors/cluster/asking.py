"""Asks a process how it is: its ping first; when that is late, its counter of progress.

A wrapper only; `actors/cluster/process_watch.py` judges what the answers mean. Decision
process-liveness-and-standby.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from actors.cluster.process_watch import Silence

log = logging.getLogger("callboard.timekeeper")

ANSWER_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Answered:
    """A process has answered its ping with these counters."""

    counters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Busy:
    """The answer is late; another thread has told how far the process's counter of progress is."""

    progress: int


@dataclass(frozen=True, slots=True)
class Silent:
    """A process says nothing."""


async def ask(
    ping: Callable[[], Awaitable[dict[str, Any]]],
    progress: Callable[[], Awaitable[int]],
    *,
    timeout_s: float = ANSWER_TIMEOUT_S,
) -> Answered | Busy | Silent:
    """Ask a process how it is.

    Args:
        ping: asks its loop.
        progress: asks its other thread, when the loop is late.
        timeout_s: for each of the two answers.

    Raises: what `ping` raises: the process has ended, or is being started.
    """
    try:
        return Answered(await asyncio.wait_for(ping(), timeout_s))
    except TimeoutError:
        pass
    try:
        return Busy(await asyncio.wait_for(progress(), timeout_s))
    except Exception as error:  # any failure of another process is silence, nothing more
        log.info("no word of progress error=%s", type(error).__name__)
        return Silent()


def is_silent(name: str, silence: Silence, reply: Answered | Busy | Silent, now_ms: int) -> bool:
    """Note what a process has replied; return whether it has been silent for too long.

    Args:
        name: of the process, for messages.
        silence: of this process.
        now_ms: of a monotonic clock.
    """
    match reply:
        case Answered(counters):
            silence.note_answer(now_ms, counters["progress"])
        case Busy(progress) if silence.note_progress(progress, now_ms):
            log.warning("a process is busy name=%s progress=%d", name, progress)
        case Busy() | Silent():
            return silence.note_miss(now_ms)
    return False
