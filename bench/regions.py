"""What a node costs that runs at a peer on the same machine, beside one that runs here.

Starts two regions, each with stub agents of its own, and publishes workflows of one node in turn:
with a node that an agent here takes, and with one that the other region takes. Prints the CPU of
all processes of both regions, agents and this client left out, by node, and the median of the
ratios of the rounds.

Usage: `python -m bench.regions [--rounds N] [--workflows N]`
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from bench.figures.process_usage import AGENTS, cpu_seconds
from bench.load.clients import Api, Target
from bench.workflows import CLIENTS, stub
from callboard import Client
from scripts.federation_demo import PORTS, add_peer, register, start, supervise, wait

CAPABILITIES: Final = {"eu": "cap.bench.here.v1", "us": "cap.bench.there.v1"}
PREFUND: Final = 100_000


def manifest(region: str) -> dict[str, Any]:
    """Return a workflow of one node that runs in a region."""
    return {"nodes": {"n": {"capabilityId": CAPABILITIES[region], "region": region}}}


async def run_workflows(target: Target, region: str, count: int) -> None:
    """Publish workflows one by one from several clients, and wait for the end of each."""
    left = iter(range(count))
    async with Api(target.url, target.admin_key) as api:

        async def run() -> None:
            for _ in left:
                body = manifest(region)
                record = await api.must("POST", "/v1/workflows/publish", body, prefer="wait=30")
                if record["status"] != "success":
                    raise SystemExit(f"publish: {record}")

        await asyncio.gather(*(run() for _ in range(CLIENTS)))


def measure(target: Target, homes: list[Path], region: str, count: int) -> float:
    """Return the CPU of one node, microseconds."""

    def spent_s() -> float:
        used = [cpu_seconds(home).items() for home in homes]
        return sum(seconds for one in used for kind, seconds in one if kind != AGENTS)

    before_s = spent_s()
    asyncio.run(run_workflows(target, region, count))
    return 1e6 * (spent_s() - before_s) / count


@contextmanager
def regions(folder: Path) -> Iterator[dict[str, Client]]:
    """Start both regions, each a peer of the other, and pay in advance."""
    with ExitStack() as stack:
        made: dict[str, Client] = {}
        for name in PORTS:
            made[name] = stack.enter_context(start(name, folder / name))
            stack.callback(supervise, "down", folder / name)
            for number in range(2):
                _, port = stack.enter_context(stub(folder / name))
                did = f"{name}-{number}"
                register(made[name], did, f"http://127.0.0.1:{port}", CAPABILITIES[name], 1)
        eu, us = made["eu"], made["us"]
        add_peer(us, "eu", eu)
        add_peer(eu, "us", us)
        wait(lambda: bool(eu.peer("us").offers), "the offers of us")
        us.deposit(PREFUND, owner_did=us.peer("eu").did)
        eu.deposit(PREFUND)
        trial = {**manifest("us"), "dryRun": True}
        wait(lambda: bool(eu.publish(trial)["candidates"]["n"]), "a route")
        yield made


def main() -> None:
    """Measure in rounds, and print each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workflows", type=int, default=1_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="regions-") as name, regions(Path(name)):
        homes = [Path(name) / region for region in PORTS]
        target = Target.at(homes[0])
        for region in PORTS:
            measure(target, homes, region, given.workflows)  # to warm up
        ratios = []
        for number in range(given.rounds):
            here, there = (measure(target, homes, one, given.workflows) for one in PORTS)
            ratios.append(there / here)
            print(f"round {number}: here {here:.0f} CPU-us/node, at the peer {there:.0f}")
        print(f"a node at a peer costs {statistics.median(ratios):.2f} x a node here")


if __name__ == "__main__":
    main()
