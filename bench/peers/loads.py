"""What callers do to a system, and what is measured of a round: time, latency, CPU, memory."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Literal

import psutil

from bench.peers.caller import Caller
from bench.peers.graphs import GRAPHS
from bench.peers.systems.system import AGENTS, CLIENT, System, connect_callers

_MIB = 1024 * 1024
Kind = Literal["callers", "bulk", "idle"]


@dataclass(frozen=True, slots=True)
class Workload:
    """One line of the report.

    Attributes:
        count: of callers, or of workflows in bulk; 0 when idle.
    """

    kind: Kind
    count: int
    shape: str = "chain3"


WORKLOADS: dict[str, Workload] = {"idle": Workload("idle", 0)}
for _shape in GRAPHS:
    WORKLOADS[f"{_shape}:alone"] = Workload("callers", 1, _shape)
    WORKLOADS[f"{_shape}:waiting"] = Workload("callers", 32, _shape)
    WORKLOADS[f"{_shape}:bulk"] = Workload("bulk", 1_000, _shape)


@dataclass(frozen=True, slots=True)
class Scale:
    """How long a round lasts.

    Attributes:
        callers_s, idle_s: seconds of the rounds of that kind.
        bulk_share: of the workload's count, above 0 and at most 1.
        warm_up_s: of load before each measured round.
    """

    callers_s: float = 8.0
    idle_s: float = 30.0
    bulk_share: float = 1.0
    warm_up_s: float = 2.0


FULL, SMALL = Scale(), Scale(callers_s=2.5, idle_s=5.0, bulk_share=0.2, warm_up_s=1.0)


@dataclass(frozen=True, slots=True)
class Round:
    """One measured round of a workload on a system.

    Attributes:
        workflows: that were run; 0 when idle.
        seconds: of wall time.
        latencies_ms: p50, p95 and p99 of a caller's wait; empty in bulk and when idle.
        cpu_s: CPU seconds by kind of process, agents and client included.
        memory_mib: memory of the system after the round, MiB (proportional set size).
        database: what Postgres counted: transactions, rows written, bytes of WAL; empty without it.
    """

    workload: str
    system: str
    number: int
    workflows: int
    seconds: float
    latencies_ms: dict[str, float] = field(default_factory=dict)
    cpu_s: dict[str, float] = field(default_factory=dict)
    memory_mib: float = 0.0
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

    async def measure(self, name: str, number: int) -> Round:
        """Warm the system up, run a workload once, and account for what it took.

        Args:
            name: of the workload.
            number: of the round, from 0.
        """
        workload = WORKLOADS[name]
        if workload.kind != "idle":
            await self._repeat(workload.shape, 8, self._scale.warm_up_s)
        counted = self._system.database_counters()
        before, own = self._cpu_seconds(), time.process_time()
        began = time.perf_counter()
        workflows, latencies = await self._run(workload)
        seconds, client_s = time.perf_counter() - began, time.process_time() - own
        after = self._cpu_seconds()
        await self._system.wait_idle()
        counted_after = self._system.database_counters()
        return Round(
            workload=name,
            system=self._system.name,
            number=number,
            workflows=workflows,
            seconds=seconds,
            latencies_ms=quantiles(latencies),
            cpu_s={kind: after[kind] - before.get(kind, 0.0) for kind in after}
            | {CLIENT: client_s},
            memory_mib=_memory_mib(self._system.members()),
            database={one: counted_after[one] - counted[one] for one in counted},
        )

    async def _run(self, workload: Workload) -> tuple[int, list[float]]:
        match workload.kind:
            case "idle":
                await asyncio.sleep(self._scale.idle_s)
                return 0, []
            case "bulk":
                count = max(1, int(workload.count * self._scale.bulk_share))
                await self._system.run_bulk(workload.shape, count)
                return count, []
            case "callers":
                waits = await self._repeat(workload.shape, workload.count, self._scale.callers_s)
                return len(waits), waits

    async def _repeat(self, shape: str, count: int, seconds: float) -> list[float]:
        """Let callers run one workflow after the other for some seconds; return all waits, ms.

        It returns when the last caller has its reply: what was begun is waited for and counts.
        """
        latencies: list[float] = []
        turns = iter(range(1 << 62))
        async with AsyncExitStack() as stack:
            callers = await connect_callers(stack, self._system, count)
            until = time.perf_counter() + seconds

            async def work(caller: Caller) -> None:
                while (sent := time.perf_counter()) < until:
                    await self._system.run_one(caller, next(turns), shape)
                    latencies.append(1_000 * (time.perf_counter() - sent))

            await asyncio.gather(*(work(caller) for caller in callers))
        return latencies

    def _cpu_seconds(self) -> dict[str, float]:
        spent: dict[str, float] = defaultdict(float)
        for process, kind in [*self._system.members(), *self._agents]:
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            spent[kind] += times.user + times.system
        return dict(spent)


def _memory_mib(processes: Iterable[tuple[psutil.Process, str]]) -> float:
    """Return the sum of the proportional set sizes, MiB: shared pages count once."""
    held = 0.0
    for process, _ in processes:
        try:
            held += process.memory_full_info().pss / _MIB
        except psutil.NoSuchProcess:
            continue
    return held
