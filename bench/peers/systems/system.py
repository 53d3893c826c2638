"""What the bench knows of a system: how to run workflows on it, and which processes are its own."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Protocol

import psutil

from bench.peers.caller import Caller, connect

ENGINE, DATABASE, WORKERS = "engine", "database", "service workers"
AGENTS, CLIENT = "agents", "client"
# Calls under way at once in bulk, on the systems that take one workflow per request.
IN_FLIGHT = 256
_END_WITHIN_S = 20.0


class System(Protocol):
    """A running system under measurement."""

    name: str
    # The addresses that callers are spread over, and who they are: headers of every request.
    urls: list[str]
    headers: list[dict[str, str]]

    def members(self) -> Iterator[tuple[psutil.Process, str]]:
        """Yield its processes, each with its kind."""

    def ask_durability(self) -> dict[str, str]:
        """Return the running servers' own answers about what they write through to the disk."""

    def database_counters(self) -> dict[str, float]:
        """Return what its Postgres has counted since its start; empty without one."""

    def settings(self) -> dict[str, str]:
        """Return the settings that were chosen for speed, and why they are safe."""

    async def run_one(self, caller: Caller, turn: int, shape: str) -> None:
        """Run a workflow and wait for its result.

        Args:
            turn: the number of the request, for systems that spread work by request.
        """

    async def run_bulk(self, shape: str, count: int) -> None:
        """Run `count` workflows, all given at once, and wait until the last has ended."""

    async def wait_idle(self) -> None:
        """Return when no workflow is unfinished."""


async def connect_callers(stack: AsyncExitStack, system: System, count: int) -> list[Caller]:
    """Open the connections of `count` callers, spread over the system's addresses and payers."""
    urls, headers = system.urls, system.headers
    return [
        await stack.enter_async_context(
            connect(urls[number % len(urls)], headers[number % len(headers)])
        )
        for number in range(count)
    ]


async def run_each(system: System, shape: str, count: int) -> None:
    """Run `count` workflows by a request each, as many at once as help."""
    left = iter(range(count))
    async with AsyncExitStack() as stack:
        callers = await connect_callers(stack, system, min(count, IN_FLIGHT))

        async def work(caller: Caller) -> None:
            for turn in left:
                await system.run_one(caller, turn, shape)

        await asyncio.gather(*(work(caller) for caller in callers))


def tree(pid: int, kind: str) -> Iterator[tuple[psutil.Process, str]]:
    """Yield a process and its descendants."""
    try:
        first = psutil.Process(pid)
        yield first, kind
        for process in first.children(recursive=True):
            yield process, kind
    except psutil.NoSuchProcess:
        return


@contextmanager
def ended(
    processes: Sequence[subprocess.Popen[bytes]], number: signal.Signals = signal.SIGTERM
) -> Iterator[None]:
    """End processes at the end of the block, all at once.

    Args:
        number: the signal that asks them; 20 s later they are killed.
    """
    try:
        yield
    finally:
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)
        for process in processes:
            try:
                process.wait(_END_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
