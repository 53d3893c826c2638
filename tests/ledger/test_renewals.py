"""Renewals are answered from what is committed, and only by the ledger's one writer."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from msgspec.structs import replace

from core.errors import ErrorCode, ServiceError
from core.shards.lease_messages import HeldShard, Lease, MemberState, Renewal
from core.shards.leases import FIRST_LEASE_MS, LEASE_MS, PROOF_MS, STARVED_MS
from core.shards.shard import SHARDS
from ledger.commands import OutcomeStatus
from ledger.features.shards import ChangeMember
from ledger.writer.group_commit import GroupCommit
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.making import (
    AT,
    GENESIS,
    MEMBER,
    Flow,
    deposit,
    give,
    hold_all,
    join,
    new_key,
    take,
)
from tests.ledger.test_timeouts import frozen
from tests.ledger.writers import (
    DEADLINE_S,
    Clock,
    Start,
    disturb,
    insist,
    kill_backends,
    one,
    start_held,
    unavailable,
)
from tests.platform.waiting import until

pytestmark = pytest.mark.usefixtures("short_timeout")
OTHER, THIRD = "member-2", "member-3"
REFUSE = "RAISE EXCEPTION 'no' USING ERRCODE = '23514'"


def pass_ms(clock: Clock, ms: int, commits: GroupCommit, *alive: str) -> None:
    """Let time pass, in which these members renew as they should."""
    for _ in range(ms // 500):
        clock.now_ms += 500
        for member in alive:
            note(commits, member)


def note(commits: GroupCommit, member: str = MEMBER) -> None:
    """Let a member renew, whether it is acknowledged or not."""
    with suppress(ServiceError):
        commits.renew([Renewal(member=member)])


def renewed(commits: GroupCommit, member: str = MEMBER, *, load: int = 0, known: int = 0) -> Lease:
    (lease,) = commits.renew([Renewal(member=member, load=load, map_version=known)])
    return lease


def asked(commits: GroupCommit) -> Lease:
    """Return the map, as a replica asks for it."""
    return renewed(commits, "")


async def acknowledged(commits: GroupCommit, member: str = MEMBER) -> Lease:
    """Return the lease once it is acknowledged again."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return renewed(commits, member)
            except ServiceError:
                await asyncio.sleep(0.01)


def told(lease: Lease) -> Lease:
    """Return what a lease says of members and shards, whatever else is committed meanwhile."""
    return replace(lease, audit_id=0)


def live(lease: Lease) -> dict[str, bool]:
    return {view.member: view.is_live for view in lease.members}


async def test_member_hears_its_shards_and_the_others(start: Start) -> None:
    commits, _ = await start_held(start)
    joined = await one(commits, join(OTHER))
    leases = commits.renew([Renewal(member=MEMBER, load=7), Renewal(member=OTHER, load=1)])
    assert leases[0] == leases[1]
    lease = leases[0]
    assert lease.is_known
    assert lease.map_version == joined.result["mapVersion"]
    assert lease.shards == (HeldShard(MEMBER, 1),) * SHARDS
    first, second = lease.members
    assert (first.member, first.load, first.is_live) == (MEMBER, 7, True)
    assert (first.machine, first.address, first.version, first.state) == (
        "machine", f"address of {MEMBER}", "1", MemberState.READY
    )  # fmt: skip
    assert (second.member, second.load) == (OTHER, 1)


async def test_open_calls_are_told_and_who_is_resumed_is_not_drained(start: Start) -> None:
    commits, _ = await start_held(start, OTHER)

    async def change(state: MemberState) -> None:
        command = ChangeMember(key=new_key(), actor_did="", member=OTHER, state=state)
        assert (await one(commits, command)).error is None

    await change(MemberState.DRAINING)
    commits.renew([Renewal(member=OTHER, open_calls=3)])
    view = asked(commits).members[1]
    assert (view.member, view.open_calls, view.is_drained) == (OTHER, 3, False)
    commits.renew([Renewal(member=OTHER, is_drained=True)])
    view = asked(commits).members[1]
    assert (view.open_calls, view.is_drained) == (0, True)
    await change(MemberState.READY)
    assert not asked(commits).members[1].is_drained, "it said so before it was resumed"


