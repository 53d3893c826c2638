"""Seconds of `callboard up` until the deployment is ready, on a folder that exists, by step.

Run as `python -m bench.startup [A] [B] [--runs N]`: A and B are folders of checkouts (default: this
one alone); the two are started in turns, each in a folder of its own that an earlier start has
filled, so that neither Postgres nor any file is made anew. Prints the median of the whole, the
medians of the times at which the steps were reported, and the CPU seconds that the processes of the
deployment have used when it is ready: those over the cores are the least that it can take. What has
ended by then (the migration, the deploying program) is not in them. Asserts nothing about times.
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.checkouts import Checkout
from bench.figures.process_usage import cpu_seconds
from tests.platform.deployments import free_port

RUNS = 5
# A line of `up`: the seconds since its start, then those of the step's own if it has any, then it.
_STEP = re.compile(r"^\[ *([0-9.]+) s\] (?:\[ *[0-9.]+ s\] )?(.+)$")
_READY = "ready"


@dataclass(frozen=True, slots=True)
class Start:
    """One start: seconds until each step and until the end, CPU seconds by kind of process."""

    times: dict[str, float]
    cpu: dict[str, float]


def read_steps(printed: str) -> dict[str, float]:
    """Return when each step was reported first, seconds since the start; addresses are left out.

    Args:
        printed: what `up` has printed.
    """
    found: dict[str, float] = {}
    for line in printed.splitlines():
        if step := _STEP.match(line):
            found.setdefault(step[2].split(" at http")[0], float(step[1]))
    return found


def start(checkout: Checkout, home: Path) -> Start:
    """Start a deployment, end it, and return what the start took."""
    began = time.perf_counter()
    try:
        arguments = ("--home", str(home), "--port", str(free_port()), "--detach")
        printed = checkout.supervisor("up", *arguments)
        times = {**read_steps(printed), _READY: time.perf_counter() - began}
        return Start(times, cpu_seconds(home))
    finally:
        checkout.supervisor("down", "--home", str(home))


def medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median by name, in the order of the first run that has it."""
    times: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        for name, seconds in run.items():
            times[name].append(seconds)
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    """Start the checkouts in turns and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", nargs="*", help="folders; default: this checkout")
    parser.add_argument("--runs", type=int, default=RUNS)
    options = parser.parse_args()
    checkouts = [Checkout.at(folder) for folder in options.checkouts or [None]]
    with ExitStack() as stack:
        homes = [
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="callboard-bench-")))
            for _ in checkouts
        ]
        runs: list[list[Start]] = [[] for _ in checkouts]
        for number in range(options.runs + 1):
            for checkout, home, starts in zip(checkouts, homes, runs, strict=True):
                measured = start(checkout, home)
                if number:  # the first start fills the folder
                    starts.append(measured)
    for checkout, starts in zip(checkouts, runs, strict=True):
        whole = sorted(one.times[_READY] for one in starts)
        print(f"{checkout.root} at {checkout.commit}: {options.runs} starts, s:"
              f" {', '.join(f'{one:.1f}' for one in whole)}")  # fmt: skip
        for name, seconds in medians([one.times for one in starts]).items():
            print(f"  {seconds:5.1f} s  {name}")
        spent = medians([one.cpu for one in starts])
        shares = ", ".join(f"{kind} {seconds:.1f}" for kind, seconds in spent.items())
        print(f"  CPU-s when ready: {sum(spent.values()):.1f} ({shares})")


if __name__ == "__main__":
    main()
