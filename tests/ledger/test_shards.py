"""Members join, change, take and give shards; what was held under an older epoch is stale."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from core.errors import ErrorCode
from core.shards.lease_messages import HeldShard, MemberState
from core.shards.shard import SHARDS, id_in_shard, shard_of
from ledger.commands import Command, Outcome, OutcomeStatus
from ledger.errors import LedgerUnavailable
from ledger.shards.shard_commands import ChangeMember
from ledger.shards.shard_plan import MEMBERS_MAX
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.making import (
    AT,
    CREDIT,
    MEMBER,
    PAYER,
    Flow,
    ToldLives,
    deposit,
    give,
    join,
    new_id,
    new_key,
    open_store,
    open_with_member,
    take,
)
from tests.ledger.test_auctions import end as end_bidding
from tests.ledger.test_quarantine import resume

pytestmark = pytest.mark.anyio

OTHER, THIRD = "member-2", "member-3"
ALL = tuple(range(SHARDS))


async def one(store: LedgerStore, command: Command) -> Outcome:
    return (await store.commit([command], AT))[0]


def change(member: str, state: MemberState) -> ChangeMember:
    return ChangeMember(key=new_key(), actor_did=PAYER, member=member, state=state)


def state_of(auditor: Auditor, member: str = MEMBER) -> str:
    return str(auditor.one("SELECT state FROM member WHERE id = %s", member))


def rows_of(auditor: Auditor) -> dict[int, tuple[str, int]]:
    """Return every shard's row."""
    rows = auditor.connection.execute("SELECT id, member, epoch FROM shard").fetchall()
    return {shard: (member, epoch) for shard, member, epoch in rows}


def newest(auditor: Auditor) -> int:
    return int(auditor.one("SELECT audit_seq FROM head"))


def assert_shown(store: LedgerStore, auditor: Auditor) -> None:
    """What the writer remembers, what it shows, and what is stored are the same."""
    rows = rows_of(auditor)
    assert store.cache.shards == [HeldShard(*rows[shard]) for shard in ALL]
    assert store.cluster.shards == tuple(store.cache.shards)
    members = auditor.connection.execute("SELECT id, state FROM member WHERE state <> 'gone'")
    assert dict(members.fetchall()) == {
        member: known.state for member, known in store.cluster.members.items()
    }
    assert store.cluster.members == store.cache.members
    assert store.cluster.version == store.cache.map_version


# -- joining ---------------------------------------------------------------------------------------


async def test_a_new_ledger_has_every_shard_and_no_holder(
    database: Database, auditor: Auditor
) -> None:
    store = await open_store(database.service_url)
    assert rows_of(auditor) == dict.fromkeys(ALL, ("", 0))
    assert (store.cluster.version, dict(store.cluster.members)) == (0, {})
    assert_shown(store, auditor)
    await store.close()


async def test_member_joins_once_and_its_repeat_says_the_same(
    database: Database, auditor: Auditor
) -> None:
    store = await open_store(database.service_url)
    joined = await one(store, join())
    assert (joined.status, joined.result) == (OutcomeStatus.APPLIED, {"mapVersion": 2})
    row = auditor.connection.execute("SELECT * FROM member").fetchall()
    assert row == [(MEMBER, "machine", f"address of {MEMBER}", "1", "ready", AT)]
    repeated = await one(store, join())
    assert (repeated.status, repeated.result) == (OutcomeStatus.REPEATED, joined.result)
    again = await one(store, replace(join(), key="another"))
    assert again.error is ErrorCode.CONFLICT, "an id is one start of a process"
    assert auditor.one("SELECT count(*) FROM command WHERE id = 'another'") == 0
    assert auditor.one(
        "SELECT array_agg((event_type, target_type, target_id, actor_did)::text) FROM event"
        " WHERE id > 1"
    ) == [f"(member.joined,member,{MEMBER},{MEMBER})"]
    assert_shown(store, auditor)
    await store.close()


async def test_id_of_a_member_that_is_gone_is_not_used_again(
    database: Database, auditor: Auditor
) -> None:
    store = await open_store(database.service_url)
    gone, again = change(MEMBER, MemberState.GONE), replace(join(), key="another")
    outcomes = await store.commit([join(), gone, again], AT)
    assert [one.error for one in outcomes] == [None, None, ErrorCode.CONFLICT]
    assert (await one(store, replace(again, key="a third"))).error is ErrorCode.CONFLICT
    await store.close()
    store = await open_store(database.service_url)
    assert (await one(store, replace(again, key="a fourth"))).error is ErrorCode.CONFLICT
    assert state_of(auditor) == "gone"
    await store.close()


