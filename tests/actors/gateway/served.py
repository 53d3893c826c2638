"""Owners and a ledger that listen on real sockets, and a gateway without a database or Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from actors.gateway.gateway import Gateway
from actors.transport.ledger_client import ledger_unavailable_error
from actors.transport.messages import OwnerReply, OwnerRequest, PublishReply, PublishRequest
from actors.transport.names import LEDGER
from actors.transport.sockets import SocketServer
from actors.transport.wire import answer_renewals, answer_requests
from core.errors import ErrorCode, ServiceError
from core.settings import Settings
from core.shards.lease_messages import Lease, MemberView, Renewal
from tests.actors.gateway.maps import lease, member
from tests.actors.transport.listening import listening
from tests.simulation.shapes import CAPABILITIES, compiled

OWNER, OTHER, THIRD, FOURTH = "owner-1", "owner-2", "owner-3", "owner-4"
PAYER = "did:test:payer"
# In shard 0, which the first member of a map holds.
ID = "01890000-0000-7000-8000-000000000000"
STORED = PublishReply(workflow_id=ID, task_id="t", status="pending")
FULL = ServiceError(ErrorCode.OVERLOADED, "as many workflows run here as may", retry_after_s=1)


class Lost:
    """Stands for the answer to a call whose connection is lost before it is answered."""


LOST: Final = Lost()


class Owner:
    """Answers each call with the next of its answers, or raises it; repeats the last one."""

    def __init__(self, answers: Sequence[OwnerReply | Lost]) -> None:
        self.answers = list(answers)
        self.calls: list[list[OwnerRequest]] = []
        self.is_raising = False
        self.polls = 0
        self.server: SocketServer | None = None

    @property
    def requests(self) -> list[OwnerRequest]:
        """Return what it was asked, in order."""
        return [request for call in self.calls for request in call]

    async def handle(self, bodies: list[bytes]) -> list[bytes]:
        """Answer every request of a call alike."""
        return await answer_requests(self._answer, bodies)

    async def _answer(self, batch: list[OwnerRequest]) -> list[OwnerReply]:
        self.calls.append(batch)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Lost):
            self.cut()
            await asyncio.Event().wait()
            raise AssertionError("nothing is waited for that long")
        if self.is_raising and isinstance(answer, ServiceError):
            raise answer
        return [answer] * len(batch)

    def cut(self) -> None:
        """End every connection, as the end of a process does."""
        assert self.server is not None
        for connection in self.server._serving:
            connection.cancel()

    async def finished(self, watcher: str) -> dict[str, bytes | None]:
        """Tell of no end."""
        self.polls += 1
        await asyncio.Event().wait()
        return {}

    @asynccontextmanager
    async def listening(self, folder: Path, name: str) -> AsyncIterator[Owner]:
        """Listen at the place of the actor of this name."""
        methods = {"handle": self.handle, "handle_bulk": self.handle, "finished": self.finished}
        self.server = await listening(folder, name, methods)
        assert self.server is not None
        try:
            yield self
        finally:
            await self.server.close()


class Leases:
    """The ledger as far as replicas ask it: tells its lease, or is away when it has none."""

    def __init__(self, lease: Lease | None) -> None:
        self.lease = lease
        self.renewals: list[Renewal] = []

    async def renew(self, bodies: list[bytes]) -> list[bytes]:
        """Answer as the ledger's actor does."""
        return answer_renewals(self._grant, bodies)

    def _grant(self, renewals: list[Renewal]) -> list[Lease]:
        self.renewals += renewals
        if self.lease is None:
            raise ledger_unavailable_error()
        return [self.lease] * len(renewals)

    @asynccontextmanager
    async def listening(self, folder: Path) -> AsyncIterator[Leases]:
        """Listen at the ledger's place."""
        server = await listening(folder, LEDGER, {"renew": self.renew})
        assert server is not None
        try:
            yield self
        finally:
            await server.close()


@asynccontextmanager
async def gateway_of(folder: Path, *members: MemberView) -> AsyncIterator[Gateway]:
    """Make a gateway whose members hold the shards in turn; of none: it knows no map."""
    settings = Settings(run_folder=str(folder), database_url="postgresql://")
    gateway = Gateway(settings, "here")
    if members:
        gateway.owners.use_lease(lease(members))
    try:
        yield gateway
    finally:
        await gateway.close()


def members_of(*names: str) -> list[MemberView]:
    """Return live members that are READY."""
    return [member(name) for name in names]


def request(workflow_id: str = ID) -> PublishRequest:
    """Return a request to publish a chain."""
    return PublishRequest(
        command_key="k",
        request_hash=b"",
        actor_did=PAYER,
        workflow_id=workflow_id,
        task_id="t",
        payer_did=PAYER,
        manifest_json="{}",
        compiled=compiled({"nodes": {"a": {"capabilityId": CAPABILITIES[0]}}}).compiled,
        is_dry_run=False,
        watcher="",
    )
