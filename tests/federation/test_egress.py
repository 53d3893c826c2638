"""The egress gate at a real client: the address that is connected to is the one that is judged."""

from __future__ import annotations

import aiohttp
import pytest
from aiohttp import web

from federation.egress import EgressDenied, gated_socket_factory


async def _get(url: str, allowed: tuple[str, ...]) -> int:
    connector = aiohttp.TCPConnector(
        socket_factory=gated_socket_factory(allowed), resolver=aiohttp.ThreadedResolver()
    )
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(url, allow_redirects=False) as response,
    ):
        return response.status


async def test_loopback_is_refused_by_name_and_by_number_unless_allowed() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response()

    application = web.Application()
    application.router.add_get("/", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        for host in ("127.0.0.1", "localhost"):
            with pytest.raises(aiohttp.ClientConnectorError) as refusal:
                await _get(f"http://{host}:{port}/", ())
            assert isinstance(refusal.value.os_error, EgressDenied)
        assert await _get(f"http://127.0.0.1:{port}/", ("127.0.0.0/8",)) == 200
    finally:
        await runner.cleanup()
