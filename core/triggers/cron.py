"""Cron expressions in a time zone: at which times a schedule is due.

An expression is read strictly here: five fields of numbers, names, ranges, lists and steps, as in
cron. croniter searches the calendar, on local times without a zone; the clock changes of zones are
applied here. Whether an expression follows the clock on the wall or elapsed time depends on its
hour field, as in cron. Reference: features.md (Schedules).
"""

from __future__ import annotations

import re
from calendar import monthrange
from datetime import datetime, timedelta
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from croniter import CroniterBadDateError, croniter

from core.errors import ErrorCode, Problem, ServiceError
from core.wording import quoted

EXPRESSION_CHARS_MAX: Final = 100
# The year 9000: later times are beyond what local times can say.
_AT_MS_MAX: Final = 221_845_392_000_000
_LEAP_YEAR: Final = 2000
_SECOND: Final = timedelta(seconds=1)
_ITEM: Final = re.compile(r"(?:\*|([0-9a-z]+)(?:-([0-9a-z]+))?)(?:/([0-9]+))?")


class _Field(NamedTuple):
    """A field of an expression: lowest and highest value, number of distinct values, and names."""

    label: str
    low: int
    high: int
    size: int
    names: tuple[str, ...] = ()


_MONTHS: Final = (
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
)  # fmt: skip
_WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: Final = (
    _Field("minute", 0, 59, 60),
    _Field("hour", 0, 23, 24),
    _Field("day of month", 1, 31, 31),
    _Field("month", 1, 12, 12, _MONTHS),
    # Both 0 and 7 are Sunday.
    _Field("day of week", 0, 7, 7, _WEEKDAYS),
)


class Cron:
    """The due times of one expression in one zone.

    With fixed hours (the hour field does not begin with `*`), a local time is due once: one that
    the clock skips at the instant of the change, one that it shows twice at the first. With any
    hour, each instant whose local time matches is due. One thread uses an object at a time.

    Args:
        search: finds the local times that match.
        zone: the zone of the local times.
        has_fixed_hours: see above.
    """

    def __init__(self, search: croniter, zone: ZoneInfo, *, has_fixed_hours: bool) -> None:
        self._search = search
        self._zone = zone
        self._has_fixed_hours = has_fixed_hours

    def next_after(self, at_ms: int) -> int | None:
        """Return the first due time after another time, both in Unix milliseconds; None: never."""
        if at_ms > _AT_MS_MAX:
            return None
        now = at_ms // 1_000
        after = self._skip_repeated_times(now)
        while True:
            try:
                wall = self._search.get_next(datetime, after)
            except CroniterBadDateError:
                return None
            due = [instant for instant in self._instants_of(wall) if instant > now]
            if due:
                return due[0] * 1_000
            # The clock skips this local time, and others until it has changed.
            early, late = self._readings_of(wall)
            change = self._change_between(early, late)
            if self._has_fixed_hours:
                return change * 1_000
            after = self._wall_at(change) - _SECOND

    def _skip_repeated_times(self, now: int) -> datetime:
        """Return the local time after which to search.

        Usually the current local time. Where the clock goes back, a time that skips the repeated
        hour.
        """
        wall = self._wall_at(now)
        shown = self._instants_of(wall)
        if len(shown) == 1:
            return wall
        change = self._change_between(*shown)
        if self._has_fixed_hours:
            # All local times before the change were shown once, so they are no longer due.
            return wall if now == shown[0] else self._wall_at(change - 1)
        if now == shown[0]:
            following = self._search.get_next(datetime, wall)
            if following - wall >= timedelta(seconds=change - now):
                return self._wall_at(change) - _SECOND
        return wall

    def _wall_at(self, instant: int) -> datetime:
        """Return the local time at an instant, given in Unix seconds."""
        return datetime.fromtimestamp(instant, self._zone).replace(tzinfo=None, fold=0)

    def _readings_of(self, wall: datetime) -> list[int]:
        """Return the instants of a local time by the offsets before and after a change."""
        aware = wall.replace(tzinfo=self._zone)
        return sorted(int(aware.replace(fold=fold).timestamp()) for fold in (0, 1))

    def _instants_of(self, wall: datetime) -> list[int]:
        """Return the instants at which the clock shows a local time: none, one or two."""
        readings = dict.fromkeys(self._readings_of(wall))
        return [instant for instant in readings if self._wall_at(instant) == wall]

    def _change_between(self, early: int, late: int) -> int:
        """Return the first instant with the offset that applies at the later of two instants."""
        offset = datetime.fromtimestamp(late, self._zone).utcoffset()
        while late - early > 1:
            middle = (early + late) // 2
            if datetime.fromtimestamp(middle, self._zone).utcoffset() == offset:
                late = middle
            else:
                early = middle
        return late


