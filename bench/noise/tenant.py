"""The other tenant: publishes and deposits at a fixed rate and computes its expected balance.

It runs in a process of its own. Requests start at fixed times, independent of earlier replies, and
a latency counts from the start. Any reply but 200, or none, is a failure; failures are not retried
during the measurement. Decision 0113.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field
from datetime import datetime
from multiprocessing.connection import Connection
from typing import Any

import aiohttp
import orjson
import uvloop

from bench.load.clients import PAYER_RIGHTS, Api, Target, chain, unique
from bench.noise.gate import Shared
from bench.noise.remotes import FailedOrder
from core.money import micro_from_credits

PUBLISHES_PER_S = 20
DEPOSITS_PER_S = 2
NODES = 3
FIRST_DEPOSIT = 10_000
SETTLED_WITHIN_S = 90.0
PUBLISH, DEPOSIT = "publish", "deposit"


@dataclass(frozen=True, slots=True)
class Sample:
    """One request: its kind, scheduled start (monotonic clock), latency and failure."""

    what: str
    begun_s: float
    latency_ms: float
    failure: str | None


@dataclass(slots=True)
class Phase:
    """The requests of one measured phase. `chain_ms`: latencies of the successful workflows."""

    samples: list[Sample] = field(default_factory=list)
    workflow_ids: list[str] = field(default_factory=list)
    chain_ms: list[float] = field(default_factory=list)

    def latencies(self, what: str) -> list[float]:
        """Return the latencies of one kind of request, failures included, in order."""
        return sorted(sample.latency_ms for sample in self.samples if sample.what == what)

    def failures(self) -> Counter[str]:
        """Return the failures by kind of request and reason."""
        return Counter(
            f"{sample.what} {sample.failure}" for sample in self.samples if sample.failure
        )


@dataclass(slots=True)
class Account:
    """The tenant's money by the API, in micro-credits, with its `defects`.

    `ended` counts its workflows by their final status.
    """

    deposited_micro: int = 0
    deposits: int = 0
    spent_micro: int = 0
    balance_micro: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    defects: list[str] = field(default_factory=list)


class Tenant:
    """Works against one deployment.

    Args:
        target: the deployment.
        port: of loopback, where an agent replies at once.
        answered: counts the successful requests, for the measuring process.
    """

    def __init__(self, target: Target, port: int, answered: Shared) -> None:
        self._target = target
        self._port = port
        self._answered = answered
        self.did = unique("did:bench:tenant-")
        self._capability = unique("cap.bench.") + ".v1"
        self._body = orjson.dumps(chain(self._capability, NODES))
        self._deposited_micro = 0
        self._deposits = 0
        self._unsettled: list[tuple[str, bytes]] = []
        self._key = ""

    async def prepare(self) -> str:
        """Register the agent, create an unlimited key, fill the wallet; return the tenant's DID."""
        async with Api(self._target.url, self._target.admin_key) as admin:
            await admin.register_agent(self._capability, self._port)
            self._key = await admin.make_key(self.did, rateClass="unlimited", scopes=PAYER_RIGHTS)
        async with Api(self._target.url, self._key) as api:
            await api.must("POST", "/v1/ledger/deposit", {"amount": FIRST_DEPOSIT})
            self._count(FIRST_DEPOSIT)
        return self.did

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
                call = self._publish(api, phase) if what == PUBLISH else self._deposit(api)
                group.create_task(self._timed(phase, what, began + offset_s, call))
        return phase

    async def _timed(
        self, phase: Phase, what: str, begun_s: float, call: Awaitable[str | None]
    ) -> None:
        try:
            failure = await call
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            failure = type(error).__name__
        if failure is None:
            self._answered.value += 1
        latency_ms = 1_000 * (time.monotonic() - begun_s)
        phase.samples.append(Sample(what, begun_s, latency_ms, failure))

    async def _publish(self, api: Api, phase: Phase) -> str | None:
        status, reply = await api.send("POST", "/v1/workflows/publish", self._body)
        if status == 200:
            phase.workflow_ids.append(orjson.loads(reply)["workflowId"])
            return None
        return _failure(status, reply)

    async def _deposit(self, api: Api) -> str | None:
        key, body = unique("k"), orjson.dumps({"amount": 1})
        self._unsettled.append((key, body))
        status, reply = await api.send("POST", "/v1/ledger/deposit", body, Idempotency_Key=key)
        if status != 200:
            return _failure(status, reply)
        self._settled(key, body)
        return None

    def _settled(self, key: str, body: bytes) -> None:
        self._unsettled.remove((key, body))
        self._count(orjson.loads(body)["amount"])

    def _count(self, credits: int) -> None:
        self._deposited_micro += micro_from_credits(credits)
        self._deposits += 1

    async def first_accepted(self, within_s: float) -> float | None:
        """Publish once a second until one is accepted; return its time (monotonic clock)."""
        deadline = time.monotonic() + within_s
        async with Api(self._target.url, self._key) as api:
            while time.monotonic() < deadline:
                try:
                    status, _ = await api.send("POST", "/v1/workflows/publish", self._body)
                except (aiohttp.ClientError, TimeoutError, OSError):
                    status = 0
                if status == 200:
                    return time.monotonic()
                await asyncio.sleep(1.0)
        return None

    # -- after the measured time ------------------------------------------------------------------

    async def account(self, phases: list[Phase]) -> tuple[Account, list[Phase]]:
        """Determine every outcome, wait for all ends, and add up the money.

        1. Deposits without a known outcome are repeated under their keys. 2. Every workflow ends.
        3. Balance = deposits - what the workflows spent; nothing stays held.
        """
        account = Account()
        async with Api(self._target.url, self._key) as api:
            try:
                async with asyncio.timeout(SETTLED_WITHIN_S):
                    await self._settle_deposits(api)  # 1
                    records = await self._ended(api)  # 2
                    balance = await self._eventually(api, "/v1/ledger/balance")
            except TimeoutError:
                account.defects.append(f"not settled over the API within {SETTLED_WITHIN_S:.0f} s")
                return account, phases
        self._add_up(account, records, balance)  # 3
        for phase in phases:
            of_phase = set(phase.workflow_ids)
            phase.chain_ms = sorted(
                _milliseconds(row)
                for row in records
                if row["id"] in of_phase and row["status"] == "success"
            )
        accepted = {name for phase in phases for name in phase.workflow_ids}
        lost = accepted - {row["id"] for row in records}
        if lost:
            account.defects.append(f"{len(lost)} accepted workflows are not listed")
        return account, phases

    async def _settle_deposits(self, api: Api) -> None:
        while self._unsettled:
            for key, body in list(self._unsettled):
                try:
                    status, _ = await api.send(
                        "POST", "/v1/ledger/deposit", body, Idempotency_Key=key
                    )
                except (aiohttp.ClientError, TimeoutError, OSError):
                    break
                if status != 200:
                    break
                self._settled(key, body)
            if self._unsettled:
                await asyncio.sleep(1.0)

    async def _ended(self, api: Api) -> list[dict[str, Any]]:
        while True:
            records: list[dict[str, Any]] = []
            path = "/v1/workflows?limit=100"
            cursor = ""
            while True:
                page = await self._eventually(api, path + cursor)
                records += page["workflows"]
                if not page.get("nextCursor"):
                    break
                cursor = f"&cursor={page['nextCursor']}"
            if all(row["completedAt"] for row in records):
                return records
            await asyncio.sleep(1.0)

    async def _eventually(self, api: Api, path: str) -> Any:
        while True:
            try:
                status, reply = await api.send("GET", path)
                if status == 200:
                    return orjson.loads(reply)
            except (aiohttp.ClientError, TimeoutError, OSError):
                pass
            await asyncio.sleep(1.0)

    def _add_up(self, account: Account, records: list[dict[str, Any]], balance: Any) -> None:
        account.deposited_micro, account.deposits = self._deposited_micro, self._deposits
        account.spent_micro = sum(micro_from_credits(row["spentCredits"]) for row in records)
        account.balance_micro = micro_from_credits(balance["balance"])
        account.ended = dict(Counter(row["status"] for row in records))
        expected = account.deposited_micro - account.spent_micro
        if account.balance_micro != expected:
            account.defects.append(f"balance {account.balance_micro} µcr, expected {expected} µcr")
        if micro_from_credits(balance["pending"]) != 0:
            account.defects.append(f"{balance['pending']} credits are still held")
        costs = {row["spentCredits"] for row in records if row["status"] == "success"}
        if len(costs) > 1:
            account.defects.append(f"equal workflows cost {sorted(costs)}")


def _failure(status: int, reply: bytes) -> str:
    try:
        return f"{status} {orjson.loads(reply)['code']}"
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return str(status)


def _milliseconds(row: dict[str, Any]) -> float:
    ended, created = (datetime.fromisoformat(row[name]) for name in ("completedAt", "createdAt"))
    return 1_000 * (ended - created).total_seconds()


def tenant_process(orders: Connection, target: Target, port: int, answered: Shared) -> None:
    """Run the tenant by orders: a method's name and its arguments, None to end."""
    uvloop.run(_serve(Tenant(target, port, answered), orders))


async def _serve(tenant: Tenant, orders: Connection) -> None:
    loop = asyncio.get_running_loop()
    while (order := await loop.run_in_executor(None, orders.recv)) is not None:
        name, *arguments = order
        try:
            orders.send(await getattr(tenant, name)(*arguments))
        except (Exception, SystemExit) as error:  # the edge of the process: the error is the reply
            orders.send(FailedOrder(f"tenant, {name}: {error!r}\n{traceback.format_exc()}"))
