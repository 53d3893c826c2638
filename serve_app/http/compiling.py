"""Large manifests and results are worked on in a thread of their own, small ones at once.

A manifest of 1,000 nodes takes tens of milliseconds, and no request may hold the event loop for
more than ten. The work is Python's, so the interpreter changes between it and the loop every
`SWITCH_INTERVAL_S`; one thread for all keeps others from waiting for more than one such turn. A
caller has one piece of work there at a time: what it asks for at once waits behind what others ask
for. Decision limits-and-admission.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from serve_app.callers.limits import KeyedLocks

T = TypeVar("T")

# Below, the work takes a few milliseconds at most.
IN_LOOP_BYTES_MAX: Final = 16 * 1024
SWITCH_INTERVAL_S: Final = 0.001

_COMPILER: Final = ThreadPoolExecutor(1, thread_name_prefix="compiler")
_TURNS: Final[KeyedLocks[str]] = KeyedLocks()


def switch_threads_often() -> None:
    """Let the event loop of this process wait less for the interpreter than by default."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)


async def in_thread(caller: str, size: int, work: Callable[[], T]) -> T:
    """Do the work on one manifest or result, small in the loop; return or raise what it does.

    Args:
        caller: for whom it is done: a DID, or an address.
        size: of its text, bytes.
        work: on this text alone; touches nothing that the event loop changes.
    """
    if size <= IN_LOOP_BYTES_MAX:
        return work()
    async with _TURNS.of(caller):
        return await asyncio.get_running_loop().run_in_executor(_COMPILER, work)
