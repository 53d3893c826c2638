"""Cuts long work on an event loop into slices, so that each turn of the loop is short.

A loop over many items awaits `pause` after each item. `pause` returns at once until the slice's
time is used up. Then it yields for several turns of the event loop. Other requests need several
turns, and would wait for several slices if there was one turn between two slices. A slice cannot be
shorter than one item, so an item must be small: one workflow's step, never a whole batch.
Decisions fairness-and-long-work and ledger-writer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

# Less than half of `LONG_TURN_MS`, because the last item of a slice may take as long as the slice.
SLICE_MS: Final = 4
# Turns of the event loop between two slices; a turn without work takes about ten microseconds.
TURNS_BETWEEN: Final = 6


class Slices:
    """The time budget of one piece of work.

    Args:
        slice_ms: the wall time of a slice, milliseconds, 0 or more; 0: pause after each item.
        now_ns: returns monotonic time in nanoseconds; None: the running loop's clock.
    """

    __slots__ = ("_ends_ns", "_length_ns", "_now_ns")

    def __init__(
        self,
        slice_ms: int = SLICE_MS,
        *,
        now_ns: Callable[[], int] | None = None,
    ) -> None:
        self._length_ns = slice_ms * 1_000_000
        self._now_ns = _loop_clock() if now_ns is None else now_ns
        self._ends_ns = self._now_ns() + self._length_ns

    async def pause(self) -> None:
        """Yield to the event loop if the slice is used up; then a new slice begins."""
        if self._now_ns() >= self._ends_ns:
            for _ in range(TURNS_BETWEEN):
                await asyncio.sleep(0)
            self._ends_ns = self._now_ns() + self._length_ns


async def answer_in_slices(
    answer: Callable[[list[Item]], Sequence[Answer]], batch: Sequence[Item]
) -> list[Answer]:
    """Call `answer` for each item of a batch, in slices; return the answers in order."""
    slices = Slices()
    answers: list[Answer] = []
    for item in batch:
        answers += answer([item])
        await slices.pause()
    return answers


async def run_in_slices(steps: Iterable[object], slices: Slices | None = None) -> None:
    """Run a generator to its end, step by step, in slices.

    Args:
        steps: the generator. It does a piece of work at each step.
        slices: the time budget; None: a new one.
    """
    budget = Slices() if slices is None else slices
    for _ in steps:
        await budget.pause()


def _loop_clock() -> Callable[[], int]:
    """Return the running loop's clock in nanoseconds, which is virtual time in a simulation."""
    time_s = asyncio.get_running_loop().time
    return lambda: int(time_s() * 1_000_000_000)
