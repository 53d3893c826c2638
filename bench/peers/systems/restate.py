"""Restate: one server on this machine, and two processes that run the steps.

Tuned (decision tests-and-benchmarks): 4 partitions instead of 24; the local log instead of the
replicated one,
which goes through the network layer of a cluster of one (both wait for fdatasync); no statistics of
RocksDB; a service of its own per worker, so that both get the same work. Batching is left as it is:
the server batches what waits, up to 5,000 records per write.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from bench.peers import environment
from bench.peers.caller import Caller
from bench.peers.durability import RESTATE, read_restate
from bench.peers.services.variables import PORTS_VARIABLE
from bench.peers.systems.system import ENGINE, WORKERS, ended, run_each, tree
from tests.platform.deployments import free_port

PARTITIONS, SERVICE_WORKERS = 4, 2
_READY_WITHIN_S = 60.0
_LOOK_S = 0.05
_CONFIGURATION = """\
cluster-name = "bench"
node-name = "bench"
default-num-partitions = {partitions}
disable-telemetry = true
listen-mode = "tcp"
bind-ip = "127.0.0.1"
bind-port = {node}
log-filter = "warn"
log-format = "compact"
log-disable-ansi-codes = true
rocksdb-perf-level = "disable"
[admin]
bind-address = "127.0.0.1:{admin}"
disable-web-ui = true
[ingress]
bind-address = "127.0.0.1:{ingress}"
[bifrost]
default-provider = "local"
[bifrost.local]
rocksdb-disable-wal-fsync = false
rocksdb-disable-statistics = true
[log-server]
rocksdb-disable-wal-fsync = false
rocksdb-disable-statistics = true
[worker.storage]
rocksdb-disable-statistics = true
"""


class Restate:
    """A running Restate with its service workers.

    Args:
        server: the server's process.
        workers: the processes that run the steps.
        ports: of the server, by listener.
        log: the server's log.
    """

    name = "restate"

    def __init__(
        self,
        server: subprocess.Popen[bytes],
        workers: list[subprocess.Popen[bytes]],
        ports: dict[str, int],
        log: Path,
    ) -> None:
        self._server = server
        self._workers = workers
        self._admin = f"http://127.0.0.1:{ports['admin']}"
        self._log = log
        self.urls = [f"http://127.0.0.1:{ports['ingress']}"]
        self.headers: list[dict[str, str]] = [{}]

    def members(self) -> Iterator[tuple[psutil.Process, str]]:
        """Yield the server and the workers."""
        yield from tree(self._server.pid, ENGINE)
        for worker in self._workers:
            yield from tree(worker.pid, WORKERS)

    def ask_durability(self) -> dict[str, str]:
        """Return what the server prints of its loaded configuration when it is asked to."""
        read_to = self._log.stat().st_size
        self._server.send_signal(signal.SIGUSR1)
        until = time.monotonic() + _READY_WITHIN_S
        while True:
            with self._log.open("rb") as file:
                file.seek(read_to)
                found = read_restate(file.read().decode("utf-8", "replace"))
            if found.keys() == RESTATE.keys() or time.monotonic() > until:
                return found
            time.sleep(_LOOK_S)

    def database_counters(self) -> dict[str, float]:
        """Return nothing: it keeps its own files."""
        return {}

    def settings(self) -> dict[str, str]:
        """Return what was tuned."""
        return {
            "partitions": str(PARTITIONS),
            "log": "local, fdatasync before every acknowledgement",
            "service workers": f"{SERVICE_WORKERS} processes, granian over HTTP/2, both ways open",
            "steps": "ctx.run, aiohttp on uvloop",
            "RocksDB statistics": "off",
            "bulk": "256 calls under way at once, each waits for its result",
        }

    async def run_one(self, caller: Caller, turn: int, shape: str) -> None:
        """Call the service and wait for its reply."""
        path = f"/bench{turn % SERVICE_WORKERS}/run"
        reply = await caller.send("POST", path, json.dumps(shape).encode())
        if reply != b'"ok"':
            raise SystemExit(f"restate: got {reply!r}, expected the last node's text")

    async def run_bulk(self, shape: str, count: int) -> None:
        """Call the service once per workflow: it has no request that takes many."""
        await run_each(self, shape, count)

    async def wait_idle(self) -> None:
        """Return when the server knows of no unfinished invocation."""
        query = "SELECT count(*) AS n FROM sys_invocation WHERE status <> 'completed'"
        while True:
            found = await asyncio.to_thread(self._ask, "/query", {"query": query})
            if not found["rows"][0]["n"]:
                return
            await asyncio.sleep(_LOOK_S)

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            self._admin + path,
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Accept": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=_READY_WITHIN_S) as reply:
            return json.load(reply)

    def wait_ready(self) -> None:
        """Return when the server takes requests.

        Raises:
            SystemExit: it has ended, or does not answer within 60 s.
        """
        until = time.monotonic() + _READY_WITHIN_S
        while self._server.poll() is None and time.monotonic() < until:
            try:
                with urllib.request.urlopen(self._admin + "/health", timeout=1):
                    return
            except OSError:
                time.sleep(_LOOK_S)
        raise SystemExit(f"Restate's server is not ready:\n{self._log.read_text()[-2000:]}")

    def register(self, ports: list[int]) -> None:
        """Tell the server of its workers.

        Raises:
            SystemExit: it does not reach them within 60 s.
        """
        until = time.monotonic() + _READY_WITHIN_S
        for port in ports:
            while True:
                try:
                    self._ask("/deployments", {"uri": f"http://127.0.0.1:{port}"})
                    break
                except OSError as error:
                    if time.monotonic() > until:
                        raise SystemExit(f"Restate does not find its worker: {error}") from None
                    time.sleep(_LOOK_S)


@contextmanager
def restate(folder: Path, agent_ports: list[int]) -> Iterator[Restate]:
    """Run Restate with its data in `folder`.

    Args:
        agent_ports: of the stub agents.
    """
    ports = {one: free_port() for one in ("node", "admin", "ingress")}
    worker_ports = [free_port() for _ in range(SERVICE_WORKERS)]
    configuration, log = folder / "restate.toml", folder / "restate.log"
    configuration.write_text(_CONFIGURATION.format(partitions=PARTITIONS, **ports), "utf-8")
    command = [str(environment.restate_server()), "--config-file", str(configuration)]
    command += ["--base-dir", str(folder / "restate"), "--no-logo"]
    with ExitStack() as stack:
        with log.open("ab") as file:
            server = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=_environment()
            )
        stack.enter_context(ended([server]))
        agents = {PORTS_VARIABLE: ",".join(map(str, agent_ports))}
        workers = []
        for number, port in enumerate(worker_ports):
            worker = environment.start(
                "restate_service", f"bench{number}", str(port),
                environment=agents, log=folder / "workers.log",
            )  # fmt: skip
            # The SDK takes SIGTERM for itself, and the process stays. Workers hold nothing.
            stack.enter_context(ended([worker], signal.SIGKILL))
            workers.append(worker)
        system = Restate(server, workers, ports, log)
        system.wait_ready()
        system.register(worker_ports)
        yield system


def _environment() -> dict[str, str]:
    # It looks for newer versions and reports its use otherwise.
    return {"PATH": "/usr/bin:/bin", "DO_NOT_TRACK": "1"}
