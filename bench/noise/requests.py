"""Attacks by single requests and rounds of them: rows 1 to 5, 8 and 9."""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import socket
from datetime import UTC, datetime, timedelta

import orjson

from bench.load.clients import PAYER_RIGHTS, Api, chain, unique
from bench.load.stub_agent import ACCEPT, ANSWER, Tally, serve_stub
from bench.noise.attack import Attack
from core.money import MICRO_MAX, MICRO_PER_CREDIT


class KeyWithNul(Attack):
    """`DELETE /v1/keys/%00`: a text that the database refuses."""

    row = "1"
    title = "DELETE /v1/keys/%00 with an ordinary key"
    first_rate = 2.0
    workers = 2

    async def prepare(self, admin: Api) -> None:
        """Create the ordinary key."""
        self._key = await admin.make_key(self.did)

    async def run(self) -> None:
        """Send the request repeatedly."""
        async with self.api(self._key) as api:

            async def unit() -> None:
                await self.send(api, "DELETE", "/v1/keys/%00")

            await self.repeat(unit)


class LongRespondent(Attack):
    """A dispute against a DID of 6 kB that does not compress: more than an index row holds."""

    row = "2"
    title = "disputes with a respondentDid of 6 kB"
    first_rate = 2.0
    workers = 2

    async def prepare(self, admin: Api) -> None:
        """Create an ordinary key."""
        self._key = await admin.make_key(self.did)

    async def run(self) -> None:
        """Open disputes, each against another DID."""
        async with self.api(self._key) as api:

            async def unit() -> None:
                respondent = "did:x:" + base64.urlsafe_b64encode(os.urandom(4_500)).decode()
                body = {
                    "disputeType": "fraud",
                    "description": "a respondent that is too long",
                    "respondentDid": respondent,
                }
                await self.send(api, "POST", "/v1/disputes", orjson.dumps(body))

            await self.repeat(unit)


class FullWallet(Attack):
    """Deposit, hold, deposit, end: the release from escrow would exceed the wallet's bound."""

    row = "3"
    title = "a wallet above its bound: deposit, hold, deposit, end of the workflow"
    unit = "round of 4 requests"
    first_rate = 2.0
    workers = 1
    WALLETS = 40
    HOLD_CREDITS = 1_000_000

    async def prepare(self, admin: Api) -> None:
        """Register an agent that accepts and never delivers; create a key per wallet."""
        self._server, port = await serve_stub(ACCEPT, Tally())
        self._capability = unique("cap.bench.") + ".v1"
        await admin.register_agent(self._capability, port)
        self._keys = [
            await admin.make_key(unique(self.did), scopes=PAYER_RIGHTS, rateClass="unlimited")
            for _ in range(self.WALLETS)
        ]

    async def run(self) -> None:
        """Fill each wallet above its bound, in turn."""
        full = MICRO_MAX // MICRO_PER_CREDIT
        manifest = chain(self._capability, 1, maxBudgetCredits=self.HOLD_CREDITS)

        async def unit() -> None:
            key = self._keys.pop(0)
            self._keys.append(key)
            async with self.api(key) as api:
                await self._deposit(api, full)
                _, reply = await self.send(
                    api, "POST", "/v1/workflows/publish", orjson.dumps(manifest)
                )
                await self._deposit(api, self.HOLD_CREDITS)
                workflow_id = orjson.loads(reply or b"{}").get("workflowId")
                if workflow_id is not None:
                    path = f"/v1/workflows/{workflow_id}/cancel"
                    body = orjson.dumps({"reason": "user_request"})
                    await self.send(api, "POST", path, body)

        await self.repeat(unit)

    async def _deposit(self, api: Api, amount: int) -> None:
        await self.send(api, "POST", "/v1/ledger/deposit", orjson.dumps({"amount": amount}))


class ManyInvoices(Attack):
    """Invoices at once over many payments; every second round's windows end in the future."""

    row = "4"
    title = "80 invoices at once over 5,000 payments"
    unit = "round of 80 requests"
    first_rate = 1.0
    workers = 1
    grace_s = 60.0
    AT_ONCE = 80
    WORKFLOWS, NODES = 1_000, 5
    KEYS = 12  # an ordinary key allows 100 writes a minute

    async def prepare(self, admin: Api) -> None:
        """Pay 5,000 nodes."""
        server, port = await serve_stub(ANSWER, Tally())
        capability = unique("cap.bench.") + ".v1"
        await admin.register_agent(capability, port)
        await admin.must("POST", "/v1/ledger/deposit", {"amount": 100_000, "ownerDid": self.did})
        key = await admin.make_key(self.did, rateClass="unlimited")
        async with self.api(key) as api:
            await api.publish_bulk(chain(capability, self.NODES), self.WORKFLOWS, at_once=250)
            await api.wait_all_ended(self.did)
        self._keys = [await admin.make_key(self.did) for _ in range(self.KEYS)]
        server.close()

    async def run(self) -> None:
        """Request invoices of periods that each include all payments."""
        number = 0

        async def unit() -> None:
            nonlocal number
            number += 1
            async with self.api(self._keys[number % len(self._keys)]) as api:
                ask = (self._invoice(api, number, place) for place in range(self.AT_ONCE))
                await asyncio.gather(*ask)

        await self.repeat(unit)

    async def _invoice(self, api: Api, number: int, place: int) -> None:
        now = datetime.now(UTC)
        start = now - timedelta(hours=1, seconds=place)
        end = now + timedelta(hours=1) if number % 2 else now
        body = {
            "payerDid": self.did,
            "periodStart": start.isoformat(),
            "periodEnd": end.isoformat(),
        }
        await self.send(api, "POST", "/v1/invoices", orjson.dumps(body))


