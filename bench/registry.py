"""What the registry costs, through the API: registration in bulk, look-ups, discovery.

Agents are registered in bulks through a deployment of its own, of many owners, a hundredth of them
with one capability and words of its own; then look-ups are sent one after the other, and again with
searches while 100 agents a second are registered. Times are those of a light client: by HTTP,
beside the cheapest request; and of the same statements alone, sent from this process. "CPU" is the
mean processor time of a replica and of Postgres for one request without registrations: what the
service itself costs, however busy the machine is.
Selection is that of `bench.agent_choice`, among so many agents of one capability.

Bounds of issue "Registry and planning": 500 registrations/s in bulk, look-up by capability p99
2 ms, discovery p99 20 ms, selection 30 µs at 100,000.

Usage: `python -m bench.registry [agents ...] [--home DIR] [--beside CHECKOUT]`, default 1000 10000;
`--beside`: another checkout's deployment is measured first, as far as it has these requests.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import uvloop

from bench.agent_choice import Choosing, median_us
from bench.checkouts import Checkout
from bench.figures.process_usage import POSTGRES, cpu_seconds
from bench.load.clients import Api, Target
from bench.peers.caller import connect
from ledger.features.discovery import AgentSearch, find_offers
from ledger.reads.reader import LedgerReader

BULK: Final = 500
# Below `agents_per_owner_max`.
OWNER_AGENTS: Final = 5_000
ASKED: Final = 300
# Of look-ups at rest, whose bound is a tenth of that of searches.
LOOKED_UP: Final = 2_000
REGISTRATIONS_PER_S: Final = 100
SERVERS: Final = ("serve replica", POSTGRES)
READS: Final = {
    "cheapest request": "/ready",
    "look-up by id": "/v1/agents/did:bench:7",
    "look-up by capability": "/v1/agents?capabilityId=cap.bench.n7.v1&limit=10",
    "look-up by capability of a hundredth": "/v1/agents?capabilityId=cap.bench.shared.v1&limit=10",
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


@dataclass(frozen=True, slots=True)
class Times:
    """How long one thing took, milliseconds."""

    p50: float
    p99: float

    @classmethod
    async def of(cls, work: Callable[[], Awaitable[object]], count: int = ASKED) -> Times:
        """Do something so many times, one after the other."""
        took = []
        for _ in range(count):
            began_s = time.perf_counter()
            await work()
            took.append((time.perf_counter() - began_s) * 1_000)
        took.sort()
        return cls(took[len(took) // 2], took[int(len(took) * 0.99)])

    def __str__(self) -> str:
        return f"{self.p50:6.1f} {self.p99:6.1f}"


Rows = dict[str, dict[str, Any]]


class Run:
    """What one checkout's deployment does; figures go into the rows of the table."""

    def __init__(self, name: str, target: Target, rows: Rows) -> None:
        self._name = name
        self._target = target
        self._rows = rows
        self._registered = 0

    async def measure(self, counts: list[int]) -> None:
        """Register up to each count, and read there while others register."""
        async with Api(self._target.url, self._target.admin_key, timeout_s=120) as api:
            for count in counts:
                began_s = time.perf_counter()
                for first in range(self._registered, count, BULK):
                    await register(api, first, min(BULK, count - first))
                rate = (count - self._registered) / (time.perf_counter() - began_s)
                self._note("registrations/s in bulk", count, f"{rate:.0f}")
                self._registered = count
                # Brings the index up to date.
                await api.send("GET", READS["discovery, one agent"])
                await self._read(api, count)

    async def _read(self, api: Api, count: int) -> None:
        async with connect(self._target.url, {"x-api-key": self._target.admin_key}) as client:
            for name, path in READS.items():
                if not name.startswith("discovery"):
                    read = partial(client.send, "GET", path)
                    await Times.of(read)  # warm
                    self._note(f"{name}, at rest", count, await Times.of(read, LOOKED_UP))
            writing = asyncio.create_task(_register_slowly(api, 10_000_000 + count * 10))
            try:
                for name, path in READS.items():
                    status, _ = await api.send("GET", path)
                    if status == 200:
                        times = await Times.of(partial(client.send, "GET", path))
                        self._note(f"{name}, by HTTP", count, times)
                if not self._name:  # another checkout has other tables
                    async with LedgerReader(self._target.database_url) as reader:
                        for name, work in _database_reads(reader).items():
                            self._note(f"{name}, its statements", count, await Times.of(work))
            finally:
                writing.cancel()
                with suppress(asyncio.CancelledError):
                    await writing
            for name, path in READS.items():
                if f"{name}, by HTTP" not in self._rows:
                    continue
                before = cpu_seconds(self._target.home)
                for _ in range(ASKED):
                    await client.send("GET", path)
                after = cpu_seconds(self._target.home)
                spent = [(after[kind] - before[kind]) / ASKED * 1_000 for kind in SERVERS]
                self._note(f"{name}, CPU", count, "{:.1f} + {:.1f}".format(*spent))

    def _note(self, row: str, count: int, value: object) -> None:
        self._rows.setdefault(row, {})[f"{self._name}{count}"] = value
        print(f"  {self._name}{count} agents: {row}: {value}", flush=True)


