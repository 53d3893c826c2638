"""The reads of rows under way, and which of their workflows have changed since they began.

What a read returns may be older than what this process has done meanwhile: such a workflow is not
restored from it. Knows no rows and no workflows, only their ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class RowReads:
    """The reads of one runner's rows."""

    def __init__(self) -> None:
        self._open: list[set[str]] = []

    @contextmanager
    def open(self) -> Iterator[set[str]]:
        """Begin a read, which ends when all of its workflows were restored.

        Yields: the ids of workflows whose rows in it are out of date, as they become known.
        """
        changed_ids: set[str] = set()
        self._open.append(changed_ids)
        try:
            yield changed_ids
        finally:
            self._open = [other for other in self._open if other is not changed_ids]

    def mark_changed(self, workflow_id: str) -> None:
        """Note that the workflow's rows in the reads under way are out of date."""
        for changed_ids in self._open:
            changed_ids.add(workflow_id)
