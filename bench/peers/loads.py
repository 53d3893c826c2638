"""What callers do to a system, and what is measured of a round: time, latency, CPU, memory."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import psutil

from bench.peers.caller import Caller
from bench.peers.systems.system import AGENTS, CLIENT, System, connect_callers
from bench.peers.workloads import PACE, Job, Workload

_MIB = 1024 * 1024
Act = Callable[[Caller, int, Job], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Scale:
    """How long a round lasts.

    Attributes:
        alone_s, callers_s, idle_s: seconds of the rounds of that kind.
        accepted_s: the same; short, because what is accepted has to be run before the next round.
        bulk_share: of the workload's count, above 0 and at most 1.
        settle_s: between a system's start and its first load.
        warm_up_s: of load before each measured round.
    """

    alone_s: float = 5.0
    callers_s: float = 8.0
    idle_s: float = 30.0
    accepted_s: float = 2.0
    bulk_share: float = 1.0
    settle_s: float = 3.0
    warm_up_s: float = 2.0


FULL = Scale()
SMALL = Scale(
    alone_s=1.5, callers_s=2.5, idle_s=5.0, accepted_s=0.5, bulk_share=0.2, settle_s=1.0,
    warm_up_s=1.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Round:
    """One measured round of a workload on a system.

    Attributes:
        workflows: that were run, or accepted; 0 when idle.
        seconds: of wall time.
        latencies_ms: p50, p95 and p99 of a caller's wait; empty in bulk and when idle.
        cpu_s: CPU seconds by kind of process, agents and client included.
        memory_mib: memory by kind of process after the round, MiB (proportional set size).
        database: what Postgres counted: transactions, rows written, bytes of WAL; empty without it.
    """

    workload: str
    system: str
    number: int
    workflows: int
    seconds: float
    latencies_ms: dict[str, float] = field(default_factory=dict)
    cpu_s: dict[str, float] = field(default_factory=dict)
    memory_mib: dict[str, float] = field(default_factory=dict)
    database: dict[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Return workflows per second."""
        return self.workflows / self.seconds


def quantiles(latencies: Sequence[float]) -> dict[str, float]:
    """Return p50, p95 and p99, each the least value that so many in a hundred do not exceed."""
    if not latencies:
        return {}
    ordered = sorted(latencies)
    return {
        f"p{percent}": ordered[-(-len(ordered) * percent // 100) - 1] for percent in (50, 95, 99)
    }


def cpu_seconds(processes: Iterable[tuple[psutil.Process, str]]) -> dict[str, float]:
    """Return user and system seconds by kind of process."""
    spent: dict[str, float] = defaultdict(float)
    for process, kind in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        spent[kind] += times.user + times.system
    return dict(spent)


def memory_mib(processes: Iterable[tuple[psutil.Process, str]]) -> dict[str, float]:
    """Return the proportional set size by kind of process, MiB: shared pages count once."""
    held: dict[str, float] = defaultdict(float)
    for process, kind in processes:
        try:
            held[kind] += process.memory_full_info().pss / _MIB
        except psutil.NoSuchProcess:
            continue
    return dict(held)


class Load:
    """Runs workloads on one system and measures them.

    Args:
        system: the running system.
        agents: the stub agents' processes.
        scale: how long rounds last.
    """

    def __init__(self, system: System, agents: Sequence[psutil.Process], scale: Scale) -> None:
        self._system = system
        self._agents = [(process, AGENTS) for process in agents]
        self._scale = scale

    async def measure(self, workload: Workload, number: int) -> Round:
        """Warm the system up, run a workload once, and account for what it took.

        Args:
            number: of the round, from 0.
        """
        if workload.kind != "idle":
            await self._repeat(workload.job, 8, self._scale.warm_up_s, self._system.run_one)
        counted = self._system.database_counters()
        before, own = self._cpu_seconds(), time.process_time()
        began = time.perf_counter()
        workflows, latencies = await self._run(workload)
        seconds, client_s = time.perf_counter() - began, time.process_time() - own
        after = self._cpu_seconds()
        spent = {kind: after[kind] - before.get(kind, 0.0) for kind in after}
        memory = memory_mib(self._system.members())
        await self._system.wait_idle()
        counted_after = self._system.database_counters()
        return Round(
            workload=workload.name,
            system=self._system.name,
            number=number,
            workflows=workflows,
            seconds=seconds,
            latencies_ms=quantiles(latencies),
            cpu_s={**spent, CLIENT: client_s},
            memory_mib=memory,
            database={name: counted_after[name] - counted[name] for name in counted},
        )

    async def _run(self, workload: Workload) -> tuple[int, list[float]]:
        match workload.kind:
            case "idle":
                await asyncio.sleep(self._scale.idle_s)
                return 0, []
            case "bulk":
                count = max(1, int(workload.count * self._scale.bulk_share))
                await self._system.run_bulk(workload.job, count)
                return count, []
            case "paced":
                latencies = await self._pace(workload.job, workload.count, self._scale.callers_s)
                return len(latencies), latencies
            case "accepted":
                latencies = await self._repeat(
                    workload.job, workload.count, self._scale.accepted_s, self._system.accept
                )
                return len(latencies), latencies
            case "callers":
                seconds = self._scale.alone_s if workload.count == 1 else self._scale.callers_s
                latencies = await self._repeat(
                    workload.job, workload.count, seconds, self._system.run_one
                )
                return len(latencies), latencies

    async def _repeat(self, job: Job, count: int, seconds: float, act: Act) -> list[float]:
        """Let callers act one time after the other for some seconds; return all waits, ms.

        It returns when the last caller has its reply: what was begun is waited for and counts.
        """
        latencies: list[float] = []
        turns = iter(range(1 << 62))
        async with AsyncExitStack() as stack:
            callers = await connect_callers(stack, self._system, count)
            until = time.perf_counter() + seconds

            async def work(caller: Caller) -> None:
                while (sent := time.perf_counter()) < until:
                    await act(caller, next(turns), job)
                    latencies.append(1_000 * (time.perf_counter() - sent))

            await asyncio.gather(*(work(caller) for caller in callers))
        return latencies

    async def _pace(self, job: Job, count: int, seconds: float) -> list[float]:
        """Let callers run workflows at set times, `PACE` a second together; return all waits, ms.

        A wait begins at its set time: a caller that is kept waiting sends late, and that counts.
        """
        latencies: list[float] = []
        async with AsyncExitStack() as stack:
            callers = await connect_callers(stack, self._system, count)
            began = time.perf_counter()

            async def work(caller: Caller, turns: range) -> None:
                for turn in turns:
                    due = began + turn / PACE
                    await asyncio.sleep(due - time.perf_counter())
                    await self._system.run_one(caller, turn, job)
                    latencies.append(1_000 * (time.perf_counter() - due))

            whole = int(seconds * PACE)
            each = [range(number, whole, count) for number in range(count)]
            await asyncio.gather(*map(work, callers, each))
        return latencies

    def _cpu_seconds(self) -> dict[str, float]:
        return cpu_seconds([*self._system.members(), *self._agents])
