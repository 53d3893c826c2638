"""What each owner's own copy of the directory costs, by the number of agents and of owners.

Run as `python -m bench.directory_cost [AGENTS ...]`. A Postgres of its own; agents are written as
rows, past the writer, each with two capabilities and a heartbeat. Of one `DirectorySync`, as every
owner has one, it prints: what its directory weighs (resident memory, of a process of its own), the
CPU of the first read, and what a second costs, idle and with heartbeats to be followed: here and in
the backends of its connections. Owners differ in nothing of this, so that N of them cost N times as
much. Decision 0216.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import psycopg

from actors.directory.agent_directory import Directory
from actors.directory.directory_sync import DirectorySync
from bench.load.private_postgres import private_postgres
from core.trust.deployment_keys import DeploymentKeys
from ledger.embedded.server import OWNER, SERVICE, SUPERUSER
from ledger.migrate import migrate
from ledger.reads.directory_tail import DirectoryTail
from ledger.reads.reader import LedgerReader

AGENTS: Final = (0, 1_000, 10_000, 100_000)
IDLE_S: Final = 20.0
# Heartbeats of so many agents a second, for so long.
BEATS: Final = (20, 200)
BEATS_S: Final = 10.0
MIB: Final = 1 << 20

_AGENTS: Final = """
    INSERT INTO callboard.agent (did, owner_did, card, endpoint, capability_ids, status, revision,
        registered_ms, updated_ms)
    SELECT 'did:key:z6MkAgentOfABenchThatFollowsChanges' || n, 'did:b:o' || n % 997,
        json_build_object('did', 'did:b:' || n, 'capabilities', json_build_array(
            json_build_object('id', 'cap.n' || n % 100 || '.v1', 'price_cents', n % 7),
            json_build_object('id', 'cap.m' || n || '.v1', 'price_cents', 1))),
        'http://127.0.0.1:9', ARRAY['cap.n' || n % 100 || '.v1', 'cap.m' || n || '.v1'], 'active',
        1, n, n
    FROM generate_series(1, %s::int) n
"""
_BEATS: Final = """
    INSERT INTO callboard.agent_live (did, status, load, heartbeat_ms, updated_ms)
    SELECT did, 'healthy', 0.5, %(now)s, %(now)s FROM callboard.agent ORDER BY did
    OFFSET %(first)s LIMIT %(count)s
    ON CONFLICT (did) DO UPDATE
    SET heartbeat_ms = excluded.heartbeat_ms, updated_ms = excluded.updated_ms
"""


@dataclass(slots=True)
class Cost:
    """What was measured: MiB, seconds of CPU of the first read, CPU-ms a second by what went on."""

    mib: float
    read_s: float
    during: dict[str, tuple[float, float]]


@asynccontextmanager
async def following(url: str) -> AsyncIterator[Directory]:
    """Follow the directory as an owner does."""
    directory = Directory(
        service="callboard",
        deployment_keys=DeploymentKeys(),
        default_secret=None,
        max_concurrency=32,
    )
    reader = LedgerReader(url, pool_size=1)
    sync = DirectorySync(
        directory,
        reader,
        tail=DirectoryTail(url),
        owner="bench",
        on_revoked=lambda: None,
        now_ms=lambda: time.time_ns() // 1_000_000,
    )
    await sync.start()
    try:
        yield directory
    finally:
        await sync.close()
        await reader.close()


def backends_cpu_s(server_url: str) -> float:
    """Return the CPU that the follower's backends have used so far."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT pid FROM pg_stat_activity"
            " WHERE application_name IN ('callboard-reader', 'callboard-tail')"
        ).fetchall()
    # In nanoseconds: what `psutil` tells comes in ticks of 10 ms.
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for (pid,) in rows) / 1e9


async def _follow(url: str, server_url: str, agents: int) -> Cost:
    own = psutil.Process()
    gc.collect()
    before_b, before_s = own.memory_info().rss, time.process_time()
    async with following(url):
        read_s = time.process_time() - before_s
        gc.collect()
        found = Cost((own.memory_info().rss - before_b) / MIB, read_s, {})
        await _during(found, "idle", server_url, IDLE_S, 0, agents)
        for beats in BEATS if agents else ():
            await _during(found, f"{beats} heartbeats/s", server_url, BEATS_S, beats, agents)
    return found


async def _during(
    found: Cost, what: str, server_url: str, seconds: float, beats: int, agents: int
) -> None:
    """Note what a while costs in which so many agents a second are heard of."""
    loop = asyncio.get_running_loop()
    writer = await psycopg.AsyncConnection.connect(server_url, autocommit=True)
    # What this process spends on writing is not the follower's.
    writing_s, backend_s, own_s = 0.0, backends_cpu_s(server_url), time.process_time()
    ends_s, first = loop.time() + seconds, 0
    while (left_s := ends_s - loop.time()) > 0:
        await asyncio.sleep(min(0.25, left_s))
        if beats:
            values = {"now": time.time_ns() // 1_000_000, "first": first, "count": beats // 4}
            began_s = time.thread_time()
            await writer.execute(_BEATS, values)
            writing_s += time.thread_time() - began_s
            first = (first + beats // 4) % max(1, agents - beats)
    own_ms = 1_000 * (time.process_time() - own_s - writing_s) / seconds
    backend_ms = 1_000 * (backends_cpu_s(server_url) - backend_s) / seconds
    found.during[what] = own_ms, backend_ms
    await writer.close()


def _run(url: str, server_url: str, agents: int) -> None:
    found = asyncio.run(_follow(url, server_url, agents))
    print(f"{agents} agents: {found.mib:.1f} MiB, first read {found.read_s:.2f} CPU-s", flush=True)
    for what, (own_ms, backend_ms) in found.during.items():
        print(
            f"  {what}: {own_ms:.2f} CPU-ms a second here, {backend_ms:.2f} in Postgres", flush=True
        )


def main() -> None:
    """Measure for each number of agents."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agents", nargs="*", type=int, default=AGENTS)
    counts = parser.parse_args().agents
    with private_postgres(shared_buffers_mib=256) as server:
        for number, agents in enumerate(counts):
            name = f"bench{number}"
            with psycopg.connect(server.superuser_url, autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {name} OWNER {OWNER}")
            migrate(server.url_for(OWNER, name))
            with psycopg.connect(server.url_for(OWNER, name), autocommit=True) as connection:
                connection.execute(_AGENTS.replace("n % ", "n %% "), (agents,))
                connection.execute("VACUUM ANALYZE")
            # Of its own, so that memory is that of this number of agents.
            arguments = server.url_for(SERVICE, name), server.url_for(SUPERUSER, name), agents
            process = multiprocessing.get_context("spawn").Process(target=_run, args=arguments)
            process.start()
            process.join()


if __name__ == "__main__":
    main()