async def test_map_that_is_known_is_not_sent_again(start: Start) -> None:
    commits = await start()
    fresh = renewed(commits, "")
    assert (fresh.map_version, len(fresh.shards)) == (0, SHARDS), "0: no map is known"
    await hold_all(commits)
    version = renewed(commits).map_version
    same = renewed(commits, known=version)
    assert (same.map_version, same.shards) == (version, ())
    assert live(same) == {MEMBER: True}, "members and their loads are always sent"
    await commits.submit([deposit(1)])
    assert renewed(commits, known=version).shards == (), "nothing of the map has changed"
    await one(commits, join(OTHER))
    given = await one(commits, give(OTHER, shards=[3]))
    newer = renewed(commits, known=version)
    assert newer.map_version == given.result["mapVersion"] > version
    assert newer.shards[3] == HeldShard(OTHER, 2)
    assert len(newer.shards) == SHARDS


async def test_question_without_a_member_renews_nothing(start: Start, clock: Clock) -> None:
    commits, _ = await start_held(start)
    lease = asked(commits)
    assert (lease.is_known, live(lease)) == (True, {MEMBER: True})
    pass_ms(clock, LEASE_MS + 500, commits, "")
    await one(commits, deposit(1))
    assert live(asked(commits)) == {MEMBER: False}


async def test_member_that_is_unknown_or_gone_must_end(start: Start) -> None:
    commits = await start()
    assert not renewed(commits, "nobody").is_known
    await one(commits, join())
    assert renewed(commits).is_known
    await one(
        commits,
        ChangeMember(key=new_key(), actor_did="", member=MEMBER, state=MemberState.GONE),
    )
    lease = renewed(commits)
    assert (lease.is_known, lease.members) == (False, ())


async def test_expired_lease_lets_others_take_and_is_renewed_while_its_shards_stand(
    start: Start, clock: Clock
) -> None:
    commits, epoch = await start_held(start, OTHER, THIRD)
    # As long as the lease lasts nothing is taken.
    pass_ms(clock, LEASE_MS, commits, OTHER, THIRD)
    assert (await one(commits, take(OTHER, epoch=epoch))).result["taken"] == {}
    pass_ms(clock, 500, commits, OTHER, THIRD)
    assert live(asked(commits)) == {MEMBER: False, OTHER: True, THIRD: True}
    assert (await one(commits, take(OTHER, epoch=epoch, shards=[1]))).result["taken"] == {"1": 2}
    late = renewed(commits)
    assert (late.is_known, late.shards[1].member, late.shards[0].member) == (True, OTHER, MEMBER)
    assert (await one(commits, take(OTHER, epoch=epoch, shards=[2]))).result["taken"] == {}
    # With the last of its shards it is gone.
    pass_ms(clock, LEASE_MS + 500, commits, OTHER, THIRD)
    await one(commits, take(OTHER, epoch=epoch))
    assert not renewed(commits).is_known


async def test_when_most_members_fall_silent_at_once_none_is_taken_from_for_long(
    start: Start, clock: Clock
) -> None:
    commits, epoch = await start_held(start, OTHER, THIRD)
    pass_ms(clock, LEASE_MS + 500, commits, OTHER)
    command = take(OTHER, epoch=epoch)
    assert (await one(commits, command)).result["taken"] == {}
    assert all(live(asked(commits)).values())
    pass_ms(clock, STARVED_MS - LEASE_MS, commits, OTHER)
    assert len((await one(commits, command)).result["taken"]) == SHARDS


async def test_successor_ends_its_predecessors_lease_as_it_is_committed(start: Start) -> None:
    commits, epoch = await start_held(start)
    assert (await one(commits, join(OTHER))).error is None
    successor = join(THIRD, address=f"address of {MEMBER}")
    # In one batch with its join nothing is taken yet: it is not committed.
    _, early = await commits.submit([successor, take(THIRD, epoch=epoch)])
    assert early.error is ErrorCode.FORBIDDEN
    lease = renewed(commits)
    assert (lease.is_known, live(lease)[MEMBER]) == (False, False)
    assert lease.shards[0] == HeldShard(MEMBER, epoch)
    taken = await one(commits, take(THIRD, epoch=epoch))
    assert len(taken.result["taken"]) == SHARDS
    assert live(asked(commits)) == {OTHER: True, THIRD: True}


