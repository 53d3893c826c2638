"""Seconds of `callboard up` until the deployment is ready, on a folder that exists, by step.

Run as `python -m bench.startup [A] [B] [--runs N]`: A and B are folders of checkouts (default: this
one alone); the two are started in turns, each in a folder of its own that an earlier start has
filled, so that neither Postgres nor any file is made anew. Prints the median of the whole and the
medians of the times at which the steps were reported. Asserts nothing about times.
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
from pathlib import Path

from bench.checkouts import Checkout
from tests.platform.deployments import free_port

RUNS = 5
# A line of `up`: the seconds since its start, then those of the step's own if it has any, then it.
_STEP = re.compile(r"^\[ *([0-9.]+) s\] (?:\[ *[0-9.]+ s\] )?(.+)$")
_READY = "ready"


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


def start(checkout: Checkout, home: Path) -> dict[str, float]:
    """Start a deployment, end it, and return the times of its steps, the whole among them."""
    began = time.perf_counter()
    try:
        arguments = ("--home", str(home), "--port", str(free_port()), "--detach")
        printed = checkout.supervisor("up", *arguments)
        return {**read_steps(printed), _READY: time.perf_counter() - began}
    finally:
        checkout.supervisor("down", "--home", str(home))


def median_times(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each step's times, in the order of the first run that has it."""
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
        runs: list[list[dict[str, float]]] = [[] for _ in checkouts]
        for number in range(options.runs + 1):
            for checkout, home, times in zip(checkouts, homes, runs, strict=True):
                measured = start(checkout, home)
                if number:  # the first start fills the folder
                    times.append(measured)
    for checkout, times in zip(checkouts, runs, strict=True):
        whole = sorted(run[_READY] for run in times)
        print(f"{checkout.root} at {checkout.commit}: {options.runs} starts, s:"
              f" {', '.join(f'{one:.1f}' for one in whole)}")  # fmt: skip
        for name, seconds in median_times(times).items():
            print(f"  {seconds:5.1f} s  {name}")


if __name__ == "__main__":
    main()
