"""Cron expressions in a time zone: the times at which a schedule is due.

This module parses an expression strictly: five fields of numbers, names, ranges, lists and steps,
as in cron. The library croniter searches the calendar for local times without a zone. This module
applies the clock changes of the zone. As in cron, the hour field decides whether an expression
follows local time or elapsed time (`Cron`). Reference: features.md (Schedules).
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
# The beginning of the year 9000; `datetime` cannot represent times much later than this.
_AT_MS_MAX: Final = 221_845_392_000_000
_LEAP_YEAR: Final = 2000
_SECOND: Final = timedelta(seconds=1)
_ITEM: Final = re.compile(r"(?:\*|([0-9a-z]+)(?:-([0-9a-z]+))?)(?:/([0-9]+))?")


class _Field(NamedTuple):
    """A field of an expression.

    `low`, `high`: the lowest and highest value. `size`: the number of distinct values. `names`: the
    names of the values, beginning with the lowest; empty if the field has no names.
    """

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
    """The due times of one expression in one time zone.

    The hours of an expression are fixed if its hour field does not begin with `*`. With fixed
    hours, each matching local time is due once. If a clock change skips this time, it is due at the
    instant of the change. If a clock change repeats this time, it is due at its first occurrence.

    Without fixed hours, each instant whose local time matches is due. So a skipped local time is
    never due, and a repeated local time is due twice.

    An object is not thread-safe.

    Args:
        search: finds the matching local times.
        zone: the time zone.
        has_fixed_hours: whether the hours of the expression are fixed.
    """

    def __init__(self, search: croniter, zone: ZoneInfo, *, has_fixed_hours: bool) -> None:
        self._search = search
        self._zone = zone
        self._has_fixed_hours = has_fixed_hours

    def next_after(self, at_ms: int) -> int | None:
        """Return the first due time after a time, None if there is none; Unix milliseconds."""
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
            # A clock change skips this local time. Continue at the instant of the clock change.
            early, late = self._readings_of(wall)
            change = self._change_between(early, late)
            if self._has_fixed_hours:
                return change * 1_000
            after = self._wall_at(change) - _SECOND

    def _skip_repeated_times(self, now: int) -> datetime:
        """Return the local time after which to search for the next matching local time.

        Usually this is the current local time. While a clock change repeats local times, the result
        may be later, so that repeated times that are not due are skipped.

        Args:
            now: the current time, Unix seconds.
        """
        wall = self._wall_at(now)
        shown = self._instants_of(wall)
        if len(shown) == 1:
            return wall
        change = self._change_between(*shown)
        if self._has_fixed_hours:
            # In the second occurrence of the repeated times, all of them have already been due
            # once.
            return wall if now == shown[0] else self._wall_at(change - 1)
        if now == shown[0]:
            following = self._search.get_next(datetime, wall)
            if following - wall >= timedelta(seconds=change - now):
                return self._wall_at(change) - _SECOND
        return wall

    def _wall_at(self, instant: int) -> datetime:
        """Return the local time at an instant, which is in Unix seconds."""
        return datetime.fromtimestamp(instant, self._zone).replace(tzinfo=None, fold=0)

    def _readings_of(self, wall: datetime) -> list[int]:
        """Return the two instants of a local time, by the UTC offsets before and after a change.

        Without a clock change at this local time, both instants are the same.
        """
        aware = wall.replace(tzinfo=self._zone)
        return sorted(int(aware.replace(fold=fold).timestamp()) for fold in (0, 1))

    def _instants_of(self, wall: datetime) -> list[int]:
        """Return the instants that have a local time: none if it is skipped, two if repeated."""
        readings = dict.fromkeys(self._readings_of(wall))
        return [instant for instant in readings if self._wall_at(instant) == wall]

    def _change_between(self, early: int, late: int) -> int:
        """Return the instant of the clock change between two instants, Unix seconds.

        It is the first instant that has the UTC offset of `late`.
        """
        offset = datetime.fromtimestamp(late, self._zone).utcoffset()
        while late - early > 1:
            middle = (early + late) // 2
            if datetime.fromtimestamp(middle, self._zone).utcoffset() == offset:
                late = middle
            else:
                early = middle
        return late


def parse_cron(expression: str, zone: str) -> Cron:
    """Parse an expression of five fields in a time zone.

    Args:
        expression: the cron expression.
        zone: the IANA name of the time zone.

    Raises:
        ServiceError: the expression or the zone is not valid (INVALID_REQUEST). It has one problem,
            whose path is `cronExpression` or `timezone`.

    Reference: features.md (Schedules).
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
    # As in cron: if neither of the two day fields begins with *, a day must match one of the
    # fields. If a day field begins with *, a day must match both fields.
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
    """Return the zone names of the package `tzdata`, which are the same on every machine."""
    return frozenset(files("tzdata").joinpath("zones").read_text("utf-8").split())


def _refused(got: str, expected: str, path: str = "cronExpression") -> ServiceError:
    problem = Problem(path, got, expected)
    return ServiceError(ErrorCode.INVALID_REQUEST, problem.sentence, (problem,))
