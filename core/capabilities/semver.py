"""Semantic versions, their order, and ranges of versions.

Versions follow semver.org 2.0.0, but without build metadata. Versions that differ only in build
metadata would be equal in the order of semver.org.

A range consists of comparators, separated by blanks or commas. A version is in the range if all
comparators hold. A comparator is a version with or without `=`, `>`, `>=`, `<` or `<=`, or has a
form such as `^1.2` (up to the next breaking change), `~1.2` (up to the next minor version), `1.x`
or `*`. A pre-release is in a range only if a comparator names a pre-release with the same three
numbers.
Reference: features.md (Capability versions). Decision versions-and-schemas.
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
# The characters that may follow "@" after a capability id. `parse_range` checks the form.
RANGE_PATTERN: Final = rf"[0-9A-Za-z.^~<>=*, -]{{1,{RANGE_CHARS_MAX}}}"

_VERSION: Final = re.compile(VERSION_PATTERN[1:-1])
_COMPARATOR: Final = re.compile(r"(>=|<=|>|<|=|\^|~)?\s*([0-9A-Za-z.*-]+)")
_WILD: Final = ("x", "X", "*")
# Labels that sort before the labels of every pre-release.
_LEAST: Final = ((0, 0, ""),)
# The bounds that sort before and after the `order` of every version.
_BEGIN: Final[tuple[object, ...]] = ()
_END: Final[tuple[object, ...]] = (math.inf,)


@total_ordering
@dataclass(frozen=True, slots=True)
class Version:
    """A semantic version.

    `labels`: the labels of a pre-release; empty for a release. `order`: the sort key. A pre-release
    sorts before its release, and numeric labels sort before words.
    """

    major: int
    minor: int
    patch: int
    labels: tuple[str, ...] = ()
    order: tuple[object, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Computed only once, because a range may be compared with a hundred versions.
        labels = tuple((0, int(one), "") if one.isdigit() else (1, 0, one) for one in self.labels)
        object.__setattr__(self, "order", (*self.numbers, not labels, labels))

    def __str__(self) -> str:
        numbers = f"{self.major}.{self.minor}.{self.patch}"
        return f"{numbers}-{'.'.join(self.labels)}" if self.labels else numbers

    def __lt__(self, other: Version) -> bool:
        return self.order < other.order

    @property
    def numbers(self) -> tuple[int, int, int]:
        """The numbers (major, minor, patch)."""
        return self.major, self.minor, self.patch

    @property
    def promise(self) -> tuple[object, ...]:
        """The key that compatible versions have in common.

        If two versions have the same key, the later one promises not to break the earlier one. The
        later one is in the range `^` of the earlier one. A pre-release makes no promise, so no
        other version has its key.
        """
        if self.labels:
            return self.order
        if self.major or self.minor:
            return (self.major,) if self.major else (0, self.minor)
        return self.numbers


def is_version(value: object) -> bool:
    """Return whether a value is the text of a semantic version."""
    return (
        type(value) is str
        and len(value) <= VERSION_CHARS_MAX
        and _VERSION.fullmatch(value) is not None
    )


@lru_cache(maxsize=4_096)
def parse_version(text: str) -> Version:
    """Parse the text of a version.

    Raises:
        ValueError: the text is not a version (`is_version`).
    """
    if not is_version(text):
        raise ValueError(f"got {text[:VERSION_CHARS_MAX]!r}, expected a version such as 1.4.0")
    numbers, _, labels = text.partition("-")
    major, minor, patch = map(int, numbers.split("."))
    return Version(major, minor, patch, tuple(labels.split(".")) if labels else ())


def version_id(capability_id: str, version: str) -> str:
    """Return the id of a capability's version; the capability's own id never contains "@"."""
    return f"{capability_id}@{version}"


@dataclass(frozen=True, slots=True)
class VersionRange:
    """A range of versions.

    `low`, `high`: the bounds of `Version.order`; `low` is included, `high` is not. `pre`: the
    numbers (major, minor, patch) whose pre-releases are in the range, too.
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
    """Parse the text of a range.

    Raises:
        ValueError: the text is not a range.
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
    """Return the range of one comparator, None if its form is not valid."""
    numbers: tuple[int, ...]
    pre: frozenset[tuple[int, ...]] = frozenset()
    if is_version(text):
        version = parse_version(text)
        numbers, first = version.numbers, version.order
        after: tuple[object, ...] = (*first, 0)  # directly after `first`, with no version between
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
    """Return the lowest order above all versions with the same numbers up to a place.

    Args:
        numbers: the first numbers of a version.
        place: the index of the last number that is shared.
    """
    return _floor((*numbers[:place], numbers[place] + 1))


def _floor(numbers: tuple[int, ...]) -> tuple[object, ...]:
    """Return an order below the order of every version or pre-release with these first numbers."""
    return (*numbers, *(0,) * (3 - len(numbers)), False, _LEAST)