async def test_predecessor_at_the_address_is_gone_with_its_last_shard(
    database: Database, auditor: Auditor
) -> None:
    """At once without shards, else when they are taken; so its place is not taken for good."""
    lives = ToldLives()
    store, _ = await open_with_member(database.service_url, lives=lives)
    address = f"address of {MEMBER}"
    await store.commit([join(OTHER, address=address)], AT)
    assert store.cluster.replaced() == {MEMBER}
    assert state_of(auditor) == "ready", "its shards are still its own"
    await store.commit([join(THIRD, address=address)], AT)
    assert state_of(auditor, OTHER) == "gone", "it held nothing"
    assert store.cluster.replaced() == {MEMBER}, "joined in the same millisecond, and yet before"
    lives.ended = {MEMBER}
    await store.commit([take(THIRD, epoch=1, shards=ALL[:200])], AT)
    assert state_of(auditor) == "ready"
    taken = await one(store, take(THIRD, epoch=1, shards=ALL[200:]))
    assert state_of(auditor) == "gone"
    assert auditor.one(
        "SELECT array_agg(event_type || ' ' || target_id ORDER BY number) FROM event WHERE id = %s",
        taken.result["mapVersion"],
    ) == [f"shards.taken {THIRD}", f"member.changed {MEMBER}"]
    assert_shown(store, auditor)
    await store.close()


async def test_next_writer_knows_which_member_of_an_address_has_ended(
    database: Database, auditor: Auditor
) -> None:
    """They joined in the same millisecond; neither the order of ids nor that of rows tells."""
    store, _ = await open_with_member(database.service_url)
    await store.commit([join("a later one", address=f"address of {MEMBER}")], AT)
    await store.close()
    store = await open_store(database.service_url)
    assert store.cluster.replaced() == {MEMBER}
    await store.close()


async def test_replaced_member_is_gone_with_the_last_shard_that_it_gives(
    database: Database, auditor: Auditor
) -> None:
    """What it had sent before it ended may arrive late."""
    store, epoch = await open_with_member(database.service_url)
    await store.commit([join(OTHER, address=f"address of {MEMBER}")], AT)
    await store.commit([give(OTHER, epoch=epoch)], AT)
    assert (state_of(auditor), state_of(auditor, OTHER)) == ("gone", "ready")
    assert_shown(store, auditor)
    await store.close()


async def test_members_are_bounded_and_those_that_have_expired_make_room(
    database: Database, auditor: Auditor
) -> None:
    lives = ToldLives()
    store, _ = await open_with_member(database.service_url, lives=lives)
    names = [f"m{number}" for number in range(1, MEMBERS_MAX)]
    outcomes = await store.commit([join(name) for name in names], AT)
    assert {outcome.error for outcome in outcomes} == {None}
    full = join("one too many")
    refused = await one(store, full)
    assert (refused.error, refused.result) == (ErrorCode.OVERLOADED, {"retryAfterS": 5})
    # A successor takes the place of its predecessor.
    assert (await one(store, join("n1", address="address of m1"))).error is None
    assert state_of(auditor, "m1") == "gone"
    # One that holds shards keeps its place, expired or not: the shards name it.
    lives.ended = {MEMBER}
    assert (await one(store, full)).error is ErrorCode.OVERLOADED
    lives.ended = {"m2", "m3"}
    assert (await one(store, full)).error is None
    assert {state_of(auditor, name) for name in ("m2", "m3")} == {"gone"}
    assert len(store.cluster.members) == MEMBERS_MAX - 1
    assert_shown(store, auditor)
    await store.close()


# -- changing --------------------------------------------------------------------------------------


async def test_member_drains_and_takes_work_again(database: Database, auditor: Auditor) -> None:
    store, epoch = await open_with_member(database.service_url)
    await store.commit([join(OTHER)], AT)
    drained = await one(store, change(OTHER, MemberState.DRAINING))
    assert drained.result == {"mapVersion": newest(auditor)}
    assert state_of(auditor, OTHER) == "draining"
    # Who drains is given nothing, and takes nothing.
    assert (await one(store, give(OTHER, epoch=epoch))).error is ErrorCode.CONFLICT
    assert (await one(store, take(OTHER))).error is ErrorCode.FORBIDDEN
    again = await one(store, change(OTHER, MemberState.DRAINING))
    assert again.result == drained.result, "nothing has changed"
    assert newest(auditor) == drained.result["mapVersion"]
    await store.commit([change(OTHER, MemberState.READY)], AT)
    assert (await one(store, give(OTHER, epoch=epoch, shards=[4]))).result["given"] == [4]
    assert auditor.one(
        "SELECT array_agg(actor_did || ' ' || (payload ->> 'state') ORDER BY id) FROM event"
        " WHERE event_type = 'member.changed'"
    ) == [f"{PAYER} draining", f"{PAYER} ready"]
    assert_shown(store, auditor)
    await store.close()


