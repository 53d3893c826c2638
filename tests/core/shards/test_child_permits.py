"""Permits of the processes of single workflows: they count, and a new one delays no member."""

from __future__ import annotations

from core.shards.leases import FIRST_LEASE_MS, LEASE_MS
from tests.core.shards.permit_world import cluster, step


def test_child_shares_an_agent_with_its_parent_and_the_other_members() -> None:
    world, (first, second) = cluster(2, a=4)
    child = world.bear(first)
    for node in (first, second, child):
        node.put("a", 100)
    for _ in range(40):
        step(world, [first, second, child])
        assert world.used("a") <= 4
        for node in (first, second, child):
            node.finish("a")
    began = [node.began["a"] for node in (first, second, child)]
    assert min(began) > 0.5 * max(began), began


def test_child_of_a_lone_member_gets_all_that_its_parent_does_not_use() -> None:
    world, (first,) = cluster(1, a=4)
    first.put("a", 1)
    child = world.bear(first)
    child.put("a", 10)
    for _ in range(6):
        step(world, [first, child])
    assert (first.sent["a"], child.sent["a"]) == (1, 3)
    world.bury(child)
    first.put("a", 10)
    for _ in range(3):
        step(world, [first])
    assert first.sent["a"] == 4, "it is alone again"


def test_child_has_nothing_before_its_parent_has_named_it() -> None:
    world, (first, _) = cluster(2, a=4)
    child = world.bear(first)
    child.put("a", 4)
    for _ in range(3):
        world.exchange(child)
    assert child.sent["a"] == 0
    world.exchange(first)
    for _ in range(2):
        world.exchange(child)
    assert child.sent["a"] == 4


def test_new_child_delays_no_member() -> None:
    world, (first, second) = cluster(2, a=4)
    world.bear(first)
    world.exchange(first)
    second.put("a", 4)
    world.exchange(second)
    assert second.sent["a"] == 4, "though the child has never reported"


def test_permits_of_a_child_are_free_when_its_process_has_ended_for_certain() -> None:
    world, (first, second) = cluster(2, a=4)
    child = world.bear(first)
    child.put("a", 4)
    for _ in range(3):
        step(world, [first, second, child])
    assert child.sent["a"] == 4
    world.end(child)
    second.put("a", 4)
    for _ in range(20):
        step(world, [first, second], 500)
    assert second.sent["a"] == 0
    world.bury(child)
    step(world, [first, second])
    step(world, [first, second])
    assert second.sent["a"] == 4


def test_late_report_of_a_parent_drops_no_child() -> None:
    world, (first, second) = cluster(2, a=4)
    late = world.send(first)
    world.serve(late)
    world.arrive(late)
    child = world.bear(first)
    child.put("a", 4)
    for _ in range(3):
        step(world, [first, second, child])
    world.serve(late)
    second.put("a", 4)
    world.exchange(second)
    assert (child.sent["a"], second.sent["a"]) == (4, 0)


def test_new_ledger_waits_for_children_of_before_and_not_for_others() -> None:
    world, (first, second) = cluster(2, a=4)
    child = world.bear(first)
    child.put("a", 3)
    for _ in range(3):
        step(world, [first, second, child])
    world.replace_ledger()
    second.put("a", 4)
    for _ in range(5):
        step(world, [first, second])
    assert (child.sent["a"], second.sent["a"]) == (3, 0)
    world.bear(first)
    for _ in range(5):
        step(world, [first, second, child])
    assert (child.sent["a"], second.sent["a"]) == (3, 1)


def test_frozen_child_of_before_does_not_stop_everybody_for_ever() -> None:
    world, (first, second) = cluster(2, a=4, b=4)
    child = world.bear(first)
    child.put("a", 3)
    for _ in range(3):
        step(world, [first, second, child])
    world.replace_ledger()
    second.put("b", 4)
    for _ in range(FIRST_LEASE_MS // 500):
        step(world, [first, second], 500)
    assert second.sent["b"] == 0, "it may still send"
    for _ in range(3):
        step(world, [first, second], 500)
    assert second.sent["b"] == 4
    child.put("b")
    child.put("a")
    assert not child.may_send()
    step(world, [child])
    assert child.permits.allowed("a") == 0, "its permits are void"
    for _ in range(3):
        step(world, [first, second, child])
    assert (world.used("a"), world.used("b")) == (4, 4)


def test_replaced_ledger_follows_no_child_that_it_hears_of_too_late() -> None:
    world, (first, second) = cluster(2, a=4)
    world.replace_ledger()
    for _ in range(3):
        step(world, [first, second])
    child = world.bear(first)
    child.put("a", 4)
    for node in (first, child, child):
        request = world.send(node)
        world.serve(request, by_former=True)
        world.arrive(request)
    second.put("a", 4)
    for _ in range(2):
        world.exchange(second)
    assert (child.sent["a"], second.sent["a"]) == (0, 4)


def test_child_named_to_the_ledger_of_before_first_is_not_new_to_the_next() -> None:
    world, (first, second) = cluster(2, a=4)
    before = world.send(first)
    world.serve(before)
    world.arrive(before)
    child = world.bear(first)
    child.put("a", 4)
    told = world.send(first)
    world.replace_ledger()
    world.serve(before)  # it comes again, and brings the new ledger's term
    world.arrive(before)
    world.serve(told, by_former=True)
    for _ in range(2):
        request = world.send(child)
        world.serve(request, by_former=True)
        world.arrive(request)
    assert child.sent["a"] == 4
    second.put("a", 4)
    for _ in range(6):
        step(world, [first, second])
    assert second.sent["a"] == 0


def test_permits_of_a_child_end_with_those_of_its_lost_parent() -> None:
    world, (first, second, third) = cluster(3, a=4)
    child = world.bear(first)
    child.put("a", 4)
    for _ in range(3):
        step(world, [first, second, third, child])
    assert child.sent["a"] == 4
    world.end(first)
    world.end(child)
    second.put("a", 4)
    for _ in range(LEASE_MS // 500 + 2):
        step(world, [second, third], 500)
    assert second.sent["a"] == 0
    world.take()
    step(world, [second, third])
    assert second.sent["a"] == 4
