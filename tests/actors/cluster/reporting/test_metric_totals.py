"""Sums of what processes report: counters outlive their processes, values do not."""

from __future__ import annotations

from typing import Any, cast

import pytest

from actors.cluster.reporting.metric_totals import ENDED_MS, HEARD_MS, MetricTotals
from core.metric_families import FAMILIES, STAGE_BOUNDS, Key, Report, note_stage

DONE: Key = ("callboard_nodes_finished", "success")
QUEUED: Key = ("callboard_dispatch_queued",)


def totals() -> MetricTotals:
    """Return sums without a database."""
    return MetricTotals(cast(Any, None))


def report(process: str, done: int, queued: int = 0) -> Report:
    """Return what a process reports."""
    return Report(process, {DONE: done}, {QUEUED: queued})


def test_the_newest_report_of_each_process_counts() -> None:
    sums = totals()
    for one in (report("a", 1, 5), report("b", 10, 7), report("a", 3, 2)):
        sums.note(one, 0)
    assert sums.sums(0) == {DONE: 13, QUEUED: 9}


def test_a_restarted_process_begins_at_0_and_no_counter_goes_back() -> None:
    sums = totals()
    sums.note(report("owner~1", 100, 4), 0)
    sums.note(report("owner~2", 0, 0), 10)
    assert sums.sums(10)[DONE] == 100
    sums.note(report("owner~2", 5, 1), 20)
    assert sums.sums(20)[DONE] == 105


def test_the_values_of_a_process_that_is_silent_do_not_count() -> None:
    sums = totals()
    sums.note(report("a", 1, 5), 0)
    sums.note(report("b", 1, 7), HEARD_MS)
    assert sums.sums(HEARD_MS) == {DONE: 2, QUEUED: 7}


def test_however_many_processes_live_each_counts_once() -> None:
    sums = totals()
    for now_ms in range(3):
        for number in range(1_100):
            sums.note(report(str(number), 1), now_ms)
    assert sums.sums(3)[DONE] == 1_100


def test_processes_that_have_ended_are_forgotten_and_stay_in_the_counters() -> None:
    sums = totals()
    for number in range(1_100):
        sums.note(report(str(number), 1), number)
    for _ in range(1_200):
        sums.note(report("new", 1), ENDED_MS + 2_000)
    assert len(sums._heard) == 1
    assert sums.sums(ENDED_MS + 2_000) == {DONE: 1_101, QUEUED: 0}


@pytest.mark.parametrize(
    ("took_ms", "bucket"),
    [(-3, "0.005"), (5, "0.005"), (6, "0.01"), (300_000, "300"), (300_001, "+Inf")],
)
def test_a_time_is_in_the_bucket_of_the_next_bound(took_ms: int, bucket: str) -> None:
    counters: dict[Key, float] = {}
    note_stage(counters, "queue", took_ms)
    assert bucket in STAGE_BOUNDS
    seconds = max(took_ms, 0) / 1_000
    names = ("callboard_stage_seconds", "queue")
    assert counters == {(*names, bucket): 1, (*names, "sum"): seconds}


def test_names_follow_prometheus_and_are_declared_once() -> None:
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names) >= 30
    assert not [name for name in names if name.endswith("_total")]
    assert all(name.startswith("callboard_") for name in names)
