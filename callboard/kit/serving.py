"""An agent's HTTP interface, and the life of an agent process.

Knows paths, signals and registration; what an answer says is `answering.py`'s, how HTTP is spoken
`http_server.py`'s. Spec: Agent interface.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from callboard.kit.answering import Answer, AnsweringAgent
from callboard.kit.http_server import Handle, HttpServer, Request, Response

if TYPE_CHECKING:
    from callboard.kit.liveness import Liveness

# How long replies under way may take to be written once the server closes.
SHUTDOWN_S = 2.0
DRAIN_TIMEOUT_S = 30.0
# A heartbeat speaks for 60 s: two may be lost.
HEARTBEAT_PERIOD_S = 20.0


@dataclass(frozen=True, slots=True)
class Life:
    """How an agent process lives: where it listens, and how it begins and ends; see `Agent.run`."""

    host: str
    port: int
    endpoint: str | None
    register: bool
    until_eof: bool
    heartbeat_period_s: float
    drain_timeout_s: float
    deregister: bool
    publish_versions: bool = False


def routes(agent: AnsweringAgent, endpoint: str) -> Handle:
    """Return the function that answers the agent's requests.

    Args:
        agent: who answers.
        endpoint: the address to advertise in the card.
    """
    card = json.dumps(agent.card(endpoint).to_json(), ensure_ascii=False).encode()
    header = f"x-{agent.service}-signature"
    methods = {
        "/health": "GET",
        "/.well-known/acard.json": "GET",
        f"/{agent.service}/node": "POST",
        f"/{agent.service}/cancel": "POST",
    }

    async def handle(request: Request) -> Response:
        method = methods.get(request.path)
        if method is None:
            return Response(404, b'{"error":"no such path"}')
        if request.method != method:
            return Response(405, b'{"error":"another method is expected"}', {"allow": method})
        signature = request.headers.get(header)
        if request.path == "/health":
            return _health(agent)
        if method == "GET":
            return Response(200, card)
        if request.path.endswith("/cancel"):
            return _response(await agent.cancel(request.body, signature))
        sent = request.headers
        traceparent, key = sent.get("traceparent"), sent.get("idempotency-key")
        return _response(await agent.answer(request.body, signature, traceparent, key))

    return handle


def _health(agent: AnsweringAgent) -> Response:
    status = "draining" if agent.is_draining else "healthy"
    body = json.dumps({"status": status, "did": agent.did}).encode()
    return Response(503 if agent.is_draining else 200, body)


def _response(answer: Answer) -> Response:
    headers = {} if answer.retry_after_s is None else {"retry-after": str(answer.retry_after_s)}
    return Response(answer.status, answer.body, headers)


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
    with socket.create_server((host, port), backlog=512) as listener:
        public = endpoint or f"http://{host}:{listener.getsockname()[1]}"
        server = HttpServer(routes(agent, public))
        await server.start(listener)
        agent.serving_loop = asyncio.get_running_loop()
        try:
            yield public
        finally:
            await server.close(SHUTDOWN_S)
            agent.serving_loop = None
            await agent.close()


async def run(agent: AnsweringAgent, life: Life) -> None:
    """Serve and register an agent until the process is told to end, then drain it.

    1. Serve. 2. Register, and send heartbeats. 3. At the signal refuse new work and say so. 4. Let
    what runs end. 5. Say that it has stopped, or deregister. A second signal cuts 4 short.
    """
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: (hurry if stop.is_set() else stop).set())
    if life.until_eof:
        loop.add_reader(sys.stdin.fileno(), _stop_at_eof, loop, stop)
    async with (
        serving(agent, host=life.host, port=life.port, endpoint=life.endpoint) as public,
        contextlib.AsyncExitStack() as stack,
    ):
        liveness = await _registered(agent, public, stack, life) if life.register else None
        async with contextlib.AsyncExitStack() as beating:
            if liveness is not None:
                await beating.enter_async_context(liveness.beating(life.heartbeat_period_s))
            print(f"{agent.did} ready at {public} ({', '.join(agent.capabilities)})", flush=True)
            await stop.wait()
        agent.drain()
        if liveness is not None:
            await liveness.tell("draining")
        await _first(agent.drained(life.drain_timeout_s), hurry)
        if liveness is not None:
            await (liveness.deregister() if life.deregister else liveness.tell("stopped"))


async def _first(drained: Awaitable[None], hurry: asyncio.Event) -> None:
    """Wait until the agent is drained or there is no time for it."""
    waits = [asyncio.ensure_future(drained), asyncio.ensure_future(hurry.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


def _stop_at_eof(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        loop.remove_reader(sys.stdin.fileno())
        stop.set()


async def _registered(
    agent: AnsweringAgent, endpoint: str, stack: contextlib.AsyncExitStack, life: Life
) -> Liveness:
    # Here, because httpx costs half a second that an agent registered by others need not spend.
    from callboard.client import AsyncClient
    from callboard.kit.liveness import Liveness

    client = await stack.enter_async_context(AsyncClient(**agent.credential()))
    card = agent.card(endpoint).to_json()
    signed: dict[str, str] = {}
    if agent.signer is not None and agent.owner_did is not None:
        signed = {"private_key": agent.signer.private_key, "owner_did": agent.owner_did}
    registered = await client.register_agent(card, signing_secret=agent.signing_secret, **signed)
    if life.publish_versions:
        from callboard.kit.version_publishing import publish_versions

        await publish_versions(agent, client)
    return Liveness(agent, client, registered.heartbeat_token)
