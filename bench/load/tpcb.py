"""TPC-B beside the ledger, on the same Postgres: pgbench's, or the same transaction by psycopg.

pgbench's figures are well known. Uniform: 100 branches; hot: one branch, whose row every
transaction updates. Without pgbench, processes of this module run its transaction; the output says
so, because their client costs more CPU.
"""

from __future__ import annotations

import multiprocessing
import random
import re
import resource
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psycopg

from ledger.embedded.server import bin_folder

UNIFORM_SCALE, HOT_SCALE = 100, 1
ACCOUNTS_PER_BRANCH, TELLERS_PER_BRANCH = 100_000, 10
_HISTORY = b"CREATE TABLE pgbench_history (tid int, bid int, aid int, delta int, mtime timestamp)"
_ACCOUNT = b"UPDATE pgbench_accounts SET abalance = abalance + %s WHERE aid = %s"
_BALANCE = b"SELECT abalance FROM pgbench_accounts WHERE aid = %s"
_TELLER = b"UPDATE pgbench_tellers SET tbalance = tbalance + %s WHERE tid = %s"
_BRANCH = b"UPDATE pgbench_branches SET bbalance = bbalance + %s WHERE bid = %s"
_NOTE = b"INSERT INTO pgbench_history VALUES (%s, %s, %s, %s, now()::timestamp)"


@dataclass(frozen=True, slots=True)
class Run:
    """A run's figures: transactions, seconds, CPU seconds of the clients."""

    transactions: int
    wall_s: float
    client_cpu_s: float


def find_pgbench(given: str | None) -> Path | None:
    """Return the pgbench to use: the given one, that of the embedded server, one on the path."""
    if given is not None:
        return Path(given)
    beside = bin_folder() / "pgbench"
    if beside.exists():
        return beside
    found = shutil.which("pgbench")
    return None if found is None else Path(found)


class TpcB:
    """TPC-B's tables in a database of their own.

    Args:
        url: the database, as a role that may create tables.
        scale: branches; each has 10 tellers and 100,000 accounts.
        pgbench: the program, None to run the transaction by psycopg.
    """

    def __init__(self, url: str, *, scale: int, pgbench: Path | None) -> None:
        self._url = url
        self._scale = scale
        self._pgbench = pgbench

    def fill(self) -> None:
        """Create and fill the tables."""
        if self._pgbench is not None:
            self._call("--initialize", "--quiet", f"--scale={self._scale}")
            return
        with psycopg.connect(self._url, autocommit=True) as connection:
            for table, key, rows in (
                ("branches", "bid", self._scale),
                ("tellers", "tid", self._scale * TELLERS_PER_BRANCH),
                ("accounts", "aid", self._scale * ACCOUNTS_PER_BRANCH),
            ):
                balance = f"{table[0]}balance"
                connection.execute(
                    f"CREATE TABLE pgbench_{table} ({key} int PRIMARY KEY, {balance} bigint)"
                    " WITH (fillfactor = 100)".encode()
                )
                fill = f"INSERT INTO pgbench_{table} SELECT n, 0 FROM generate_series(1, {rows}) n"
                connection.execute(fill.encode())
            connection.execute(_HISTORY)
            connection.execute("VACUUM ANALYZE")

    def run(self, clients: int, seconds: float) -> Run:
        """Run transactions from this many clients for some seconds."""
        before, began = _children_cpu_s(), time.perf_counter()
        if self._pgbench is not None:
            transactions = self._run_pgbench(clients, max(1, round(seconds)))
            wall_s = time.perf_counter() - began
        else:
            # The starting of the processes is in their CPU time, not in the seconds.
            wall_s = seconds
            with multiprocessing.get_context("spawn").Pool(clients) as pool:
                arguments = [(self._url, self._scale, seconds, seed) for seed in range(clients)]
                transactions = sum(pool.starmap(_transactions, arguments))
                pool.close()
                pool.join()
        return Run(transactions, wall_s, _children_cpu_s() - before)

    def _run_pgbench(self, clients: int, seconds: int) -> int:
        output = self._call(
            "--no-vacuum", f"--client={clients}", f"--jobs={min(clients, 2)}",
            f"--time={seconds}", "--protocol=prepared",
        )  # fmt: skip
        match = re.search(r"transactions actually processed: (\d+)", output)
        assert match is not None, output
        transactions = int(match.group(1))
        if transactions == 0:
            raise SystemExit(f"{clients} clients had no time to connect: give more --seconds")
        return transactions

    def _call(self, *options: str) -> str:
        command = [str(self._pgbench), *options, self._url]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"pgbench failed: {done.stderr.strip()}")
        return done.stdout


def _transactions(url: str, scale: int, seconds: float, seed: int) -> int:
    """Run TPC-B transactions of one client; return how many."""
    chance, count = random.Random(seed), 0
    with psycopg.connect(url, autocommit=True, prepare_threshold=0) as connection:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            aid = chance.randint(1, scale * ACCOUNTS_PER_BRANCH)
            tid = chance.randint(1, scale * TELLERS_PER_BRANCH)
            bid, delta = chance.randint(1, scale), chance.randint(-5000, 5000)
            with connection.transaction():
                connection.execute(_ACCOUNT, (delta, aid))
                connection.execute(_BALANCE, (aid,))
                connection.execute(_TELLER, (delta, tid))
                connection.execute(_BRANCH, (delta, bid))
                connection.execute(_NOTE, (tid, bid, aid, delta))
            count += 1
    return count


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
