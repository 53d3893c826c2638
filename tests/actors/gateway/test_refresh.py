"""Refreshes of what owners know: behind no publish, before no publish, and shared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from actors.gateway.gateway import Gateway
from actors.transport.messages import OwnerReply, OwnerRequest, PublishRequest
from actors.transport.wire import answer_requests
from core.settings import Settings
from tests.actors.gateway.maps import lease
from tests.actors.gateway.served import OWNER, STORED, members_of, request
from tests.actors.transport.listening import listening


class SlowOwner:
    """Answers publishes at once; what is no publish, when the test lets it."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.is_asked = asyncio.Event()
        self.refreshes: list[int] = []

    async def handle(self, bodies: list[bytes]) -> list[bytes]:
        """Store what is published."""
        return await answer_requests(self._answer, bodies)

    async def _answer(self, batch: list[OwnerRequest]) -> list[OwnerReply]:
        if not all(isinstance(request, PublishRequest) for request in batch):
            await self.refresh([None] * len(batch))
        return [STORED] * len(batch)

    async def refresh(self, batch: list[None]) -> list[None]:
        """Take as long as the test says."""
        self.refreshes.append(len(batch))
        self.is_asked.set()
        await self.gate.wait()
        return batch

    async def finished(self, watcher: str) -> list[str]:
        """Tell of no end."""
        await asyncio.Event().wait()
        return []


@asynccontextmanager
async def asked(folder: Path, owner: SlowOwner) -> AsyncIterator[Gateway]:
    """Open a gateway without a database or Ray that knows one owner."""
    methods = {"handle": owner.handle, "refresh": owner.refresh, "finished": owner.finished}
    server = await listening(folder, OWNER, methods)
    gateway = Gateway(Settings(run_folder=str(folder), database_url="postgresql://"))
    gateway.owners.use_lease(lease(members_of(OWNER)))
    try:
        yield gateway
    finally:
        await gateway.close()
        await server.close()


async def test_publish_does_not_wait_for_a_refresh(tmp_path: Path) -> None:
    """It stood in the same call, or in the next, while the owner read five tables."""
    owner = SlowOwner()
    async with asyncio.timeout(60), asked(tmp_path, owner) as gateway:
        refresh = asyncio.create_task(gateway.owners.refresh())
        await owner.is_asked.wait()
        publish = asyncio.create_task(gateway.publish(request()))
        done, _ = await asyncio.wait([publish], timeout=5)
        assert done, "the publish waits for the refresh"
        assert (publish.result(), refresh.done()) == (STORED, False)
        owner.gate.set()
        await refresh


async def test_who_asks_during_a_refresh_shares_the_next_one(tmp_path: Path) -> None:
    owner = SlowOwner()
    async with asyncio.timeout(60), asked(tmp_path, owner) as gateway:
        first = asyncio.create_task(gateway.owners.refresh())
        await owner.is_asked.wait()
        others = [asyncio.create_task(gateway.owners.refresh()) for _ in range(5)]
        for _ in range(20):
            await asyncio.sleep(0)
        owner.gate.set()
        await asyncio.gather(first, *others)
        assert owner.refreshes == [1, 5]
