"""What a batch costs by each carrier: Unix socket, TCP with sealed frames, TLS below it, Ray call.

Run as `python -m bench.transport [--calls N]`. Each carrier has a Ray actor of its own, on this
machine, that returns what it gets; all are called from one loop in this process, by `BatchCall`,
one call at a time. Carriers take turns, round by round. Prints microseconds per call: as the caller
waits for it, the median of the rounds, and CPU of both processes together, the mean of all rounds,
because the clock of CPU time is coarse. Decision 0205.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psutil
import ray
import uvloop

from actors.process.arguments import parse_settings_argument, settings_argument
from actors.transport.actor_calls import ActorCall, BatchCall, BatchServer
from actors.transport.names import NAMESPACE, ensure_actor
from bench.checkouts import ROOT
from core.settings import Settings
from tests.federation.certificates import self_signed

BATCHES: Final = (1, 32)
BODY: Final = bytes(range(256)) * 4
ROUNDS: Final = 7
KEY: Final = "a1" * 32


@ray.remote
class Echo:
    """Returns each batch, by all carriers that its settings allow."""

    async def __init__(self, name: str, values: Mapping[str, object]) -> None:  # type: ignore[misc]
        self._batches = BatchServer(parse_settings_argument(values), name)
        await self._batches.start({"submit": self.submit})

    async def submit(self, bodies: list[bytes]) -> list[bytes]:
        """Return the bodies."""
        return bodies

    async def endpoint(self) -> str:
        """Return where it listens for TCP."""
        return self._batches.endpoint

    async def process_id(self) -> int:
        """Return its process."""
        return os.getpid()


def carriers(folder: Path) -> dict[str, Settings]:
    """Return settings by the name of the only carrier that they leave, besides the Ray call."""
    file = str(self_signed(folder, "bench"))
    tcp: dict[str, Any] = {"transport_host": "127.0.0.1", "deployment_key": KEY}
    tls = dict.fromkeys(
        ("transport_tls_certificate", "transport_tls_key", "transport_tls_ca"), file
    )
    return {
        "Unix": Settings(run_folder=str(folder), deployment_key=KEY),
        "TCP sealed": Settings(**tcp),
        "TCP sealed + TLS": Settings(**tcp, **tls),
        "Ray": Settings(),
    }


async def measure(call: BatchCall, batch: list[bytes], calls: int, pids: list[int]) -> list[float]:
    """Return microseconds per call: waited, and CPU of both sides."""
    processes = [psutil.Process(pid) for pid in pids]
    before_s, begin_s = sum(map(_cpu_s, processes)), time.perf_counter()
    for _ in range(calls):
        assert len(await call(batch)) == len(batch)
    waited_s = time.perf_counter() - begin_s
    spent_s = sum(map(_cpu_s, processes)) - before_s
    return [waited_s / calls * 1e6, spent_s / calls * 1e6]


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def compare(folder: Path, calls: int) -> None:
    """Print the table."""
    named = carriers(folder)
    pids = {}
    for name, settings in named.items():
        ensure_actor(Echo, name, name, settings_argument(settings))
        pids[name] = await ActorCall(name, "process_id")()
    print(f"{'carrier':<18}{'batch':>6}{'us waited':>12}{'us CPU':>9}")
    for size in BATCHES:
        batch = [BODY] * size
        found: dict[str, list[list[float]]] = {name: [] for name in named}
        for _ in range(ROUNDS):
            for name, settings in named.items():
                with closing(BatchCall(settings, name, "submit")) as call:
                    await measure(call, batch, calls // 10, [])  # connects, and warms up
                    own = [os.getpid(), pids[name]]
                    found[name].append(await measure(call, batch, calls, own))
        for name, rounds in found.items():
            waited, spent = zip(*rounds, strict=True)
            figures = statistics.median(waited), statistics.fmean(spent)
            print(f"{name:<18}{size:>6}{figures[0]:>12.0f}{figures[1]:>9.0f}")


def main() -> None:
    """Measure once with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1_000)
    arguments = parser.parse_args()
    environment = {"env_vars": {"PYTHONPATH": str(ROOT)}}
    with tempfile.TemporaryDirectory(prefix="cb-") as folder:
        ray.init(
            num_cpus=1, namespace=NAMESPACE, include_dashboard=False, log_to_driver=False,
            _temp_dir=f"{folder}/ray", runtime_env=environment, _node_ip_address="127.0.0.1",
        )  # fmt: skip
        try:
            uvloop.run(compare(Path(folder), arguments.calls))
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main()
