"""Messages between the processes lost and repeated; an owner that was replaced and does not know.

The real owner, the real writer, a real Postgres and a real agent in one loop; between owner and
ledger a wire that loses requests, loses answers to what was carried out, and repeats. No Ray.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from actors.calls import is_unknown_outcome
from actors.ledger_client import LedgerClient
from actors.messages import PublishReply, PublishRequest
from actors.owner import Owner
from core.ids import uuid7
from core.records.manifest import parse_manifest
from core.settings import Settings
from core.workflow.dag import WorkflowLimits, compile_workflow
from ledger.commands import Command, Outcome, RegisterAgent
from ledger.group_commit import GroupCommit
from tests.conftest import Database
from tests.faults.load import CAPABILITY, chain
from tests.ledger.checking import Auditor
from tests.ledger.making import CREDIT, GENESIS, PAYER, deposit

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

DEADLINE_S = 60.0
WORKFLOWS = 30
OWNER = "workflow@here#0"
LIMITS = WorkflowLimits(
    nodes_max=10,
    timeout_ms_default=20_000,
    max_retries_default=3,
    max_runtime_ms_default=300_000,
    max_runtime_ms_max=300_000,
)


@dataclass
class Wire:
    """The way to the ledger, with chances of 1 for each trouble."""

    commits: GroupCommit
    request_lost: float = 0.0
    answer_lost: float = 0.0
    repeated: float = 0.0
    chance: random.Random = field(default_factory=lambda: random.Random(11))

    async def submit(self, batch: list[Command]) -> Sequence[Outcome]:
        """Carry a batch to the ledger, perhaps; perhaps twice; perhaps without an answer."""
        if self.chance.random() < self.request_lost:
            raise ConnectionError("the request was lost")
        outcomes = await self.commits.submit(batch)
        if self.chance.random() < self.repeated:
            outcomes = await self.commits.submit(batch)
        if self.chance.random() < self.answer_lost:
            raise ConnectionError("the answer was lost")
        return outcomes


@dataclass
class Scene:
    """The writer, the settings, and how to start owners and publish."""

    commits: GroupCommit
    settings: Settings
    auditor: Auditor
    lost: list[str] = field(default_factory=list)
    owners: list[Owner] = field(default_factory=list)

    async def owner(self, **chances: float) -> Owner:
        """Start an owner, always of the same name, over a wire of its own."""
        wire = Wire(self.commits, **chances)  # type: ignore[arg-type]
        client = LedgerClient(wire.submit, is_unknown_outcome, capacity=10_000, batch_size=20)
        owner = Owner(OWNER, self.settings, client, self.lost.append)
        self.owners.append(owner)
        await owner.start()
        return owner

    async def wait_ended(self) -> None:
        """Return when no workflow is unfinished."""
        query = "SELECT count(*) FROM workflow WHERE status IN ('pending', 'running')"
        async with asyncio.timeout(DEADLINE_S):
            while self.auditor.one(query):
                await asyncio.sleep(0.02)

    def counts(self) -> dict[str, int]:
        """Return how many workflows there are by status."""
        query = "SELECT status, count(*) FROM workflow GROUP BY 1"
        return dict(self.auditor.connection.execute(query).fetchall())


@asynccontextmanager
async def agent(delay_s: float) -> AsyncIterator[str]:
    """Serve an agent and give its address."""

    async def work(request: web.Request) -> web.Response:
        body = await request.json()
        await asyncio.sleep(delay_s)
        return web.json_response({"eventId": body["eventId"], "status": "ok", "result": {"n": 1}})

    application = web.Application()
    application.router.add_post("/callboard/node", work)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.fixture
async def scene(database: Database) -> AsyncIterator[Scene]:
    """A writer, an agent that takes 50 ms, a payer with money; the books are checked in the end."""
    auditor = Auditor(database.superuser_url)
    commits = GroupCommit(database.service_url, genesis=GENESIS, on_fatal=lambda _: None)
    await commits.start()
    settings = Settings(database_url=database.service_url, deployment_key="11" * 32)
    async with agent(0.05) as url:
        await commits.submit([deposit(1_000 * CREDIT), registration(url)])
        made = Scene(commits, settings, auditor)
        yield made
        for owner in made.owners:
            await owner.close()
    await commits.stop()
    auditor.check()
    auditor.close()


def registration(url: str) -> RegisterAgent:
    """Register the agent at this address."""
    capability = {"id": CAPABILITY, "description": "works", "price_cents": 2}
    did = "did:fault:agent"
    card = {"did": did, "endpoint": url, "version": 1, "capabilities": [capability]}
    return RegisterAgent(
        key="register",
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


def request(number: int) -> PublishRequest:
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
    )


@pytest.mark.parametrize(
    "chances",
    [
        {"request_lost": 0.3},
        {"answer_lost": 0.3},
        {"repeated": 0.5},
        {"request_lost": 0.2, "answer_lost": 0.2, "repeated": 0.2},
    ],
    ids=["requests lost", "answers lost", "requests repeated", "all of it"],
)
async def test_lost_and_repeated_messages_to_the_ledger(
    chances: dict[str, float], scene: Scene
) -> None:
    """Each publish is also repeated by its client, under the same key, as new ids."""
    owner = await scene.owner(**chances)
    batches = [[request(number), request(number)] for number in range(WORKFLOWS)]
    answers = await asyncio.gather(*(owner.handle(batch) for batch in batches))
    for first, second in answers:
        assert isinstance(first, PublishReply)
        assert isinstance(second, PublishReply)
        assert first.workflow_id == second.workflow_id
    await scene.wait_ended()
    assert scene.counts() == {"success": WORKFLOWS}
    paid = scene.auditor.one("SELECT count(*) FROM entry WHERE kind = 'node_payment'")
    assert paid == 3 * WORKFLOWS
    assert scene.lost == []


async def test_unsure_owner_reads_again_until_postgres_answers(scene: Scene) -> None:
    """A publish whose answer was lost is known by its rows only, and reading them may fail too."""
    owner = await scene.owner(answer_lost=0.6)

    async def cut_readers() -> None:
        while True:
            scene.auditor.one(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE"
                " application_name = 'callboard-reader' AND datname = current_database()"
            )
            await asyncio.sleep(0.01)

    cutting = asyncio.create_task(cut_readers())
    answers = await asyncio.gather(*(owner.handle([request(n)]) for n in range(WORKFLOWS)))
    assert all(isinstance(answer, PublishReply) for (answer,) in answers)
    cutting.cancel()
    await scene.wait_ended()
    assert scene.counts() == {"success": WORKFLOWS}


@pytest.mark.parametrize("moment", range(4))
async def test_owner_that_was_replaced_is_fenced_and_its_successor_ends_everything(
    moment: int, scene: Scene
) -> None:
    """It was frozen, its successor has restored all; then it goes on with replies and timers."""
    old = await scene.owner()
    await asyncio.gather(*(old.handle([request(number)]) for number in range(WORKFLOWS)))
    await wait_payments(scene, moment * WORKFLOWS // 2)
    await scene.owner()  # a process that starts under the same name takes the next epoch
    await scene.wait_ended()
    assert scene.counts() == {"success": WORKFLOWS}
    assert scene.lost, "the old owner was never told"
    assert all("fenced off" in reason for reason in scene.lost)
    paid = scene.auditor.one("SELECT count(*) FROM entry WHERE kind = 'node_payment'")
    assert paid == 3 * WORKFLOWS


async def wait_payments(scene: Scene, count: int) -> None:
    """Return when so many nodes have been paid."""
    query = "SELECT count(*) FROM entry WHERE kind = 'node_payment'"
    async with asyncio.timeout(DEADLINE_S):
        while scene.auditor.one(query) < count:
            await asyncio.sleep(0.005)
