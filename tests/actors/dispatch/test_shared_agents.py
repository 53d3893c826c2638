"""Dispatchers of several members at one agent: real requests, renewals and leases, one process."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from actors.dispatch.dispatcher import Dispatcher
from actors.ports import DispatchOrder
from actors.process.at_work import AtWork
from actors.process.loop_clock import LoopClock
from actors.shards.held_shards import HeldShards
from actors.shards.membership import Membership
from core.settings import Settings
from core.shards.held_permits import HeldPermits
from core.shards.lease_messages import Lease, MemberState, MemberView, Renewal
from core.shards.permit_messages import PermitAnswer, PermitReport
from core.workflow.events import AttemptSucceeded, Event, WorkStarted
from federation.name_resolver import NameResolver
from ledger.commands import Command, Outcome
from ledger.shards.committed_cluster import CommittedCluster
from ledger.shards.member_leases import MemberLeases
from ledger.writer.boot_clock import boot_time_ms
from ledger.writer.state_cache import KnownMember
from tests.actors.orders import sources_of

pytestmark = pytest.mark.anyio

WORKFLOW = "0198c0de-0000-7000-8000-000000000001"
LIMIT = 4
DEADLINE_S = 60.0


class Agent:
    """Counts the requests that are open, by who sent them; they wait for `gate` or `end_one`."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.open_by: Counter[str] = Counter()
        self.open_max = 0
        self.order: list[str] = []
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def open_now(self) -> int:
        """Return how many requests are open."""
        return self.open_by.total()

    def end_one(self) -> None:
        """Answer the oldest request that is open."""
        self._waiting.popleft().set_result(None)

    async def serve(self, request: web.Request) -> web.Response:
        """Answer a dispatch after some turns of the loop."""
        name = (await request.json())["nodeId"][:2]
        self.open_by[name] += 1
        self.open_max = max(self.open_max, self.open_now)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(ended)
        opened = asyncio.ensure_future(self.gate.wait())
        await asyncio.wait([opened, ended], return_when=asyncio.FIRST_COMPLETED)
        opened.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        self.order.append(name)
        self.open_by[name] -= 1
        return web.json_response({"status": "success", "result": {}})


class Ledger:
    """The leases of members that are committed, with no shards."""

    def __init__(self) -> None:
        self.leases = MemberLeases(boot_time_ms)
        self.members: dict[str, KnownMember] = {}
        self.renewals = 0
        self.leases.begin(self.cluster(), 1)

    def cluster(self) -> CommittedCluster:
        """Return what is committed."""
        return CommittedCluster(1, dict(self.members), ())

    def join(self, name: str) -> None:
        """Register a member."""
        self.members[name] = KnownMember(name, name, "1", MemberState.READY, len(self.members))
        self.leases.follow(self.cluster())

    async def renew(self, renewal: Renewal) -> Lease:
        """Answer one renewal."""
        await asyncio.sleep(0)
        self.renewals += 1
        asked = [(renewal, self.leases.renew(renewal))]
        return self.leases.answers(asked, self.cluster(), epoch=1, audit_id=0)[0]


class Member:
    """One member: its dispatcher, permits and membership. Implements `ShardWork`."""

    def __init__(self, name: str, ledger: Ledger, url: str) -> None:
        self.name, self.url = name, url
        self.ended: list[Event] = []
        self.others = 0
        self.permits = HeldPermits(lambda _: LIMIT, lambda: self.membership.renew_soon())
        self.membership = Membership(
            HeldShards(name),
            self,
            renew=ledger.renew,
            commit=_no_commit,
            boot_ms=boot_time_ms,
            on_ended=pytest.fail,
        )
        self.dispatcher = Dispatcher(
            Settings(deployment_key="00" * 32),
            LoopClock(),
            begin=lambda _: None,
            note=lambda *_: None,
            names=NameResolver(),
            at_work=AtWork(),
            permits=self.permits,
            may_send=self.membership.may_send,
        )

    def send(self, count: int) -> None:
        """Send orders to the agent."""
        for number in range(count):
            order = order_of(f"{self.name}-{number}", self.url)
            self.dispatcher.send(order, lambda _, event: self._receive(event))

    def _receive(self, event: Event) -> None:
        if not isinstance(event, WorkStarted):
            self.ended.append(event)

    def load(self) -> int:
        """Implement `ShardWork`."""
        return 0

    def open_calls(self) -> int:
        """Implement `ShardWork`."""
        return self.dispatcher.open_calls

    def taken(self, shards: Sequence[int], *, is_given: bool) -> None:
        """Implement `ShardWork`."""

    def lost(self, shards: Sequence[int]) -> None:
        """Implement `ShardWork`."""

    def may_give(self, shard: int) -> bool:
        """Implement `ShardWork`."""
        return True

    async def settled(self, shard: int) -> None:
        """Implement `ShardWork`."""

    def given(self, shard: int, epoch: int, to: MemberView) -> None:
        """Implement `ShardWork`."""

    def thawed(self, shard: int) -> None:
        """Implement `ShardWork`."""

    def unfenced(self) -> None:
        """Implement `ShardWork`."""
        self.dispatcher.resume()

    def members_changed(self, members: Sequence[MemberView]) -> None:
        """Implement `ShardWork`."""
        self.others = len(members) - 1

    def permit_report(self) -> PermitReport:
        """Implement `ShardWork`."""
        return self.permits.report(self.dispatcher.loads, boot_time_ms())

    def permits_heard(self, report: PermitReport, answer: PermitAnswer) -> None:
        """Implement `ShardWork`."""
        self.dispatcher.wake(self.permits.hear(report, answer))

    def wants_permits(self) -> bool:
        """Implement `ShardWork`."""
        return self.permits.is_wanting


