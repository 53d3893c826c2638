"""Measures the effect of a hanging agent on healthy ones: latencies with and without it.

Run as `python -m bench.slow_agent [--orders N]`. The dispatcher alone, without Ray and Postgres: a
stub agent in its own process answers at once, another one has a thousand orders and never replies.
Rounds with and without it alternate; compare the ratio, not the absolute figures.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import socket
import statistics
import subprocess
import sys
import time

from actors.dispatch.dispatcher import Dispatcher
from actors.ports import DispatchOrder, InputSources
from actors.process.at_work import AtWork
from actors.process.loop_clock import LoopClock
from core.records.manifest import parse_manifest
from core.settings import Settings
from core.workflow.dag import compile_workflow
from core.workflow.events import Event, WorkStarted
from federation.name_resolver import NameResolver

_NODES = {"a": {"capabilityId": "cap.bench.v1", "payload": {"n": 1}}}
SOURCES = InputSources(compile_workflow(parse_manifest({"nodes": _NODES})).nodes["a"], {})
AT_ONCE = 32
HANGING_ORDERS = 1_000
ROUNDS = 3


def order(did: str, port: int, node: str) -> DispatchOrder:
    """Return an order to the agent that listens at this loopback port."""
    return DispatchOrder(
        workflow_id="0198c0de-0000-7000-8000-000000000001",
        task_id="t",
        node=node,
        attempt=1,
        capability_id="cap.bench.v1",
        agent_did=did,
        url=f"http://127.0.0.1:{port}/node",
        cancel_url=f"http://127.0.0.1:{port}/cancel",
        secret=None,
        timeout_ms=600_000,
        sources=SOURCES,
    )


async def healthy(dispatcher: Dispatcher, port: int, count: int) -> list[float]:
    """Send orders from a few clients, one after the other each; return latencies in ms, sorted."""
    latencies: list[float] = []
    left = iter(range(count))

    async def client() -> None:
        for number in left:
            ended: asyncio.Future[Event] = asyncio.get_running_loop().create_future()

            def receive(_: str, event: Event, ended: asyncio.Future[Event] = ended) -> None:
                if not isinstance(event, WorkStarted):
                    ended.set_result(event)

            began = time.perf_counter()
            dispatcher.send(order("did:x:well", port, f"w{number}"), receive)
            await ended
            latencies.append((time.perf_counter() - began) * 1_000)

    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    return sorted(latencies)


async def one_round(port: int, hanging_port: int | None, count: int) -> list[float]:
    """Measure one dispatcher; with a hanging agent, its orders come first."""
    dispatcher = Dispatcher(
        dataclasses.replace(Settings(), deployment_key="00" * 32),
        LoopClock(),
        begin=lambda _: None,
        note=lambda _, __: None,
        names=NameResolver(),
        at_work=AtWork(),
    )
    try:
        await healthy(dispatcher, port, AT_ONCE)  # connections
        if hanging_port is not None:
            for number in range(HANGING_ORDERS):
                dispatcher.send(order("did:x:hang", hanging_port, f"h{number}"), lambda *_: None)
        return await healthy(dispatcher, port, count)
    finally:
        await dispatcher.close()


async def measure(port: int, count: int) -> None:
    """Alternate rounds and print medians of their p50 and p99."""
    # The kernel accepts the connections; no process reads them.
    silent = socket.create_server(("127.0.0.1", 0), backlog=1_024)
    hanging_port = silent.getsockname()[1]
    found: dict[str, list[tuple[float, float]]] = {"without": [], "with": []}
    for _ in range(ROUNDS):
        for name, extra in (("without", None), ("with", hanging_port)):
            times = await one_round(port, extra, count)
            found[name].append((times[len(times) // 2], times[int(len(times) * 0.99)]))
    silent.close()
    medians = {
        name: [statistics.median(column) for column in zip(*rounds, strict=True)]
        for name, rounds in found.items()
    }
    for name, (p50, p99) in medians.items():
        print(f"{name:>8} a hanging agent: p50 {p50:6.2f} ms  p99 {p99:6.2f} ms")
    print(f"   ratio of p99: {medians['with'][1] / medians['without'][1]:.2f}")


def main() -> None:
    """Start the stub agent, measure, end it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=5_000)
    count = parser.parse_args().orders
    command = [sys.executable, "-m", "bench.load.stub_agent"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stub:
        assert stub.stdout is not None
        asyncio.run(measure(int(stub.stdout.readline()), count))
        assert stub.stdin is not None
        stub.stdin.close()


if __name__ == "__main__":
    main()
