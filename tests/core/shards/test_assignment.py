"""Who should hold what: the same for every member, balanced, moving no more than it must."""

from __future__ import annotations

from msgspec.structs import replace

from core.shards.assignment import moves_of, target_addresses
from core.shards.lease_messages import HeldShard, MemberState, MemberView
from core.shards.shard import SHARDS

FREE = HeldShard("", 0)


def member(
    name: str, *, state: MemberState = MemberState.READY, is_live: bool = True
) -> MemberView:
    """Return a member at an address of its own."""
    return MemberView(
        member=name, machine="m", address=f"at {name}", version="1", state=state, is_live=is_live
    )


def held_by(*names: str) -> list[HeldShard]:
    """Return a map in which these members hold what they should."""
    by_address = {f"at {name}": name for name in names}
    return [HeldShard(by_address[to], 1) for to in target_addresses(by_address)]


def test_free_shards_are_taken_once_each_by_all_members_together() -> None:
    members = [member(name) for name in "abc"]
    shards = [FREE] * SHARDS
    taken = [shard for one in "abc" for shard, _ in moves_of(one, members, shards).take]
    assert sorted(taken) == list(range(SHARDS))
    for one in "abc":
        assert 60 <= len(moves_of(one, members, shards).take) <= 110


def test_one_more_member_moves_only_its_own_share() -> None:
    before, after = target_addresses("abc"), target_addresses("abcd")
    changed = [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]]
    assert {new for _, new in changed} == {"d"}
    assert 40 <= len(changed) <= 90


def test_what_is_held_by_its_target_stays() -> None:
    members = [member(name) for name in "ab"]
    for one in "ab":
        assert moves_of(one, members, held_by("a", "b")) == ((), ())


def test_a_new_member_takes_nothing_that_a_living_one_holds_and_is_given_it() -> None:
    members = [member(name) for name in "abc"]
    shards = held_by("a", "b")
    assert moves_of("c", members, shards) == ((), ())
    given = moves_of("a", members, shards).give + moves_of("b", members, shards).give
    assert {to for _, to in given} == {"c"}


def test_a_silent_members_shards_are_taken_under_the_epoch_they_were_seen_under() -> None:
    members = [member("a"), member("b", is_live=False)]
    shards = held_by("a", "b")
    take = moves_of("a", members, shards).take
    assert {shard for shard, _ in take} == {n for n, one in enumerate(shards) if one.member == "b"}
    assert {epoch for _, epoch in take} == {1}
    assert moves_of("b", members, shards) == ((), ()), "it does nothing while it is not live"


def test_a_draining_member_gives_everything_and_takes_nothing() -> None:
    draining = member("b", state=MemberState.DRAINING)
    members = [member("a"), draining]
    shards = held_by("a", "b")
    moves = moves_of("b", members, shards)
    assert len(moves.give) == sum(one.member == "b" for one in shards)
    assert {to for _, to in moves.give} == {"a"}
    assert moves_of("b", members, [FREE] * SHARDS).take == ()
    # Alone it keeps what it has: there is nowhere to give it to.
    assert moves_of("b", [draining], shards) == ((), ())


def test_a_successor_at_the_same_address_takes_what_its_predecessor_held() -> None:
    gone = replace(member("b"), is_live=False)
    successor = replace(member("b2"), address="at b")
    members = [member("a"), gone, successor]
    shards = held_by("a", "b")
    assert moves_of("a", members, shards) == ((), ())
    taken = {shard for shard, _ in moves_of("b2", members, shards).take}
    assert taken == {n for n, one in enumerate(shards) if one.member == "b"}
