"""Readers of event streams, while they reconnect and one replica of two is killed again and again.

Goal: each reader gets every entry of which its caller is a party once, in order. Method: deposits
of the caller make entries; one reader leaves its stream after a random number of events and goes on
after the last one, another one is left to the client; a replica is killed after each part of the
entries. At the end what both have read is compared with the rows.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path

import psycopg
import pytest

from callboard.client import AsyncClient, Client
from callboard.errors import CallboardError
from tests.contract.conftest import unique
from tests.faults.victims import await_one, find_all, superuser_url, wait
from tests.platform.deployments import RunningDeployment, deployed

pytestmark = pytest.mark.slow

AT_ONCE = 20
EVENTS, SOAK_EVENTS = 2_000, 10_000
EVENTS_PER_KILL = 500


@pytest.fixture(scope="module")
def victim(short_folder: Path) -> Iterator[RunningDeployment]:
    """A deployment of two replicas."""
    with deployed(short_folder, "serve_replicas = 2\n") as running:
        yield running


def rows_of(victim: RunningDeployment, did: str) -> list[int]:
    """Return the ids of the entries of a party, in order."""
    query = "SELECT audit_id FROM callboard.audit_party WHERE party = %s ORDER BY audit_id"
    with psycopg.connect(superuser_url(victim)) as connection:
        return [row[0] for row in connection.execute(query, (did,))]


async def read_on(
    victim: RunningDeployment, key: str, ids: list[int], leaves: random.Random | None
) -> None:
    """Add the ids of events to a list, until it is cancelled.

    Args:
        leaves: draws after how many events the reader leaves and comes back; None: it stays.
    """
    while True:
        left = 10**9 if leaves is None else leaves.randint(1, 300)
        async with (
            AsyncClient(victim.url, key) as client,
            aclosing(client.events(last_event_id=ids[-1])) as events,
        ):
            async for entry in events:
                ids.append(entry.id)
                left -= 1
                if not left:
                    break


async def strike(victim: RunningDeployment, ids: list[int], count: int) -> None:
    """Kill a replica after each part of so many events, once there are two again."""
    for number in range(EVENTS_PER_KILL, count, EVENTS_PER_KILL):
        while len(ids) < number:
            await asyncio.sleep(0.05)
        both = partial(wait, lambda: len(find_all(victim, "replica")) == 2, "both replicas")
        await asyncio.to_thread(both)
        pid = await asyncio.to_thread(await_one, victim, "replica")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def read_during_kills(victim: RunningDeployment, count: int, seed: int) -> None:
    did = unique("did:net:reader-")
    with Client(victim.url, victim.admin_key) as admin:
        key = admin.create_key(did, rate_class="unlimited").key
        admin.deposit(1, owner_did=did)
    begins = rows_of(victim, did)[-1]
    readers: list[list[int]] = [[begins], [begins]]
    tasks = [
        asyncio.create_task(read_on(victim, key, readers[0], random.Random(seed))),
        asyncio.create_task(read_on(victim, key, readers[1], None)),
    ]
    killing = asyncio.create_task(strike(victim, readers[1], count))
    async with AsyncClient(victim.url, victim.admin_key) as admin_client:

        async def deposit(number: int) -> None:
            for one in range(count // AT_ONCE):
                key = f"{did}:{number}:{one}"
                is_made = False
                while not is_made:
                    with suppress(CallboardError):  # its replica has ended
                        await admin_client.deposit(1, owner_did=did, idempotency_key=key)
                        is_made = True

        await asyncio.gather(*map(deposit, range(AT_ONCE)))
    await killing
    expected = [number for number in rows_of(victim, did) if number >= begins]
    assert len(expected) > count
    try:
        async with asyncio.timeout(60):
            while any(len(ids) < len(expected) for ids in readers):
                for task in tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.05)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for ids in readers:
        assert ids == expected


async def test_readers_that_reconnect_miss_nothing_while_replicas_are_killed(
    victim: RunningDeployment, drawn_from: int
) -> None:
    await read_during_kills(victim, EVENTS, drawn_from)


@pytest.mark.soak
async def test_readers_of_many_events_miss_nothing_while_replicas_are_killed(
    victim: RunningDeployment, drawn_from: int
) -> None:
    await read_during_kills(victim, SOAK_EVENTS, drawn_from)
