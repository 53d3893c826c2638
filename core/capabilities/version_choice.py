"""Selects published versions of a capability: those in a range, and the way to the latest version.

Active versions come before deprecated ones. In both groups, newer versions come first. Pure.
Reference: features.md (Capability versions). Decision versions-and-schemas.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from core.capabilities.semver import Version, VersionRange

# The most versions that `find_upgrade_path` returns.
PATH_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """A published version.

    `successor`: the version that replaces a deprecated version; None without one.
    """

    version: Version
    is_deprecated: bool = False
    successor: Version | None = None


def by_preference(versions: Iterable[PublishedVersion]) -> list[PublishedVersion]:
    """Return the versions in the order of preference: active ones first, newer ones first."""
    return sorted(versions, key=lambda one: (not one.is_deprecated, one.version), reverse=True)


def find_latest(versions: Collection[PublishedVersion]) -> PublishedVersion | None:
    """Return the latest version, None without versions.

    Active versions are preferred to deprecated ones. Among equals, releases are preferred to
    pre-releases, and newer versions to older ones.
    """
    return max(
        versions,
        key=lambda one: (not one.is_deprecated, not one.version.labels, one.version),
        default=None,
    )


def find_within(
    versions: Sequence[PublishedVersion], wanted: VersionRange
) -> list[PublishedVersion]:
    """Return the versions that are in a range, in the order of `versions`.

    Args:
        versions: the versions, in the order of `by_preference`.
        wanted: the range.
    """
    return [one for one in versions if one.version in wanted]


def negotiate(
    versions: Collection[PublishedVersion],
    supported: Sequence[VersionRange],
    preferred: VersionRange | None,
) -> PublishedVersion | None:
    """Return the version that a caller should use, None if the caller supports no version.

    Args:
        versions: the published versions.
        supported: the ranges that the caller supports.
        preferred: the range that the caller prefers. It is ignored if the caller supports no
            version in this range.
    """
    usable = [
        one for one in by_preference(versions) if any(one.version in wanted for wanted in supported)
    ]
    liked = usable if preferred is None else find_within(usable, preferred)
    return next(iter(liked), None) or next(iter(usable), None)


def find_upgrade_path(
    versions: Collection[PublishedVersion], start: PublishedVersion
) -> list[PublishedVersion]:
    """Return the versions on the way from a version to the latest version.

    The way follows the successors of deprecated versions. The latest version ends the way, if it is
    newer than the last successor.

    Args:
        versions: the published versions.
        start: the version at which the way begins.

    Returns:
        At most `PATH_MAX` versions, without `start`; empty if `start` is the latest version.
    """
    known = {one.version: one for one in versions}
    way: list[PublishedVersion] = []
    here, latest = start, find_latest(versions)
    while here.successor is not None and len(way) < PATH_MAX - 1:
        after = known.get(here.successor)
        if after is None or after == start or after in way:
            break
        way.append(after)
        here = after
    if latest is not None and latest.version > here.version:
        way.append(latest)
    return way