def parse_cron(expression: str, zone: str) -> Cron:
    """Read an expression of five fields in an IANA time zone.

    Raises `ServiceError` (INVALID_REQUEST) with one problem, whose path is `cronExpression` or
    `timezone`. Reference: features.md (Schedules).
    """
    if zone not in _zone_names():
        expected = "the IANA name of a time zone, such as Europe/Berlin"
        raise _refused(quoted(zone), expected, "timezone")
    if len(expression) > EXPRESSION_CHARS_MAX:
        got = f"{len(expression)} characters"
        raise _refused(got, f"at most {EXPRESSION_CHARS_MAX} characters")
    texts = re.split("[ \t]+", expression.strip(" \t").lower())
    if len(texts) != len(_FIELDS):
        expected = "five fields: minute, hour, day of month, month, day of week"
        raise _refused(quoted(expression, EXPRESSION_CHARS_MAX), expected)
    values = [_values_of(text, field) for text, field in zip(texts, _FIELDS, strict=True)]
    days, months = values[2], values[3]
    # As in cron: where both name days, each of them is due; a field that begins with * limits
    # the days of the other field.
    is_either = not texts[2].startswith("*") and not texts[4].startswith("*")
    if not is_either and min(days) > max(monthrange(_LEAP_YEAR, month)[1] for month in months):
        raise _refused(
            quoted(expression, EXPRESSION_CHARS_MAX),
            "a day that exists in at least one of the months",
        )
    plain = " ".join(
        "*" if text.startswith("*") and len(found) == field.size else _list_text(found)
        for text, field, found in zip(texts, _FIELDS, values, strict=True)
    )
    search = croniter(plain, 0.0, day_or=is_either)
    return Cron(search, ZoneInfo(zone), has_fixed_hours=not texts[1].startswith("*"))


def _values_of(text: str, field: _Field) -> set[int]:
    values: set[int] = set()
    for item in text.split(","):
        match = _ITEM.fullmatch(item)
        if match is None:
            expected = "*, a number or a range such as 1-5, each also with a step such as /2"
            raise _refused(f"{quoted(item)} as {field.label}", expected)
        first, last, step = match.groups()
        low = field.low if first is None else _number_of(first, field)
        if last is not None:
            high = _number_of(last, field)
        else:
            high = low if first is not None and step is None else field.high
        if low > high:
            raise _refused(
                f"{quoted(item)} as {field.label}", "a range from low to high, such as 1-5"
            )
        if step is not None and not 1 <= int(step) <= field.size:
            expected = f"a step from 1 to {field.size}"
            raise _refused(f"{quoted(item)} as {field.label}", expected)
        values.update(range(low, high + 1, int(step or 1)))
    return {0 if field.high == 7 and value == 7 else value for value in values}


def _number_of(text: str, field: _Field) -> int:
    if text in field.names:
        return field.names.index(text) + field.low
    if text.isdecimal() and field.low <= int(text) <= field.high:
        return int(text)
    names = f" or {field.names[0]} to {field.names[-1]}" if field.names else ""
    expected = f"{field.low} to {field.high}{names}"
    raise _refused(f"{quoted(text)} as {field.label}", expected)


def _list_text(values: set[int]) -> str:
    return ",".join(map(str, sorted(values)))


@cache
def _zone_names() -> frozenset[str]:
    """Return the names of the IANA database, which do not depend on the machine's files."""
    return frozenset(files("tzdata").joinpath("zones").read_text("utf-8").split())


def _refused(got: str, expected: str, path: str = "cronExpression") -> ServiceError:
    problem = Problem(path, got, expected)
    return ServiceError(ErrorCode.INVALID_REQUEST, problem.sentence, (problem,))
