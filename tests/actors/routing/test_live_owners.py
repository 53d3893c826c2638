"""The map of shards as a replica follows it, and the channels and polls that it keeps by it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from actors.gateway.gateway import Gateway
from actors.routing.live_owners import LiveOwners
from actors.routing.publishes import publish_once
from actors.transport.ledger_route import LedgerRoute
from actors.transport.messages import Moved, WatchReply, WorkflowEnd
from actors.transport.wire import ENDS
from core.errors import ErrorCode
from core.settings import Settings
from core.shards.lease_messages import HeldShard, Lease, MemberState, MemberView
from tests.actors.gateway.maps import lease, member
from tests.actors.gateway.served import (
    ID,
    LOST,
    OTHER,
    OWNER,
    STORED,
    Leases,
    Lost,
    Owner,
    gateway_of,
    members_of,
    request,
)
from tests.actors.transport.listening import listening
from tests.platform.waiting import until

MOVED = Moved(ErrorCode.OVERLOADED, "the shard is another's", retry_after_s=1)


async def test_map_is_asked_for_and_a_publish_finds_its_owner(tmp_path: Path) -> None:
    """Only the version is asked for of a map that is known."""
    async with (
        Leases(lease(members_of(OWNER), map_version=7)).listening(tmp_path) as leases,
        Owner([STORED]).listening(tmp_path, OWNER),
        gateway_of(tmp_path) as gateway,
    ):
        gateway.owners.follow()
        assert await gateway.publish(request()) == STORED
        await until(lambda: len(leases.renewals) >= 2)
    assert {one.member for one in leases.renewals} == {""}
    assert [one.map_version for one in leases.renewals[:2]] == [0, 7]


@pytest.mark.parametrize("answer", [MOVED, LOST], ids=["moved", "failed call"])
async def test_map_is_asked_for_at_once_when_a_request_misses_its_owner(
    tmp_path: Path, answer: Moved | Lost
) -> None:
    """The map is a second old otherwise; here it would be an hour old."""
    both = members_of(OWNER, OTHER)
    leases = Leases(lease(both, [OWNER]))
    settings = Settings(run_folder=str(tmp_path), database_url="postgresql://")
    route = LedgerRoute(settings)
    renew = route.renewals()
    owners = LiveOwners(settings, lambda *_: None, renew, machine="here", map_refresh_s=3_600)
    async with (
        leases.listening(tmp_path),
        Owner([answer]).listening(tmp_path, OWNER) as former,
        Owner([STORED]).listening(tmp_path, OTHER),
    ):
        owners.follow()
        await until(lambda: not owners.map.unheld)
        leases.lease = lease(members_of(OTHER), map_version=2)
        asked = len(leases.renewals)
        async with asyncio.timeout(30):
            assert await publish_once(owners, request(), 25.0) == STORED
            await until(lambda: len(leases.renewals) > asked)
        assert former.calls
        await until(lambda: owners.holder(ID) == member(OTHER))
        owners.close()
        await route.close()


async def test_wait_for_a_change_ends_with_it(tmp_path: Path) -> None:
    """Loads alone, which change each second, are none."""
    async with gateway_of(tmp_path, *members_of(OWNER)) as gateway:
        for change in (
            lease(members_of(OWNER), map_version=2),
            Lease(
                is_known=True,
                map_version=2,
                members=(member(OWNER, state=MemberState.DRAINING),),
            ),
        ):
            waiting = asyncio.create_task(gateway.owners.wait_change(3_600))
            await asyncio.sleep(0)
            loads = [replace(one, load=9) for one in gateway.owners.map.live.values()]
            version = gateway.owners._map_version
            gateway.owners.use_lease(
                Lease(is_known=True, map_version=version, members=tuple(loads))
            )
            for _ in range(5):
                await asyncio.sleep(0)
            assert not waiting.done()
            gateway.owners.use_lease(change)
            async with asyncio.timeout(30):
                await waiting


async def test_last_map_stays_in_use_while_the_ledger_is_away(tmp_path: Path) -> None:
    async with (
        Leases(lease(members_of(OWNER))).listening(tmp_path) as leases,
        Owner([STORED]).listening(tmp_path, OWNER),
        gateway_of(tmp_path) as gateway,
    ):
        gateway.owners.follow()
        await until(lambda: not gateway.owners.map.unheld)
        leases.lease = None
        away = len(leases.renewals)
        await until(lambda: len(leases.renewals) > away + 1)
        assert await gateway.publish(request()) == STORED


async def test_answer_without_shards_changes_members_alone(tmp_path: Path) -> None:
    """The ledger does not send a map again that is known; states and loads it does."""
    async with gateway_of(tmp_path, *members_of(OWNER)) as gateway:
        draining = [member(OWNER, state=MemberState.DRAINING, load=5)]
        told = lease(draining)
        gateway.owners.use_lease(Lease(is_known=True, map_version=1, members=told.members))
        assert gateway.owners.holder(ID) == draining[0]
        assert gateway.owners.place(ID) is None


async def test_map_of_another_version_without_its_shards_is_asked_for_whole(tmp_path: Path) -> None:
    told = lease(members_of(OWNER))
    bare = Lease(is_known=True, map_version=9, members=told.members)
    async with (
        Leases(told).listening(tmp_path) as leases,
        gateway_of(tmp_path) as gateway,
    ):
        gateway.owners.follow()
        await until(lambda: not gateway.owners.map.unheld)
        leases.lease = bare
        asked = len(leases.renewals)
        await until(lambda: 0 in [one.map_version for one in leases.renewals[asked:]])


async def test_map_of_other_than_all_shards_is_refused(tmp_path: Path) -> None:
    told = lease(members_of(OTHER), map_version=2)
    short = Lease(
        is_known=True,
        map_version=2,
        members=told.members,
        shards=(HeldShard(OTHER, 1),),
    )
    async with gateway_of(tmp_path, *members_of(OWNER)) as gateway:
        with pytest.raises(ValueError, match="1 shards"):
            gateway.owners.use_lease(short)
        assert gateway.owners.holder(ID) == member(OWNER)


async def test_call_to_a_member_that_lives_no_more_is_given_up(tmp_path: Path) -> None:
    """A machine that has lost its power answers nothing; the shard's new holder does."""
    silent = asyncio.Event()

    async def never(bodies: list[bytes]) -> list[bytes]:
        silent.set()
        await asyncio.Event().wait()
        return bodies

    server = await listening(tmp_path, OWNER, {"handle": never})
    assert server is not None
    async with (
        Owner([STORED]).listening(tmp_path, OTHER) as owner,
        gateway_of(tmp_path, *members_of(OWNER)) as gateway,
    ):
        publishing = asyncio.create_task(gateway.publish(request()))
        async with asyncio.timeout(30):
            await silent.wait()
            dead = member(OWNER, is_live=False)
            gateway.owners.use_lease(lease([dead, member(OTHER)], [OWNER], map_version=2))
            assert not owner.calls, "whether it is stored is open, so its id stays"
            gateway.owners.use_lease(lease(members_of(OTHER), map_version=3))
            assert await publishing == STORED
        assert [one.workflow_id for one in owner.requests] == [ID]
    await server.close()


