"""What changes an agent reaches every owner by its notice: none waits for a poll, or for a request.

Method: three owners' directories of one database, which look at nothing by themselves; each change
is committed by the real writer, or stored by the real store, and waited for.  Decision
agent-health-and-waiting.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest

from actors.directory import directory_sync
from actors.directory.agent_directory import Directory
from actors.directory.directory_sync import DirectorySync
from core.market.pricing import FixedPrice
from core.workflow.actions import SelectAgent
from ledger.commands import Command
from ledger.features.agent_live import Heartbeat, LivenessStore
from ledger.features.agents import RebuildReputation
from ledger.features.directory import DirectoryTail
from ledger.features.prices import SetPrice
from ledger.writer.store import LedgerStore
from tests.actors.directory.test_directory_sync import empty_directory
from tests.conftest import Database
from tests.ledger.making import AGENT, AT, PAYER, card, leave, new_key, open_store, revoke

OWNERS = 3
CAPABILITY = "cap.test.echo.v1"
OTHER = "did:test:other"
DEADLINE_S = 60.0


@dataclass(frozen=True)
class Scene:
    """A ledger with two agents, and the directories of three owners."""

    store: LedgerStore
    lives: LivenessStore
    owners: list[Directory]

    async def commit(self, command: Command) -> None:
        """Commit one command."""
        (outcome,) = await self.store.commit([command], AT)
        assert outcome.error is None, outcome

    async def beat(self, status: str, load: float) -> None:
        """Store a heartbeat."""
        await self.lives.store_heartbeats([Heartbeat(AGENT, status, load=load)])

    def known(self) -> set[tuple[str, str]]:
        """Return what each owner weighs when it chooses, and what it may be asked to pay."""
        action = SelectAgent("a", CAPABILITY, None, False, (), 10**9)
        return {
            (str(one.select(action, AT)), str(one.asking_prices(CAPABILITY, AGENT)))
            for one in self.owners
        }

    async def wait_all(self, before: set[tuple[str, str]]) -> None:
        """Return when every owner knows something else than before, all of them the same."""
        async with asyncio.timeout(DEADLINE_S):
            while len(now := self.known()) != 1 or now == before:
                await asyncio.sleep(0.005)


@asynccontextmanager
async def following(database: Database) -> AsyncIterator[Directory]:
    """Keep the directory of an owner."""
    directory = empty_directory()
    sync = DirectorySync(
        directory,
        tail=DirectoryTail(database.service_url),
        owner="owner",
        on_revoked=lambda: None,
        now_ms=lambda: AT,
    )
    await sync.start()
    yield directory
    await sync.close()


@pytest.fixture
async def scene(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    """Two agents, of which the first registered is chosen; its card names no price."""
    monkeypatch.setattr(directory_sync, "POLL_S", 1_000.0)
    store = await open_store(database.service_url)
    lives = LivenessStore(database.service_url)
    for did, price in ((AGENT, {}), (OTHER, {"price_cents": 1})):
        await store.commit([card(did, card_json=json.dumps(offer(price)))], AT)
    async with AsyncExitStack() as stack:
        owners = [await stack.enter_async_context(following(database)) for _ in range(OWNERS)]
        yield Scene(store, lives, owners)
    await lives.close()
    await store.close()


def offer(price: dict[str, int]) -> dict[str, object]:
    """Return a card that offers the capability."""
    return {"capabilities": [{"id": CAPABILITY, **price}]}


def price() -> SetPrice:
    """Register the capability's price."""
    return SetPrice(
        key=new_key(), actor_did=PAYER, capability_id=CAPABILITY, price=FixedPrice(20_000)
    )


def count() -> RebuildReputation:
    """Count an outcome of the first agent."""
    changes = {AGENT: {"successful": 1, "latency_ms_sum": 100}}
    return RebuildReputation(key=new_key(), actor_did=PAYER, changes=changes, read_audit_id=2**60)


def register() -> Command:
    """Register a third agent."""
    return card("did:test:third", card_json=json.dumps(offer({"price_cents": 1})))


async def beat_load(scene: Scene) -> None:
    """Say a higher load than in the heartbeat before."""
    await scene.beat("healthy", 0.5)


async def beat_health(scene: Scene) -> None:
    """Say that the first agent takes no work."""
    await scene.beat("unhealthy", 0.1)


def committed(make: Callable[[], Command]) -> Callable[[Scene], Awaitable[None]]:
    """Return a change that commits a command."""

    async def change(scene: Scene) -> None:
        await scene.commit(make())

    change.__name__ = make.__name__
    return change


CHANGES = (
    beat_load,
    beat_health,
    *map(committed, (price, count, revoke, leave, register)),
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
async def test_a_change_reaches_every_owner_by_its_notice(
    scene: Scene, change: Callable[[Scene], Awaitable[None]]
) -> None:
    before = scene.known()
    await scene.beat("healthy", 0.1)
    await scene.wait_all(before)
    before = scene.known()
    await change(scene)
    await scene.wait_all(before)
