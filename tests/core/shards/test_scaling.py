"""How many machines are wanted, and which one is given back."""

from __future__ import annotations

import pytest

from core.shards.lease_messages import HeldShard, MemberState, MemberView
from core.shards.scaling import (
    RAISE_MS,
    MachineCount,
    drained_machines,
    least_loaded,
    machines_with_replicas,
)

LOWER_MS = 60_000


def count(*, least: int = 1, most: int = 10) -> MachineCount:
    return MachineCount(workflows_per_machine=100, least=least, most=most, lower_ms=LOWER_MS)


def wanted_in_the_end(rule: MachineCount, load: int, machines: int, *, lasts_ms: int) -> int:
    """Return what is wanted when a load has lasted so long."""
    assert rule.wanted(load, machines, 0) == machines
    return rule.wanted(load, machines, lasts_ms)


@pytest.mark.parametrize(
    ("load", "machines", "wanted"),
    [(100, 1, 1), (101, 1, 2), (950, 1, 10), (5_000, 1, 10), (301, 3, 4), (300, 3, 3)],
    ids=["full", "over", "all at once", "bounded", "one more", "three full"],
)
def test_waiting_work_raises_the_number(load: int, machines: int, wanted: int) -> None:
    assert wanted_in_the_end(count(), load, machines, lasts_ms=RAISE_MS) == wanted


def test_short_burst_raises_nothing() -> None:
    rule = count()
    assert wanted_in_the_end(rule, 500, 1, lasts_ms=RAISE_MS - 1) == 1
    assert rule.wanted(0, 1, RAISE_MS) == 1
    assert rule.wanted(500, 1, RAISE_MS + 1) == 1


@pytest.mark.parametrize(
    ("load", "machines", "wanted"),
    [(140, 3, 2), (141, 3, 3), (0, 3, 2), (0, 1, 1), (1_100, 12, 11)],
    ids=["room after it", "no room after it", "idle", "the last one", "more than allowed"],
)
def test_idle_machines_leave_one_at_a_time(load: int, machines: int, wanted: int) -> None:
    assert wanted_in_the_end(count(), load, machines, lasts_ms=LOWER_MS) == wanted


def test_next_machine_leaves_after_the_same_time_again() -> None:
    rule = count()
    assert wanted_in_the_end(rule, 0, 3, lasts_ms=LOWER_MS) == 2
    assert rule.wanted(0, 2, LOWER_MS + 1) == 2
    assert rule.wanted(0, 2, 2 * LOWER_MS) == 2
    assert rule.wanted(0, 2, 2 * LOWER_MS + 1) == 1


def test_work_that_comes_back_keeps_the_machine() -> None:
    rule = count()
    assert wanted_in_the_end(rule, 0, 2, lasts_ms=LOWER_MS - 1) == 2
    assert rule.wanted(150, 2, LOWER_MS) == 2
    assert rule.wanted(0, 2, LOWER_MS + 1) == 2


def test_never_fewer_than_the_least() -> None:
    assert wanted_in_the_end(count(least=2), 0, 2, lasts_ms=LOWER_MS) == 2
    assert wanted_in_the_end(count(least=2), 0, 1, lasts_ms=RAISE_MS) == 2


def member(
    machine: str, load: int = 0, *, is_live: bool = True, is_drained: bool = False
) -> MemberView:
    return MemberView(
        member=f"m-{machine}-{load}", machine=machine, address="a", version="1",
        state=MemberState.READY, load=load, is_live=is_live, is_drained=is_drained,
    )  # fmt: skip


def test_machine_with_the_least_to_do_is_given_back() -> None:
    members = [member("a", 5), member("a", 1), member("b", 4), member("c", 0)]
    assert least_loaded(members, ["a", "b"]) == "b"
    assert least_loaded(members, ["a", "b", "new"]) == "new"
    assert least_loaded(members, []) is None


def test_machine_is_drained_when_each_of_its_live_members_is() -> None:
    members = [
        member("a", is_drained=True), member("a", 1), member("b", is_drained=True),
        member("c", is_live=False), member("d"),
    ]  # fmt: skip
    assert drained_machines(members, [], ["a", "b", "c", "empty"]) == {"b", "c", "empty"}


def test_machine_whose_member_holds_a_shard_is_not_idle_though_its_lease_has_expired() -> None:
    """It was ended while no other member had its shard yet: spared from a take, it lives again."""
    silent = member("a", is_live=False)
    assert not drained_machines([silent], [HeldShard(silent.member, 3)], ["a"])
    assert drained_machines([silent], [HeldShard("other", 4)], ["a"]) == {"a"}


def test_lost_machine_has_its_replicas_counted_for_a_while_and_a_draining_one_not() -> None:
    first = machines_with_replicas({}, ["a", "b", "c"], [], now_s=100.0, kept_s=60.0)
    assert set(first) == {"a", "b", "c"}
    lost = machines_with_replicas(first, ["a", "c"], ["c"], now_s=159.0, kept_s=60.0)
    assert lost == {"a": 159.0, "b": 100.0}
    assert set(machines_with_replicas(lost, ["a"], [], now_s=160.0, kept_s=60.0)) == {"a"}
