"""A monotonic clock that goes on while the machine is suspended, for leases and proofs."""

from __future__ import annotations

import time


def boot_time_ms() -> int:
    """Return the milliseconds since the machine was started, suspended or not."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
