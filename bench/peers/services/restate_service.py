"""The graphs as a Restate service: each node is a `ctx.run`, whose result is in the journal.

Run by the peers' interpreter as `python -m bench.peers.services.restate_service NAME PORT`. Tuned
like DBOS's: aiohttp and uvloop in the steps, no log line per invocation. Served by granian,
whose HTTP/2 is compiled, instead of hypercorn, of the SDK's examples (decision
tests-and-benchmarks).
"""

from __future__ import annotations

import logging
import sys

import restate
import uvloop
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP2Settings
from granian.server.embed import Server

from bench.peers.graphs import generations
from bench.peers.services.agents import Agents

# More than calls are ever under way: HTTP/2 must not be what they wait for.
STREAMS_MAX = 10_000


def make_service(name: str, agents: Agents) -> restate.Service:
    """Return the service with its one handler."""
    service = restate.Service(name)

    @service.handler()
    async def run(ctx: restate.Context, shape: str) -> str:
        texts: dict[str, str] = {}
        text = ""
        for nodes in generations(shape):
            steps = [
                ctx.run_typed(node, agents.call, restate.RunOptions(), shape, node, texts)
                for node in nodes
            ]
            if len(steps) > 1:
                await restate.gather(*steps)
            for node, step in zip(nodes, steps, strict=True):
                text = texts[node] = await step
        return text

    return service


async def main(name: str, port: int) -> None:
    """Serve over HTTP/2 until the process is ended."""
    logging.getLogger("restate").setLevel(logging.WARNING)
    server = Server(
        restate.app([make_service(name, Agents())], protocol="bidi"),
        address="127.0.0.1",
        port=port,
        interface=Interfaces.ASGINL,
        http=HTTPModes.http2,
        http2_settings=HTTP2Settings(max_concurrent_streams=STREAMS_MAX),
        log_enabled=False,
    )
    await server.serve()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
