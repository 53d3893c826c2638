"""What an owner does with shards that it is given: each is restored once, after its own hint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from typing import Any

import pytest

from actors.dispatch.handed_calls import HandedCall, HandedShard
from actors.dispatch.peer_messages import RETURNS, PeerCalls
from actors.engine.owner import Owner
from actors.ports import DispatchOrder
from actors.process.at_work import AtWork
from actors.process.slices import SLICE_MS
from actors.transport.actor_calls import is_unknown_outcome
from actors.transport.ledger_client import LedgerClient
from actors.workflows.handover import ReceivedHints
from actors.workflows.running_workflow import RunnerStatistics
from core.settings import Settings
from core.shards.lease_messages import HeldShard, Lease, MemberState, MemberView, Renewal
from core.workflow.events import Event, WorkStarted
from ledger.writer.boot_clock import boot_time_ms
from tests.actors.engine.runner_bench import FIRST, SHARD
from tests.actors.orders import sources_of

pytestmark = pytest.mark.anyio


class Idle:
    """Stands for a runner, and for its shards, that drives no workflow."""

    def __init__(self, owner: Owner) -> None:
        self.hints = ReceivedHints(owner.held)
        self.shards = self
        self.drops: Iterable[None] = ()

    def statistics(self) -> RunnerStatistics:
        """Return counters of nothing."""
        return RunnerStatistics(0, 0, 0, 0)

    def drop(self, shards: Collection[int]) -> Iterable[None]:
        """Do nothing, or what the test says."""
        return self.drops


class Scans:
    """Stands for a restorer whose scans end when the test says."""

    is_scanning = False

    def __init__(self) -> None:
        self.expected: set[int] = set()
        self.scans: list[asyncio.Future[None]] = []

    def expect(self, shards: Collection[int]) -> None:
        """As the restorer's."""
        self.expected.update(shards)

    def is_expecting(self, shard: int) -> bool:
        """As the restorer's."""
        return shard in self.expected

    def drop(self, shards: Collection[int]) -> None:
        """As the restorer's."""
        self.expected.difference_update(shards)

    def is_restoring_shard(self, shard: int) -> bool:
        """Say no."""
        return False

    def restore_shards(self, shards: Collection[int]) -> asyncio.Future[None]:
        """Begin a scan."""
        self.expected.difference_update(shards)
        self.scans.append(asyncio.get_running_loop().create_future())
        return self.scans[-1]

    async def close(self) -> None:
        """Do nothing."""


class Recipient:
    """An owner without a database, which is given a shard."""

    def __init__(self, owner: Owner) -> None:
        self.owner, self.scans = owner, Scans()
        made: Any = owner
        made._runner = self.shards = Idle(owner)
        made._restorer = self.scans
        self.owner.members_changed(
            [
                MemberView(member=n, machine="m", address=n, version="1", state=MemberState.READY)
                for n in ("giver", "other")
            ]
        )

    @property
    def calls(self) -> list[int]:
        """Return the numbers of the calls that are kept."""
        return list(self.owner.remote_dispatch._handed)

    def hear(self, epoch: int, serial: int, sender: str = "giver") -> None:
        """Receive the hint of a shard that was given under an epoch, with one call."""
        call = HandedCall(serial, FIRST, "a", 1, 0)
        handed = HandedShard(sender, SHARD, epoch, (call,), (), self.owner.held.member)
        self.owner.remote_dispatch.deliver([RETURNS.encode(handed)])

    async def hold(self, epoch: int) -> None:
        """Come to hold the shard, which another member has given."""
        self.owner.held.note_other(SHARD, HeldShard("giver", epoch - 1))
        self.owner.held.add(SHARD, epoch)
        self.owner.taken([SHARD], is_given=True)
        await self.turn()

    async def lose(self) -> None:
        """Lose the shard to another member."""
        self.owner.held.drop(SHARD)
        self.owner.lost([SHARD])
        await self.turn()

    async def turn(self) -> None:
        """Let everything go on that can."""
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
async def recipient() -> AsyncIterator[Recipient]:
    async def call(batch: list[bytes]) -> list[bytes]:
        raise AssertionError("no command is sent")

    async def no_lease(renewal: Renewal) -> Lease:
        raise ConnectionError("the ledger is away")

    async def taken(batch: Any) -> list[bool]:
        return [True] * len(batch)

    owner = Owner(
        "o",
        "machine",
        Settings(database_url="postgresql://"),
        ledger=LedgerClient(call, is_unknown_outcome, capacity=1, batch_size=1),
        renew=no_lease,
        peer_calls=lambda _: PeerCalls(taken, taken),
        on_lost=lambda _: None,
        at_work=AtWork(),
    )
    yield Recipient(owner)
    owner.members_changed([])
    await owner.close()


@pytest.mark.parametrize("is_early", [True, False], ids=["before the map", "after the map"])
async def test_a_given_shard_is_restored_when_its_hint_has_come(
    recipient: Recipient, *, is_early: bool
) -> None:
    if is_early:
        recipient.hear(4, serial=1)
    await recipient.hold(5)
    assert len(recipient.scans.scans) == is_early
    if not is_early:
        recipient.hear(4, serial=1)
        await recipient.turn()
    assert len(recipient.scans.scans) == 1
    assert recipient.shards.hints.awaited(FIRST) == {("a", 1, 0)}
    recipient.scans.scans[0].set_result(None)
    await recipient.turn()
    assert recipient.calls == [], "what no workflow has taken is ended"


