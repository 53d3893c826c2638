"""The metric that processes export through Ray: long turns of their event loops.

This module only wraps `ray.util.metrics`; docs/operations.md names it. Decision
process-liveness-and-standby.
"""

from __future__ import annotations

from typing import Final

from ray.util.metrics import Histogram

from actors.process.loop_watchdog import LONG_TURN_MS, TurnTrace, TurnWatchdog

# Bucket boundaries in seconds. A turn longer than the first boundary counts as long.
_BOUNDARIES: Final = [LONG_TURN_MS / 1000, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0]


def start_loop_watchdog(name: str, kind: str, trace: TurnTrace | None = None) -> TurnWatchdog:
    """Start to measure the turns of the running loop and to export the long ones.

    Args:
        name: the process's name, for the log.
        kind: the kind of process: workflows, ledger, api.
        trace: the trace of stuck turns; None: no trace is written.
    """
    seconds = Histogram(
        "callboard_loop_turn_seconds",
        description="Turns of an event loop that took longer than 10 ms",
        boundaries=_BOUNDARIES,
        tag_keys=("process",),
    )
    seconds.set_default_tags({"process": kind})
    watchdog = TurnWatchdog(name, on_long=seconds.observe, trace=trace)
    watchdog.start()
    return watchdog
