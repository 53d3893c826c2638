"""Where the time of a lone workflow goes, as its client and its agent see it.

Run as `python -m bench.lone_step [--count N] [--checkout DIR]`: a deployment of its own and one
client that publishes chains of three with `Prefer: wait`, one after the other. Client and agent are
in this process, so all times are of one clock: publish to first call, reply to next call, last
reply to answer; beside them what single requests take. Prints medians and 90th percentiles.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import orjson
import uvloop

from bench.checkouts import Checkout
from bench.load.clients import PAYER_RIGHTS, Api, Target, chain, unique
from bench.load.stub_agent import ANSWER, StubAgent, Tally

CAPABILITY = "cap.bench.v1"
NODES = 3
# Not measured: connections are opened and statements prepared.
WARM_UP = 20


class StampingAgent(StubAgent):
    """A stub agent that notes when it is called; it replies within the same turn.

    Args:
        calls: gets the time of each call, seconds of `time.perf_counter`.
    """

    def __init__(self, calls: list[float]) -> None:
        super().__init__(ANSWER, Tally())
        self._calls = calls

    def buffer_updated(self, nbytes: int) -> None:
        """Note the time and reply."""
        self._calls.append(time.perf_counter())
        super().buffer_updated(nbytes)


class LoneClient:
    """One keep-alive connection; a request is written at once and its reply is read whole."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: str):
        self._reader = reader
        self._writer = writer
        self._key = key

    async def send(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Return the body of the reply.

        Raises:
            SystemExit: its status is none of success.
        """
        named = {
            "host": "bench", "x-api-key": self._key, "content-type": "application/json",
            "content-length": str(len(body)), **(headers or {}),
        }  # fmt: skip
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {text}" for name, text in named.items())]
        self._writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        head = await self._reader.readuntil(b"\r\n\r\n")
        lower = head.lower()
        length = int(lower.partition(b"content-length:")[2].partition(b"\r\n")[0])
        reply = await self._reader.readexactly(length)
        if not head.startswith(b"HTTP/1.1 20"):
            raise SystemExit(f"{method} {path}: {head[:40]!r} {reply[:300]!r}")
        return reply


@dataclass(slots=True)
class Times:
    """Durations in milliseconds, by what they are of."""

    taken: dict[str, list[float]] = field(default_factory=dict)

    def add(self, what: str, seconds: float) -> None:
        """Add a duration."""
        self.taken.setdefault(what, []).append(1_000 * seconds)

    def show(self) -> None:
        """Print a line per kind."""
        for what, taken in self.taken.items():
            late = statistics.quantiles(taken, n=10)[-1]
            print(f"  {what}: p50 {statistics.median(taken):.2f} ms, p90 {late:.2f} ms")


@asynccontextmanager
async def lone_client(url: str, key: str) -> AsyncIterator[LoneClient]:
    """Connect to the API."""
    at = urlsplit(url)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    try:
        yield LoneClient(reader, writer, key)
    finally:
        writer.close()


async def measure(target: Target, count: int) -> Times:
    """Publish `count` chains one after the other, then single requests."""
    calls: list[float] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(partial(StampingAgent, calls), "127.0.0.1", 0)
    payer = unique("did:bench:payer-")
    async with Api(target.url, target.admin_key) as admin:
        key = await admin.make_key(payer, rateClass="unlimited", scopes=PAYER_RIGHTS)
        await admin.register_agent(CAPABILITY, server.sockets[0].getsockname()[1])
        await admin.must("POST", "/v1/ledger/deposit", {"amount": 100_000, "ownerDid": payer})
    body = orjson.dumps(chain(CAPABILITY, NODES))
    times = Times()
    async with lone_client(target.url, key) as client:
        for number in range(-WARM_UP, count):
            calls.clear()
            began = time.perf_counter()
            path, prefer = "/v1/workflows/publish", {"prefer": "wait=30"}
            reply: dict[str, Any] = orjson.loads(await client.send("POST", path, body, prefer))
            ended = time.perf_counter()
            if reply.get("status") != "success" or len(calls) != NODES:
                raise SystemExit(f"got {reply}, {len(calls)} calls, expected {NODES}")
            if number >= 0:
                times.add("publish -> first call", calls[0] - began)
                for before, after in itertools.pairwise(calls):
                    times.add("reply -> next call", after - before)
                times.add("last reply -> answer", ended - calls[-1])
                times.add("whole", ended - began)
        singles = {
            "balance": ("GET", "/v1/ledger/balance", b""),
            "deposit": ("POST", "/v1/ledger/deposit", b'{"amount":1}'),
            "health": ("GET", "/health", b""),
        }
        for what, (method, path, content) in singles.items():
            for number in range(-WARM_UP, count):
                began = time.perf_counter()
                await client.send(method, path, content)
                if number >= 0:
                    times.add(what, time.perf_counter() - began)
    server.close()
    return times


def main() -> None:
    """Measure once and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="workflows")
    parser.add_argument("--checkout", help="run the code of the checkout in this folder")
    parser.add_argument("--toml", default="", help="settings of the deployment")
    options = parser.parse_args()
    checkout = Checkout.at(options.checkout)
    with checkout.deployment(options.toml) as home:
        times = uvloop.run(measure(Target.at(home), options.count))
    print(f"{checkout.commit}: {options.count} lone chains of {NODES}")
    times.show()


if __name__ == "__main__":
    main()