async def test_join_that_is_rolled_back_ends_no_lease(start: Start, auditor: Auditor) -> None:
    commits, _ = await start_held(start)
    before = renewed(commits)
    disturb(auditor, REFUSE, "BEFORE INSERT ON member", f"NEW.id = '{OTHER}'")
    refused, fine = await commits.submit([join(OTHER, address=f"address of {MEMBER}"), deposit(1)])
    assert (refused.error, fine.error) == (ErrorCode.INTERNAL_ERROR, None)
    assert told(renewed(commits)) == told(before)
    assert not renewed(commits, OTHER).is_known


async def test_take_that_is_rolled_back_leaves_leases_and_map_as_they_were(
    start: Start, clock: Clock, auditor: Auditor
) -> None:
    """Its batch is divided, because another command of it is guilty; it is committed later."""
    commits, epoch = await start_held(start, OTHER)
    pass_ms(clock, STARVED_MS + LEASE_MS, commits, OTHER)
    await one(commits, deposit(1))
    before = renewed(commits, OTHER)
    assert live(before) == {MEMBER: False, OTHER: True}
    disturb(auditor, REFUSE, "BEFORE UPDATE ON shard")
    command = take(OTHER, epoch=epoch)
    refused, fine = await commits.submit([command, deposit(1)])
    assert (refused.error, fine.error) == (ErrorCode.INTERNAL_ERROR, None)
    assert told(renewed(commits, OTHER)) == told(before)
    assert renewed(commits).is_known, "it was GONE in the plan alone"
    auditor.connection.execute("DROP TRIGGER disturbance ON shard")
    pass_ms(clock, STARVED_MS + LEASE_MS, commits, OTHER)
    await one(commits, deposit(1))
    assert len((await one(commits, command)).result["taken"]) == SHARDS


async def test_what_is_planned_and_not_committed_is_not_shown(
    start: Start, auditor: Auditor
) -> None:
    """The commit waits for a lock; what its plan has moved is not shown before it has ended."""
    commits, _ = await start_held(start, OTHER)
    before = renewed(commits)
    with auditor.connection.transaction():
        auditor.connection.execute("LOCK TABLE callboard.shard IN EXCLUSIVE MODE")
        moving = asyncio.create_task(
            commits.submit([give(OTHER), join(THIRD, address=f"address of {MEMBER}")])
        )
        await until(lambda: auditor.one("SELECT count(*) FROM pg_locks WHERE NOT granted"))
        assert renewed(commits) == before
        assert not renewed(commits, THIRD).is_known
    given, joined = await moving
    assert (given.error, joined.error) == (None, None)
    after = asked(commits)
    assert after.map_version == joined.result["mapVersion"]
    assert live(after) == {OTHER: True, THIRD: True}
    assert after.shards[0] == HeldShard(OTHER, 2)


async def test_member_is_not_acknowledged_while_a_take_from_it_may_be_committed(
    start: Start, clock: Clock, auditor: Auditor
) -> None:
    """It had expired when the Take was planned: acknowledged now, it would send after the Take."""
    commits, epoch = await start_held(start, OTHER, THIRD)
    pass_ms(clock, LEASE_MS + 500, commits, OTHER, THIRD)
    with auditor.connection.transaction():
        auditor.connection.execute("LOCK TABLE callboard.shard IN EXCLUSIVE MODE")
        taking = asyncio.create_task(one(commits, take(OTHER, epoch=epoch, shards=[3])))
        await until(lambda: auditor.one("SELECT count(*) FROM pg_locks WHERE NOT granted"))
        with unavailable():
            renewed(commits)
        assert renewed(commits, THIRD).is_known
    assert (await taking).result["taken"] == {"3": epoch + 1}
    assert renewed(commits).shards[3].member == OTHER


async def test_ledger_acknowledges_nothing_while_postgres_is_silent(
    start: Start, clock: Clock, auditor: Auditor
) -> None:
    commits, epoch = await start_held(start, OTHER)
    with frozen(auditor, "callboard-ledger"):
        clock.now_ms += PROOF_MS
        renewed(commits)
        clock.now_ms += 1
        for member in (MEMBER, "", "nobody"):
            with unavailable():
                renewed(commits, member)
        # Both still call; that they are not answered is not their death.
        pass_ms(clock, 2 * STARVED_MS, commits, MEMBER, OTHER)
    lease = await acknowledged(commits)
    assert live(lease) == {MEMBER: True, OTHER: True}
    assert lease.shards[0] == HeldShard(MEMBER, epoch)
    await until(lambda: commits.statistics().is_open)
    assert (await one(commits, take(OTHER, epoch=epoch))).result["taken"] == {}


