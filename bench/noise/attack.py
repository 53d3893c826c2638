"""The base of all attacks: prepared with an administrator's key, repeated as fast as allowed.

An attack runs in a process of its own, so that its CPU can be measured and its loop delays no
other. It connects from another loopback address than the other tenant.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import ClassVar

import aiohttp
import uvloop

from bench.load.clients import LOOK_S, Api, Target, unique
from bench.noise.gate import Gate, Shared
from bench.noise.remotes import FailedOrder

ADDRESS = "127.0.0.2"
ATTACK_TIMEOUT_S = 90.0
PREPARE, START, STOP = "prepare", "start", "stop"


@dataclass(slots=True)
class Seen:
    """An attack's observations: replies by status or error, and times (seconds, monotonic clock).

    `open_at_end`: units that were open when the attack ended.
    """

    replies: Counter[str] = field(default_factory=Counter)
    bytes_read: int = 0
    open_at_end: int = 0
    marks: dict[str, float] = field(default_factory=dict)


class Attack:
    """One row of the table.

    Args:
        target: the deployment.
        gate: allows the next unit.
    """

    row: ClassVar[str]
    title: ClassVar[str]
    # What a unit is, in words, and how many a second begin while its cost is not known.
    unit: ClassVar[str] = "request"
    first_rate: ClassVar[float] = 20.0
    workers: ClassVar[int] = 4
    # How long the replies to what has begun are waited for when no more may begin.
    grace_s: ClassVar[float] = 0.0
    # Whether what it prepares belongs to the other tenant's measure alone, too.
    prepares_before_alone: ClassVar[bool] = True
    # Whether the owner is killed in the other tenant's measure alone, too: the kill is no attack.
    kills_alone: ClassVar[bool] = False

    def __init__(self, target: Target, gate: Gate) -> None:
        self.target = target
        self.gate = gate
        self.seen = Seen()
        self.did = unique("did:bench:attacker-")
        self.in_flight = 0

    async def prepare(self, admin: Api) -> None:
        """Prepare the attack; the cost is not counted."""

    async def run(self) -> None:
        """Attack until cancelled."""
        raise NotImplementedError

    async def repeat(self, unit: Callable[[], Awaitable[None]]) -> None:
        """Run units from all workers, each as soon as the gate allows it."""

        async def work() -> None:
            while True:
                await self.gate.take()
                self.in_flight += 1
                try:
                    await unit()
                finally:
                    self.in_flight -= 1

        async with asyncio.TaskGroup() as group:
            for _ in range(self.workers):
                group.create_task(work())

    async def send(
        self, api: Api, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, bytes]:
        """Send one request and count its reply; status 0: no reply."""
        try:
            status, reply = await api.send(method, path, body, **headers)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.seen.replies[type(error).__name__] += 1
            return 0, b""
        self.seen.replies[str(status)] += 1
        return status, reply

    def api(self, key: str | None) -> Api:
        """Return a client with a key, from the attacker's address."""
        return Api(self.target.url, key, address=ADDRESS, timeout_s=ATTACK_TIMEOUT_S)


def attack_process(
    orders: Connection, kind: type[Attack], target: Target, rate: Shared, started: Shared
) -> None:
    """Run one attack by orders: prepare, start, stop (returns the observations)."""
    uvloop.run(_serve(orders, kind(target, Gate(rate, started))))


async def _serve(orders: Connection, attack: Attack) -> None:
    tasks: list[asyncio.Task[None]] = []
    steps: Mapping[str, Callable[[], Awaitable[object]]] = {
        PREPARE: lambda: _prepared(attack),
        START: lambda: _started(attack, tasks),
        STOP: lambda: _stopped(attack, tasks),
    }
    loop = asyncio.get_running_loop()
    while (order := await loop.run_in_executor(None, orders.recv)) is not None:
        try:
            orders.send(await steps[order]())
        except (Exception, SystemExit) as error:  # the edge of the process: the error is the reply
            failed = f"row {attack.row}, {order}: {error!r}\n{traceback.format_exc()}"
            orders.send(FailedOrder(failed))


async def _prepared(attack: Attack) -> None:
    async with Api(attack.target.url, attack.target.admin_key, timeout_s=180.0) as admin:
        await attack.prepare(admin)


async def _started(attack: Attack, tasks: list[asyncio.Task[None]]) -> None:
    tasks += [asyncio.create_task(attack.gate.pace()), asyncio.create_task(attack.run())]


async def _stopped(attack: Attack, tasks: list[asyncio.Task[None]]) -> Seen:
    deadline = time.monotonic() + attack.grace_s
    while True:
        if attack.in_flight == 0 or time.monotonic() > deadline:
            break
        await asyncio.sleep(LOOK_S)
    attack.seen.open_at_end = attack.in_flight
    for task in tasks:
        if task.done():
            await task  # an attack that ended by itself has failed
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await task
    return attack.seen
