"""The version that all of a cluster understands is the lowest one in it."""

from __future__ import annotations

import pytest

from core.shards.leases import cluster_version


@pytest.mark.parametrize(
    ("members", "ledgers", "expected"),
    [
        ((), 3, 3),
        (("3", "3"), 3, 3),
        (("3", "2"), 3, 2),  # one of before has not ended
        (("3", "3"), 2, 2),  # the ledger has been taken back first
        (("4",), 3, 3),
        (("", "3"), 3, 0),  # a member that does not say it understands nothing new
    ],
)
def test_the_lowest_version_counts(members: tuple[str, ...], ledgers: int, expected: int) -> None:
    assert cluster_version(members, ledgers) == expected
