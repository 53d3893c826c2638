"""An owner, the writer, Postgres and an agent in one loop. No Ray."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from aiohttp import web

from actors.dispatch.remote_dispatch import OwnerCalls
from actors.engine.owner import Owner
from actors.process.at_work import AtWork
from actors.shards.child_lease import Parentage
from actors.transport.actor_calls import is_unknown_outcome
from actors.transport.ledger_client import LedgerClient
from actors.transport.messages import NotYet, PublishReply, PublishRequest
from actors.transport.wire import answer_commands
from core.errors import ErrorCode, ServiceError
from core.ids import uuid7
from core.records.manifest import parse_manifest
from core.settings import Settings
from core.shards.lease_messages import Lease, Renewal
from core.workflow.dag import WorkflowLimits, compile_workflow
from ledger.features.agents import RegisterAgent
from ledger.writer.group_commit import GroupCommit
from tests.faults.market_load import CAPABILITY, chain
from tests.ledger.checking import Auditor
from tests.ledger.making import PAYER
from tests.platform.waiting import until

DEADLINE_S = 120.0
RETRY_S = 0.01
OWNER = "workflow@here#0"
AGENT = "did:fault:agent"
LIMITS = WorkflowLimits(
    nodes_max=10,
    timeout_ms_default=20_000,
    max_retries_default=3,
    max_runtime_ms_default=300_000,
    max_runtime_ms_max=300_000,
)


@dataclass
class AgentCalls:
    """The requests that an agent has not answered: now, and the most at once."""

    open_now: int = 0
    open_max: int = 0


@dataclass
class Scene:
    """The writer, the settings, and how to start owners, publish, and hold the agent back."""

    commits: GroupCommit
    settings: Settings
    auditor: Auditor
    lost: list[str] = field(default_factory=list)
    owners: list[Owner] = field(default_factory=list)
    # While it is cleared, the agent does not answer.
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    calls: AgentCalls = field(default_factory=AgentCalls)

    async def owner(self, name: str = OWNER, parent: Parentage | None = None) -> Owner:
        """Start an owner."""
        client = LedgerClient(
            partial(answer_commands, self.commits.submit),
            is_unknown_outcome,
            on_lost=self.lost.append,
            capacity=10_000,
            batch_size=20,
        )

        async def renew(renewal: Renewal) -> Lease:
            (lease,) = self.commits.renew([renewal])
            return lease

        owner = Owner(
            name,
            "machine",
            self.settings,
            ledger=client,
            renew=renew,
            owner_calls=self._peer_calls,
            on_lost=self.lost.append,
            at_work=AtWork(),
            parent=parent,
        )
        self.owners.append(owner)
        await owner.start()
        await until(lambda: len(owner.held), DEADLINE_S)
        return owner

    def _peer_calls(self, address: str) -> OwnerCalls:
        """Return the calls to the newest owner at an address."""

        async def call(take: str, bodies: list[bytes]) -> Sequence[bool]:
            await asyncio.sleep(0)
            owner = next(one for one in reversed(self.owners) if one._address == address)
            taken: list[bool] = getattr(owner.remote_dispatch, take)(bodies)
            return taken

        return OwnerCalls(partial(call, "accept"))

    async def published(self, owner: Owner, batch: list[PublishRequest]) -> list[PublishReply]:
        """Publish as a client does: who hears no outcome in time asks again under the same keys."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                replies = await owner.handle(batch)
                known = [reply for reply in replies if isinstance(reply, PublishReply)]
                if len(known) == len(batch):
                    return known
                for reply in replies:
                    if isinstance(reply, ServiceError) and not isinstance(reply, NotYet):
                        assert reply.code is ErrorCode.LEDGER_UNAVAILABLE, reply
                # A refusal may come without any wait: the loop, and the deadline, need a turn.
                await asyncio.sleep(RETRY_S)

    async def wait_ended(self) -> None:
        """Return when no workflow is unfinished."""
        query = "SELECT count(*) FROM workflow WHERE status IN ('pending', 'running')"
        await until(lambda: not self.auditor.one(query), DEADLINE_S)

    def counts(self) -> dict[str, int]:
        """Return how many workflows there are by status."""
        query = "SELECT status, count(*) FROM workflow GROUP BY 1"
        return dict(self.auditor.connection.execute(query).fetchall())

    def errors(self) -> list[tuple[str, int]]:
        """Return the errors of nodes, and how many have each."""
        query = "SELECT error::text, count(*) FROM node WHERE error IS NOT NULL GROUP BY 1"
        return self.auditor.connection.execute(query).fetchall()


@asynccontextmanager
async def agent(
    delay_s: float, gate: asyncio.Event | None = None, calls: AgentCalls | None = None
) -> AsyncIterator[str]:
    """Serve an agent that answers while the gate is open, if there is one; give its address."""
    counted = calls or AgentCalls()

    async def work(request: web.Request) -> web.Response:
        counted.open_now += 1
        counted.open_max = max(counted.open_max, counted.open_now)
        try:
            body = await request.json()
            await asyncio.sleep(delay_s)
            if gate is not None:
                await gate.wait()
        finally:
            counted.open_now -= 1
        return web.json_response({"eventId": body["eventId"], "status": "ok", "result": {"n": 1}})

    application = web.Application()
    application.router.add_post("/callboard/node", work)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def registration(url: str, did: str = AGENT) -> RegisterAgent:
    """Register the agent at this address."""
    capability = {"id": CAPABILITY, "description": "works", "price_cents": 2}
    card = {"did": did, "endpoint": url, "version": 1, "capabilities": [capability]}
    return RegisterAgent(
        key=f"register:{did}",
        actor_did=PAYER,
        owner_did="did:fault:owner",
        is_admin=False,
        is_signed=False,
        did=did,
        card_json=json.dumps(card),
        endpoint=url,
        capability_ids=(CAPABILITY,),
        public_key=None,
        secret_encrypted=None,
    )


def request(number: int, *, watcher: str = "") -> PublishRequest:
    """Make a request of the key of this number; each has ids of its own, as a client's repeats."""
    manifest = chain()
    return PublishRequest(
        command_key=f"http:{PAYER}:{number}",
        request_hash=b"same",
        actor_did=PAYER,
        workflow_id=uuid7(at_ms=1_700_000_000_000, entropy=os.urandom(10)),
        task_id=uuid7(at_ms=1_700_000_000_000, entropy=os.urandom(10)),
        payer_did=PAYER,
        manifest_json=json.dumps(manifest),
        compiled=compile_workflow(parse_manifest(manifest), LIMITS),
        watcher=watcher,
    )
