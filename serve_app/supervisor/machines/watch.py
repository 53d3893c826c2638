"""Brings back workers whose supervisor has died: `python -m …machines.watch CONFIG`, on the head.

A worker's supervisor restarts Ray, and nothing on that machine restarts the supervisor, after a
power cut for example. So the head asks every worker's API and, where nothing has answered for half
a minute, lets that machine join again by ssh. `join` refuses where its supervisor lives, so this
disturbs no machine that is about to come back by itself. It ends when the configuration is gone,
which `ray down` removes first. Decision 0209.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from serve_app.settings_from_env import load_settings
from serve_app.supervisor.machines.answers import missing_at
from serve_app.supervisor.machines.launch import Cluster, MachineFailed, Worker, read_cluster

ROUND_S = 5.0
SILENCE_S = 30.0
# After an attempt, so that a machine that is away is not asked for ever and ever.
PAUSE_S = 60.0


def silent_workers(silent_since_s: dict[str, float], now_s: float) -> list[str]:
    """Return the addresses to start again, and note the attempts.

    Args:
        silent_since_s: when each worker that does not answer was first found so; an attempt moves
            it into the future, by the pause.
        now_s: of the same clock.
    """
    due = [address for address, since_s in silent_since_s.items() if now_s - since_s >= SILENCE_S]
    for address in due:
        silent_since_s[address] = now_s + PAUSE_S - SILENCE_S
    return due


def watch(config: Path, cluster: Cluster, port: int, logs: Path) -> None:
    """Look after the workers until the configuration is gone.

    Args:
        config: the file that says that the cluster is wanted.
        cluster: the machines.
        port: of the API.
        logs: the folder for the output of what is started.
    """
    silent_since_s: dict[str, float] = {}
    while config.exists():
        for address in cluster.workers:
            if missing_at(f"http://{address}:{port}") is None:
                silent_since_s.pop(address, None)
            else:
                silent_since_s.setdefault(address, time.monotonic())
        for address in silent_workers(silent_since_s, time.monotonic()):
            try:
                Worker(cluster, address, logs / f"{address}.log").join_again()
                outcome = "has joined again"
            except MachineFailed as failure:
                outcome = str(failure)
            _say(f"worker {address}: {outcome}")
        time.sleep(ROUND_S)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Watch the workers of the configuration that is named."""
    config = Path(sys.argv[1])
    settings = load_settings().settings
    cluster = read_cluster(config.read_text(encoding="utf-8"))
    watch(config, cluster, settings.port, Path(settings.home, "logs"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
