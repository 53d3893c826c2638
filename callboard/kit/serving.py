"""HTTP around an agent, and the life of an agent process.

Knows sockets, signals and registration; what an answer says is `answering.py`'s.
Spec: Agent interface; contract.md sections 4 and 5 (cancellation notice).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator

from aiohttp import web

from callboard.kit.answering import Answer, AnsweringAgent

# The coordinator sends at most 8 MiB of inputs; the rest of the body is small.
BODY_BYTES_MAX = 9 * 1024 * 1024
# How long answers under way may take once the agent was told to end.
SHUTDOWN_S = 2.0


def application(agent: AnsweringAgent, endpoint: str) -> web.Application:
    """Return the agent's HTTP interface.

    Args:
        agent: who answers.
        endpoint: the address to advertise in the card.
    """
    card = agent.card(endpoint).to_json()
    header = f"x-{agent.service}-signature"

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"status": "healthy", "did": agent.did})

    async def acard(_: web.Request) -> web.Response:
        return web.json_response(card)

    async def node(request: web.Request) -> web.Response:
        return _response(await agent.answer(await request.read(), request.headers.get(header)))

    async def cancel(request: web.Request) -> web.Response:
        return _response(await agent.cancel(await request.read(), request.headers.get(header)))

    app = web.Application(client_max_size=BODY_BYTES_MAX)
    app.router.add_get("/health", health)
    app.router.add_get("/.well-known/acard.json", acard)
    app.router.add_post(f"/{agent.service}/node", node)
    app.router.add_post(f"/{agent.service}/cancel", cancel)
    return app


def _response(answer: Answer) -> web.Response:
    return web.Response(status=answer.status, body=answer.body, content_type="application/json")


@contextlib.asynccontextmanager
async def serving(
    agent: AnsweringAgent, *, host: str = "127.0.0.1", port: int = 0, endpoint: str | None = None
) -> AsyncIterator[str]:
    """Serve an agent while the block runs; gives the address it is reachable at.

    Args:
        agent: who answers.
        host: the address to listen on.
        port: the port to listen on, 0 for a free one.
        endpoint: the public address, when it is not the one listened on.
    """
    # The socket comes first: the card needs the port that was given.
    listener = socket.create_server((host, port), backlog=512)
    public = endpoint or f"http://{host}:{listener.getsockname()[1]}"
    runner = web.AppRunner(application(agent, public), access_log=None, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        yield public
    finally:
        await runner.cleanup()
        agent.close()


async def run(
    agent: AnsweringAgent,
    *,
    host: str,
    port: int,
    endpoint: str | None,
    register: bool,
    until_eof: bool,
) -> None:
    """Serve and register an agent until the process is told to end; see `Agent.run`."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if until_eof:
        loop.add_reader(sys.stdin.fileno(), _stop_at_eof, loop, stop)
    async with serving(agent, host=host, port=port, endpoint=endpoint) as public:
        if register:
            await _register(agent, public)
        print(f"{agent.did} ready at {public} ({', '.join(agent.capabilities)})", flush=True)
        await stop.wait()


def _stop_at_eof(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        loop.remove_reader(sys.stdin.fileno())
        stop.set()


async def _register(agent: AnsweringAgent, endpoint: str) -> None:
    # Here, because httpx costs half a second that an agent registered by others need not spend.
    from callboard.client import AsyncClient

    async with AsyncClient() as client:
        card = agent.card(endpoint).to_json()
        await client.register_agent(card, signing_secret=agent.signing_secret)
