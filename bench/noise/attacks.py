"""The attacks: each is prepared with an administrator's key, then repeated at a fixed rate.

An attack runs in a process of its own, so that its CPU can be measured and its loop delays nobody
else. It connects from another loopback address than the other tenant. Rates are those at which the
attack and its cost in the service take about a quarter of a core.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import time
from collections import Counter
from dataclasses import dataclass, field
from threading import Event  # of a manager, for several processes
from typing import ClassVar
from urllib.parse import urlsplit

import aiohttp
import orjson
import psycopg
import uvloop

from bench.load.clients import PAYER_RIGHTS, Api, Target, chain, unique
from bench.load.stub_agent import ACCEPT, ANSWER, Tally, serve_stub
from core.money import MICRO_MAX, MICRO_PER_CREDIT

ADDRESS = "127.0.0.2"
REPLY_WITHIN_S = 90.0


@dataclass(slots=True)
class Seen:
    """What an attack saw: units begun, replies by status or error, its CPU seconds."""

    begun: int = 0
    replies: Counter[str] = field(default_factory=Counter)
    cpu_s: float = 0.0


class Attack:
    """One row of the table.

    Args:
        target: the deployment.
    """

    row: ClassVar[str]
    title: ClassVar[str]
    rate: ClassVar[float]
    open_max: ClassVar[int] = 200

    def __init__(self, target: Target) -> None:
        self.target = target
        self.seen = Seen()
        self.did = unique("did:bench:attacker-")

    async def prepare(self, admin: Api) -> None:
        """Prepare the attack; the cost is not counted."""

    async def unit(self) -> None:
        """Do one unit: a request, a few of them, or a connection."""
        raise NotImplementedError

    async def repeat(self, seconds: float) -> None:
        """Begin units at the attack's rate, at most `open_max` of them open; end the open ones."""
        began, tasks = time.monotonic(), set[asyncio.Task[None]]()
        while (elapsed_s := time.monotonic() - began) < seconds:
            while self.seen.begun < elapsed_s * self.rate and len(tasks) < self.open_max:
                self.seen.begun += 1
                tasks.add(task := asyncio.create_task(self._counted()))
                task.add_done_callback(tasks.discard)
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _counted(self) -> None:
        try:
            await self.unit()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.seen.replies[type(error).__name__] += 1

    async def send(
        self, key: str | None, method: str, path: str, body: object = None, **headers: str
    ) -> bytes:
        """Send one request from the attacker's address; count and return its reply."""
        content = None if body is None else orjson.dumps(body)
        async with Api(self.target.url, key, address=ADDRESS, timeout_s=REPLY_WITHIN_S) as api:
            status, reply = await api.send(method, path, content, **headers)
        self.seen.replies[str(status)] += 1
        return reply


