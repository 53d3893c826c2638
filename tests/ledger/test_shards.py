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
from ledger.features.shards import MEMBERS_MAX, ChangeMember
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.making import (
    AT,
    CREDIT,
    MEMBER,
    PAYER,
    Flow,
    NextWriter,
    ToldLives,
    deposit,
    errors,
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


async def test_predecessor_at_the_address_is_gone_with_its_last_shard(
    database: Database, auditor: Auditor
) -> None:
    """At once without shards, else when they are taken; so its place is not taken for good."""
    lives = ToldLives()
    store = await open_with_member(database.service_url, lives=lives)
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
    store: LedgerStore, next_writer: NextWriter
) -> None:
    """They joined in the same millisecond; neither the order of ids nor that of rows tells."""
    await store.commit([join("a later one", address=f"address of {MEMBER}")], AT)
    store = await next_writer()
    assert store.cluster.replaced() == {MEMBER}


async def test_members_are_bounded_and_those_that_have_expired_make_room(
    database: Database, auditor: Auditor
) -> None:
    lives = ToldLives()
    store = await open_with_member(database.service_url, lives=lives)
    names = [f"m{number}" for number in range(1, MEMBERS_MAX)]
    assert set(await errors(store, *(join(name) for name in names))) == {None}
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


async def test_last_member_that_is_ready_and_lives_does_not_drain(
    database: Database, auditor: Auditor
) -> None:
    lives = ToldLives()
    store = await open_with_member(database.service_url, lives=lives)
    drain = change(MEMBER, MemberState.DRAINING)
    assert (await one(store, drain)).error is ErrorCode.CONFLICT
    await store.commit([join(OTHER)], AT)
    lives.ended = {OTHER}
    assert (await one(store, drain)).error is ErrorCode.CONFLICT, "the other does not live"
    lives.ended = set()
    both = [drain, change(OTHER, MemberState.DRAINING)]
    assert await errors(store, *both) == [None, ErrorCode.CONFLICT]
    assert (state_of(auditor), state_of(auditor, OTHER)) == ("draining", "ready")
    assert_shown(store, auditor)
    await store.close()


@pytest.mark.parametrize("is_taken", [False, True], ids=["in time", "after its shards were taken"])
async def test_member_that_starts_where_one_drained_drains_until_it_is_resumed(
    database: Database, auditor: Auditor, is_taken: bool
) -> None:
    lives = ToldLives()
    store = await open_with_member(database.service_url, lives=lives)
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


async def test_member_that_holds_shards_is_not_gone(store: LedgerStore, auditor: Auditor) -> None:
    ended = change(MEMBER, MemberState.GONE)
    refused = await one(store, ended)
    assert refused.error is ErrorCode.CONFLICT
    assert "holds shards" in refused.detail
    # Who drains gives everything first, and then says that it has ended: under the same key.
    await store.commit([join(OTHER), change(MEMBER, MemberState.DRAINING)], AT)
    await store.commit([give(OTHER)], AT)
    assert state_of(auditor) == "draining", "it still carries what it handed over"
    assert (await one(store, ended)).error is None
    assert state_of(auditor) == "gone"
    late = await one(store, change(MEMBER, MemberState.READY))
    assert late.error is ErrorCode.CONFLICT, "nobody comes back"
    unknown = await one(store, change("nobody", MemberState.GONE))
    assert unknown.error is ErrorCode.NOT_FOUND
    assert_shown(store, auditor)


# -- taking ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shards", [(), ((-1, 0),), ((0, 0), (256, 0)), tuple((0, epoch) for epoch in range(257))]
)
async def test_shards_that_there_are_not_are_refused(
    store: LedgerStore, auditor: Auditor, shards: tuple[tuple[int, int], ...]
) -> None:
    """A negative number would name one from the end of a list."""
    await store.commit([join(OTHER)], AT)
    refused = await errors(
        store, replace(take(OTHER), shards=shards), replace(give(OTHER), shards=shards)
    )
    assert refused == [ErrorCode.INVALID_REQUEST] * 2
    assert rows_of(auditor) == dict.fromkeys(ALL, (MEMBER, 1))


# -- giving ----------------------------------------------------------------------------------------


# -- the fence -------------------------------------------------------------------------------------


def commands_of(flow: Flow) -> list[Any]:
    """Return a command of each kind that a workflow's member sends."""
    return [
        flow.publish(key=new_key()),
        flow.pay(CREDIT, key=new_key()),
        replace(resume(flow), member=flow.member),
        end_bidding(flow),
    ]


async def test_command_of_a_shard_that_another_holds_leaves_no_trace(
    store: LedgerStore, auditor: Auditor
) -> None:
    flow = Flow()
    shard = shard_of(flow.id)
    await store.commit([flow.publish(), join(OTHER), join(THIRD)], AT)
    await store.commit([give(OTHER, shards=[shard])], AT)
    before = newest(auditor)
    # Each epoch and each member but the pair that holds it.
    pairs = [(MEMBER, 1), (MEMBER, 2), (OTHER, 1), (OTHER, 3), ("", 0)]
    for member, shard_epoch in pairs:
        late = Flow(shard_epoch, id=flow.id, member=member)
        outcomes = await store.commit(commands_of(late), AT)
        assert {outcome.status for outcome in outcomes} == {OutcomeStatus.STALE}, member
        assert {str(outcome.result) for outcome in outcomes} == {"{}"}
    assert newest(auditor) == before
    # The successor's outcome is not the predecessor's own, under the same key.
    repeated = await one(store, Flow(id=flow.id).publish())
    assert repeated.status is OutcomeStatus.STALE
    current = Flow(2, id=flow.id, member=OTHER)
    assert (await one(store, current.pay(CREDIT))).status is OutcomeStatus.APPLIED
    # Without records a step's key is looked up first.
    assert (await one(store, current.advance(key="same"))).status is OutcomeStatus.APPLIED
    assert (await one(store, flow.advance(key="same"))).status is OutcomeStatus.STALE
    # What the member holds besides it drives on.
    kept = Flow(id=id_in_shard(new_id(), (shard + 1) % SHARDS))
    assert (await one(store, kept.publish())).status is OutcomeStatus.APPLIED


async def test_free_shard_takes_no_commands(empty_store: LedgerStore) -> None:
    """Not even of the member without a name and of epoch 0, which its row has."""
    await empty_store.commit([join(), deposit(100 * CREDIT)], AT)
    nameless = await one(empty_store, Flow(0, member="").publish())
    assert nameless.status is OutcomeStatus.STALE


async def test_stale_step_that_cannot_be_stored_quarantines_nothing(
    store: LedgerStore, auditor: Auditor
) -> None:
    """The ledger refuses it alone: whose workflow it is, is asked before that."""
    flow = Flow()
    await store.commit([flow.publish(), join(OTHER)], AT)
    await store.commit([give(OTHER, shards=[shard_of(flow.id)])], AT)
    refused = await store.refuse(flow.pay(CREDIT), AT, is_slow=False)
    assert refused.status is OutcomeStatus.STALE
    assert auditor.one("SELECT quarantine_code FROM workflow") is None


# -- rolled back, and read again -------------------------------------------------------------------


async def test_batch_that_is_rolled_back_leaves_map_and_epochs_as_they_were(
    store: LedgerStore, auditor: Auditor
) -> None:
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


async def test_next_writer_knows_the_map_and_its_version(
    database: Database, auditor: Auditor
) -> None:
    store = await open_with_member(database.service_url)
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
