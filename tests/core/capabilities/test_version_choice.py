"""Which published version a range means, what is negotiated, and the way to the newest."""

from __future__ import annotations

import pytest

from core.capabilities.semver import parse_range, parse_version
from core.capabilities.version_choice import (
    PATH_MAX,
    PublishedVersion,
    by_preference,
    find_latest,
    find_upgrade_path,
    find_within,
    negotiate,
)


def published(*texts: str) -> list[PublishedVersion]:
    """Return versions; `1.0.0!` is deprecated, `1.0.0>1.1.0` in favour of another one."""
    made = []
    for text in texts:
        version, _, successor = text.partition(">")
        made.append(
            PublishedVersion(
                parse_version(version.removesuffix("!")),
                bool(successor) or version.endswith("!"),
                parse_version(successor) if successor else None,
            )
        )
    return made


def names(versions: list[PublishedVersion]) -> list[str]:
    return [str(one.version) for one in versions]


SOME = published("1.0.0>1.1.0", "1.1.0", "2.0.0", "2.1.0!", "3.0.0-rc.1")


def test_active_versions_come_before_deprecated_ones() -> None:
    order = by_preference(SOME)
    assert names(order) == ["3.0.0-rc.1", "2.0.0", "1.1.0", "2.1.0", "1.0.0"]
    assert names(find_within(order, parse_range(">=1 <3"))) == ["2.0.0", "1.1.0", "2.1.0", "1.0.0"]
    assert find_within(order, parse_range("4")) == []


@pytest.mark.parametrize(
    ("versions", "latest"),
    [
        (SOME, "2.0.0"),
        (published("1.0.0!", "2.0.0-rc.1"), "2.0.0-rc.1"),
        (published("1.0.0!", "1.1.0!"), "1.1.0"),
    ],
)
def test_the_latest_is_the_newest_active_release(
    versions: list[PublishedVersion], latest: str
) -> None:
    found = find_latest(versions)
    assert found is not None
    assert str(found.version) == latest
    assert find_latest([]) is None


@pytest.mark.parametrize(
    ("supported", "preferred", "chosen"),
    [
        (["1.x"], None, "1.1.0"),
        (["1.x", "2.x"], None, "2.0.0"),
        (["1.x", "2.x"], "1.0.0", "1.0.0"),
        (["1.x"], "2.0.0", "1.1.0"),
        (["2.1.0"], None, "2.1.0"),
        (["4.x", "3.x"], None, None),
        ([], None, None),
    ],
)
def test_what_is_negotiated(
    supported: list[str], preferred: str | None, chosen: str | None
) -> None:
    liked = None if preferred is None else parse_range(preferred)
    found = negotiate(SOME, [parse_range(text) for text in supported], liked)
    assert (None if found is None else str(found.version)) == chosen


@pytest.mark.parametrize(
    ("versions", "way"),
    [
        (SOME, ["1.1.0", "2.0.0"]),
        (published("1.0.0"), []),
        (published("1.0.0", "1.1.0"), ["1.1.0"]),
        (published("1.0.0!", "0.9.0"), []),
        (published("1.0.0>1.1.0", "1.1.0>1.0.0"), ["1.1.0"]),
        (published(*(f"1.{one}.0>1.{one + 1}.0" for one in range(20))), 8),
    ],
)
def test_the_way_to_the_newest(versions: list[PublishedVersion], way: list[str] | int) -> None:
    found = names(find_upgrade_path(versions, versions[0]))
    assert found == way if isinstance(way, list) else len(found) == way == PATH_MAX
