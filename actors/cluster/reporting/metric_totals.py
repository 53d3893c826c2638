"""The metrics of the whole deployment: sums of the processes' reports, and counts of stored rows.

Counters are summed over all processes that ever reported, so no counter decreases when a process
ends. Gauges are summed over the processes that reported recently. A new timekeeper begins at 0;
Prometheus handles that as a restart. Reference: operations.md (Metrics).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from actors.process.loop_clock import every
from core.metric_families import Key, Report
from ledger.reads.reader import LedgerReader
from ledger.reads.state_counts import state_counts

# A process whose last report is older than this does not count in gauges. Reports come each second.
HEARD_MS: Final = 5_000
# A process whose last report is older than this has ended: a silent process is replaced earlier.
ENDED_MS: Final = 3_600_000
STATES_INTERVAL_S: Final = 15.0


class MetricTotals:
    """Sums of the reports, and the newest counts of stored rows.

    Args:
        reader: reads committed rows.
    """

    def __init__(self, reader: LedgerReader) -> None:
        self._reader = reader
        # By process: its newest report and the report's time. The process that reported last is at
        # the end.
        self._heard: OrderedDict[str, tuple[Report, int]] = OrderedDict()
        # The summed counters of processes that have ended.
        self._ended: dict[Key, float] = {}
        self._states: dict[Key, float] = {}

    def note(self, report: Report, now_ms: int) -> None:
        """Store the report of a process.

        Args:
            report: the process's counters since its start, and its current gauges.
            now_ms: the time of a monotonic clock, milliseconds.
        """
        self._heard[report.process] = (report, now_ms)
        self._heard.move_to_end(report.process)
        process, (oldest, at_ms) = next(iter(self._heard.items()))
        if now_ms - at_ms > ENDED_MS:
            del self._heard[process]
            _add(self._ended, oldest.counters)

    def sums(self, now_ms: int) -> dict[Key, float]:
        """Return the sum of each series.

        Args:
            now_ms: the time of a monotonic clock, milliseconds.
        """
        found = self._ended.copy()
        for report, at_ms in self._heard.values():
            _add(found, report.counters)
            if now_ms - at_ms < HEARD_MS:
                _add(found, report.gauges)
        return {**found, **self._states}

    async def run(self) -> None:
        """Count stored rows until cancelled."""
        await every(STATES_INTERVAL_S, self._count_states, "count of stored states")

    async def _count_states(self) -> None:
        self._states = await state_counts(self._reader)


def _add(sums: dict[Key, float], more: Mapping[Key, float]) -> None:
    for key, value in more.items():
        sums[key] = sums.get(key, 0) + value