async def test_a_hint_that_comes_after_its_shard_was_given_on_is_not_kept(
    recipient: Recipient,
) -> None:
    """It was taken for the hint of the next time that the shard was given to this member."""
    await recipient.hold(5)
    await recipient.lose()
    recipient.hear(4, serial=1)
    assert recipient.calls == []
    await recipient.hold(7)
    assert recipient.scans.scans == [], "its own hint is still to come"
    recipient.hear(6, serial=2)
    await recipient.turn()
    assert len(recipient.scans.scans) == 1
    assert recipient.calls == [2]


async def test_a_hint_of_a_shard_that_came_and_went_between_two_maps_is_forgotten(
    recipient: Recipient,
) -> None:
    recipient.hear(4, serial=1)
    assert recipient.calls == [1], "the map may not know of it yet"
    recipient.owner.held.note_other(SHARD, HeldShard("other", 6))
    recipient.owner.members_changed([])
    assert recipient.calls == []


async def test_a_shard_that_is_given_twice_during_one_scan_keeps_its_second_hint(
    recipient: Recipient,
) -> None:
    """The end of the first restore ended the calls of the second hint: agents were called again."""
    recipient.hear(4, serial=1)
    await recipient.hold(5)
    await recipient.lose()
    recipient.hear(6, serial=2)
    await recipient.hold(7)
    first, second = recipient.scans.scans
    first.set_result(None)
    await recipient.turn()
    assert recipient.calls == [2]
    assert recipient.shards.hints.awaited(FIRST) == {("a", 1, 0)}
    second.set_result(None)
    await recipient.turn()
    assert recipient.calls == []


async def test_a_shard_that_is_lost_before_its_hint_came_is_not_restored(
    recipient: Recipient,
) -> None:
    await recipient.hold(5)
    await recipient.lose()
    assert recipient.scans.scans == []
    assert not recipient.scans.expected


async def test_a_hint_of_the_next_time_comes_while_the_shard_is_still_held(
    recipient: Recipient,
) -> None:
    """This member has not heard yet that the shard was taken from it, and given to it again."""
    recipient.hear(4, serial=1)
    await recipient.hold(5)
    recipient.scans.scans[0].set_result(None)
    await recipient.turn()
    recipient.hear(6, serial=2)
    assert recipient.calls == [2]
    assert recipient.shards.hints.awaited(FIRST) == frozenset(), "of this epoch nothing is told"
    await recipient.lose()
    await recipient.hold(7)
    assert len(recipient.scans.scans) == 2


class Children:
    """One workflow's own process."""

    def drives(self, workflow_id: str) -> bool:
        """Implement `Children`."""
        return workflow_id == FIRST

    def works_in(self, shard: int) -> bool:
        """Implement `Children`."""
        return shard == SHARD

    def drop(self, shards: Collection[int]) -> None:
        """Implement `Children`."""
        raise AssertionError("nothing is lost")


async def test_a_shard_is_not_given_while_a_process_of_its_own_drives_a_workflow_of_it(
    recipient: Recipient,
) -> None:
    """It was ended before the Give was certain, and its agents were called again."""
    await recipient.hold(5)
    recipient.owner.children = Children()
    assert not recipient.owner.may_give(SHARD)
    assert recipient.owner.may_give(SHARD + 1)
    recipient.owner.children = None
    assert recipient.owner.may_give(SHARD)


async def test_a_draining_member_gets_no_orders_of_others(recipient: Recipient) -> None:
    """With `dispatch = spread` it would never have ended its calls."""
    draining = MemberView(
        member="giver", machine="m", address="giver", version="1", state=MemberState.DRAINING
    )
    takers = recipient.owner.remote_dispatch._takers
    assert "giver" in takers("did:x:a")
    recipient.owner.members_changed([draining])
    assert takers("did:x:a") == []


async def test_orders_of_lost_shards_are_not_sent_while_they_are_being_ended(
    recipient: Recipient,
) -> None:
    """A member that was suspended has its lease again, and hears what it has lost meanwhile."""
    made: Any = recipient.owner
    made._shares.set_owners([made.held.member])
    lost, kept = (order_to_nobody(node) for node in ("lost", "kept"))
    began: list[str] = []

    def receive(_: str, event: Event) -> None:
        if isinstance(event, WorkStarted):
            began.append(event.node)

    def end_orders() -> Iterator[None]:
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + 2 * SLICE_MS / 1_000
        while loop.time() < ends_s:  # other workflows' orders, for more than a slice
            pass
        yield
        made._dispatcher.cancel(lost)
        yield

    made.held.add(SHARD, 5)
    for order in (lost, kept):
        made._dispatcher.send(order, receive)
    await recipient.turn()
    assert began == [], "it has no lease"
    recipient.shards.drops = end_orders()
    made.membership._fence.acknowledge(boot_time_ms())
    made.held.drop(SHARD)
    made.lost([SHARD])
    made.unfenced()
    await recipient.turn()
    assert began == ["kept"]


def order_to_nobody(node: str) -> DispatchOrder:
    """Return an order to an address where nobody listens."""
    return DispatchOrder(
        workflow_id=FIRST,
        task_id="t",
        node=node,
        attempt=1,
        capability_id="cap.x.v1",
        agent_did="did:x:a",
        url="http://127.0.0.1:1/node",
        cancel_url="http://127.0.0.1:1/cancel",
        secret=None,
        timeout_ms=60_000,
        sources=sources_of(),
    )
