"""Which machine is meant, and whether its shards could go elsewhere."""

from __future__ import annotations

import pytest

from core.shards.lease_messages import MemberState, MemberView
from core.shards.scaling import find_machines, has_other_holder


def member(
    machine: str, state: MemberState = MemberState.READY, *, is_live: bool = True
) -> MemberView:
    """Return a member of a machine."""
    return MemberView(
        member="m", machine=machine, address="a", version="1", state=state, is_live=is_live
    )


MEMBERS = [member("abcdef1"), member("abcdef1"), member("abcdef12"), member("fedcba")]


@pytest.mark.parametrize(
    ("prefix", "found"),
    [
        ("fedcba", ["fedcba"]),
        ("fed", ["fedcba"]),
        ("abcdef1", ["abcdef1"]),
        ("abcdef", ["abcdef1", "abcdef12"]),
        ("edcba", []),
        ("fedcba0", []),
    ],
    ids=["whole", "begins", "whole beats begins", "two begin", "a part", "longer"],
)
def test_a_machine_is_found_by_how_its_id_begins(prefix: str, found: list[str]) -> None:
    assert find_machines(MEMBERS, prefix) == found


@pytest.mark.parametrize(
    ("other", "has"),
    [
        (member("y"), True),
        (member("x"), False),
        (member("y", MemberState.DRAINING), False),
        (member("y", is_live=False), False),
    ],
    ids=["ready", "the same machine", "draining", "not live"],
)
def test_only_a_live_member_elsewhere_that_is_ready_could_take(
    other: MemberView, has: bool
) -> None:
    assert has_other_holder([member("x"), other], "x") is has
