"""What becomes of due times: a table, and any schedule followed through outages.

Reference: features.md (Schedules).
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.triggers.cron import parse_cron
from core.triggers.due import (
    ON_TIME_MS,
    Decision,
    NextAfter,
    decide_due,
    delay_of,
    due_times,
    next_due_of,
)

MINUTE = 60_000
HOUR = 60 * MINUTE


def every(period_ms: int, last_ms: int | None = None) -> NextAfter:
    """A schedule that is due at the multiples of a period, perhaps up to a time."""

    def next_after(at_ms: int) -> int | None:
        due_ms = at_ms - at_ms % period_ms + period_ms
        return due_ms if last_ms is None or due_ms <= last_ms else None

    return next_after


@pytest.mark.parametrize(
    ("due_ms", "count", "until_ms", "expected"),
    [
        (None, 3, HOUR, []),
        (HOUR, 3, 9 * HOUR, [HOUR, 2 * HOUR, 3 * HOUR]),
        (HOUR, 9, 3 * HOUR, [HOUR, 2 * HOUR]),
        (HOUR, 9, HOUR, [HOUR]),
        (5 * HOUR, 9, 99 * HOUR, [5 * HOUR, 6 * HOUR]),
    ],
)
def test_due_times_are_listed_to_a_count_and_a_time(
    due_ms: int | None, count: int, until_ms: int, expected: list[int]
) -> None:
    """The first one is always listed."""
    next_after = every(HOUR, 6 * HOUR)
    assert due_times(due_ms, next_after, count=count, until_ms=until_ms) == expected


@pytest.mark.parametrize(
    ("late_ms", "policy", "is_running", "expected"),
    [
        (0, "skip", False, Decision(None, 2 * HOUR)),
        (0, "skip", True, Decision("overlap", 2 * HOUR)),
        (0, "queue", False, Decision(None, 2 * HOUR)),
        (0, "allow", True, Decision(None, 2 * HOUR)),
        (10 * MINUTE, "skip", False, Decision(None, 2 * HOUR)),
        (10 * MINUTE + 1, "skip", False, Decision("missed", 2 * HOUR, HOUR)),
        (10 * MINUTE + 1, "queue", False, Decision("missed", 2 * HOUR, HOUR)),
        (3 * HOUR, "allow", False, Decision("missed", 4 * HOUR, 3 * HOUR)),
        (3 * HOUR + 10 * MINUTE, "allow", True, Decision("missed", 4 * HOUR, 3 * HOUR)),
        (3 * HOUR + 10 * MINUTE + 1, "allow", True, Decision("missed", 5 * HOUR, 4 * HOUR)),
    ],
)
@pytest.mark.parametrize("delay_ms", [0, 7, 50 * MINUTE])
def test_a_due_time_runs_is_skipped_or_was_missed(
    late_ms: int, policy: str, is_running: bool, expected: Decision, delay_ms: int
) -> None:
    """A delay is no lateness."""
    found = decide_due(
        HOUR, every(HOUR), delay_ms=delay_ms, policy=policy, catch_up_ms=10 * MINUTE,
        is_running=is_running, now_ms=HOUR + delay_ms + late_ms,
    )  # fmt: skip
    assert found == expected


def test_a_window_of_nothing_still_takes_what_is_on_time() -> None:
    """A due time is looked at a little after it, whatever the window says."""
    for late_ms, skipped in ((ON_TIME_MS, None), (ON_TIME_MS + 1, "missed")):
        found = decide_due(
            HOUR, every(HOUR), delay_ms=0, policy="skip", catch_up_ms=0, is_running=False,
            now_ms=HOUR + late_ms,
        )  # fmt: skip
        assert found.skipped == skipped


def test_a_long_outage_is_one_decision() -> None:
    """It names the first and the last missed due time, also of a schedule that has ended."""
    year = 365 * 24 * HOUR
    found = decide_due(
        MINUTE, every(MINUTE), delay_ms=0, policy="skip", catch_up_ms=HOUR, is_running=False,
        now_ms=year,
    )  # fmt: skip
    assert found == Decision("missed", year - HOUR, year - HOUR - MINUTE)
    ended = decide_due(
        MINUTE, every(MINUTE, last_ms=5 * MINUTE), delay_ms=0, policy="skip", catch_up_ms=0,
        is_running=False, now_ms=year,
    )  # fmt: skip
    assert ended == Decision("missed", None, 5 * MINUTE)


@given(
    period=st.integers(1, 100),
    jitter_ms=st.integers(0, HOUR),
    catch_up_ms=st.integers(0, 5 * HOUR),
    policy=st.sampled_from(["skip", "queue", "allow"]),
    pauses=st.lists(st.tuples(st.integers(1, 7 * HOUR), st.booleans()), max_size=20),
)
def test_each_due_time_is_taken_once_in_its_order(
    period: int,
    jitter_ms: int,
    catch_up_ms: int,
    policy: str,
    pauses: list[tuple[int, bool]],
) -> None:
    """Whenever the timekeeper looks, and whether a run goes on then; due times are minutes."""
    period_ms = period * MINUTE
    delay_ms = delay_of("an id", {"jitterMs": jitter_ms})
    assert 0 <= delay_ms <= jitter_ms
    due_ms, now_ms, taken = period_ms, 0, 0
    for pause_ms, is_running in pauses:
        now_ms += pause_ms
        for _ in range(50):
            if due_ms + delay_ms > now_ms or (is_running and policy == "queue"):
                break
            skipped, next_ms, until_ms = decide_due(
                due_ms, every(period_ms), delay_ms=delay_ms, policy=policy,
                catch_up_ms=catch_up_ms, is_running=is_running, now_ms=now_ms,
            )  # fmt: skip
            late_ms = delay_ms + max(catch_up_ms, ON_TIME_MS)
            is_late = due_ms + late_ms < now_ms
            assert (skipped == "missed") is is_late is (until_ms is not None)
            assert skipped != "overlap" or (is_running and policy == "skip")
            if until_ms is not None:
                assert due_ms <= until_ms < now_ms - late_ms, "only what is late was missed"
                taken += (until_ms - due_ms) // period_ms
            taken += 1
            assert next_ms == (taken + 1) * period_ms, "none is left out, none comes twice"
            assert until_ms is None or next_ms >= now_ms - late_ms, "all that is late was missed"
            due_ms = next_ms


@given(
    expression=st.sampled_from(["*/7 * * * *", "30 1,2 * * *", "0 */5 * * 1", "15 2 28-31 * *"]),
    zone=st.sampled_from(["Europe/Berlin", "Australia/Lord_Howe", "Asia/Kathmandu"]),
    first=st.integers(1_740_000_000, 1_770_000_000),
    outage_ms=st.integers(2 * HOUR, 30 * 24 * HOUR),
)
def test_an_outage_over_a_change_of_the_clock_is_left_where_the_due_times_are(
    expression: str, zone: str, first: int, outage_ms: int
) -> None:
    """The last missed and the next due time are neighbours, as if all had been walked through."""
    next_after = parse_cron(expression, zone).next_after
    due_ms = next_after(first * 1_000)
    assert due_ms is not None
    now_ms = due_ms + outage_ms
    found = decide_due(
        due_ms, next_after, delay_ms=0, policy="skip", catch_up_ms=HOUR, is_running=False,
        now_ms=now_ms,
    )  # fmt: skip
    last_ms, next_ms = due_ms, next_after(due_ms)
    while next_ms is not None and next_ms < now_ms - HOUR:
        last_ms, next_ms = next_ms, next_after(next_ms)
    assert found == Decision("missed", next_ms, last_ms)


def test_the_first_due_time_and_the_delay_follow_from_the_schedule() -> None:
    config = {"cronExpression": "0 * * * *", "timezone": "UTC", "jitterMs": HOUR}
    assert next_due_of(config)(30 * MINUTE) == HOUR
    delays = [delay_of(f"schedule {number}", config) for number in range(20)]
    assert delays == [delay_of(f"schedule {number}", config) for number in range(20)]
    assert len(set(delays)) == 20, "delays differ from schedule to schedule"
    assert delay_of("schedule 1", {}) == 0