async def test_last_member_that_is_ready_and_lives_does_not_drain(
    database: Database, auditor: Auditor
) -> None:
    lives = ToldLives()
    store, _ = await open_with_member(database.service_url, lives=lives)
    drain = change(MEMBER, MemberState.DRAINING)
    assert (await one(store, drain)).error is ErrorCode.CONFLICT
    await store.commit([join(OTHER)], AT)
    lives.ended = {OTHER}
    assert (await one(store, drain)).error is ErrorCode.CONFLICT, "the other does not live"
    lives.ended = set()
    both = [drain, change(OTHER, MemberState.DRAINING)]
    outcomes = await store.commit(both, AT)
    assert [outcome.error for outcome in outcomes] == [None, ErrorCode.CONFLICT]
    assert (state_of(auditor), state_of(auditor, OTHER)) == ("draining", "ready")
    assert_shown(store, auditor)
    await store.close()


@pytest.mark.parametrize("is_taken", [False, True], ids=["in time", "after its shards were taken"])
async def test_member_that_starts_where_one_drained_drains_until_it_is_resumed(
    database: Database, auditor: Auditor, is_taken: bool
) -> None:
    lives = ToldLives()
    store, _ = await open_with_member(database.service_url, lives=lives)
    address = f"address of {MEMBER}"
    await store.commit([join(OTHER), change(MEMBER, MemberState.DRAINING)], AT)
    lives.ended = {MEMBER}
    if is_taken:
        await store.commit([take(OTHER, epoch=1)], AT)
        assert state_of(auditor) == "draining", "its successor would not know of it"
        await store.close()
        store = await open_store(database.service_url, lives=lives)
    await store.commit([join(THIRD, address=address)], AT)
    assert (state_of(auditor), state_of(auditor, THIRD)) == (
        "gone" if is_taken else "draining",
        "draining",
    )
    assert (
        auditor.one(
            "SELECT payload ->> 'state' FROM event WHERE target_id = %s AND event_type"
            " = 'member.joined'",
            THIRD,
        )
        == "draining"
    )
    await store.commit([change(THIRD, MemberState.READY)], AT)
    await store.commit([join("member-4", address=address)], AT)
    assert state_of(auditor, "member-4") == "ready", "the newest one was resumed"
    if not is_taken:
        await store.commit([take(OTHER, epoch=1)], AT)
        assert state_of(auditor) == "gone", "it has a successor, which knows of it"
    assert_shown(store, auditor)
    await store.close()


async def test_member_that_holds_shards_is_not_gone(database: Database, auditor: Auditor) -> None:
    store, epoch = await open_with_member(database.service_url)
    ended = change(MEMBER, MemberState.GONE)
    refused = await one(store, ended)
    assert refused.error is ErrorCode.CONFLICT
    assert "holds shards" in refused.detail
    # Who drains gives everything first, and then says that it has ended: under the same key.
    await store.commit([join(OTHER), change(MEMBER, MemberState.DRAINING)], AT)
    await store.commit([give(OTHER, epoch=epoch)], AT)
    assert state_of(auditor) == "draining", "it still carries what it handed over"
    assert (await one(store, ended)).error is None
    assert state_of(auditor) == "gone"
    late = await one(store, change(MEMBER, MemberState.READY))
    assert late.error is ErrorCode.CONFLICT, "nobody comes back"
    unknown = await one(store, change("nobody", MemberState.GONE))
    assert unknown.error is ErrorCode.NOT_FOUND
    assert_shown(store, auditor)
    await store.close()


# -- taking ----------------------------------------------------------------------------------------