class DeadAgentBulk(Attack):
    """A bulk publish whose agent refuses every connection."""

    row = "5"
    title = "bulk publish of 1,000 chains of 100 nodes whose agent is down"
    unit = "bulk request"
    first_rate = 1.0
    workers = 1
    grace_s = 60.0
    CHAINS, NODES = 1_000, 100

    async def prepare(self, admin: Api) -> None:
        """Register an agent where nothing listens; write the body."""
        self._taken = socket.socket()
        self._taken.bind(("127.0.0.1", 0))  # bound, so that nothing else listens there
        capability = unique("cap.bench.") + ".v1"
        await admin.register_agent(capability, int(self._taken.getsockname()[1]))
        await admin.must("POST", "/v1/ledger/deposit", {"amount": 100_000, "ownerDid": self.did})
        self._key = await admin.make_key(self.did)
        body = {"workflows": [chain(capability, self.NODES)] * self.CHAINS}
        self._body = orjson.dumps(body)

    async def run(self) -> None:
        """Publish it repeatedly, each time after the reply."""
        async with self.api(self._key) as api:

            async def unit() -> None:
                status, reply = await self.send(
                    api, "POST", "/v1/workflows/publish/bulk", self._body
                )
                if status == 200:
                    for result in orjson.loads(reply)["results"]:
                        self.seen.replies[f"in it {result.get('code', 'accepted')}"] += 1

            await self.repeat(unit)


class RandomKeys(Attack):
    """Clients that guess keys."""

    row = "8a"
    title = "200 clients with random keys"
    workers = 200

    async def run(self) -> None:
        """Send a request with another key each time."""
        async with self.api(None) as api:

            async def unit() -> None:
                key = "cb_" + secrets.token_urlsafe(32)
                await self.send(api, "GET", "/v1/ledger/balance", x_api_key=key)

            await self.repeat(unit)


class HealthAsked(Attack):
    """Clients that read the health of the service."""

    row = "8b"
    title = "200 clients asking /health"
    workers = 200

    async def run(self) -> None:
        """Read it repeatedly."""
        async with self.api(None) as api:

            async def unit() -> None:
                await self.send(api, "GET", "/health")

            await self.repeat(unit)


class LargeCards(Attack):
    """A list of agents with large cards, read without a key."""

    row = "9"
    title = "GET /v1/agents?limit=100 with large cards, no key"
    first_rate = 1.0
    AGENTS = 110
    CARD_BYTES = (500_000, 60_000)

    async def prepare(self, admin: Api) -> None:
        """Register agents with the largest cards that are accepted."""
        self._capability = unique("cap.bench.") + ".v1"
        size = self.CARD_BYTES[0]
        if not await self._register(admin, size, is_optional=True):
            size = self.CARD_BYTES[1]
        for _ in range(self.AGENTS):
            await self._register(admin, size)
        self.seen.marks["cardBytes"] = size

    async def _register(self, admin: Api, size: int, *, is_optional: bool = False) -> bool:
        card = {
            "did": unique("did:bench:large-"),
            "endpoint": "http://127.0.0.1:9",
            "version": 1,
            "capabilities": [{"id": self._capability, "description": "", "price_cents": 1}],
            "notes": secrets.token_urlsafe(size * 3 // 4),
        }
        body = orjson.dumps({"acard": card, "ownerDid": self.did})
        if is_optional:
            status, _ = await admin.send("POST", "/v1/agents/register", body)
            return status in (200, 201)
        await admin.must("POST", "/v1/agents/register", body)
        return True

    async def run(self) -> None:
        """Read whole replies."""
        async with self.api(None) as api:

            async def unit() -> None:
                try:
                    status, length = await api.fetch_dropped("/v1/agents?limit=100")
                except (OSError, TimeoutError) as error:  # aiohttp's own are of OSError or counted
                    self.seen.replies[type(error).__name__] += 1
                    return
                self.seen.replies[str(status)] += 1
                self.seen.bytes_read += length

            await self.repeat(unit)