async def test_idle_writer_asks_whether_it_is_the_writer_still(start: Start, clock: Clock) -> None:
    commits, _ = await start_held(start)
    for _ in range(3):
        clock.now_ms += PROOF_MS + 1
        with pytest.raises(ServiceError):
            renewed(commits)
        await acknowledged(commits)
    assert commits.statistics().reopened == 0


async def test_busy_writer_asks_too_when_its_batches_prove_nothing(
    start: Start, clock: Clock
) -> None:
    """Repeats are answered by a look-up, which succeeds for a writer that is fenced off, too."""
    commits, _ = await start_held(start)
    command = deposit(1)
    await one(commits, command)
    clock.now_ms += PROOF_MS + 1
    assert (await one(commits, command)).status is OutcomeStatus.REPEATED
    renewed(commits)


async def test_writer_that_was_replaced_acknowledges_nothing_that_its_successor_takes(
    start: Start, clock: Clock
) -> None:
    first = await start()
    epoch = await hold_all(first)
    await first.hand_over()
    second = await start()
    # While the first may acknowledge a member, the second takes nothing from that member.
    renewed(first)
    await one(second, join(OTHER))
    await one(second, join(THIRD))
    pass_ms(clock, PROOF_MS + LEASE_MS, second, OTHER, THIRD)
    assert clock.now_ms <= 1_000_000 + FIRST_LEASE_MS
    assert (await one(second, take(OTHER, epoch=epoch))).result["taken"] == {}
    with unavailable():
        renewed(first)
    pass_ms(clock, 500, second, OTHER, THIRD)
    assert len((await one(second, take(OTHER, epoch=epoch))).result["taken"]) == SHARDS


async def test_every_taking_of_the_head_grants_first_leases(
    start: Start, clock: Clock, auditor: Auditor
) -> None:
    """Another writer may have been between, and whom that one has renewed may send."""
    commits, epoch = await start_held(start, OTHER, THIRD)
    pass_ms(clock, LEASE_MS, commits, OTHER, THIRD)
    kill_backends(auditor)
    await insist(commits, deposit(1))
    assert commits.statistics().reopened == 1
    pass_ms(clock, FIRST_LEASE_MS - 500, commits, OTHER, THIRD)
    assert (await one(commits, take(OTHER, epoch=epoch))).result["taken"] == {}
    pass_ms(clock, 1_000, commits, OTHER, THIRD)
    assert len((await one(commits, take(OTHER, epoch=epoch))).result["taken"]) == SHARDS


async def test_join_whose_outcome_was_lost_is_known_when_the_ledger_is_read_again(
    start: Start, auditor: Auditor
) -> None:
    """Committed by a connection that broke before it said so: read, it grants and ends leases."""
    commits, epoch = await start_held(start)
    auditor.connection.execute(
        "INSERT INTO member VALUES (%s, 'machine', %s, '1', 'ready', %s)",
        (OTHER, f"address of {MEMBER}", AT + 1),
    )
    kill_backends(auditor)
    await insist(commits, deposit(1))
    assert renewed(commits, OTHER).is_known
    assert not renewed(commits).is_known
    assert len((await one(commits, take(OTHER, epoch=epoch))).result["taken"]) == SHARDS


async def test_writer_that_has_not_begun_or_has_stopped_acknowledges_nothing(
    database: Database, start: Start
) -> None:
    commits = await start()
    renewed(commits, "")
    await commits.stop()
    for silent in (
        commits,
        GroupCommit(database.service_url, genesis=GENESIS, on_fatal=lambda _: None),
    ):
        with unavailable():
            renewed(silent, "")


async def test_workflow_goes_on_under_the_epoch_that_a_take_returned(start: Start) -> None:
    commits, epoch = await start_held(start)
    flow = Flow(epoch)
    await commits.submit([deposit(100_000_000), flow.publish()])
    await one(commits, join(OTHER, address=f"address of {MEMBER}"))
    await one(commits, take(OTHER, epoch=epoch))
    late, current = await commits.submit(
        [flow.pay(1), Flow(epoch + 1, id=flow.id, member=OTHER).pay(1, key=new_key())]
    )
    assert (late.status, current.status) == (OutcomeStatus.STALE, OutcomeStatus.APPLIED)
