"""Which member gets a new workflow: near, little to do, ready, and none that has refused it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from actors.routing.placement import AVOIDED_S, NEAR_LOAD_LEAD, Placement
from actors.routing.shard_map import ShardMap
from core.ids import uuid7
from core.shards.assignment import target_addresses
from core.shards.lease_messages import MemberState, MemberView
from core.shards.shard import SHARDS, shard_of
from tests.actors.gateway.maps import lease, member

ENTROPY = random.Random(7)


def new_id() -> str:
    """Return an id of a new workflow."""
    return uuid7(at_ms=1_000, entropy=ENTROPY.randbytes(10))


def shard_map(*members: MemberView, holders: Sequence[str] = ()) -> ShardMap:
    """Return the map in which these members hold all shards in turn."""
    told = lease(members, holders)
    return ShardMap(told.members, told.shards)


def placed(shard_map: ShardMap, count: int, *, refused: Sequence[str] = ()) -> Counter[str]:
    """Return how many of so many new workflows each member gets."""
    placement = Placement("here")
    placement.use_map(shard_map)
    got: Counter[str] = Counter()
    for _ in range(count):
        workflow_id = placement.place(new_id(), refused, now_s=0.0)
        holder = None if workflow_id is None else shard_map.holder(workflow_id)
        got["" if holder is None else holder.member] += 1
    return got


def test_near_members_share_what_this_replica_places() -> None:
    """Between two answers of the ledger all went to the one that was least loaded then."""
    near = [member(name, load=load) for name, load in (("a", 10), ("b", 0), ("c", 0))]
    assert placed(shard_map(*near, member("far", machine="there")), 20) == {"b": 10, "c": 10}


def test_far_member_is_chosen_when_near_ones_have_far_more_to_do() -> None:
    near, far = member("near", load=NEAR_LOAD_LEAD), member("far", machine="there")
    assert placed(shard_map(near, far), 1) == {"near": 1}
    near = member("near", load=NEAR_LOAD_LEAD + 1)
    assert placed(shard_map(near, far), 1) == {"far": 1}
    busy = member("far", machine="there", load=100)
    assert placed(shard_map(member("near", load=232), busy), 1) == {"near": 1}
    assert placed(shard_map(member("near", load=233), busy), 1) == {"far": 1}


def test_equal_loads_are_shared_out_by_the_ids() -> None:
    """One publish a second, each after a new answer: none of two equals gets all of them."""
    shards = shard_map(member("a"), member("b"))
    got = sum((placed(shards, 1) for _ in range(200)), Counter())
    assert min(got["a"], got["b"]) > 50


@pytest.mark.parametrize(
    "other",
    [
        member("b", state=MemberState.DRAINING),
        member("b", is_live=False),
    ],
    ids=["draining", "not live"],
)
def test_member_that_takes_no_new_work_gets_none(other: MemberView) -> None:
    assert placed(shard_map(member("a", load=1_000), other), 20) == {"a": 20}


def test_member_without_shards_gets_none() -> None:
    """As one that has just joined: there is no id that would reach it."""
    shards = shard_map(member("a", load=1_000), member("b"), holders=["a"])
    assert placed(shards, 20) == {"a": 20}


def test_member_that_has_refused_is_passed_over() -> None:
    shards = shard_map(member("a"), member("b", load=1_000))
    assert placed(shards, 5, refused=["a"]) == {"b": 5}
    assert placed(shards, 5, refused=["a", "b"]) == {"": 5}
    assert placed(ShardMap(), 1) == {"": 1}


def test_member_to_which_a_call_has_failed_gets_nothing_for_a_while() -> None:
    """It had the least to do for the ledger until its lease was over, and so got everything."""
    shards = shard_map(member("a"), member("b", load=1_000))
    placement = Placement("here")
    placement.use_map(shards)
    placement.note_failed("a", 10.0)

    def chosen(now_s: float, refused: Sequence[str] = ()) -> str:
        workflow_id = placement.place(new_id(), refused, now_s=now_s)
        assert workflow_id is not None
        holder = shards.holder(workflow_id)
        assert holder is not None
        return holder.member

    assert chosen(10.0) == "b"
    placement.use_map(shards)
    assert chosen(10.0 + AVOIDED_S - 0.1) == "b", "the ledger does not know it yet"
    assert chosen(10.0, ["b"]) == "a", "there is no other"
    assert chosen(10.0 + AVOIDED_S) == "a"
    placement.use_map(shard_map(member("b")))
    placement.use_map(shards)
    assert chosen(10.0) == "a", "it has lived since"


def test_id_keeps_its_shard_where_that_is_the_members_and_all_shards_are_used() -> None:
    shards = shard_map(member("a"), member("b", state=MemberState.DRAINING))
    placement = Placement("here")
    placement.use_map(shards)
    used = set()
    for _ in range(5_000):
        workflow_id = new_id()
        chosen = placement.place(workflow_id, now_s=0.0)
        assert chosen is not None
        used.add(shard_of(chosen))
        if shard_of(workflow_id) % 2 == 0:
            assert chosen == workflow_id
        assert chosen[:16] == workflow_id[:16] and chosen[18:] == workflow_id[18:]
    assert used == set(range(0, SHARDS, 2))


def test_map_knows_holders_addresses_and_what_nobody_holds() -> None:
    dead = member("old", address="a", is_live=False)
    shards = shard_map(member("new", address="a"), dead, holders=["new", "old", "", "gone"])
    found = [shards.holder(f"00000000-0000-7{shard:03x}-8000-000000000000") for shard in range(4)]
    assert [one and one.member for one in found] == ["new", None, None, None]
    assert (shards.addresses(), shards.unheld) == ({"a"}, SHARDS * 3 // 4)
    assert ShardMap().holder(new_id()) is None
    assert ShardMap().unheld == SHARDS


def test_shards_that_move_soon_get_no_new_workflows() -> None:
    """Another member should hold them: it has just joined, or was away."""
    told = shard_map(member("old"), member("new"), holders=["old"])
    targets = target_addresses([one.address for one in told.live.values()])
    placement = Placement("here")
    placement.use_map(told)
    for _ in range(50):
        workflow_id = placement.place(new_id(), now_s=0.0)
        assert workflow_id is not None
        assert targets[shard_of(workflow_id)] == told.live["old"].address