async def test_take_has_what_is_free_or_expired_and_leaves_the_rest(
    database: Database, auditor: Auditor
) -> None:
    lives = ToldLives()
    store = await open_store(database.service_url, lives=lives)
    await store.commit([join(), join(OTHER), join(THIRD)], AT)
    await store.commit([take(shards=[0, 1]), take(OTHER, shards=[2, 3])], AT)
    lives.ended = {MEMBER}
    seen = ((0, 1), (1, 0), (2, 1), (4, 0), (5, 7))
    command = replace(take(THIRD), shards=seen)
    taken = await one(store, command)
    # Not 1 (another epoch), nor 2 (its holder lives), nor 5 (never had that epoch).
    expected = {"taken": {"0": 2, "4": 1}, "mapVersion": newest(auditor)}
    assert taken.result == expected
    rows = rows_of(auditor)
    assert [rows[shard] for shard in (0, 1, 2, 4, 5)] == [
        (THIRD, 2), (MEMBER, 1), (OTHER, 1), (THIRD, 1), ("", 0)
    ]  # fmt: skip
    assert state_of(auditor) == "ready", "it holds another one yet"
    repeated = await one(store, command)
    assert (repeated.status, repeated.result) == (OutcomeStatus.REPEATED, expected)
    payload = auditor.one(
        "SELECT payload FROM event WHERE event_type = 'shards.taken' ORDER BY id DESC LIMIT 1"
    )
    assert payload == {"epochs": {"0": 2, "4": 1}, "from": [MEMBER]}
    assert_shown(store, auditor)
    await store.close()


async def test_take_of_nothing_leaves_no_trace(database: Database, auditor: Auditor) -> None:
    """Its repeat, when the holder has expired, is planned anew."""
    lives = ToldLives()
    store, _ = await open_with_member(database.service_url, lives=lives)
    version = (await one(store, join(OTHER))).result["mapVersion"]
    await store.commit([deposit(1)], AT)
    command, before = take(OTHER, epoch=1, shards=[9]), newest(auditor)
    nothing = await one(store, command)
    assert (nothing.status, nothing.result) == (
        OutcomeStatus.APPLIED,
        {"taken": {}, "mapVersion": version},
    )
    assert newest(auditor) == before
    assert auditor.one("SELECT count(*) FROM command WHERE id = %s", command.key) == 0
    lives.ended = {MEMBER}
    assert (await one(store, command)).result["taken"] == {"9": 2}
    assert_shown(store, auditor)
    await store.close()


async def test_each_shard_is_taken_once_though_it_is_named_twice(
    database: Database, auditor: Auditor
) -> None:
    store = await open_store(database.service_url)
    twice = replace(take(), shards=((3, 0), (3, 0), (3, 1)))
    taken = (await store.commit([join(), twice], AT))[1]
    assert taken.result["taken"] == {"3": 1}
    assert (await one(store, take(epoch=1, shards=[3]))).result["taken"] == {}, "its own"
    assert_shown(store, auditor)
    await store.close()


async def test_of_two_members_that_take_the_same_in_one_batch_one_has_it(
    database: Database, auditor: Auditor
) -> None:
    store = await open_store(database.service_url)
    await store.commit([join(), join(OTHER)], AT)
    first, second = await store.commit([take(shards=ALL[:9]), take(OTHER, shards=ALL[5:20])], AT)
    assert set(first.result["taken"]) == set(map(str, ALL[:9]))
    assert set(second.result["taken"]) == set(map(str, ALL[9:20]))
    assert_shown(store, auditor)
    await store.close()


async def test_only_a_living_member_that_is_ready_takes(
    database: Database, auditor: Auditor
) -> None:
    lives = ToldLives()
    store = await open_store(database.service_url, lives=lives)
    await store.commit([join(), join(OTHER), change(OTHER, MemberState.GONE)], AT)
    for member in (OTHER, "nobody", ""):
        refused = await one(store, take(member))
        assert refused.error is ErrorCode.FORBIDDEN, member
    lives.ended = {MEMBER}
    command = take()
    assert (await one(store, command)).error is ErrorCode.FORBIDDEN, "what it took were lost again"
    lives.ended = set()
    assert (await one(store, command)).error is None, "no refusal is stored"
    await store.close()


@pytest.mark.parametrize(
    "shards", [(), ((-1, 0),), ((0, 0), (256, 0)), tuple((0, epoch) for epoch in range(257))]
)
async def test_shards_that_there_are_not_are_refused(
    database: Database, auditor: Auditor, shards: tuple[tuple[int, int], ...]
) -> None:
    """A negative number would name one from the end of a list."""
    store, _ = await open_with_member(database.service_url)
    await store.commit([join(OTHER)], AT)
    refused = await store.commit(
        [replace(take(OTHER), shards=shards), replace(give(OTHER), shards=shards)], AT
    )
    assert [outcome.error for outcome in refused] == [ErrorCode.INVALID_REQUEST] * 2
    assert rows_of(auditor) == dict.fromkeys(ALL, (MEMBER, 1))
    await store.close()


