"""Which of a capability's published versions a range means, and the way from one to the newest.

Active versions come before deprecated ones, newer before older; a range that names none means none.
Pure. Reference: features.md (Capability versions). Decision versions-and-schemas.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from core.capabilities.semver import Version, VersionRange

# Versions of a way: deprecated ones that name a successor, then the newest.
PATH_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """A version that was published. `successor`: what a deprecated one names, None for none."""

    version: Version
    is_deprecated: bool = False
    successor: Version | None = None


def by_preference(versions: Iterable[PublishedVersion]) -> list[PublishedVersion]:
    """Return versions in the order in which they are chosen."""
    return sorted(versions, key=lambda one: (not one.is_deprecated, one.version), reverse=True)


def find_latest(versions: Collection[PublishedVersion]) -> PublishedVersion | None:
    """Return the newest active release; without one what comes closest to it."""
    return max(
        versions,
        key=lambda one: (not one.is_deprecated, not one.version.labels, one.version),
        default=None,
    )


def find_within(
    versions: Sequence[PublishedVersion], wanted: VersionRange
) -> list[PublishedVersion]:
    """Return the versions of a range, in their order.

    Args:
        versions: in the order of `by_preference`.
    """
    return [one for one in versions if one.version in wanted]


def negotiate(
    versions: Collection[PublishedVersion],
    supported: Sequence[VersionRange],
    preferred: VersionRange | None,
) -> PublishedVersion | None:
    """Return the version that a caller should use, None when it supports none.

    Args:
        supported: what the caller can work with.
        preferred: what it would rather have, if that is among them.
    """
    usable = [
        one for one in by_preference(versions) if any(one.version in wanted for wanted in supported)
    ]
    liked = usable if preferred is None else find_within(usable, preferred)
    return next(iter(liked), None) or next(iter(usable), None)


def find_way(
    versions: Collection[PublishedVersion], start: PublishedVersion
) -> list[PublishedVersion]:
    """Return the versions that lead from one to the latest, at most `PATH_MAX`; none from there.

    A deprecated version leads to its successor, and the last of these to the latest, if newer.
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
