"""Due times against cronsim, an implementation of Debian's cron by other authors.

Known differences, each of them chosen:
- cronsim, like Debian's cron, takes an expression for one of any hour also where its minute begins
  with `*`, such as `*/15 2 * * *`. Here the hour field alone decides, so none of the expressions
  with fixed hours begins with `*`.
- cronsim returns a skipped local time for each of several that fall on one instant. Here they are
  one due time.
- Where a zone shifts by half an hour, cronsim, which looks for an hour in steps of an hour, passes
  minute 0 of the hour: `0 */2 * * *` is due at 02:00 in Lord Howe, also when the clock goes back
  from 02:00 to 01:30. Such expressions are compared with each minute of the days.
- cronsim takes `L`, `LW`, `#`, falling steps and steps beyond a field. They are refused here.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise, takewhile
from zoneinfo import ZoneInfo, available_timezones

import pytest
from cronsim import CronSim

from core.triggers.cron import parse_cron

START, END = datetime(2026, 1, 1, tzinfo=UTC), datetime(2036, 1, 1, tzinfo=UTC)
FIXED = (
    "30 2 * * *", "0 0 * * *", "15 1 * * *", "30 0 * * 0", "0 3 * * 0,6", "59 23 * * *",
    "0,30 2 * * 0", "45 1,2,3 * * 6", "5-50/15 0-3 * * 0", "0 12 1 * *", "0 0 29 2 *",
    "30 1 13 * 5", "10 2 31 * *",
)  # fmt: skip
ANY_HOUR = (
    "* * * * *", "*/5 * * * *", "7 * * * *", "0 */2 * * *", "30 */3 * * *", "*/30 */6 * * *",
    "15,45 * * * 0",
)  # fmt: skip
SAMPLE_ZONES = (
    "Europe/Berlin", "America/Santiago", "Australia/Lord_Howe", "Africa/Casablanca",
    "Antarctica/Troll", "Africa/Cairo",
)  # fmt: skip


def offset_of(zone: ZoneInfo, at: datetime) -> timedelta:
    offset = at.astimezone(zone).utcoffset()
    assert offset is not None
    return offset


def shift_between(zone: ZoneInfo, early: datetime, late: datetime) -> datetime:
    """The first second with the offset that holds at the later time."""
    while late - early > timedelta(seconds=1):
        middle = early + (late - early) // 2
        middle = middle.replace(microsecond=0)
        same = offset_of(zone, middle) == offset_of(zone, late)
        early, late = (early, middle) if same else (middle, late)
    return late


@cache
def shifts_of(name: str) -> tuple[tuple[datetime, timedelta], ...]:
    """The changes of a zone's clock in these years, each with the offset from then on."""
    zone, day = ZoneInfo(name), timedelta(days=1)
    found = [(START, offset_of(zone, START))]
    at = START
    while at < END:
        offset = offset_of(zone, at + day)
        if offset != found[-1][1]:
            found.append((shift_between(zone, at, at + day), offset))
        at += day
    return tuple(found)


def shifts_by_half_an_hour(name: str) -> bool:
    offsets = [offset for _, offset in shifts_of(name)]
    return any((after - before) % timedelta(hours=1) for before, after in pairwise(offsets))


def distinct_zones() -> list[str]:
    """One name of each zone that differs from the others in these years."""
    names = sorted(
        available_timezones() - {"localtime", "Factory"}, key=lambda name: (len(name), name)
    )
    return list({shifts_of(name): name for name in reversed(names)}.values())


def ours(expression: str, zone: str, after: datetime, until: datetime) -> Iterator[datetime]:
    cron, at_ms = parse_cron(expression, zone), int(after.timestamp() * 1_000)
    while (following := cron.next_after(at_ms)) is not None:
        at_ms = following
        at = datetime.fromtimestamp(at_ms // 1_000, UTC)
        if at > until:
            return
        yield at


def theirs(expression: str, zone: str, after: datetime, until: datetime) -> list[datetime]:
    due = CronSim(expression, after.astimezone(ZoneInfo(zone)))
    found = takewhile(lambda at: at <= until, (at.astimezone(UTC) for at in due))
    return list(dict.fromkeys(found))


def each_minute(expression: str, zone: str, after: datetime, until: datetime) -> list[datetime]:
    """The minutes whose local time is in all fields of an expression of any hour."""
    fields, place, found = CronSim(expression, after), ZoneInfo(zone), []
    at = after
    while (at := at + timedelta(minutes=1)) <= until:
        wall = at.astimezone(place)
        is_time = wall.minute in fields.minutes and wall.hour in fields.hours
        if is_time and wall.day in fields.days and wall.isoweekday() % 7 in fields.weekdays:
            found.append(at)
    return found


def check(expression: str, zone: str, after: datetime, until: datetime) -> int:
    """Compare both; return how many due times there were."""
    is_stepped = expression.split()[1].startswith("*/")
    by = each_minute if is_stepped and shifts_by_half_an_hour(zone) else theirs
    expected = by(expression, zone, after, until)
    assert list(ours(expression, zone, after, until)) == expected, (expression, zone, after)
    return len(expected)


def windows_of(zone: str, days: int) -> Iterator[tuple[datetime, datetime]]:
    for at, _ in shifts_of(zone)[1:]:
        yield at - timedelta(days=days), at + timedelta(days=days)


@pytest.mark.parametrize("zone", SAMPLE_ZONES)
def test_due_times_near_changes_are_those_of_debians_cron(zone: str) -> None:
    counts = [
        check(expression, zone, *window)
        for window in list(windows_of(zone, days=1))[:4]
        for expression in (*FIXED, *ANY_HOUR[1:])
    ]
    assert sum(counts) > 1_000


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.takes(4)
@pytest.mark.parametrize("part", range(20))
def test_due_times_of_all_zones_are_those_of_debians_cron(part: int) -> None:
    """Fixed hours are compared throughout 2026 to 2035, any hour within 3 days of each change."""
    zones = distinct_zones()
    assert len(zones) > 60
    expression = (*FIXED, *ANY_HOUR)[part]
    for zone in zones:
        is_fixed = expression in FIXED
        for window in [(START, END)] if is_fixed else windows_of(zone, days=3):
            check(expression, zone, *window)
