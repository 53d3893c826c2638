"""Semantic versions, their order, and ranges of them.

Versions are those of semver.org 2.0.0 without build metadata, which has no place in the order: two
versions are never the same. A range is comparators with blanks or commas between them, all of which
must hold: `1.2.3`, `=`, `>`, `>=`, `<`, `<=`, `^1.2` (up to the next change that may break), `~1.2`
(up to the next minor version), `1.x`, `*`. A pre-release is in a range only where a comparator
names one of the same three numbers. Reference: features.md (Capability versions). Decision
versions-and-schemas.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import lru_cache, total_ordering
from typing import Final

VERSION_CHARS_MAX: Final = 64
RANGE_CHARS_MAX: Final = 64
COMPARATORS_MAX: Final = 4
_NUMBER: Final = r"(?:0|[1-9][0-9]{0,8})"
_LABEL: Final = r"(?:0|[1-9][0-9]{0,8}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
VERSION_PATTERN: Final = rf"^{_NUMBER}\.{_NUMBER}\.{_NUMBER}(-{_LABEL}(\.{_LABEL})*)?$"
# What may follow a capability's id and "@"; whether it is a range says `parse_range`.
RANGE_PATTERN: Final = rf"[0-9A-Za-z.^~<>=*, -]{{1,{RANGE_CHARS_MAX}}}"

_VERSION: Final = re.compile(VERSION_PATTERN[1:-1])
_COMPARATOR: Final = re.compile(r"(>=|<=|>|<|=|\^|~)?\s*([0-9A-Za-z.*-]+)")
_WILD: Final = ("x", "X", "*")
# Below every pre-release of its three numbers.
_LEAST: Final = ((0, 0, ""),)
# Before and behind the orders of all versions.
_BEGIN: Final[tuple[object, ...]] = ()
_END: Final[tuple[object, ...]] = (math.inf,)


@total_ordering
@dataclass(frozen=True, slots=True)
class Version:
    """A version. `labels`: of a pre-release, none of a release. `order`: what it is sorted by: a
    pre-release comes before its release, numbers before words."""

    major: int
    minor: int
    patch: int
    labels: tuple[str, ...] = ()
    order: tuple[object, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Made once: a range is held against a hundred versions.
        labels = tuple((0, int(one), "") if one.isdigit() else (1, 0, one) for one in self.labels)
        object.__setattr__(self, "order", (*self.numbers, not labels, labels))

    def __str__(self) -> str:
        numbers = f"{self.major}.{self.minor}.{self.patch}"
        return f"{numbers}-{'.'.join(self.labels)}" if self.labels else numbers

    def __lt__(self, other: Version) -> bool:
        return self.order < other.order

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Its three numbers."""
        return self.major, self.minor, self.patch

    @property
    def promise(self) -> tuple[object, ...]:
        """What two versions share whose later one promises to break nothing of the earlier: those
        that `^` of the earlier holds. A pre-release promises nothing."""
        if self.labels:
            return self.order
        if self.major or self.minor:
            return (self.major,) if self.major else (0, self.minor)
        return self.numbers


def is_version(value: object) -> bool:
    """Say whether a value is the text of a version."""
    return (
        type(value) is str
        and len(value) <= VERSION_CHARS_MAX
        and _VERSION.fullmatch(value) is not None
    )


@lru_cache(maxsize=4_096)
def parse_version(text: str) -> Version:
    """Return the version of a text for which `is_version` holds.

    Raises:
        ValueError: it does not.
    """
    if not is_version(text):
        raise ValueError(f"got {text[:VERSION_CHARS_MAX]!r}, expected a version such as 1.4.0")
    numbers, _, labels = text.partition("-")
    major, minor, patch = map(int, numbers.split("."))
    return Version(major, minor, patch, tuple(labels.split(".")) if labels else ())


def version_id(capability_id: str, version: str) -> str:
    """Return the id of a capability's version; no capability's id holds an "@"."""
    return f"{capability_id}@{version}"


@dataclass(frozen=True, slots=True)
class VersionRange:
    """A range: the versions whose order is from `low` up to `high`, which is not in it.

    `pre`: whose pre-releases it names.
    """

    low: tuple[object, ...] = _BEGIN
    high: tuple[object, ...] = _END
    pre: frozenset[tuple[int, ...]] = frozenset()

    def __contains__(self, version: Version) -> bool:
        if version.labels and version.numbers not in self.pre:
            return False
        return self.low <= version.order < self.high

    def __and__(self, other: VersionRange) -> VersionRange:
        low, high = max(self.low, other.low), min(self.high, other.high)
        return VersionRange(low, high, self.pre | other.pre)


@lru_cache(maxsize=4_096)
def parse_range(text: str) -> VersionRange:
    """Return the range of a text.

    Raises:
        ValueError: it is none.
    """
    refused = ValueError(
        f"got {text[:RANGE_CHARS_MAX]!r}, expected versions or comparators such as >=1.2 <2,"
        f" at most {COMPARATORS_MAX}"
    )
    if len(text) > RANGE_CHARS_MAX:
        raise refused
    rest, found, count = text.replace(",", " ").strip(), VersionRange(), 0
    while rest:
        match = _COMPARATOR.match(rest)
        count += 1
        if match is None or count > COMPARATORS_MAX:
            raise refused
        one = _comparator(match.group(1) or "", match.group(2))
        if one is None:
            raise refused
        found &= one
        after = rest[match.end() :]
        if after and not after[0].isspace() and after[0] not in "<>=^~":
            raise refused
        rest = after.lstrip()
    if not count:
        raise refused
    return found


def _comparator(sign: str, text: str) -> VersionRange | None:
    """Return the range of one comparator, None of what is none."""
    numbers: tuple[int, ...]
    pre: frozenset[tuple[int, ...]] = frozenset()
    if is_version(text):
        version = parse_version(text)
        numbers, first = version.numbers, version.order
        after: tuple[object, ...] = (*first, 0)  # no other version's order is before it
        if version.labels:
            pre = frozenset({numbers})
    else:
        parts = text.split(".")
        while parts and parts[-1] in _WILD:
            parts.pop()
        numbers = tuple(int(one) for one in parts if re.fullmatch(_NUMBER, one))
        if len(numbers) != len(parts) or len(numbers) > 2 or text.count(".") > 2 or text == "":
            return None
        if not numbers:
            return VersionRange() if sign in ("", "=", ">=") else None
        first, after = _floor(numbers), _next(numbers, len(numbers) - 1)
    breaking = next((at for at, one in enumerate(numbers) if one), len(numbers) - 1)
    low, high = {
        ">": (after, _END),
        ">=": (first, _END),
        "<": (_BEGIN, first),
        "<=": (_BEGIN, after),
        "^": (first, _next(numbers, breaking)),
        "~": (first, _next(numbers, min(1, len(numbers) - 1))),
    }.get(sign, (first, after))
    return VersionRange(low, high, pre)


def _next(numbers: tuple[int, ...], place: int) -> tuple[object, ...]:
    """Return the order below every version after those with the same numbers up to a place."""
    return _floor((*numbers[:place], numbers[place] + 1))


def _floor(numbers: tuple[int, ...]) -> tuple[object, ...]:
    """Return the order below every version that begins so, pre-releases included."""
    return (*numbers, *(0,) * (3 - len(numbers)), False, _LEAST)
