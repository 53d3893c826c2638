"""Who is looked at, and what is remembered of it: real rows, real agents."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from actors.dispatch.probes import Prober
from core.settings import Settings
from federation.name_resolver import NameResolver
from ledger.features.agent_live import (
    Heartbeat,
    LivenessStore,
    liveness_of,
)
from ledger.features.directory import LIVE
from ledger.reads.reader import LedgerReader
from tests.actors.orders import serving
from tests.conftest import Database
from tests.federation.name_servers import name_server
from tests.ledger.making import all_of, card, open_with_member
from tests.ledger.test_agent_live import age

OVERDUE_MS = 61_000


@asynccontextmanager
async def agent() -> AsyncIterator[str]:
    """Serve a healthy agent; give its endpoint."""

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"status": "healthy"})

    async with serving({"/health": health}) as url:
        yield url


async def test_the_overdue_and_the_named_are_probed_and_what_was_found_is_stored(
    database: Database,
) -> None:
    store = await open_with_member(database.service_url)
    settings = Settings(deployment_key="00" * 32, database_url=database.service_url)
    live = LivenessStore(database.service_url)
    async with LedgerReader(database.service_url, pool_size=1) as reader, agent() as endpoint:
        prober = Prober(settings, reader, NameResolver())
        await store.commit(
            [
                card("did:x:well", endpoint=endpoint),
                card("did:x:gone", endpoint="http://127.0.0.1:1"),
                card("did:x:named", endpoint=endpoint),
                card("did:x:other", endpoint=endpoint),
            ],
            1,
        )
        await live.store_heartbeats(
            [Heartbeat(f"did:x:{name}", "idle") for name in ("well", "gone", "named", "other")]
        )
        assert await prober.round() == []
        for did in ("did:x:well", "did:x:gone"):
            age(database, did, "heartbeat_ms", OVERDUE_MS)
        prober.request_probes(["did:x:named"])
        found = dict(await prober.round())
        assert found == {"did:x:well": True, "did:x:gone": False, "did:x:named": True}
        known = {
            row["did"]: liveness_of(row).is_probe_ok
            for row in await all_of(LIVE.pages(reader.lookups))
        }
        assert known == {**found, "did:x:other": None}
        prober.request_probes(["did:x:named"])
        assert await prober.round() == [], "everybody is left alone for a while"
        await prober.close()
    await live.close()
    await store.close()


async def test_an_agent_that_could_not_be_tried_is_left_alone_and_nothing_is_stored_of_it(
    database: Database,
) -> None:
    """Nothing is known of its last probe, so it would be the first in every round."""
    store = await open_with_member(database.service_url)
    settings = Settings(deployment_key="00" * 32, database_url=database.service_url)
    async with LedgerReader(database.service_url, pool_size=1) as reader, name_server() as server:
        server.is_broken = True
        prober = Prober(settings, reader, NameResolver([server.address]))
        await store.commit([card("did:x:unnamed", endpoint="http://a.good.test")], 1)
        prober.request_probes(["did:x:unnamed"])
        assert await prober.round() == []
        asked = len(server.asked)
        assert asked > 0
        prober.request_probes(["did:x:unnamed"])
        assert await prober.round() == []
        assert len(server.asked) == asked
        assert await all_of(LIVE.pages(reader.lookups)) == []
        await prober.close()
    await store.close()
