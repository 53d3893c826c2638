"""The other tenant: publishes and deposits at a fixed rate and computes its expected balance.

It runs in a process of its own. Requests start at fixed times, independent of earlier replies, and
a latency counts from the start. Any reply but 200, or none, is a failure; failures are not retried
during the measurement.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field
from threading import Event  # of a manager, for several processes
from typing import Any

import aiohttp
import orjson
import uvloop

from bench.load.clients import PAYER_RIGHTS, Api, Target, chain, unique
from core.money import micro_from_credits

PUBLISHES_PER_S, DEPOSITS_PER_S = 20, 2
NODES = 3
FIRST_DEPOSIT = 10_000
WARM_UP_S = 3.0
SETTLED_WITHIN_S = 90.0
PUBLISH, DEPOSIT = "publish", "deposit"


@dataclass(slots=True)
class Phase:
    """The requests of one measured phase: latencies (ms) by kind, failures by kind and reason."""

    latencies_ms: dict[str, list[float]] = field(
        default_factory=lambda: dict[str, list[float]]({PUBLISH: [], DEPOSIT: []})
    )
    failures: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Account:
    """The tenant's workflows by final status, and what is wrong with its money."""

    ended: dict[str, int] = field(default_factory=dict)
    defects: list[str] = field(default_factory=list)


class Tenant:
    """Works against one deployment.

    Args:
        target: the deployment.
        port: of loopback, where an agent replies at once.
    """

    def __init__(self, target: Target, port: int) -> None:
        self._target = target
        self._port = port
        self._did = unique("did:bench:tenant-")
        self._capability = unique("cap.bench.") + ".v1"
        self._body = orjson.dumps(chain(self._capability, NODES))
        self._deposited = FIRST_DEPOSIT
        self._unsettled: list[str] = []
        self._accepted = 0
        self._key = ""

    async def prepare(self) -> None:
        """Register the agent, create an unlimited key, fill the wallet."""
        async with Api(self._target.url, self._target.admin_key) as admin:
            await admin.register_agent(self._capability, self._port)
            self._key = await admin.make_key(self._did, rateClass="unlimited", scopes=PAYER_RIGHTS)
        async with Api(self._target.url, self._key) as api:
            await api.must("POST", "/v1/ledger/deposit", {"amount": FIRST_DEPOSIT})

    async def work(self, seconds: float) -> Phase:
        """Publish and deposit for that long; return when every request is answered."""
        phase = Phase()
        async with Api(self._target.url, self._key) as api, asyncio.TaskGroup() as group:
            began = time.monotonic()
            due = [
                (number / rate, what)
                for what, rate in ((PUBLISH, PUBLISHES_PER_S), (DEPOSIT, DEPOSITS_PER_S))
                for number in range(int(seconds * rate))
            ]
            for offset_s, what in sorted(due):
                await asyncio.sleep(max(0.0, began + offset_s - time.monotonic()))
                call = self._publish(api) if what == PUBLISH else self._deposit(api, unique("k"))
                group.create_task(self._timed(phase, what, began + offset_s, call))
        return phase

    async def _timed(
        self, phase: Phase, what: str, begun_s: float, call: Awaitable[str | None]
    ) -> None:
        try:
            failure = await call
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            failure = type(error).__name__
        if failure is not None:
            phase.failures[f"{what} {failure}"] += 1
        phase.latencies_ms[what].append(1_000 * (time.monotonic() - begun_s))

    async def _publish(self, api: Api) -> str | None:
        status, reply = await api.send("POST", "/v1/workflows/publish", self._body)
        self._accepted += status == 200
        return None if status == 200 else f"{status} {reply[:100]!r}"

    async def _deposit(self, api: Api, key: str) -> str | None:
        if key not in self._unsettled:
            self._unsettled.append(key)
        status, reply = await api.send(
            "POST", "/v1/ledger/deposit", b'{"amount":1}', Idempotency_Key=key
        )
        if status != 200:
            return f"{status} {reply[:100]!r}"
        self._unsettled.remove(key)
        self._deposited += 1
        return None

    async def account(self) -> Account:
        """Determine every outcome, wait for all ends, and add up the money.

        1. Deposits without a known outcome are repeated under their keys. 2. Every workflow ends.
        3. Balance = deposits - what the workflows spent; nothing stays held.
        """
        async with Api(self._target.url, self._key) as api, asyncio.timeout(SETTLED_WITHIN_S):
            for key in list(self._unsettled):  # 1
                if failure := await self._deposit(api, key):
                    raise SystemExit(f"a deposit is not accepted after the attack: {failure}")
            await api.wait_all_ended(self._did)  # 2
            records: list[dict[str, Any]] = []
            cursor: str | None = ""
            while cursor is not None:
                path = f"/v1/workflows?limit=100{cursor and f'&cursor={cursor}'}"
                page = await api.must("GET", path)
                records, cursor = records + page["workflows"], page.get("nextCursor")
            balance = await api.must("GET", "/v1/ledger/balance")
        account = Account(dict(Counter(row["status"] for row in records)))
        spent = sum(micro_from_credits(row["spentCredits"]) for row in records)  # 3
        expected = micro_from_credits(self._deposited) - spent
        if (found := micro_from_credits(balance["balance"])) != expected:
            account.defects.append(f"balance {found} µcr, expected {expected} µcr")
        if balance["pending"]:
            account.defects.append(f"{balance['pending']} credits are still held")
        if len(records) < self._accepted:
            account.defects.append(f"{self._accepted - len(records)} workflows are not listed")
        return account


def tenant(
    target: Target, port: int, seconds: float, begins: Event, go: Event
) -> tuple[Phase, Phase, Account]:
    """Run the tenant in this process: alone, then, after `go`, again; return both and its account.

    Args:
        begins: is set when the measured work alone has ended.
    """
    return uvloop.run(_tenant(Tenant(target, port), seconds, begins, go))


async def _tenant(
    one: Tenant, seconds: float, begins: Event, go: Event
) -> tuple[Phase, Phase, Account]:
    await one.prepare()
    await one.work(WARM_UP_S)
    alone = await one.work(seconds)
    begins.set()
    await asyncio.to_thread(go.wait)
    return alone, await one.work(seconds), await one.account()