@pytest.mark.parametrize("is_asked", [True, False], ids=["request", "poll"])
async def test_new_workflows_avoid_a_member_whose_process_has_ended(
    tmp_path: Path, *, is_asked: bool
) -> None:
    """Each publish after an owner's end waited for its shards to be taken, 4 s."""
    far = member(OTHER, machine="there", load=1_000_000)
    async with (
        Owner([LOST, STORED]).listening(tmp_path, OWNER) as owner,
        Owner([STORED]).listening(tmp_path, OTHER) as other,
        gateway_of(tmp_path) as gateway,
    ):
        gateway.owners.use_lease(lease([member(OWNER), far]))
        if is_asked:
            assert await gateway.publish(request()) == STORED
            assert not other.calls
        else:
            await until(lambda: owner.polls)
            owner.cut()

        def holder() -> MemberView | None:
            placed = gateway.owners.place(ID)
            return None if placed is None else gateway.owners.holder(placed)

        await until(lambda: holder() == far)


@pytest.mark.parametrize("state", [MemberState.READY, MemberState.DRAINING])
async def test_ends_are_heard_from_every_live_member_by_its_address(
    tmp_path: Path, state: MemberState
) -> None:
    """Also of a process that was started anew at the same address."""
    end = WorkflowEnd(
        workflow_id=ID, created_ms=1, started_ms=1, completed_ms=2, spent_micro=0, nodes=()
    )

    class Ending(Owner):
        async def finished(self, watcher: str) -> dict[str, bytes | None]:
            return {ID: ENDS.encode(end)} if self.calls else await super().finished(watcher)

    async with gateway_of(tmp_path) as gateway:
        owner = Ending([WatchReply()])
        owner.calls.append([])
        async with owner.listening(tmp_path, "address"):
            former = member("m-1", address="address", is_live=False)
            successor = member("m-2", address="address", state=state)
            with gateway._ends.awaited(ID) as told:
                gateway.owners.use_lease(lease([former, successor], ["m-2"]))
                async with asyncio.timeout(30):
                    assert (await told).told == end


async def test_a_map_counts_the_shards_that_no_live_owner_holds(tmp_path: Path) -> None:
    settings = Settings(run_folder=str(tmp_path), database_url="postgresql://")
    gateway = Gateway(settings, "here")
    unheld: list[int] = []
    dead = member("dead", is_live=False)
    for one in (lease(members_of(OWNER)), lease([member(OWNER), dead], map_version=2)):
        gateway.owners.use_lease(one)
        unheld.append(gateway.owners.map.unheld)
    await gateway.close()
    assert unheld == [0, 128]
