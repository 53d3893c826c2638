"""What the registry costs, through the API: registration in bulk, look-ups, discovery.

Agents are registered in bulks through a deployment of its own, of many owners, a hundredth of them
with one capability and words of its own; then look-ups and searches are sent one after the other
while 100 agents a second are registered. Times are the client's. Issue "Registry and planning".

Usage: `python -m bench.registry [agents ...] [--home DIR]`, default 1000 10000.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from bench.checkouts import Checkout
from bench.load.clients import Api, Target

BULK: Final = 500
# Below `agents_per_owner_max`.
OWNER_AGENTS: Final = 5_000
ASKED: Final = 300
REGISTRATIONS_PER_S: Final = 100
READS: Final = {
    "look-up by id": "/v1/agents/did:bench:7",
    "look-up by capability": "/v1/agents?capabilityId=cap.bench.n7.v1&limit=10",
    "discovery, one agent": "/v1/discover?q=elephant7",
    "discovery, a hundredth": "/v1/discover?q=hundredth",
    "discovery, all": "/v1/discover?q=word",
    "discovery by capability": "/v1/discover?capabilityId=cap.bench.shared.v1",
    "discovery by beginning": "/v1/discover?capabilityId=cap.bench.sha*",
    "discovery, words and price": "/v1/discover?q=word+hundredth&maxPriceCents=5",
}


def registration(number: int) -> dict[str, Any]:
    """Return the registration of an agent."""
    is_hundredth = number % 100 == 0
    words = " a hundredth" if is_hundredth else ""
    capabilities = [
        {
            "id": f"cap.bench.n{number}.v1",
            "description": f"Does some word work, elephant{number}{words}",
            "price_cents": number % 20,
            "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
        }
    ]
    if is_hundredth:
        capabilities.append({"id": "cap.bench.shared.v1", "description": "Shared word"})
    card = {
        "did": f"did:bench:{number}",
        "endpoint": "http://127.0.0.1:9",
        "version": 1,
        "capabilities": capabilities,
    }
    return {"acard": card, "ownerDid": f"did:bench:owner{number // OWNER_AGENTS}"}


async def register(api: Api, first: int, count: int) -> None:
    """Register agents in one bulk; each must be taken."""
    agents = [registration(number) for number in range(first, first + count)]
    reply = await api.must("POST", "/v1/agents/register/bulk", {"agents": agents})
    refused = [one for one in reply["results"] if not one.get("ok")]
    if refused:
        raise SystemExit(f"{len(refused)} registrations refused, the first: {refused[0]}")


async def _register_slowly(api: Api, first: int) -> None:
    batch = REGISTRATIONS_PER_S // 5
    while True:
        began_s = time.perf_counter()
        await register(api, first, batch)
        first += batch
        await asyncio.sleep(max(0.0, 0.2 - (time.perf_counter() - began_s)))


async def _read(api: Api, path: str) -> list[float]:
    took = []
    for _ in range(ASKED):
        began_s = time.perf_counter()
        await api.must("GET", path)
        took.append((time.perf_counter() - began_s) * 1_000)
    return sorted(took)


async def measure(target: Target, counts: list[int]) -> None:
    """Register up to each count and print what reading costs there."""
    registered = 0
    async with Api(target.url, target.admin_key, timeout_s=120) as api:
        for count in counts:
            began_s = time.perf_counter()
            for first in range(registered, count, BULK):
                await register(api, first, min(BULK, count - first))
            took_s = time.perf_counter() - began_s
            print(f"{count} agents: {(count - registered) / took_s:.0f} registrations/s in bulk")
            registered = count
            await api.must("GET", READS["discovery, one agent"])  # brings the index up to date
            writing = asyncio.create_task(_register_slowly(api, 10_000_000 + count * 10))
            try:
                for name, path in READS.items():
                    times = await _read(api, path)
                    p99 = times[int(len(times) * 0.99)]
                    print(f"  {name}: p50 {times[len(times) // 2]:.1f} ms, p99 {p99:.1f} ms")
            finally:
                writing.cancel()
                with suppress(asyncio.CancelledError):
                    await writing


@contextmanager
def _deployment(home: Path | None) -> Iterator[Path]:
    if home is not None:
        yield home
        return
    with Checkout.at(None).deployment() as made:
        yield made


def main() -> None:
    """Measure for each count of agents, smallest first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agents", nargs="*", type=int)
    parser.add_argument("--home", type=Path)
    given = parser.parse_args()
    with _deployment(given.home) as home:
        asyncio.run(measure(Target.at(home), sorted(given.agents) or [1_000, 10_000]))


if __name__ == "__main__":
    main()