async def _no_commit(command: Command) -> Outcome:
    raise AssertionError(f"{command} is not sent: there are no shards")


def order_of(node: str, url: str) -> DispatchOrder:
    """Return an order to the agent."""
    return DispatchOrder(
        workflow_id=WORKFLOW,
        task_id="t",
        node=node,
        attempt=1,
        capability_id="cap.x.v1",
        agent_did="did:x:a",
        url=f"{url}/node",
        cancel_url=f"{url}/cancel",
        secret=None,
        timeout_ms=60_000,
        sources=sources_of(),
    )


async def wait(condition: Callable[[], bool]) -> None:
    """Return when the condition holds."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.01)


@dataclass
class Shared:
    """An agent, a ledger and the members at it."""

    agent: Agent
    ledger: Ledger
    url: str
    members: list[Member] = field(default_factory=list)

    def join(self) -> Member:
        """Let another member join and renew."""
        name = f"m{len(self.members)}"
        self.ledger.join(name)
        member = Member(name, self.ledger, self.url)
        self.members.append(member)
        member.membership.start()
        return member

    async def joined(self, count: int) -> list[Member]:
        """Return that many members, when they know each other."""
        members = [self.join() for _ in range(count)]
        await wait(lambda: all(one.others == count - 1 for one in self.members))
        return members


@asynccontextmanager
async def shared_agent() -> AsyncIterator[Shared]:
    """Run an agent, and members as they join."""
    agent = Agent()
    application = web.Application()
    application.router.add_post("/node", agent.serve)
    server = web.AppRunner(application, shutdown_timeout=0.1)
    await server.setup()
    await web.TCPSite(server, "127.0.0.1", 0).start()
    shared = Shared(agent, Ledger(), f"http://127.0.0.1:{server.addresses[0][1]}")
    try:
        yield shared
    finally:
        agent.gate.set()
        for member in shared.members:
            await member.membership.close()
            await member.dispatcher.close()
        await server.cleanup()


async def test_one_member_gets_all_of_an_agent_that_the_others_do_not_use() -> None:
    async with shared_agent() as shared:
        first, *_ = await shared.joined(3)
        first.send(40)
        await wait(lambda: shared.agent.open_now == LIMIT)
        shared.agent.gate.set()
        await wait(lambda: len(first.ended) == 40)
        assert {type(event) for event in first.ended} == {AttemptSucceeded}
        assert shared.agent.open_max == LIMIT


async def test_all_members_go_on_together_within_the_limit() -> None:
    async with shared_agent() as shared:
        first, *others = await shared.joined(3)
        first.send(200)
        await wait(lambda: shared.agent.open_now == LIMIT)
        for other in others:
            other.send(40)
        await wait(lambda: first.permits.allowed("did:x:a") < LIMIT - 1)
        for _ in range(LIMIT - 1):
            shared.agent.end_one()
        await wait(lambda: set(+shared.agent.open_by) == {"m0", "m1", "m2"})
        shared.agent.gate.set()
        await wait(lambda: sum(len(one.ended) for one in shared.members) == 280)
        assert shared.agent.open_max == LIMIT
        ended = [event for one in shared.members for event in one.ended]
        assert {type(event) for event in ended} == {AttemptSucceeded}


async def test_member_that_was_alone_shares_with_one_that_joins() -> None:
    async with shared_agent() as shared:
        (first,) = await shared.joined(1)
        first.send(20)
        await wait(lambda: shared.agent.open_now == LIMIT)
        second = shared.join()
        second.send(20)
        await wait(lambda: first.permits.allowed("did:x:a") == LIMIT // 2)
        assert (shared.agent.open_max, second.dispatcher.statistics().queued) == (LIMIT, 20)
        shared.agent.gate.set()
        await wait(lambda: len(first.ended) == len(second.ended) == 20)
        assert shared.agent.open_max == LIMIT


async def test_lone_member_renews_no_sooner_for_what_it_sends() -> None:
    async with shared_agent() as shared:
        (first,) = await shared.joined(1)
        await wait(first.membership.may_send)
        before = shared.ledger.renewals
        shared.agent.gate.set()
        first.send(100)
        assert "is_soon=False" in repr(first.membership._times)
        await wait(lambda: len(first.ended) == 100)
        assert not first.permits.is_wanting
        assert shared.ledger.renewals >= before


async def test_open_orders_that_are_not_sent_wait_for_new_permits_when_theirs_are_void() -> None:
    async with shared_agent() as shared:
        shared.agent.gate.set()
        member = Member("m0", shared.ledger, shared.url)
        shared.members.append(member)
        shared.ledger.join("m0")
        member.permits.hear(member.permit_report(), PermitAnswer(term=1))
        member.send(LIMIT + 1)
        assert member.dispatcher.statistics().in_flight == LIMIT, "open: it may send nothing yet"
        void = PermitAnswer(term=2, is_shared=True, is_void=True)
        member.permits.hear(member.permit_report(), void)
        member.dispatcher.withdraw_unsent()
        counts = member.dispatcher.statistics()
        assert (counts.in_flight, counts.queued) == (0, LIMIT + 1)
        member.permits.hear(member.permit_report(), PermitAnswer(term=3))
        member.membership.start()
        member.dispatcher.wake(["did:x:a"])
        await wait(lambda: len(member.ended) == LIMIT + 1)
        assert len(shared.agent.order) == LIMIT + 1, "each was sent once"
