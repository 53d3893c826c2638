"""Garbage collection while thousands of simulated worlds are made and dropped."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def few_collections() -> Iterator[None]:
    """Worlds are cyclic and short-lived: collect them by the dozen, not in the middle of a run."""
    gc.collect()
    gc.freeze()
    before = gc.get_threshold()
    gc.set_threshold(200_000, 10, 10)
    yield
    gc.set_threshold(*before)
    gc.unfreeze()
