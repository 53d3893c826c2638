"""Probes against real HTTP servers: who counts as healthy, and where it is asked."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from federation.health_probe import HealthProbe, health_url
from federation.name_resolver import NameResolver
from tests.federation.name_servers import name_server


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://a:1", "http://a:1/health"),
        ("http://a:1/", "http://a:1/health"),
        ("http://a:1/base", "http://a:1/base/health"),
        ("http://a:1/base/callboard/node", "http://a:1/base/health"),
        ("http://a:1/other/node", "http://a:1/other/health"),
    ],
)
def test_health_is_asked_beside_the_dispatch_path(endpoint: str, url: str) -> None:
    assert health_url(endpoint, "callboard") == url


@pytest.mark.parametrize(
    ("status", "body", "is_healthy"),
    [
        (200, '{"status": "healthy", "did": "did:x:a"}', True),
        (200, '{"status": "Draining"}', False),
        (200, '{"status": "splendid"}', True),
        (200, "OK", True),
        (202, "", True),
        (204, "", True),
        (404, "{}", True),
        (501, "", True),
        (500, "", False),
        (503, '{"status": "healthy"}', False),
    ],
)
async def test_who_answers_is_there_unless_it_says_otherwise(
    status: int, body: str, is_healthy: bool
) -> None:
    paths = []

    async def handler(request: web.Request) -> web.Response:
        paths.append(request.path)
        return web.Response(status=status, text=body)

    assert await _probed(handler) is is_healthy
    assert paths == ["/health"]


async def test_who_hangs_redirects_or_is_absent_is_not_followed() -> None:
    async def hang(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async def redirect(request: web.Request) -> web.Response:
        assert request.path == "/health"
        raise web.HTTPFound("/elsewhere")

    assert not await _probed(hang, timeout_s=0.05)
    assert await _probed(redirect), "it is there; where it points is not looked at"
    probe = HealthProbe(("127.0.0.0/8",), "callboard", NameResolver())
    assert not await probe.is_healthy("http://127.0.0.1:1")
    assert not await probe.is_healthy("http://[not an address")
    await probe.close()


async def test_an_agent_whose_name_cannot_be_looked_up_is_not_judged() -> None:
    async with name_server() as server:
        server.is_silent = True
        names = NameResolver([server.address])
        probe = HealthProbe(("127.0.0.0/8",), "callboard", names, timeout_s=0.05)
        assert await probe.is_healthy("http://a.good.test") is None
        await probe.close()


async def test_an_address_the_policy_forbids_is_not_healthy() -> None:
    async def handler(_: web.Request) -> web.Response:
        raise AssertionError("never connected to")

    assert not await _probed(handler, allow=())


async def _probed(
    handler: web.RequestHandler | object,
    *,
    allow: tuple[str, ...] = ("127.0.0.0/8",),
    timeout_s: float = 5.0,
) -> bool:
    """Probe a server that answers like this."""
    application = web.Application()
    application.router.add_get("/{path:.*}", handler)  # type: ignore[arg-type]
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    probe = HealthProbe(allow, "callboard", NameResolver(), timeout_s=timeout_s)
    try:
        return await probe.is_healthy(f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await probe.close()
        await runner.cleanup()
