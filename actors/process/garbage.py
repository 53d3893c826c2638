"""How often a process looks for cyclic garbage.

An owner holds tens of thousands of long-lived objects and makes many short-lived ones, few of them
cyclic. With Python's default thresholds a fifth of its time under bulk load went into passes over
objects that were all alive. design.md section 3 (CPU per node).
"""

from __future__ import annotations

import gc

# Allocations before a young pass; young passes before a middle one; middle ones before a full one.
THRESHOLDS = (50_000, 20, 50)


def collect_rarely() -> None:
    """Set what is loaded so far apart, and look for cycles less often in the rest."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
