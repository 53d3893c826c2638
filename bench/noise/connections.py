"""Attacks by open connections: row 7."""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import urlsplit

from bench.load.clients import Api, chain, unique
from bench.load.stub_agent import ACCEPT, Tally, serve_stub
from bench.noise.attack import ADDRESS, Attack

BODY_BYTES = 4_096
BYTE_EVERY_S = 4.0


class OpenConnections(Attack):
    """Keeps many connections open; a unit opens one."""

    unit = "connection"
    first_rate = 200.0

    async def run(self) -> None:
        """Keep as many connections as there are workers; open a new one for each that ends."""
        parts = urlsplit(self.target.url)
        host, port = parts.hostname or "127.0.0.1", parts.port or 80
        number = 0

        async def unit() -> None:
            nonlocal number
            number += 1
            outcome = "ended without a reply"
            try:
                reader, writer = await asyncio.open_connection(host, port, local_addr=(ADDRESS, 0))
            except OSError as error:
                self.seen.replies[type(error).__name__] += 1
                return
            sending = asyncio.create_task(self.write(writer, number))
            try:
                line = await reader.readline()
                if line:
                    outcome = line.split(b" ", 2)[1].decode("ascii", "replace")
            except OSError as error:
                outcome = type(error).__name__
            finally:
                sending.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await sending
                writer.close()
            self.seen.replies[outcome] += 1

        await self.repeat(unit)

    async def write(self, writer: asyncio.StreamWriter, number: int) -> None:
        """Write the request of one connection."""
        raise NotImplementedError


class SlowSenders(OpenConnections):
    """Bodies to `nodeResult` sent byte by byte, without a key."""

    row = "7a"
    title = "2,100 slow senders of a body to nodeResult"
    workers = 2_100

    async def write(self, writer: asyncio.StreamWriter, number: int) -> None:
        """Write a request's head, then single bytes with pauses."""
        writer.write(
            b"POST /v1/workflows/nodeResult HTTP/1.1\r\nHost: bench\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % BODY_BYTES
        )
        for _ in range(BODY_BYTES):
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(BYTE_EVERY_S)


class WaitingReads(OpenConnections):
    """Reads that wait for workflows that never end, with three tenants' keys."""

    row = "7b"
    title = "2,200 waiting reads from 3 keys"
    workers = 2_200
    KEYS = 3

    async def prepare(self, admin: Api) -> None:
        """Publish a workflow per key whose agent accepts and never delivers."""
        self._server, port = await serve_stub(ACCEPT, Tally())
        capability = unique("cap.bench.") + ".v1"
        await admin.register_agent(capability, port)
        self._waits: list[tuple[str, str]] = []
        for _ in range(self.KEYS):
            did = unique(self.did)
            await admin.must("POST", "/v1/ledger/deposit", {"amount": 10, "ownerDid": did})
            key = await admin.make_key(did)
            async with self.api(key) as api:
                manifest = chain(capability, 1, timeoutMs=600_000, maxRuntimeMs=600_000)
                reply = await api.must("POST", "/v1/workflows/publish", manifest)
                self._waits.append((key, reply["workflowId"]))

    async def write(self, writer: asyncio.StreamWriter, number: int) -> None:
        """Write a request that waits."""
        key, workflow_id = self._waits[number % self.KEYS]
        head = (
            f"GET /v1/workflows/{workflow_id} HTTP/1.1\r\nHost: bench\r\nx-api-key: {key}\r\n"
            "Prefer: wait=60\r\nContent-Type: application/json\r\n\r\n"
        )
        writer.write(head.encode())
        await writer.drain()


class WaitingReadsOfOne(WaitingReads):
    """Reads that wait, of a single owner."""

    row = "7c"
    title = "1,000 waiting reads from 1 key"
    workers = 1_000
    KEYS = 1
