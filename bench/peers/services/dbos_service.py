"""The graphs as DBOS workflows: each node is a step, whose result is a row.

Run by the peers' interpreter as `python -m bench.peers.services.dbos_service PORT NUMBER`, with the
database's URL in its environment; prints a line when it serves. Tuned like Restate's: aiohttp
and uvloop in the steps, no log line per workflow. A workflow is started where its request arrives:
that is recorded before it runs, and saves the queue's own statements and its polling.
"""

from __future__ import annotations

import asyncio
import os
import sys

import uvloop
from aiohttp import web
from dbos import DBOS, DBOSConfig

from bench.peers.graphs import generations
from bench.peers.services.agents import Agents
from bench.peers.services.variables import DATABASE_VARIABLE

# Statements run in threads: more of them than connections only wait for one.
CONNECTIONS = THREADS = 16
_agents: list[Agents] = []


@DBOS.step()
async def call(shape: str, node: str, texts: dict[str, str]) -> str:
    """Run a node."""
    return await _agents[0].call(shape, node, texts)


@DBOS.workflow()
async def run(shape: str) -> str:
    """Run a graph; return the last node's text."""
    texts: dict[str, str] = {}
    text = ""
    for nodes in generations(shape):
        if len(nodes) == 1:
            found = [await call(shape, nodes[0], texts)]
        else:
            found = await asyncio.gather(*(call(shape, node, texts) for node in nodes))
        for node, text in zip(nodes, found, strict=True):
            texts[node] = text
    return text


async def answer(request: web.Request) -> web.Response:
    """Run a workflow and answer with its result."""
    handle = await DBOS.start_workflow_async(run, await request.json())
    return web.json_response(await handle.get_result())


async def main(port: int, number: int) -> None:
    """Serve until the process is ended."""
    _agents.append(Agents())
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": os.environ[DATABASE_VARIABLE],
        "executor_id": f"executor{number}",
        "application_version": "1",
        "log_level": "WARNING",
        "sys_db_pool_size": CONNECTIONS,
        # A round trip less per statement: the server is local and stays.
        "db_engine_kwargs": {"pool_pre_ping": False},
        "max_executor_threads": THREADS,
        "use_listen_notify": True,
    }
    DBOS(config=config)
    DBOS.launch()
    app = web.Application()
    app.router.add_post("/run", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=4096).start()
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2])))