def _database_reads(reader: LedgerReader) -> dict[str, Callable[[], Awaitable[object]]]:
    async def look_up(capability_id: str) -> None:
        await reader.agents(status="active", capability_id=capability_id, limit=11)

    async def find(limit: int = 20, **asked: Any) -> None:
        search = AgentSearch(**asked)
        await find_offers(reader, search, limit=limit, slowest_ms=10_000, caller="bench")

    return {
        "look-up by capability": partial(look_up, "cap.bench.n7.v1"),
        "look-up by capability of a hundredth": partial(look_up, "cap.bench.shared.v1"),
        "discovery, one agent": partial(find, words="elephant7"),
        "discovery, a hundredth": partial(find, words="hundredth"),
        "discovery, all": partial(find, words="word"),
        "discovery by capability": partial(find, capability_id="cap.bench.shared.v1"),
        "discovery by beginning": partial(find, capability_id="cap.bench.sha", is_prefix=True),
        "discovery, words and price": partial(find, limit=40, words="word hundredth"),
    }


def print_table(rows: Rows, columns: list[str]) -> None:
    """Print all figures: one row each, by agents."""
    width = max(map(len, rows))
    print(f"\nload of the machine: {os.getloadavg()[0]:.1f}; p50 and p99, in ms where not said")
    print(" " * width, *(f"{column:>14}" for column in columns))
    for name, figures in rows.items():
        print(f"{name:{width}}", *(f"{figures.get(column, '-')!s:>14}" for column in columns))


@contextmanager
def _deployment(checkout: Checkout, home: Path | None) -> Iterator[Path]:
    if home is not None:
        yield home
        return
    with checkout.deployment() as made:
        yield made


def main() -> None:
    """Measure for each count of agents, smallest first, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agents", nargs="*", type=int)
    parser.add_argument("--home", type=Path)
    parser.add_argument("--beside", metavar="CHECKOUT")
    given = parser.parse_args()
    counts = sorted(given.agents) or [1_000, 10_000]
    rows: Rows = {}
    columns = [str(count) for count in counts]
    if given.beside is not None:
        beside = Checkout.at(given.beside)
        with _deployment(beside, None) as home:
            uvloop.run(Run("beside ", Target.at(home), rows).measure(counts))
        columns += [f"beside {count}" for count in counts]
    with _deployment(Checkout.at(None), given.home) as home:
        uvloop.run(Run("", Target.at(home), rows).measure(counts))
    for count in counts:
        chosen_us = median_us(Choosing(count).choose)
        rows.setdefault("selection, µs of CPU", {})[str(count)] = f"{chosen_us:.1f}"
    print_table(rows, columns)


if __name__ == "__main__":
    main()
