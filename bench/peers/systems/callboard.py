"""The service: a deployment of its own with default settings, everything on.

Escrow, payments, receipts, audit and signatures are part of every workflow; neither peer has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import orjson
import psutil

from bench.checkouts import Checkout
from bench.figures.postgres_counters import read_counters
from bench.figures.process_usage import POSTGRES, members
from bench.load.clients import Api, Target
from bench.peers.caller import REPLY_WITHIN_S, Caller
from bench.peers.durability import ask_postgres
from bench.peers.graphs import CAPABILITY, manifest
from bench.peers.systems.system import DATABASE

# One payer alone may not hold more than an eighth of what is free: 256 callers are of several.
PAYERS = 8
BULK_MAX = 1_000
_WAIT = "wait=60"


class Callboard:
    """A running deployment.

    Args:
        target: where it is.
    """

    name = "callboard"

    def __init__(self, target: Target) -> None:
        self._target = target
        self.urls = [target.url]
        self.headers: list[dict[str, str]] = []

    def members(self) -> Iterator[tuple[psutil.Process, str]]:
        """Yield the deployment's processes; Postgres is the database."""
        for process, kind in members(self._target.home):
            yield process, DATABASE if kind == POSTGRES else kind

    def ask_durability(self) -> dict[str, str]:
        """Return what Postgres says, and what it says for single roles."""
        return ask_postgres(self._target.database_url)

    def database_counters(self) -> dict[str, float]:
        """Return what Postgres has counted."""
        return read_counters(self._target.database_url)

    def settings(self) -> dict[str, str]:
        """Return what is on; nothing was tuned."""
        return {
            "settings": "the defaults, with audit, signatures, escrow and receipts",
            "payers": f"{PAYERS}, each with a wallet of its own; in bulk one",
            "bulk": "bulk publishes of 1,000, then waits until the last has ended",
        }

    async def prepare(self, ports: list[int]) -> None:
        """Register the stub agents, and payers with filled wallets."""
        async with self._api(self._target.admin_key) as admin:
            for port in ports:
                await admin.register_agent(CAPABILITY, port)
            for number in range(PAYERS):
                payer = f"did:bench:payer-{number}"
                key = await admin.make_key(payer, rateClass="unlimited")
                self.headers.append({"x-api-key": key})
                deposit = {"amount": 1_000_000, "ownerDid": payer}
                await admin.must("POST", "/v1/ledger/deposit", deposit)

    async def run_one(self, caller: Caller, turn: int, shape: str) -> None:
        """Publish and wait for the end."""
        body = orjson.dumps(manifest(shape))
        reply = orjson.loads(await caller.send("POST", "/v1/workflows/publish", body, _WAIT))
        if reply.get("status") != "success":
            raise SystemExit(f"callboard: got {reply}, expected success")

    async def run_bulk(self, shape: str, count: int) -> None:
        """Publish by bulk requests; wait for the last published, then for all others."""
        async with self._api(self.headers[0]["x-api-key"]) as payer:
            published = await payer.publish_bulk(manifest(shape), count, at_once=BULK_MAX)
            await payer.wait_ended(published[-1])
        await self.wait_idle()

    async def wait_idle(self) -> None:
        """Return when no workflow is unfinished."""
        async with self._api(self._target.admin_key) as admin:
            await admin.wait_all_ended()

    def _api(self, key: str) -> Api:
        return Api(self._target.url, key, timeout_s=REPLY_WITHIN_S)


@contextmanager
def callboard() -> Iterator[Callboard]:
    """Run a deployment of this checkout."""
    with Checkout.at(None).deployment() as home:
        yield Callboard(Target.at(home))
