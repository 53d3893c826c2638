"""Due times of cron expressions: a table, the definition minute by minute, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import ErrorCode, ServiceError
from core.timestamps import unix_ms
from core.triggers.cron import Cron, parse_cron

MINUTE_MS = 60_000


def at(text: str, zone: str = "UTC") -> int:
    """Unix milliseconds of a text: local, unless it has an offset."""
    when = datetime.fromisoformat(text)
    return unix_ms(when if when.tzinfo else when.replace(tzinfo=ZoneInfo(zone)))


def first_due(expression: str, zone: str, after: str, count: int) -> list[str]:
    """The next due times after a local time, as local times with their offset."""
    cron, due = parse_cron(expression, zone), at(after, zone)
    found = []
    for _ in range(count):
        following = cron.next_after(due)
        assert following is not None and following > due
        due = following
        shown = datetime.fromtimestamp(due / 1_000, ZoneInfo(zone))
        found.append(shown.isoformat(timespec="minutes"))
    return found


# expression, zone, local time after which, due times
DUE = {
    "each minute": ("* * * * *", "UTC", "2026-01-01T00:00:30", ["2026-01-01T00:01+00:00"]),
    "strictly after": ("0 0 * * *", "UTC", "2026-01-01T00:00", ["2026-01-02T00:00+00:00"]),
    "names": ("0 9 * JAN,mar MON-wed", "UTC", "2026-01-27T10:00",
              ["2026-01-28T09:00+00:00", "2026-03-02T09:00+00:00"]),
    "seven is Sunday": ("0 0 * * 5-7/2", "UTC", "2026-01-01T00:00",
                        ["2026-01-02T00:00+00:00", "2026-01-04T00:00+00:00"]),
    "a range of one": ("5-5 0 1-1 * *", "UTC", "2026-01-01T00:05", ["2026-02-01T00:05+00:00"]),
    "from a number on": ("50/5 0 * * *", "UTC", "2026-01-01T00:50",
                         ["2026-01-01T00:55+00:00", "2026-01-02T00:50+00:00"]),
    "a step as long as the field": ("*/60 * * * *", "UTC", "2026-01-01T00:00",
                                    ["2026-01-01T01:00+00:00"]),
    "either day": ("0 0 13 * 5", "UTC", "2026-02-11T00:00",
                   ["2026-02-13T00:00+00:00", "2026-02-20T00:00+00:00"]),
    "either day, one impossible": ("0 0 30 2 1", "UTC", "2026-02-24T00:00",
                                   ["2027-02-01T00:00+00:00"]),
    "either day, one written out": ("0 0 1-31 * 1", "UTC", "2026-02-11T00:00",
                                    ["2026-02-12T00:00+00:00"]),
    "both days with a star": ("0 0 */2 * 1", "UTC", "2026-02-11T00:00",
                              ["2026-02-23T00:00+00:00", "2026-03-09T00:00+00:00"]),
    "leap day": ("0 0 29 2 *", "UTC", "2096-02-29T00:00", ["2104-02-29T00:00+00:00"]),
    "leap day on a Sunday": ("0 0 29 2 */7", "UTC", "2088-02-29T00:00",
                             ["2128-02-29T00:00+00:00"]),
    # The clock goes from 02:00 to 03:00 on 29 March, and back on 25 October.
    "fixed, skipped": ("30 2 * * *", "Europe/Berlin", "2026-03-28T03:00",
                       ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]),
    "fixed, skipped together": ("0,15,30 2,3 * * *", "Europe/Berlin", "2026-03-29T01:00",
                                ["2026-03-29T03:00+02:00", "2026-03-29T03:15+02:00"]),
    "fixed, doubled": ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:00",
                       ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]),
    "fixed, after the first of two": ("15,45 2-3 * * *", "Europe/Berlin", "2026-10-25T02:30+02:00",
                                      ["2026-10-25T02:45+02:00", "2026-10-25T03:15+01:00"]),
    "fixed, after the second of two": ("15,45 2-3 * * *", "Europe/Berlin", "2026-10-25T02:10+01:00",
                                       ["2026-10-25T03:15+01:00"]),
    "fixed, at the end of the second": ("0 3 * * *", "Europe/Berlin", "2026-10-25T02:59+01:00",
                                        ["2026-10-25T03:00+01:00", "2026-10-26T03:00+01:00"]),
    "all hours by name are fixed": ("0 0-23 * * *", "Europe/Berlin", "2026-10-25T02:00+02:00",
                                    ["2026-10-25T03:00+01:00"]),
    "any hour, skipped": ("30 * * * *", "Europe/Berlin", "2026-03-29T01:30",
                          ["2026-03-29T03:30+02:00"]),
    "any hour, doubled": ("30 * * * *", "Europe/Berlin", "2026-10-25T02:00+02:00",
                          ["2026-10-25T02:30+02:00", "2026-10-25T02:30+01:00",
                           "2026-10-25T03:30+01:00"]),
    "any hour, twice a day": ("30 */2 25 10 *", "Europe/Berlin", "2026-10-25T02:30+02:00",
                              ["2026-10-25T02:30+01:00", "2026-10-25T04:30+01:00"]),
    "any hour, in the hour of another year": ("30 */23 25 10 *", "Europe/Berlin",
                                              "2026-10-25T02:30+01:00",
                                              ["2026-10-25T23:30+01:00", "2027-10-25T00:30+02:00"]),
    "elapsed minutes": ("*/20 * * * *", "Europe/Berlin", "2026-10-25T02:40+02:00",
                        ["2026-10-25T02:00+01:00", "2026-10-25T02:20+01:00"]),
    # Half an hour.
    "half an hour skipped": ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00",
                             ["2026-10-04T02:30+11:00", "2026-10-05T02:15+11:00"]),
    "half an hour doubled": ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00",
                             ["2026-04-05T01:45+11:00", "2026-04-06T01:45+10:30"]),
    "half an hour elapsed": ("*/30 * * * *", "Australia/Lord_Howe", "2026-04-05T01:30+11:00",
                             ["2026-04-05T01:30+10:30", "2026-04-05T02:00+10:30"]),
    # Midnight itself is skipped.
    "midnight skipped": ("0 0 * * *", "America/Santiago", "2026-09-05T12:00",
                         ["2026-09-06T01:00-03:00", "2026-09-07T00:00-03:00"]),
    "midnight doubled": ("30 23 * * *", "America/Santiago", "2026-04-04T12:00",
                         ["2026-04-04T23:30-03:00", "2026-04-05T23:30-04:00"]),
    # 30 December 2011 is skipped whole.
    "a day skipped": ("0 10 * * *", "Pacific/Apia", "2011-12-29T12:00",
                      ["2011-12-31T00:00+14:00", "2011-12-31T10:00+14:00"]),
    "a day skipped, any hour": ("0 */12 * * *", "Pacific/Apia", "2011-12-29T12:00",
                                ["2011-12-31T00:00+14:00", "2011-12-31T12:00+14:00"]),
    # In Ramadan the clock goes back for a month.
    "negative summer time": ("30 2 * * *", "Africa/Casablanca", "2026-02-14T12:00",
                             ["2026-02-15T02:30+01:00", "2026-02-16T02:30+00:00"]),
    "end of negative summer time": ("30 2 * * *", "Africa/Casablanca", "2026-03-21T12:00",
                                    ["2026-03-22T03:00+01:00", "2026-03-23T02:30+01:00"]),
}  # fmt: skip


@pytest.mark.parametrize("name", DUE)
def test_due_times_follow_the_table(name: str) -> None:
    expression, zone, after, due = DUE[name]
    assert first_due(expression, zone, after, len(due)) == due


REFUSED = {
    "six fields": ("0 0 * * * *", "five fields"),
    "four fields": ("0 0 * *", "five fields"),
    "no field": ("", "five fields"),
    "a nickname": ("@daily", "five fields"),
    "a line end": ("0 0 * *\n*", "five fields"),
    "another blank": ("0 0 * * *\u2003*", "as day of week"),
    "a NUL": ("0 0 * * \0", "as day of week"),
    "a lone surrogate": ("0 0 * * \ud800", "as day of week"),
    "a random minute": ("R * * * *", "as minute"),
    "a hashed minute": ("H * * * *", "as minute"),
    "the last day": ("0 0 L * *", "as day of month"),
    "the nearest weekday": ("0 0 15W * *", "as day of month"),
    "any day": ("0 0 ? * *", "as day of month"),
    "the second Monday": ("0 0 * * 1#2", "as day of week"),
    "a step beyond the field": ("*/61 * * * *", "1 to 60"),
    "a step beyond the week": ("0 0 * * */8", "1 to 7"),
    "no step": ("*/ * * * *", "as minute"),
    "a step of zero": ("*/0 * * * *", "1 to 60"),
    "a step of a step": ("*/2/2 * * * *", "as minute"),
    "a falling range": ("5-1 * * * *", "a range from low to high, such as 1-5"),
    "a range over Sunday": ("0 0 * * sat-sun", "a range from low to high, such as 1-5"),
    "a range of stars": ("*-5 * * * *", "as minute"),
    "minute 60": ("60 * * * *", "0 to 59"),
    "hour 24": ("0 24 * * *", "0 to 23"),
    "day 0": ("0 0 0 * *", "1 to 31"),
    "month 13": ("0 0 1 13 *", "1 to 12 or jan to dec"),
    "weekday 8": ("0 0 * * 8", "0 to 7 or sun to sat"),
    "a month's name as minute": ("jan * * * *", "0 to 59"),
    "an unknown name": ("0 0 * foo *", "jan to dec"),
    "a negative number": ("-1 * * * *", "as minute"),
    "a digit of another script": ("٣ * * * *", "as minute"),
    "an empty item": ("1,,2 * * * *", "as minute"),
    "a huge number": ("9" * 80 + " * * * *", "0 to 59"),
    "too long": ("0," * 50 + "0 * * * *", "at most 100 characters"),
    "31 February": ("0 0 31 2 *", "a day that exists in at least one of the months"),
    "31 of short months": (
        "0 0 31 2,4,6,9,11 */2",
        "a day that exists in at least one of the months",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_expression_that_is_not_cron_is_refused(name: str) -> None:
    expression, words = REFUSED[name]
    with pytest.raises(ServiceError) as refusal:
        parse_cron(expression, "UTC")
    assert refusal.value.code is ErrorCode.INVALID_REQUEST
    assert words in refusal.value.detail
    assert [problem.path for problem in refusal.value.problems] == ["cronExpression"]


@pytest.mark.parametrize(
    "zone",
    ["", "Mars/Olympus", "localtime", "../../etc/passwd", "right/UTC", "+01:00", "utc\0", "\ud800"],
)
def test_a_zone_outside_the_database_is_refused(zone: str) -> None:
    with pytest.raises(ServiceError) as refusal:
        parse_cron("0 0 * * *", zone)
    assert [problem.path for problem in refusal.value.problems] == ["timezone"]


def test_nothing_is_due_after_the_last_year() -> None:
    cron = parse_cron("0 0 * * *", "Pacific/Kiritimati")
    assert cron.next_after(at("9999-12-31T23:59")) is None
    assert cron.next_after(at("8999-06-01T00:00")) is not None


@dataclass(frozen=True)
class Drawn:
    """An expression with what each field admits, in a zone, at a time near a clock change."""

    texts: tuple[str, ...]
    admitted: tuple[frozenset[int], ...]
    zone: str
    start: datetime

    def matches(self, wall: datetime) -> bool:
        """Whether a local time matches, as the definition of cron says it."""
        minutes, hours, days, months, weekdays = self.admitted
        is_day, is_weekday = wall.day in days, wall.isoweekday() % 7 in weekdays
        is_either = not self.texts[2].startswith("*") and not self.texts[4].startswith("*")
        is_due_day = is_day or is_weekday if is_either else is_day and is_weekday
        is_due_time = wall.minute in minutes and wall.hour in hours
        return is_due_time and wall.month in months and is_due_day


# Zones with their changes: an hour, two hours, half an hour, at midnight, a day, back for Ramadan.
CHANGES = [
    ("Europe/Berlin", "2026-03-29T01:00Z"), ("Europe/Berlin", "2026-10-25T01:00Z"),
    ("America/New_York", "2031-03-09T07:00Z"), ("America/New_York", "2031-11-02T06:00Z"),
    ("Antarctica/Troll", "2027-03-28T01:00Z"), ("Antarctica/Troll", "2027-10-31T01:00Z"),
    ("Australia/Lord_Howe", "2026-10-03T15:30Z"), ("Australia/Lord_Howe", "2026-04-04T15:00Z"),
    ("America/Santiago", "2026-09-06T04:00Z"), ("America/Santiago", "2026-04-05T03:00Z"),
    ("Africa/Cairo", "2026-04-23T22:00Z"), ("Africa/Cairo", "2026-10-29T21:00Z"),
    ("Pacific/Apia", "2011-12-30T10:00Z"), ("Pacific/Kwajalein", "1993-08-21T12:00Z"),
    ("Africa/Casablanca", "2026-02-15T02:00Z"), ("Africa/Casablanca", "2026-03-22T02:00Z"),
    ("Asia/Kolkata", "2026-03-29T01:00Z"), ("UTC", "2026-03-29T01:00Z"),
]  # fmt: skip


def _fields(low: int, high: int) -> st.SearchStrategy[tuple[str, frozenset[int]]]:
    every = range(low, high + 1)
    steps = st.integers(1, high - low).map(lambda step: (f"*/{step}", frozenset(every[::step])))
    some = st.sets(st.sampled_from(every), min_size=1, max_size=4)
    lists = some.map(lambda kept: (",".join(map(str, sorted(kept))), frozenset(kept)))
    return st.one_of(st.just(("*", frozenset(every))), steps, lists)


@st.composite
def drawn_expressions(draw: st.DrawFn) -> Drawn:
    zone, change = draw(st.sampled_from(CHANGES))
    start = datetime.fromisoformat(change) + timedelta(minutes=draw(st.integers(-400, 150)))
    fields = [draw(_fields(*bounds)) for bounds in ((0, 59), (0, 23))]
    whole = [("*", frozenset(range(low, high + 1))) for low, high in ((1, 31), (1, 12), (0, 6))]
    days = [draw(st.just(every) | st.just(every) | _fields(*bounds))
            for every, bounds in zip(whole, ((1, 31), (1, 12), (0, 6)), strict=True)]  # fmt: skip
    texts, admitted = zip(*fields, *days, strict=True)
    return Drawn(texts, admitted, zone, start)


def due_minutes(drawn: Drawn, hours: int) -> list[int]:
    """Due times by their definition: each minute is looked at.

    With fixed hours a minute is due when the clock reaches a matching local time for the first
    time, or passes it. With any hour it is due when its own local time matches.
    """
    zone, minute = ZoneInfo(drawn.zone), timedelta(minutes=1)
    has_fixed_hours = not drawn.texts[1].startswith("*")
    before = drawn.start - timedelta(hours=3)
    reached = before.astimezone(zone).replace(tzinfo=None)
    due = []
    while before < drawn.start + timedelta(hours=hours):
        before += minute
        wall = before.astimezone(zone).replace(tzinfo=None, fold=0)
        is_due = not has_fixed_hours and drawn.matches(wall)
        while reached < wall:
            reached += minute
            is_due |= has_fixed_hours and drawn.matches(reached)
        if is_due and before > drawn.start:
            due.append(unix_ms(before))
    return due


def cron_of(drawn: Drawn) -> Cron | None:
    """The expression as it is parsed; None where it is refused because it is never due."""
    try:
        return parse_cron(" ".join(drawn.texts), drawn.zone)
    except ServiceError:
        return None


@given(drawn_expressions())
@settings(max_examples=100, deadline=None)
def test_no_due_time_is_left_out_or_added_at_a_clock_change(drawn: Drawn) -> None:
    """Goal: `next_after` is the definition, in the hours around each kind of clock change."""
    hours = 14
    cron = cron_of(drawn)
    if cron is None:
        assert due_minutes(drawn, hours) == []
        return
    end, due = unix_ms(drawn.start + timedelta(hours=hours)), unix_ms(drawn.start)
    found = []
    while (following := cron.next_after(due)) is not None and following <= end:
        assert following > due
        found.append(due := following)
    assert found == due_minutes(drawn, hours)


@given(drawn_expressions(), st.integers(0, 36 * 60 * MINUTE_MS))
@settings(max_examples=100, deadline=None)
def test_next_depends_on_the_time_alone(drawn: Drawn, later_ms: int) -> None:
    """Goal: any order of questions has the same answers, and none lies between two of them."""
    cron = cron_of(drawn)
    if cron is None:
        return
    start = unix_ms(drawn.start)
    first, second = cron.next_after(start), cron.next_after(start + later_ms)
    assert first is not None and second is not None
    assert second >= first > start
    assert second > start + later_ms
    assert (second == first) == (first > start + later_ms)
    assert cron.next_after(start) == first
    assert parse_cron(" ".join(drawn.texts).upper(), drawn.zone).next_after(first - 1) == first


def test_zones_of_the_cases_change_when_they_say() -> None:
    """Goal: the table of changes is one of clock changes; the method's sharpness rests on it."""
    for zone, change in CHANGES:
        when, place = datetime.fromisoformat(change), ZoneInfo(zone)
        before, after = (when - timedelta(seconds=1)).astimezone(place), when.astimezone(place)
        is_constant = zone in ("UTC", "Asia/Kolkata")
        assert (before.utcoffset() == after.utcoffset()) is is_constant, (zone, change)
