"""DBOS: three processes that run the workflows on a Postgres with the settings of the service's.

Tuned: one process more than the machine of the first figures has cores; workflows are started in
the process that gets the request; connections are not tested before use; 16 connections and
threads per process; notifications on; Unix socket.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from bench.figures.postgres_counters import read_counters
from bench.peers import environment
from bench.peers.caller import Caller
from bench.peers.durability import ask_postgres
from bench.peers.services.variables import DATABASE_VARIABLE, PORTS_VARIABLE
from bench.peers.systems.system import DATABASE, WORKERS, ended, run_each, tree
from ledger.embedded.server import DATABASE as DATABASE_NAME
from ledger.embedded.server import OWNER, EmbeddedPostgres
from tests.platform.deployments import free_port

PROCESSES = 3


class Dbos:
    """Running DBOS processes with their Postgres.

    Args:
        server: the embedded Postgres.
        workers: the processes that run the workflows.
        ports: of the workers.
    """

    name = "dbos"

    def __init__(
        self, server: EmbeddedPostgres, workers: list[subprocess.Popen[bytes]], ports: list[int]
    ) -> None:
        self._server = server
        self._workers = workers
        self.urls = [f"http://127.0.0.1:{port}" for port in ports]
        self.headers: list[dict[str, str]] = [{}]

    def members(self) -> Iterator[tuple[psutil.Process, str]]:
        """Yield Postgres and the workers, which are the engine too."""
        if self._server.pid is not None:
            yield from tree(self._server.pid, DATABASE)
        for worker in self._workers:
            yield from tree(worker.pid, WORKERS)

    def ask_durability(self) -> dict[str, str]:
        """Return what Postgres says on a connection like the workers'."""
        return ask_postgres(self._server.url_for(OWNER, DATABASE_NAME))

    def database_counters(self) -> dict[str, float]:
        """Return what Postgres has counted."""
        return read_counters(self._server.url_for(OWNER, DATABASE_NAME))

    def settings(self) -> dict[str, str]:
        """Return what was tuned."""
        return {
            "processes": str(PROCESSES),
            "Postgres": "the service's embedded server and settings, over its Unix socket",
            "start": "start_workflow_async where the request arrives: no queue, no polling",
            "connections and threads per process": "16; not tested before use",
            "notifications": "on",
            "steps": "DBOS.step, aiohttp on uvloop",
            "bulk": "256 calls under way at once, each waits for its result",
        }

    async def run_one(self, caller: Caller, turn: int, shape: str) -> None:
        """Start a workflow and wait for its result."""
        reply = await caller.send("POST", "/run", json.dumps(shape).encode())
        if reply != b'"ok"':
            raise SystemExit(f"dbos: got {reply!r}, expected the last node's text")

    async def run_bulk(self, shape: str, count: int) -> None:
        """Start a workflow per request: its own start takes one."""
        await run_each(self, shape, count)

    async def wait_idle(self) -> None:
        """Return at once: every request has waited for its workflow."""


@contextmanager
def dbos(folder: Path, agent_ports: list[int]) -> Iterator[Dbos]:
    """Run DBOS with its data in `folder`.

    Args:
        agent_ports: of the stub agents.
    """
    with ExitStack() as stack:
        run_folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="callboard-bench-"))
        server = EmbeddedPostgres(folder, Path(run_folder))
        server.start()
        stack.callback(server.stop)
        ports = [free_port() for _ in range(PROCESSES)]
        given = {
            PORTS_VARIABLE: ",".join(map(str, agent_ports)),
            DATABASE_VARIABLE: server.url_for(OWNER, DATABASE_NAME),
        }
        log = folder / "workers.log"
        workers: list[subprocess.Popen[bytes]] = []
        stack.enter_context(ended(workers))
        for number, port in enumerate(ports):
            worker = environment.start(
                "dbos_service", str(port), str(number), environment=given, log=log
            )
            workers.append(worker)
            assert worker.stdout is not None
            # One after the other: the first one makes the tables.
            if worker.stdout.readline() != b"ready\n":
                raise SystemExit(f"DBOS does not start:\n{log.read_text()[-2000:]}")
        yield Dbos(server, workers, ports)
