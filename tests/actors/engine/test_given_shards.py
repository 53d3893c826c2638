"""What an owner does with its shards besides driving them: when it gives them, what it drops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from actors.dispatch.remote_dispatch import OwnerCalls
from actors.engine.owner import Owner
from actors.process.at_work import AtWork
from actors.process.slices import SLICE_MS
from actors.transport.actor_calls import is_unknown_outcome
from actors.transport.ledger_client import LedgerClient
from actors.workflows.running_workflow import RunnerStatistics
from core.settings import Settings
from core.shards.lease_messages import Lease, MemberState, Renewal
from core.workflow.events import Event, WorkStarted
from ledger.writer.store import boot_time_ms
from tests.actors.engine.runner_bench import FIRST, SHARD
from tests.actors.gateway.maps import member
from tests.actors.orders import order_to


class Idle:
    """Stands for a runner, and for its shards, that drives no workflow."""

    def __init__(self) -> None:
        self.shards = self
        self.drops: Iterable[None] = ()

    def statistics(self) -> RunnerStatistics:
        """Return counters of nothing."""
        return RunnerStatistics(0, 0)

    def drop(self, shards: Collection[int], *, is_told: bool) -> Iterable[None]:
        """Do nothing, or what the test says."""
        return self.drops


class Scans:
    """Stands for a restorer."""

    is_scanning = False

    def is_restoring_shard(self, shard: int) -> bool:
        """Say no."""
        return False

    async def close(self) -> None:
        """Do nothing."""


class Recipient:
    """An owner without a database."""

    def __init__(self, owner: Owner) -> None:
        self.owner, self.scans = owner, Scans()
        made: Any = owner
        made._runner = self.shards = Idle()
        made._restorer = self.scans
        self.owner.members_changed([member(n) for n in ("giver", "other")])

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
        owner_calls=lambda _: OwnerCalls(taken),
        on_lost=lambda _: None,
        at_work=AtWork(),
    )
    yield Recipient(owner)
    owner.members_changed([])
    await owner.close()


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
    recipient.owner.held.add(SHARD, 5)
    recipient.owner.children = Children()
    assert not recipient.owner.may_give(SHARD)
    assert recipient.owner.may_give(SHARD + 1)
    recipient.owner.children = None
    assert recipient.owner.may_give(SHARD)


async def test_a_draining_member_gets_no_orders_of_others(recipient: Recipient) -> None:
    """With `dispatch = spread` it would never have ended its calls."""
    draining = member("giver", state=MemberState.DRAINING)
    takers = recipient.owner.remote_dispatch._takers
    assert "giver" in takers("did:x:a")
    recipient.owner.members_changed([draining])
    assert takers("did:x:a") == []


async def test_a_drained_member_has_no_part_in_the_concurrency_of_agents(
    recipient: Recipient,
) -> None:
    """Half of each agent's places stayed with a machine that had no work."""
    own = recipient.owner.held.member
    ready = member(own)
    drains = replace(ready, member="giver", address="giver", state=MemberState.DRAINING)
    shares = recipient.owner._shares
    recipient.owner.members_changed([ready, drains])
    while_it_drains = shares.own("did:x:a")
    recipient.owner.members_changed([ready, replace(drains, is_drained=True)])
    assert (shares.own("did:x:a"), shares.owners) == (2 * while_it_drains, (own,))


async def test_orders_of_lost_shards_are_not_sent_while_they_are_being_ended(
    recipient: Recipient,
) -> None:
    """A member that was suspended has its lease again, and hears what it has lost meanwhile."""
    made: Any = recipient.owner
    made._shares.set_owners([made.held.member])
    nobody = "http://127.0.0.1:1"
    lost, kept = (order_to(nobody, workflow_id=FIRST, node=node) for node in ("lost", "kept"))
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
