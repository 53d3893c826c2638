"""What an owner's requests wait for: each for its own sake only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from actors.directory.directory_sync import DirectorySync
from actors.dispatch.remote_dispatch import OwnerCalls
from actors.engine.owner import Owner
from actors.process.at_work import AtWork
from actors.transport.actor_calls import is_unknown_outcome
from actors.transport.late_replies import LateReplies
from actors.transport.ledger_client import LedgerClient
from actors.transport.messages import Late, Moved, OwnerReply, PublishReply, PublishRequest
from core.errors import ErrorCode, ServiceError
from core.settings import Settings
from core.shards.lease_messages import Lease, Renewal
from core.shards.shard import shard_of
from tests.actors.gateway.served import request
from tests.simulation.shapes import agent_rows, compiled

UNKNOWN = compiled({"nodes": {"a": {"capabilityId": "cap.nobody.v1"}}}).compiled
UNAVAILABLE = ServiceError(ErrorCode.LEDGER_UNAVAILABLE, "too slow")


class Feeds:
    """Stands for the reads of an owner's directory."""

    def __init__(self, sync: DirectorySync) -> None:
        self.reads = 0
        self.is_failing = False
        self.gate = asyncio.Event()
        self.gate.set()
        sync.refresh = self.refresh  # type: ignore[method-assign]

    async def refresh(self) -> None:
        """Stand for `DirectorySync.refresh`."""
        self.reads += 1
        await self.gate.wait()
        if self.is_failing:
            raise UNAVAILABLE


class PublishesAtOnce:
    """Stands for the runner."""

    def publish(self, asked: PublishRequest, done: Callable[[OwnerReply], None]) -> None:
        """Answer without a commit."""
        done(PublishReply(workflow_id=asked.workflow_id, task_id="t", status="pending"))


class Restored:
    """Stands for a restorer that has nothing to do."""

    is_scanning = False

    def is_restoring(self, workflow_id: str) -> bool:
        """Say no."""
        return False

    async def close(self) -> None:
        """Do nothing."""


@pytest.fixture
async def owner() -> AsyncIterator[Owner]:
    """An owner that knows agents, without a database."""

    async def call(batch: list[bytes]) -> list[bytes]:
        raise AssertionError("no command is sent")

    async def no_lease(renewal: Renewal) -> Lease:
        raise AssertionError("it has not joined")

    def no_peer(address: str) -> OwnerCalls:
        raise AssertionError("there is no other member")

    client = LedgerClient(call, is_unknown_outcome, capacity=1, batch_size=1)
    settings = Settings(database_url="postgresql://")
    made: Any = Owner(
        "o",
        "machine",
        settings,
        ledger=client,
        renew=no_lease,
        owner_calls=no_peer,
        on_lost=lambda _: None,
        at_work=AtWork(),
    )
    made.held.add(shard_of(request().workflow_id), 1)
    made._runner, made._restorer = PublishesAtOnce(), Restored()
    made._directory.put(agent_rows())
    yield made
    await made.close()


async def test_what_names_an_unknown_capability_waits_alone(owner: Owner) -> None:
    """Every payer's request of the same call waited for the read of the directory."""
    feeds = Feeds(owner._directory_sync)
    feeds.gate.clear()
    theirs = replace(
        request(),
        workflow_id=request().workflow_id[:-1] + "e",
        payer_did="did:test:other",
        compiled=UNKNOWN,
    )
    late, mine = await owner.handle([theirs, request()], LateReplies())
    assert isinstance(late, Late)
    assert isinstance(mine, PublishReply)
    feeds.gate.set()


async def test_what_cannot_be_read_is_refused_alone(owner: Owner) -> None:
    feeds = Feeds(owner._directory_sync)
    feeds.is_failing = True
    asked = replace(request(), compiled=UNKNOWN)
    refused, mine = await owner.handle([asked, request()])
    assert refused == UNAVAILABLE
    assert isinstance(mine, PublishReply)


async def test_nothing_begins_in_a_shard_that_is_frozen_or_not_held(owner: Owner) -> None:
    """A dry run stores nothing, so that any member may answer it."""
    shard = shard_of(request().workflow_id)
    tried = replace(request(), is_dry_run=True)
    owner.held.freeze(shard)
    frozen, dry = await owner.handle([request(), tried])
    owner.held.drop(shard)
    lost, dry_too = await owner.handle([request(), tried])
    assert isinstance(frozen, Moved)
    assert isinstance(lost, Moved)
    assert isinstance(dry, PublishReply)
    assert isinstance(dry_too, PublishReply)
