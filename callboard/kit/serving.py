"""An agent's HTTP interface, and the life cycle of an agent process.

This file knows paths, signals and registration. `dispatch_replies.py` makes the replies, and
uvicorn implements HTTP. Reference: features.md (Agent interface).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.lifespan.off import LifespanOff

from callboard.kit.dispatch_replies import Answer, AnsweringAgent

if TYPE_CHECKING:
    from callboard.kit.liveness import Liveness

# The coordinator sends at most 8 MiB of inputs; the rest of the body is small.
BODY_BYTES_MAX = 9 * 1024 * 1024
# The timeout of three things: the arrival of a request's body, the reading of a reply by the
# client, and an idle connection after a reply.
IDLE_TIMEOUT_S = 75.0
# How long a closing server waits for replies that are being sent.
SHUTDOWN_S = 2
DRAIN_TIMEOUT_S = 30.0
# The coordinator regards a heartbeat as current for 60 s, so two heartbeats in a row may be lost.
HEARTBEAT_PERIOD_S = 20.0

# The two functions that ASGI gives an application.
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Life:
    """The options of an agent process: its address, start and end; see `Agent.run`."""

    host: str
    port: int
    endpoint: str | None
    register: bool
    until_eof: bool
    heartbeat_period_s: float
    drain_timeout_s: float
    deregister: bool
    publish_versions: bool = False


class Application:
    """The agent's HTTP interface as an ASGI application."""

    def __init__(self, agent: AnsweringAgent, endpoint: str) -> None:
        """Make the application.

        Args:
            agent: answers the requests.
            endpoint: the address to advertise in the card.
        """
        self._agent = agent
        self._card = json.dumps(agent.card(endpoint).to_json(), ensure_ascii=False).encode()
        self._methods = {
            "/health": "GET",
            "/.well-known/acard.json": "GET",
            f"/{agent.service}/node": "POST",
            f"/{agent.service}/cancel": "POST",
        }

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            async with asyncio.timeout(IDLE_TIMEOUT_S):
                body = await _read_body(receive)
        except TimeoutError:
            body = None
        answer, headers = (
            (Answer(413, b'{"error":"the body is too large or late"}'), {"connection": "close"})
            if body is None
            else await self._answer(scope, body)
        )
        if answer.retry_after_s is not None:
            headers["retry-after"] = str(answer.retry_after_s)
        headers["content-type"] = "application/json"
        headers["content-length"] = str(len(answer.body))
        sent = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": sent})
        await send({"type": "http.response.body", "body": answer.body})

    async def _answer(self, scope: dict[str, Any], body: bytes) -> tuple[Answer, dict[str, str]]:
        path, agent = scope["path"], self._agent
        method = self._methods.get(path)
        if method is None:
            return Answer(404, b'{"error":"no such path"}'), {}
        if scope["method"] != method:
            return Answer(405, b'{"error":"another method is expected"}'), {"allow": method}
        if path == "/health":
            return _health(agent), {}
        if method == "GET":
            return Answer(200, self._card), {}
        sent = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        signature = sent.get(f"x-{agent.service}-signature")
        if path.endswith("/cancel"):
            return await agent.cancel(body, signature), {}
        traceparent, key = sent.get("traceparent"), sent.get("idempotency-key")
        return await agent.answer(body, signature, traceparent, key), {}


async def _read_body(receive: Receive) -> bytes | None:
    """Return the request's body, or None if it is too large or the client has disconnected."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if message["type"] == "http.disconnect" or len(body) > BODY_BYTES_MAX:
            return None
        if not message.get("more_body"):
            return bytes(body)


def _health(agent: AnsweringAgent) -> Answer:
    status = "draining" if agent.is_draining else "healthy"
    body = json.dumps({"status": status, "did": agent.did}).encode()
    return Answer(503 if agent.is_draining else 200, body)


@contextlib.asynccontextmanager
async def serving(
    agent: AnsweringAgent, *, host: str = "127.0.0.1", port: int = 0, endpoint: str | None = None
) -> AsyncIterator[str]:
    """Serve an agent while the block runs; the block's value is the agent's public address.

    Args:
        agent: the agent.
        host: the address to listen on.
        port: the port to listen on, 0 for a free one.
        endpoint: the public address, if it differs from the address to listen on.
    """
    # The socket is created first, because the card contains the port that the system chose.
    with socket.create_server((host, port), backlog=512) as listener:
        # Accepted sockets inherit both options. With TCP_USER_TIMEOUT, the kernel closes a
        # connection whose client does not read its reply. Without TCP_NODELAY, the body of a reply
        # waits 40 ms until the client has acknowledged the head.
        user_timeout_ms = int(IDLE_TIMEOUT_S * 1000)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, user_timeout_ms)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        public = endpoint or f"http://{host}:{listener.getsockname()[1]}"
        server = _server(Application(agent, public))
        # `server.serve` is not used: it installs signal handlers, but `run` has its own.
        server.lifespan = LifespanOff(server.config)
        await server.startup(sockets=[listener])
        agent.serving_loop = asyncio.get_running_loop()
        try:
            yield public
        finally:
            await server.shutdown(sockets=[listener])
            for connection in list(server.server_state.connections):
                connection.transport.abort()
            agent.serving_loop = None
            await agent.close()


def _server(application: Application) -> uvicorn.Server:
    config = uvicorn.Config(
        application,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        date_header=False,
        server_header=False,
        timeout_keep_alive=int(IDLE_TIMEOUT_S),
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    config.load()
    return uvicorn.Server(config)


async def run(agent: AnsweringAgent, life: Life) -> None:
    """Serve and register an agent until the process is asked to end, then drain the agent.

    1. Serve the agent.
    2. Register it, and send heartbeats.
    3. At a signal, or at the end of standard input if `until_eof` is set, refuse new work and send
       the status `draining`.
    4. Wait until the running work has ended, the drain timeout is over, or a second signal comes.
    5. Deregister the agent, or send the status `stopped`.
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
    """Wait until the agent is drained or `hurry` is set."""
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
    # Imported here, because httpx takes half a second to load and only an agent that registers
    # itself needs it.
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
