"""The ledger and TPC-B on one Postgres: `python -m bench.ledger_throughput [--rounds N]`.

Payments alone and whole nodes through the real group commit at 1, 16, 128 and 1,000 callers,
uniform and with one hot account, and pgbench's TPC-B with as many clients (at most 128: each has a
connection), in turns, so that other load on the machine affects all. Per line: the median of the
rounds of transactions a second, CPU microseconds a transaction of the clients and of all of
Postgres, and latencies.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from dataclasses import dataclass

import psutil
import psycopg

from actors.process.garbage import collect_rarely
from bench.load.payments import Payments
from bench.load.private_postgres import private_postgres
from bench.load.tpcb import HOT_SCALE, UNIFORM_SCALE, TpcB, find_pgbench
from ledger.embedded.server import OWNER, EmbeddedPostgres
from ledger.migrate import migrate

CONNECTIONS_MAX = 160
CLIENTS_MAX = 128
WHOLE = "whole node"
OURS = ("payment", WHOLE)
COLUMNS = ("what", "callers", "kind", "tx/s", "client µs", "Postgres µs", "sum µs", "tx/commit",
           "p50 ms", "p99 ms")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sample:
    """One run's figures, per second and per transaction."""

    rate: float
    client_us: float
    postgres_us: float
    per_commit: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None


def postgres_cpu_s(pid: int) -> float:
    """Return the CPU seconds of a server: its live processes and those that ended."""
    postmaster = psutil.Process(pid)
    while True:
        children = postmaster.children()
        own = postmaster.cpu_times()
        used = own.user + own.system + own.children_user + own.children_system
        try:
            for child in children:
                times = child.cpu_times()
                used += times.user + times.system
        except psutil.NoSuchProcess:
            continue
        # A process that ended between two reads would not be counted.
        if postmaster.children() == children:
            return float(used)


async def payments_sample(
    ledger: Payments, pid: int, callers: int, seconds: float, *, is_hot: bool, is_whole: bool
) -> Sample:
    """Measure payments once, or whole nodes."""
    workflows = await ledger.publish(1 if is_hot else callers)
    before = postgres_cpu_s(pid)
    run = await ledger.run(workflows, callers, seconds, is_whole=is_whole)
    postgres_s = postgres_cpu_s(pid) - before
    return Sample(
        run.payments / run.wall_s,
        run.client_cpu_s / run.payments * 1e6,
        postgres_s / run.payments * 1e6,
        run.payments / run.batches,
        run.p50_ms,
        run.p99_ms,
    )


def tpcb_sample(tables: TpcB, pid: int, clients: int, seconds: float) -> Sample:
    """Measure TPC-B once."""
    before = postgres_cpu_s(pid)
    run = tables.run(clients, seconds)
    postgres_s = postgres_cpu_s(pid) - before
    return Sample(
        run.transactions / run.wall_s,
        run.client_cpu_s / run.transactions * 1e6,
        postgres_s / run.transactions * 1e6,
        1.0,
    )


async def run(server: EmbeddedPostgres, arguments: argparse.Namespace) -> None:
    """Fill the tables, measure in turns, print the medians."""
    assert server.pid is not None
    pgbench = find_pgbench(arguments.pgbench)
    print(f"TPC-B by {pgbench or 'a psycopg loop per client in processes of their own'}")
    beside: dict[bool, TpcB] = {}
    for is_hot, scale in ((False, arguments.scale), (True, HOT_SCALE)):
        name = "tpcb_hot" if is_hot else "tpcb_uniform"
        with psycopg.connect(server.superuser_url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} OWNER {OWNER}".encode())
        beside[is_hot] = TpcB(server.url_for(OWNER, name), scale=scale, pgbench=pgbench)
        beside[is_hot].fill()
    samples: dict[tuple[str, int, bool], list[Sample]] = {}
    ledger = await Payments.open(server.database_url)
    for number in range(arguments.rounds):
        print(f"round {number + 1} of {arguments.rounds}", flush=True)
        for callers in arguments.callers:
            for is_hot in (False, True):
                for what in OURS:
                    sample = await payments_sample(
                        ledger,
                        server.pid,
                        callers,
                        arguments.seconds,
                        is_hot=is_hot,
                        is_whole=what == WHOLE,
                    )
                    samples.setdefault((what, callers, is_hot), []).append(sample)
                if callers <= CLIENTS_MAX:
                    theirs = samples.setdefault(("TPC-B", callers, is_hot), [])
                    theirs.append(
                        await asyncio.to_thread(
                            tpcb_sample, beside[is_hot], server.pid, callers, arguments.seconds
                        )
                    )
    await ledger.close()
    show(samples)


def show(samples: dict[tuple[str, int, bool], list[Sample]]) -> None:
    """Print a line per kind of run: the medians of its samples."""
    print("{:<10} {:>7} {:<8} {:>8} {:>10} {:>12} {:>8} {:>9} {:>8} {:>8}".format(*COLUMNS))
    for (what, callers, is_hot), taken in samples.items():
        rate, client, postgres = (
            statistics.median(getattr(sample, name) for sample in taken)
            for name in ("rate", "client_us", "postgres_us")
        )
        rest = [
            _median([getattr(sample, name) for sample in taken])
            for name in ("per_commit", "p50_ms", "p99_ms")
        ]
        print(
            f"{what:<10} {callers:>7,} {'hot' if is_hot else 'uniform':<8} {rate:>8,.0f}"
            f" {client:>10,.0f} {postgres:>12,.0f} {client + postgres:>8,.0f}"
            f" {rest[0]:>9} {rest[1]:>8} {rest[2]:>8}"
        )


def _median(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.1f}" if known else "-"


def main() -> None:
    """Start a private Postgres, measure, end it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="per run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 16, 128, 1000])
    parser.add_argument("--scale", type=int, default=UNIFORM_SCALE, help="TPC-B's branches")
    parser.add_argument("--pgbench", help="the pgbench to use")
    arguments = parser.parse_args()
    collect_rarely()  # as the ledger's process does
    with private_postgres(max_connections=CONNECTIONS_MAX) as server:
        migrate(server.owner_url)
        asyncio.run(run(server, arguments))


if __name__ == "__main__":
    main()
