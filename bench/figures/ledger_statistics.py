"""The ledger actor's own counters, asked over Ray.

`python -m bench.figures.ledger_statistics HOME` prints them as JSON. A process of its own, so that
the measuring client does not join the cluster.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import psutil

ASKED = "CALLBOARD_BENCH_ASKED"
PASSED_ON = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RAY_TMPDIR")


def ledger_statistics(home: Path) -> dict[str, float]:
    """Return the counters of the deployment's ledger actor: batches, commands, round_trips, …"""
    environment = {**os.environ, **_ray_environment(home), ASKED: "1"}
    asked = subprocess.run(
        [sys.executable, "-m", "bench.figures.ledger_statistics", str(home)],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, float] = json.loads(asked.stdout.strip().splitlines()[-1])
    return found


def _ray_environment(home: Path) -> dict[str, str]:
    """Return how the deployment's own processes reach its cluster."""
    for process in psutil.process_iter(["cmdline"]):
        if "ray::LedgerActor" in " ".join(process.info["cmdline"] or []):
            environment = process.environ()
            if any(str(home) in value for value in environment.values()):
                return {name: environment[name] for name in PASSED_ON if name in environment}
    raise SystemExit(f"no ledger actor of the deployment in {home}")


def _ask() -> None:
    import ray

    ray.init(address="auto", namespace="callboard", log_to_driver=False, logging_level="ERROR")
    actor = ray.get_actor("ledger", namespace="callboard")
    statistics = ray.get(actor.ping.remote(), timeout=30)
    print(json.dumps(dataclasses.asdict(statistics["commits"])))


if __name__ == "__main__":
    if os.environ.get(ASKED):
        _ask()
    else:
        print(json.dumps(ledger_statistics(Path(sys.argv[1]))))