# -- giving ----------------------------------------------------------------------------------------


async def test_give_moves_what_the_member_holds_under_that_epoch(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_member(database.service_url)
    await store.commit([join(OTHER), join(THIRD), give(THIRD, shards=[2])], AT)
    command = replace(give(OTHER), shards=((0, epoch), (1, epoch + 1), (2, epoch), (3, epoch)))
    given = await one(store, command)
    assert given.result == {"given": [0, 3], "mapVersion": newest(auditor)}
    rows = rows_of(auditor)
    assert [rows[shard] for shard in (0, 1, 2, 3)] == [
        (OTHER, 2), (MEMBER, 1), (THIRD, 2), (OTHER, 2)
    ]  # fmt: skip
    repeated = await one(store, command)
    assert (repeated.status, repeated.result) == (OutcomeStatus.REPEATED, given.result)
    before = newest(auditor)
    late = await one(store, replace(command, key=new_key(), shards=((0, epoch),)))
    assert late.result == {"given": [], "mapVersion": given.result["mapVersion"]}
    foreign = await one(store, give(OTHER, member=THIRD, epoch=epoch, shards=[1, 4, 5]))
    assert foreign.result["given"] == [], "whatever its epoch, it is another's"
    assert newest(auditor) == before
    payload = auditor.one(
        "SELECT payload FROM event WHERE event_type = 'shards.given' ORDER BY id DESC LIMIT 1"
    )
    assert payload == {"epochs": {"0": 2, "3": 2}, "to": OTHER}
    assert_shown(store, auditor)
    await store.close()


async def test_give_is_refused_unless_the_recipient_lives_and_is_ready(
    database: Database, auditor: Auditor
) -> None:
    lives = ToldLives(OTHER)
    store, epoch = await open_with_member(database.service_url, lives=lives)
    await store.commit([join(OTHER), join(THIRD)], AT)
    await store.commit([change(THIRD, MemberState.GONE)], AT)
    for to in (OTHER, THIRD, MEMBER, "nobody", ""):
        assert (await one(store, give(to, epoch=epoch))).error is ErrorCode.CONFLICT, to
    assert rows_of(auditor) == dict.fromkeys(ALL, (MEMBER, epoch))
    await store.close()


async def test_give_that_was_refused_stays_refused_when_a_copy_of_it_comes_late(
    database: Database, auditor: Auditor
) -> None:
    """Found by the simulation: its giver had gone on with the shard."""
    lives = ToldLives(OTHER)
    store, epoch = await open_with_member(database.service_url, lives=lives)
    await store.commit([join(OTHER)], AT)
    command = give(OTHER, epoch=epoch)
    assert (await one(store, command)).status is OutcomeStatus.REJECTED
    lives.ended.clear()
    late = await one(store, command)
    assert (late.status, late.error) == (OutcomeStatus.REPEATED, ErrorCode.CONFLICT)
    assert rows_of(auditor) == dict.fromkeys(ALL, (MEMBER, epoch))
    await store.close()


async def test_shard_that_went_and_came_back_in_one_batch_has_grown_twice(
    database: Database, auditor: Auditor
) -> None:
    store, _ = await open_with_member(database.service_url)
    await store.commit(
        [join(OTHER), give(OTHER, shards=[8]), give(MEMBER, member=OTHER, epoch=2, shards=[8])], AT
    )
    assert rows_of(auditor)[8] == (MEMBER, 3)
    assert_shown(store, auditor)
    await store.close()


# -- the fence -------------------------------------------------------------------------------------


def commands_of(flow: Flow) -> list[Any]:
    """Return a command of each kind that a workflow's member sends."""
    return [
        flow.publish(key=new_key()),
        flow.pay(CREDIT, key=new_key()),
        replace(resume(flow, flow.epoch), member=flow.member),
        end_bidding(flow),
    ]


async def test_command_of_a_shard_that_another_holds_leaves_no_trace(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_member(database.service_url)
    flow = Flow(epoch)
    shard = shard_of(flow.id)
    await store.commit([flow.publish(), join(OTHER), join(THIRD)], AT)
    await store.commit([give(OTHER, shards=[shard])], AT)
    before = newest(auditor)
    # Each epoch and each member but the pair that holds it.
    pairs = [(MEMBER, epoch), (MEMBER, epoch + 1), (OTHER, epoch), (OTHER, epoch + 2), ("", 0)]
    for member, shard_epoch in pairs:
        late = Flow(shard_epoch, id=flow.id, member=member)
        outcomes = await store.commit(commands_of(late), AT)
        assert {outcome.status for outcome in outcomes} == {OutcomeStatus.STALE}, member
        assert {str(outcome.result) for outcome in outcomes} == {"{}"}
    assert newest(auditor) == before
    # The successor's outcome is not the predecessor's own, under the same key.
    repeated = await one(store, Flow(epoch, id=flow.id).publish())
    assert repeated.status is OutcomeStatus.STALE
    current = Flow(epoch + 1, id=flow.id, member=OTHER)
    assert (await one(store, current.pay(CREDIT))).status is OutcomeStatus.APPLIED
    # Without records a step's key is looked up first.
    assert (await one(store, current.advance(key="same"))).status is OutcomeStatus.APPLIED
    assert (await one(store, flow.advance(key="same"))).status is OutcomeStatus.STALE
    # What the member holds besides it drives on.
    kept = Flow(epoch, id=id_in_shard(new_id(), (shard + 1) % SHARDS))
    assert (await one(store, kept.publish())).status is OutcomeStatus.APPLIED
    await store.close()


async def test_command_behind_a_give_in_its_batch_is_stale_and_one_before_it_is_not(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_member(database.service_url)
    flow = Flow(epoch)
    await store.commit([flow.publish(), join(OTHER)], AT)
    before, _, after = await store.commit(
        [flow.pay(CREDIT), give(OTHER, shards=[shard_of(flow.id)]), flow.pay(CREDIT, node="b")], AT
    )
    assert (before.status, after.status) == (OutcomeStatus.APPLIED, OutcomeStatus.STALE)
    await store.close()


async def test_free_shard_takes_no_commands(database: Database, auditor: Auditor) -> None:
    """Not even of the member without a name and of epoch 0, which its row has."""
    store = await open_store(database.service_url)
    await store.commit([join(), deposit(100 * CREDIT)], AT)
    nameless = await one(store, Flow(0, member="").publish())
    assert nameless.status is OutcomeStatus.STALE
    await store.close()


async def test_stale_step_that_cannot_be_stored_quarantines_nothing(
    database: Database, auditor: Auditor
) -> None:
    """The ledger refuses it alone: whose workflow it is, is asked before that."""
    store, epoch = await open_with_member(database.service_url)
    flow = Flow(epoch)
    await store.commit([flow.publish(), join(OTHER)], AT)
    await store.commit([give(OTHER, shards=[shard_of(flow.id)])], AT)
    refused = await store.refuse(flow.pay(CREDIT), AT, is_slow=False)
    assert refused.status is OutcomeStatus.STALE
    assert auditor.one("SELECT quarantine_code FROM workflow") is None
    await store.close()


# -- rolled back, and read again -------------------------------------------------------------------


async def test_batch_that_is_rolled_back_leaves_map_and_epochs_as_they_were(
    database: Database, auditor: Auditor
) -> None:
    store, _ = await open_with_member(database.service_url)
    flow = Flow(1)
    await store.commit([flow.publish(), join(OTHER)], AT)
    shown, before = store.cluster, newest(auditor)
    guilty = flow.publish(key="another key for the same workflow")
    with pytest.raises(Exception, match="workflow_pkey"):
        await store.commit([guilty, give(OTHER), join(THIRD)], AT)
    assert store.cluster is shown
    assert (newest(auditor), rows_of(auditor)[0]) == (before, (MEMBER, 1))
    assert_shown(store, auditor)
    assert (await one(store, give(OTHER))).error is None
    assert_shown(store, auditor)
    await store.close()


async def test_next_writer_knows_the_map_and_its_version(
    database: Database, auditor: Auditor
) -> None:
    store, _ = await open_with_member(database.service_url)
    given = (await store.commit([join(OTHER), give(OTHER, shards=ALL[:5]), deposit(1)], AT))[1]
    successor = await open_store(database.service_url)
    assert successor.cluster.version == given.result["mapVersion"] < newest(auditor)
    assert successor.cluster == store.cluster
    assert_shown(successor, auditor)
    # The first one's session has ended: what it still plans is never shown.
    shown = store.cluster
    with pytest.raises(LedgerUnavailable):
        await store.commit([give(OTHER, shards=ALL[5:])], AT)
    assert store.cluster is shown
    assert (await one(successor, give(OTHER, shards=ALL[5:]))).error is None
    assert_shown(successor, auditor)
    await store.close()
    await successor.close()
