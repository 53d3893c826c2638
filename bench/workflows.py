"""Workflows of two shapes on a deployment: rate, latency and CPU by process of one round.

Measured by `bench.pairs` and `bench.machines`.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from bench.figures.process_usage import cpu_seconds

CLIENTS = 32
# Of the case `paced`: all clients together, workflows a second.
PACE = 200
CAPABILITY = "cap.bench.v1"
SHAPES = ("chain3", "fan10")
NODES = {"chain3": 3, "fan10": 10}


@dataclass(frozen=True, slots=True)
class Figures:
    """One measured round."""

    workflows: int
    seconds: float
    cpu: dict[str, float]
    latencies_ms: list[float]

    @property
    def rate(self) -> float:
        """Return workflows per second."""
        return self.workflows / self.seconds

    @property
    def cpu_ms(self) -> float:
        """Return CPU milliseconds per workflow, all processes, agents and client included."""
        return 1000 * sum(self.cpu.values()) / self.workflows


def manifest(shape: str) -> dict[str, Any]:
    """Return a 3-node chain or a fan of nine nodes into one; 1 cent per node, inputs mapped."""
    node = {"capabilityId": CAPABILITY, "payload": {"n": 1}}
    if shape == "chain3":
        nodes: dict[str, Any] = {"a": node}
        for name, parent in (("b", "a"), ("c", "b")):
            mapping = {"text": f"$.{parent}.result.text"}
            nodes[name] = {**node, "dependsOn": [parent], "inputMappings": mapping}
        return {"intent": "bench", "nodes": nodes}
    nodes = {f"n{i}": node for i in range(9)}
    nodes["last"] = {
        **node,
        "dependsOn": [f"n{i}" for i in range(9)],
        "inputMappings": {f"t{i}": f"$.n{i}.result.text" for i in range(9)},
    }
    return {"intent": "bench", "nodes": nodes}


class Service:
    """A deployment under measurement, reached over HTTP."""

    def __init__(self, home: Path, ports: list[int]) -> None:
        self.home = home
        self.ports = ports
        self.url = (home / "url").read_text().strip()
        key = (home / "admin.key").read_text().strip()
        self.headers = {"x-api-key": key, "Content-Type": "application/json"}

    async def prepare(self) -> None:
        """Register the stub agents and fill the payer's wallet."""
        async with aiohttp.ClientSession(headers=self.headers) as session:
            for index, port in enumerate(self.ports):
                card = {
                    "did": f"did:bench:agent{index}",
                    "endpoint": f"http://127.0.0.1:{port}",
                    "version": 1,
                    "maxConcurrency": 512,
                    "capabilities": [{"id": CAPABILITY, "description": "", "price_cents": 1}],
                }
                await self._post(session, "/v1/agents/register", {"acard": card})
            await self._post(session, "/v1/ledger/deposit", {"amount": 1_000_000})

    async def _post(self, session: aiohttp.ClientSession, path: str, body: Any) -> Any:
        async with session.post(self.url + path, data=orjson.dumps(body)) as response:
            reply = orjson.loads(await response.read())
            if response.status != 200 and response.status != 201:
                raise SystemExit(f"{path}: {response.status} {reply}")
            return reply

    async def single(self, shape: str, count: int, clients: int) -> list[float]:
        """Publish one by one from `clients` clients with `Prefer: wait`; return latencies in ms."""
        body = orjson.dumps(manifest(shape))
        left = iter(range(count))
        latencies: list[float] = []
        async with self._waiting_session(clients) as session:

            async def client() -> None:
                for _ in left:
                    started = time.perf_counter()
                    await self._run_one(session, body)
                    latencies.append(1000 * (time.perf_counter() - started))

            await asyncio.gather(*(client() for _ in range(clients)))
        return latencies

    async def paced(self, shape: str, count: int, clients: int) -> list[float]:
        """Publish like `single`, at `PACE` set times a second; return latencies from those, ms."""
        body = orjson.dumps(manifest(shape))
        latencies: list[float] = []
        async with self._waiting_session(clients) as session:
            began = time.perf_counter()

            async def client(number: int) -> None:
                for turn in range(number, count, clients):
                    due = began + turn / PACE
                    await asyncio.sleep(due - time.perf_counter())
                    await self._run_one(session, body)
                    latencies.append(1000 * (time.perf_counter() - due))

            await asyncio.gather(*map(client, range(clients)))
        return latencies

    def _waiting_session(self, clients: int) -> aiohttp.ClientSession:
        headers = {**self.headers, "Prefer": "wait=30"}
        connector = aiohttp.TCPConnector(limit=clients)
        return aiohttp.ClientSession(headers=headers, connector=connector)

    async def _run_one(self, session: aiohttp.ClientSession, body: bytes) -> None:
        async with session.post(f"{self.url}/v1/workflows/publish", data=body) as response:
            reply = orjson.loads(await response.read())
            if reply.get("status") != "success":
                raise SystemExit(f"publish: {response.status} {reply}")

    async def bulk(self, shape: str, count: int) -> None:
        """Publish `count` workflows by bulk requests of 1,000 and wait until the last has ended."""
        one = manifest(shape)
        async with aiohttp.ClientSession(headers=self.headers) as session:
            ids: list[str] = []
            for start in range(0, count, 1_000):
                size = min(1_000, count - start)
                reply = await self._post(
                    session, "/v1/workflows/publish/bulk", {"workflows": [one] * size}
                )
                ids += [result["workflowId"] for result in reply["results"]]
            await self._wait(session, ids[-1])
            # The last one published is not always the last to end.
            while (unfinished := await self._unfinished(session)) is not None:
                await self._wait(session, unfinished)

    async def _wait(self, session: aiohttp.ClientSession, workflow_id: str) -> None:
        path = f"{self.url}/v1/workflows/{workflow_id}"
        async with session.get(path, headers={"Prefer": "wait=60"}) as response:
            record = orjson.loads(await response.read())
            if record["status"] != "success":
                raise SystemExit(f"{workflow_id}: {record}")

    async def _unfinished(self, session: aiohttp.ClientSession) -> str | None:
        for status in ("running", "pending"):
            path = f"{self.url}/v1/workflows?status={status}&limit=1"
            async with session.get(path) as response:
                for workflow in orjson.loads(await response.read())["workflows"]:
                    return str(workflow["id"])
        return None


async def measure(service: Service, shape: str, case: str, count: int) -> Figures:
    """Run one case once and account the CPU time it took, by process."""
    before = cpu_seconds(service.home)
    own, wall = time.process_time(), time.perf_counter()
    latencies: list[float] = []
    if case == "bulk":
        await service.bulk(shape, count)
    elif case == "paced":
        latencies = await service.paced(shape, count, CLIENTS)
    else:
        latencies = await service.single(shape, count, CLIENTS if case == "single" else 1)
    seconds = time.perf_counter() - wall
    after = cpu_seconds(service.home)
    cpu = {kind: after[kind] - before.get(kind, 0.0) for kind in after}
    cpu["client"] = time.process_time() - own
    return Figures(count, seconds, cpu, latencies)


@contextmanager
def stub(home: Path, behaviour: str = "answer") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a stub agent as a process of its own; yield it with its port. It ends with this one."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.load.stub_agent", behaviour],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PATH": "/usr/bin:/bin", "CALLBOARD_BENCH": str(home)},
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait(timeout=10)


@contextmanager
def stubs(home: Path, count: int) -> Iterator[list[int]]:
    """Run stub agents that reply at once; yield their ports."""
    with ExitStack() as stack:
        yield [stack.enter_context(stub(home))[1] for _ in range(count)]
