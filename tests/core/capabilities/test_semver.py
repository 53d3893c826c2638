"""Semantic versions, their order, and ranges of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.capabilities.semver import (
    RANGE_CHARS_MAX,
    Version,
    is_version,
    parse_range,
    parse_version,
)

# In their order; semver.org section 11.
ORDERED = [
    "0.0.1", "0.1.0", "0.2.1", "0.2.3", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta",
    "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1", "1.0.0", "1.2.0-a", "1.2.0",
    "1.2.9", "1.10.0", "2.0.0-rc.1", "2.0.0", "10.0.0",
]  # fmt: skip


def test_versions_have_the_order_of_semver_org() -> None:
    assert sorted(set(ORDERED), key=parse_version) == ORDERED
    assert [str(parse_version(text)) for text in ORDERED] == ORDERED


@pytest.mark.parametrize(
    "text",
    ["", "1", "1.2", "1.2.3.4", "v1.2.3", "01.2.3", "1.2.3-", "1.2.3-01", "1.2.3-a..b", "1.2.3+a",
     "1.2.3 ", "1.2.3\n", "-1.2.3", "1.2.1000000000", "1.2.3-" + "a" * 60, "1.2.\u0663", 5, None],
)  # fmt: skip
def test_what_is_no_version_is_refused(text: object) -> None:
    assert not is_version(text)


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("*", "0.0.1 0.1.0 0.2.1 0.2.3 1.0.0 1.2.0 1.2.9 1.10.0 2.0.0 10.0.0"),
        ("1", "1.0.0 1.2.0 1.2.9 1.10.0"),
        ("1.x", "1.0.0 1.2.0 1.2.9 1.10.0"),
        ("1.2", "1.2.0 1.2.9"),
        ("1.2.0", "1.2.0"),
        ("=1.2.0-a", "1.2.0-a"),
        ("^1.2", "1.2.0 1.2.9 1.10.0"),
        ("^1.2.1", "1.2.9 1.10.0"),
        ("~1.2", "1.2.0 1.2.9"),
        ("~1.2.3", "1.2.9"),
        ("^0.2.1", "0.2.1 0.2.3"),
        ("^0.0.1", "0.0.1"),
        ("^0", "0.0.1 0.1.0 0.2.1 0.2.3"),
        (">=1.2", "1.2.0 1.2.9 1.10.0 2.0.0 10.0.0"),
        (">1", "2.0.0 10.0.0"),
        ("<1", "0.0.1 0.1.0 0.2.1 0.2.3"),
        (">=1.2 <2", "1.2.0 1.2.9 1.10.0"),
        (">=1.2,<=2", "1.2.0 1.2.9 1.10.0 2.0.0"),
        (">=1.2<2", "1.2.0 1.2.9 1.10.0"),
        (">1.2.0 <1.2.9", ""),
        (">=1.0.0-rc.1 <1.2", "1.0.0-rc.1 1.0.0"),
        ("<2.0.0 >=2.0.0", ""),
    ],
)
def test_a_range_holds_these_versions(text: str, held: str) -> None:
    wanted = parse_range(text)
    assert [one for one in ORDERED if parse_version(one) in wanted] == held.split()


@pytest.mark.parametrize(
    "text",
    ["", " ", "a", "1..2", ">=", "^^1", "1.2-3", "@1", ">*", "x.1", "1.x.3", "1 2 3 4 5", "1 || 2",
     "1.2.3.4", "1" * (RANGE_CHARS_MAX + 1), "1-2", "=>1", "1.2.3+b"],
)  # fmt: skip
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected versions or comparators"):
        parse_range(text)


VERSIONS = st.builds(
    Version,
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 3),
    st.lists(st.sampled_from(["0", "1", "a", "b-1"]), max_size=2).map(tuple),
)


@given(VERSIONS, VERSIONS)
def test_comparators_agree_with_the_order(one: Version, other: Version) -> None:
    assert parse_version(str(one)) == one
    assert one in parse_range(str(one))
    assert (one < other) == (not one >= other)
    if not one.labels:
        for sign, holds in ((">=", one >= other), ("<", one < other), ("=", one == other)):
            assert (one in parse_range(f"{sign}{other}")) == holds


@given(VERSIONS, VERSIONS)
def test_what_shares_a_promise_is_within_the_caret_of_the_earlier(
    one: Version, other: Version
) -> None:
    if not one.labels and not other.labels and one <= other:
        assert (one.promise == other.promise) == (other in parse_range(f"^{one}"))
