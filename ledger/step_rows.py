"""How many rows a step of work in the background takes: half as many after one that took too long.

What is begun again as it was would end as it did.
"""

from __future__ import annotations


class StepRows:
    """The size of the next step: a part of what a step takes where none has failed."""

    def __init__(self) -> None:
        # One for each step that failed, one less for each that did not.
        self._halvings = 0

    def of(self, most: int) -> int:
        """Return how many rows the next step takes, 1 to `most`."""
        return max(1, most >> self._halvings)

    def note_failed(self, most: int) -> None:
        """Note that a step failed, where a step takes so many rows at most."""
        self._halvings = min(self._halvings + 1, most.bit_length())

    def note_done(self) -> None:
        """Note that a step was done."""
        self._halvings = max(0, self._halvings - 1)
