"""Many unfinished workflows, and kill -9 of their owner: row 6 and `bench/restart.py`."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from bench.figures.process_usage import owner_of
from bench.load.clients import Api, chain, unique
from bench.load.stub_agent import HOLD, Tally, serve_stub
from bench.noise.attack import Attack

HOUR_MS = 3_600_000
# The name of the kill's time among an attack's times.
KILLED = "killed"
# Some publishes of the other tenant come before it.
KILLED_AFTER_S = 1.0


async def publish_backlog(
    admin: Api, did: str, capability: str, *, count: int, length: int, at_once: int
) -> str:
    """Publish chains that stay unfinished for an hour; return the payer's key.

    Args:
        did: the payer.
        count: workflows.
        length: nodes of each.
        at_once: workflows in one bulk request.
    """
    credits = count * length  # a node costs a cent
    await admin.must("POST", "/v1/ledger/deposit", {"amount": credits, "ownerDid": did})
    key = await admin.make_key(did, rateClass="unlimited")
    manifest = chain(capability, length, timeoutMs=HOUR_MS, maxRuntimeMs=HOUR_MS)
    async with Api(admin.url, key, timeout_s=180.0) as api:
        await api.publish_bulk(manifest, count, at_once=at_once)
    return key


def kill_owner(home: Path) -> None:
    """Kill the workflow owner of the deployment in this folder."""
    owner = owner_of(home)
    if owner is None:
        raise SystemExit("got no owner of workflows to kill")
    os.kill(owner.pid, signal.SIGKILL)


class OwnerKilled(Attack):
    """Many unfinished workflows, then kill -9 of their owner; the backlog is the attack.

    The measure of the other tenant alone has the same kill without the backlog.
    """

    row = "6"
    title = "19,500 unfinished workflows, then kill -9 of the owner"
    unit = "kill"
    workers = 1
    first_rate = 1.0
    prepares_before_alone = False
    kills_alone = True
    COUNT, NODES = 19_500, 3

    async def prepare(self, admin: Api) -> None:
        """Publish the backlog to an agent that never replies."""
        self._server, port = await serve_stub(HOLD, Tally())
        capability = unique("cap.bench.") + ".v1"
        await admin.register_agent(capability, port)
        await publish_backlog(
            admin, self.did, capability, count=self.COUNT, length=self.NODES, at_once=500
        )

    async def run(self) -> None:
        """Kill the owner once."""
        await self.gate.take()
        await asyncio.sleep(KILLED_AFTER_S)
        kill_owner(self.target.home)
        self.seen.marks[KILLED] = time.monotonic()
        await asyncio.Event().wait()