class FullWallet(Attack):
    """Deposit, hold, deposit, end: the release from escrow would exceed the wallet's bound."""

    row, rate = "3", 2.0
    title = "a wallet above its bound: deposit, hold, deposit, end of the workflow"
    WALLETS, HOLD_CREDITS = 40, 1_000_000

    async def prepare(self, admin: Api) -> None:
        """Register an agent that accepts and never delivers; create a key per wallet."""
        self._server, port = await serve_stub(ACCEPT, Tally())
        self._capability = unique("cap.bench.") + ".v1"
        await admin.register_agent(self._capability, port)
        self._keys = [
            await admin.make_key(unique(self.did), scopes=PAYER_RIGHTS, rateClass="unlimited")
            for _ in range(self.WALLETS)
        ]

    async def unit(self) -> None:
        """Fill the next wallet above its bound."""
        key = self._keys[self.seen.begun % self.WALLETS]
        deposit, publish = "/v1/ledger/deposit", "/v1/workflows/publish"
        await self.send(key, "POST", deposit, {"amount": MICRO_MAX // MICRO_PER_CREDIT})
        manifest = chain(self._capability, 1, maxBudgetCredits=self.HOLD_CREDITS)
        reply = orjson.loads(await self.send(key, "POST", publish, manifest))
        await self.send(key, "POST", deposit, {"amount": self.HOLD_CREDITS})
        if workflow_id := reply.get("workflowId"):
            path = f"/v1/workflows/{workflow_id}/cancel"
            await self.send(key, "POST", path, {"reason": "user_request"})


class DeadAgentBulk(Attack):
    """A bulk publish whose agent refuses every connection."""

    row, rate, open_max = "5", 1.0, 1
    title = "bulk publish of 1,000 chains of 100 nodes whose agent is down"

    async def prepare(self, admin: Api) -> None:
        """Register an agent where nothing listens."""
        self._taken = socket.socket()
        self._taken.bind(("127.0.0.1", 0))  # bound, so that nothing else listens there
        capability = unique("cap.bench.") + ".v1"
        await admin.register_agent(capability, int(self._taken.getsockname()[1]))
        await admin.must("POST", "/v1/ledger/deposit", {"amount": 100_000, "ownerDid": self.did})
        self._key = await admin.make_key(self.did)
        self._body = {"workflows": [chain(capability, 100)] * 1_000}

    async def unit(self) -> None:
        """Publish the bulk and count its results."""
        reply = await self.send(self._key, "POST", "/v1/workflows/publish/bulk", self._body)
        for result in orjson.loads(reply).get("results", ()):
            self.seen.replies[f"in it {result.get('code', 'accepted')}"] += 1


class OpenConnections(Attack):
    """Keeps many connections open; a unit opens one and waits for its reply."""

    rate = 200.0

    async def unit(self) -> None:
        """Open a connection, write its request, and wait for the reply."""
        at = urlsplit(self.target.url)
        reader, writer = await asyncio.open_connection(
            at.hostname, at.port, local_addr=(ADDRESS, 0)
        )
        sending = asyncio.create_task(self.write(writer, self.seen.begun))
        try:
            line = await reader.readline()
            self.seen.replies[line[9:12].decode("ascii", "replace") or "no reply"] += 1
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await sending
            writer.close()

    async def write(self, writer: asyncio.StreamWriter, number: int) -> None:
        """Write the request of one connection."""
        raise NotImplementedError


class SlowSenders(OpenConnections):
    """Bodies to `nodeResult` sent byte by byte, without a key."""

    row, open_max = "7a", 2_100
    title = "2,100 slow senders of a body to nodeResult"
    BODY_BYTES, BYTE_EVERY_S = 4_096, 4.0

    async def write(self, writer: asyncio.StreamWriter, number: int) -> None:
        """Write a request's head, then single bytes with pauses."""
        writer.write(
            b"POST /v1/workflows/nodeResult HTTP/1.1\r\nHost: bench\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % self.BODY_BYTES
        )
        for _ in range(self.BODY_BYTES):
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(self.BYTE_EVERY_S)


class WaitingReads(OpenConnections):
    """Reads that wait for workflows that never end, with three tenants' keys."""

    row, open_max = "7b", 2_200
    title = "2,200 waiting reads from 3 keys"
    KEYS = 3

    async def prepare(self, admin: Api) -> None:
        """Publish a workflow per key whose agent accepts and never delivers."""
        self._server, port = await serve_stub(ACCEPT, Tally())
        capability = unique("cap.bench.") + ".v1"
        await admin.register_agent(capability, port)
        manifest = chain(capability, 1, timeoutMs=600_000, maxRuntimeMs=600_000)
        self._waits: list[tuple[str, str]] = []
        for _ in range(self.KEYS):
            did = unique(self.did)
            await admin.must("POST", "/v1/ledger/deposit", {"amount": 10, "ownerDid": did})
            key = await admin.make_key(did)
            reply = await self.send(key, "POST", "/v1/workflows/publish", manifest)
            self._waits.append((key, orjson.loads(reply)["workflowId"]))

    async def write(self, writer: asyncio.StreamWriter, number: int) -> None:
        """Write a request that waits."""
        key, workflow_id = self._waits[number % self.KEYS]
        head = (
            f"GET /v1/workflows/{workflow_id} HTTP/1.1\r\nHost: bench\r\nx-api-key: {key}\r\n"
            "Prefer: wait=60\r\nContent-Type: application/json\r\n\r\n"
        )
        writer.write(head.encode())
        await writer.drain()


class RandomKeys(Attack):
    """Clients that guess keys."""

    row, title, rate = "8a", "200 clients with random keys", 100.0

    async def unit(self) -> None:
        """Send a request with another key each time."""
        await self.send("cb_" + secrets.token_urlsafe(32), "GET", "/v1/ledger/balance")


class LargeCards(Attack):
    """A list of agents with large cards, read without a key."""

    row, rate, open_max = "9", 1.0, 4
    title = "GET /v1/agents?limit=100 with large cards, no key"
    AGENTS, CARD_BYTES = 110, 60_000

    async def prepare(self, admin: Api) -> None:
        """Register agents with the largest cards that are accepted."""
        notes, capability = secrets.token_urlsafe(self.CARD_BYTES * 3 // 4), unique("cap.bench.")
        for _ in range(self.AGENTS):
            await admin.register_agent(f"{capability}.v1", 9, notes=notes)

    async def unit(self) -> None:
        """Read a whole reply."""
        await self.send(None, "GET", "/v1/agents?limit=100")


class DueSchedules(Attack):
    """Schedules that are all due in the same minute, soon after the tenant was alone for 20 s."""

    row, rate = "10", 0.0
    title = "10,000 schedules that are due in the same minute"
    OWNERS, EACH, TOGETHER = 10, 1_000, 50
    PREPARED_WITHIN_S, ALONE_S = 240, 25
    _STARTED = "SELECT count(*) FROM callboard.trigger_run WHERE status = 'started'"

    async def prepare(self, admin: Api) -> None:
        """Create the schedules; return so long before they are due as the tenant is alone."""
        self._server, port = await serve_stub(ANSWER, Tally())
        capability = unique("cap.bench.") + ".v1"
        await admin.register_agent(capability, port)
        self._due_s = (int(time.time()) + self.PREPARED_WITHIN_S) // 60 * 60 + 60
        due = time.gmtime(self._due_s)
        body = orjson.dumps(
            {
                "name": "bench",
                "cronExpression": f"{due.tm_min} {due.tm_hour} * * *",
                "workflowTemplate": chain(capability, 1),
            }
        )
        for _ in range(self.OWNERS):
            did = unique(self.did)
            await admin.must("POST", "/v1/ledger/deposit", {"amount": 10_000, "ownerDid": did})
            scopes = (*PAYER_RIGHTS, "schedules:write")
            key = await admin.make_key(did, rateClass="unlimited", scopes=scopes)
            async with Api(self.target.url, key, address=ADDRESS) as api:
                for _ in range(self.EACH // self.TOGETHER):
                    await asyncio.gather(
                        *(api.must("POST", "/v1/schedules", body) for _ in range(self.TOGETHER))
                    )
        left_s = self._due_s - time.time() - self.ALONE_S
        if left_s < 0:
            raise SystemExit(f"the schedules were not made in {self.PREPARED_WITHIN_S} s")
        await asyncio.sleep(left_s)

    async def repeat(self, seconds: float) -> None:
        """Wait until all have started."""
        began = time.monotonic()
        with psycopg.connect(self.target.database_url, autocommit=True) as database:
            while time.monotonic() - began < 2 * seconds:
                row = database.execute(self._STARTED).fetchone()
                self.seen.begun = 0 if row is None else row[0]
                if self.seen.begun == self.OWNERS * self.EACH:
                    late_s = time.time() - self._due_s
                    self.seen.replies[f"all have started after {late_s:.1f} s"] += 1
                    return
                await asyncio.sleep(0.2)


ATTACKS: dict[str, type[Attack]] = {
    kind.row: kind
    for kind in (
        FullWallet, DeadAgentBulk, SlowSenders, WaitingReads, RandomKeys, LargeCards, DueSchedules
    )
}  # fmt: skip


def attack(row: str, target: Target, seconds: float, prepared: Event, go: Event) -> Seen:
    """Run one attack in this process: prepare it, wait for `go`, repeat it for that long."""
    return uvloop.run(_attack(ATTACKS[row](target), seconds, prepared, go))


async def _attack(attack: Attack, seconds: float, prepared: Event, go: Event) -> Seen:
    async with Api(attack.target.url, attack.target.admin_key, timeout_s=180.0) as admin:
        await attack.prepare(admin)
    prepared.set()
    await asyncio.to_thread(go.wait)
    own = time.process_time()
    await attack.repeat(seconds)
    attack.seen.cpu_s = time.process_time() - own
    return attack.seen
