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

import orjson

from bench.figures.process_usage import cpu_seconds
from bench.load.clients import Api, Target
from bench.peers.graphs import CAPABILITY, GRAPHS, manifest

CLIENTS = 32
# Of the case `paced`: all clients together, workflows a second.
PACE = 200
REPLY_WITHIN_S = 120.0
SHAPES = tuple(GRAPHS)
NODES = {shape: len(nodes) for shape, nodes in GRAPHS.items()}


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


class Service:
    """A deployment under measurement, reached over HTTP."""

    def __init__(self, home: Path, ports: list[int]) -> None:
        self.home = home
        self._ports = ports
        self._target = Target.at(home)

    async def prepare(self) -> None:
        """Register the stub agents and fill the payer's wallet."""
        async with self._api() as api:
            for port in self._ports:
                await api.register_agent(CAPABILITY, port)
            await api.must("POST", "/v1/ledger/deposit", {"amount": 1_000_000})

    async def single(self, shape: str, count: int, clients: int) -> list[float]:
        """Publish one by one from `clients` clients with `Prefer: wait`; return latencies in ms."""
        body = orjson.dumps(manifest(shape))
        left = iter(range(count))
        latencies: list[float] = []
        async with self._api() as api:

            async def client() -> None:
                for _ in left:
                    started = time.perf_counter()
                    await _run_one(api, body)
                    latencies.append(1000 * (time.perf_counter() - started))

            await asyncio.gather(*(client() for _ in range(clients)))
        return latencies

    async def paced(self, shape: str, count: int, clients: int) -> list[float]:
        """Publish like `single`, at `PACE` set times a second; return latencies from those, ms."""
        body = orjson.dumps(manifest(shape))
        latencies: list[float] = []
        async with self._api() as api:
            began = time.perf_counter()

            async def client(number: int) -> None:
                for turn in range(number, count, clients):
                    due = began + turn / PACE
                    await asyncio.sleep(due - time.perf_counter())
                    await _run_one(api, body)
                    latencies.append(1000 * (time.perf_counter() - due))

            await asyncio.gather(*map(client, range(clients)))
        return latencies

    async def bulk(self, shape: str, count: int) -> None:
        """Publish `count` workflows by bulk requests of 1,000 and wait until the last has ended."""
        async with self._api() as api:
            ids = await api.publish_bulk(manifest(shape), count)
            await api.wait_ended(ids[-1])
            # The last one published is not always the last to end.
            await api.wait_all_ended()

    def _api(self) -> Api:
        return Api(self._target.url, self._target.admin_key, timeout_s=REPLY_WITHIN_S)


async def _run_one(api: Api, body: bytes) -> None:
    reply = await api.must("POST", "/v1/workflows/publish", body, prefer="wait=30")
    if reply["status"] != "success":
        raise SystemExit(f"publish: {reply}")


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
