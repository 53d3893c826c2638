"""Processes large manifests and results in a separate thread, and small ones in the event loop.

A manifest of 1,000 nodes takes tens of milliseconds, and no request may block the event loop for
more than 10 ms. The work is pure Python, so the interpreter switches between the thread and the
event loop every `SWITCH_INTERVAL_S`. There is only one thread, so the loop waits at most one such
interval for the interpreter. The thread's queue has at most one job of each caller. A caller's next
job is queued when the previous job is done. Decision limits-and-admission.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from serve_app.callers.limits import KeyedLocks

T = TypeVar("T")

# A text up to this size is processed in the event loop. It takes a few milliseconds at most.
IN_LOOP_BYTES_MAX: Final = 16 * 1024
SWITCH_INTERVAL_S: Final = 0.001

_COMPILER: Final = ThreadPoolExecutor(1, thread_name_prefix="compiler")
_TURNS: Final[KeyedLocks[str]] = KeyedLocks()


def switch_threads_often() -> None:
    """Shorten the thread switch interval, so that the event loop waits less for the interpreter."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)


async def in_thread(caller: str, size: int, work: Callable[[], T]) -> T:
    """Return the result of `work`. Run it in the event loop for a small text, else in the thread.

    Args:
        caller: the DID or the address of the caller.
        size: bytes of the text that `work` processes.
        work: processes one text. It must not touch state that the event loop changes. Its errors
            are raised unchanged.
    """
    if size <= IN_LOOP_BYTES_MAX:
        return work()
    async with _TURNS.of(caller):
        return await asyncio.get_running_loop().run_in_executor(_COMPILER, work)
