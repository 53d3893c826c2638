"""What this machine can do at most of what each node needs: the floor below the service's figures.

Run as `python -m bench.limits`: prints a table of rates and CPU per operation. Each is the best of
some runs: other work on the machine only makes it slower. Prints; asserts nothing about times.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from nacl.signing import SigningKey

from bench.peers.machine import describe_machine, flush_ms
from ledger.embedded.server import EmbeddedPostgres, bin_folder

RUNS: Final = 3
TRANSACTIONS_S: Final = 5
CLIENTS: Final = (1, 16)
# Of a step's record, about.
HASHED: Final = b"x" * 1_024
_TPS: Final = re.compile(r"tps = ([\d.]+)")
Line = tuple[str, float, float | None]


def time_us(work: Callable[[], object], count: int) -> float:
    """Return the least CPU time of a call, microseconds."""
    best = float("inf")
    for _ in range(RUNS):
        began = time.process_time()
        for _ in range(count):
            work()
        best = min(best, 1e6 * (time.process_time() - began) / count)
    return best


def crypto_lines() -> list[Line]:
    """Return what hashing and signing cost one core."""
    key = SigningKey.generate()
    signed = key.sign(HASHED)
    measured = {
        "SHA-256 of 1 KiB": time_us(lambda: hashlib.sha256(HASHED).digest(), 50_000),
        "Ed25519 signature of 1 KiB": time_us(lambda: key.sign(HASHED), 5_000),
        "Ed25519 verification of 1 KiB": time_us(lambda: key.verify_key.verify(signed), 3_000),
    }
    return [(name, 1e6 / us, us) for name, us in measured.items()]


def commit_lines(folder: Path) -> list[Line]:
    """Return how many small transactions Postgres commits with the service's own settings."""
    run_folder = folder / "run"
    run_folder.mkdir(mode=0o700)
    server = EmbeddedPostgres(folder, run_folder, max_connections=40)
    server.start()
    try:
        pgbench = [str(bin_folder() / "pgbench"), server.superuser_url]
        subprocess.run([*pgbench, "-i", "-q"], check=True, capture_output=True)
        found: list[Line] = []
        for clients in CLIENTS:
            options = ["-c", str(clients), "-T", str(TRANSACTIONS_S), "-N", "-M", "prepared"]
            done = subprocess.run([*pgbench, *options], check=True, capture_output=True, text=True)
            rate = _TPS.search(done.stdout)
            assert rate is not None, done.stdout
            name = f"pgbench -N transactions (2 updates, 1 insert), {clients} clients"
            found.append((name, float(rate.group(1)), None))
        return found
    finally:
        server.stop()


def main() -> None:
    """Measure and print."""
    for name, value in describe_machine().items():
        print(f"{name}: {value}")
    flush = flush_ms()
    lines: list[Line] = [("write and fdatasync of 4 KiB", 1_000 / flush, None)]
    with tempfile.TemporaryDirectory(prefix="cbl-") as folder:
        Path(folder).chmod(0o711)  # root's Postgres is another user's
        lines += [*crypto_lines(), *commit_lines(Path(folder))]
    print("\n| what | per second | CPU-us each |\n| --- | --- | --- |")
    for name, rate, us in lines:
        print(f"| {name} | {rate:,.0f} | {'-' if us is None else f'{us:.1f}'} |")


if __name__ == "__main__":
    main()
