"""What work costs: lines of Python, CPU time, memory."""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any


def line_steps(work: Callable[[], object]) -> int:
    """Return how many lines of Python a work executes, comprehensions by the item."""
    count = 0

    def trace(_frame: FrameType, event: str, _given: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def cpu_s(work: Callable[[], object]) -> float:
    """Return the least CPU time of three runs, seconds."""
    taken = []
    for _ in range(3):
        began = time.thread_time()
        work()
        taken.append(time.thread_time() - began)
    return min(taken)


def peak_bytes(work: Callable[[], object]) -> int:
    """Return the most memory that a work holds at once."""
    tracemalloc.start()
    work()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak
