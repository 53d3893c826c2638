"""Throughput, and the latency of a lone chain, on one, two and three raylets of this machine.

Run as `python -m bench.machines [--raylets 1,2,3] [--rounds N] [--count W]`: starts a deployment
per number of raylets, all with the same two stub agents, and runs `bulk:chain3`, `bulk:fan10` and
`alone:chain3` in turn on each. Prints medians, the ratios to the first deployment of the same
rounds, and how many dispatches left from each owner. It shows what a further machine costs, not
what it brings: the cores are the same. Asserts nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from pathlib import Path

from bench.checkouts import Checkout
from bench.figures.owner_replies import owner_replies
from bench.figures.process_usage import OWNER, members
from bench.load.clients import Target
from bench.workflows import NODES, Figures, Service, measure, stubs
from tests.faults.raylets import add_machine
from tests.platform.deployments import RunningDeployment

OWNERS_WITHIN_S = 120.0
RUNS = ("bulk:chain3", "bulk:fan10", "alone:chain3")
ALONE_COUNT = 100


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--raylets", default="1,2,3")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=1_000, help="workflows per bulk round")
    parser.add_argument("--toml", default="", help="settings of the deployments")
    options = parser.parse_args()
    checkout = Checkout.at(None)
    with ExitStack() as stack:
        services: dict[int, Service] = {}
        for number in map(int, options.raylets.split(",")):
            home = stack.enter_context(checkout.deployment(options.toml))
            target = Target.at(home)
            for _ in range(number - 1):
                add_machine(RunningDeployment(home, target.url, target.admin_key))
            await_owners(home, number)
            services[number] = Service(home, stack.enter_context(stubs(home, 2)))
            asyncio.run(services[number].prepare())
        for run in RUNS:
            measure_run(run, services, rounds=options.rounds, count=options.count)
        for number, service in services.items():
            show_spread(checkout, number, service)


def await_owners(home: Path, count: int) -> None:
    """Return when so many owners run.

    Raises:
        SystemExit: not in time.
    """
    until = time.monotonic() + OWNERS_WITHIN_S
    while sum(kind == OWNER for _, kind in members(home)) < count:
        if time.monotonic() > until:
            raise SystemExit(f"got no {count} owners in {OWNERS_WITHIN_S:.0f} s")
        time.sleep(0.5)


def measure_run(run: str, services: dict[int, Service], *, rounds: int, count: int) -> None:
    """Run the rounds of a case, the deployments in turn, and print them."""
    case, shape = run.split(":")
    count = min(count, ALONE_COUNT) if case == "alone" else count
    found: dict[int, list[Figures]] = defaultdict(list)
    for service in services.values():
        asyncio.run(measure(service, shape, case, max(1, count // 2)))  # warm up
    for turn in range(rounds):
        for number in list(services)[:: 1 if turn % 2 else -1]:
            found[number].append(asyncio.run(measure(services[number], shape, case, count)))
    first = found[next(iter(services))]
    for number, figures in found.items():
        ratios = [one.rate / other.rate for one, other in zip(figures, first, strict=True)]
        rate = statistics.median(one.rate for one in figures)
        cpu_us = 1_000 * statistics.median(one.cpu_ms for one in figures) / NODES[shape]
        waits = [statistics.median(one.latencies_ms) for one in figures if one.latencies_ms]
        wait = f" p50 {statistics.median(waits):.1f} ms;" if waits else ""
        print(
            f"{run:12} {number} raylets: {rate:7.1f} workflows/s, {cpu_us:5.0f} CPU-us/node;{wait}"
            f" rates to the first one's: median {statistics.median(ratios):.2f},"
            f" {' '.join(f'{ratio:.2f}' for ratio in ratios)}",
            flush=True,
        )


def show_spread(checkout: Checkout, number: int, service: Service) -> None:
    """Print how many dispatches left from each owner since it started."""
    sent: Counter[str] = Counter()
    with owner_replies(checkout, service.home) as replies:
        while len(sent) < number:
            for reply in replies.iterate_replies():
                sent[reply["owner"]] = reply["sent"]
    total = sum(sent.values()) or 1
    shares = ", ".join(f"{100 * count / total:.0f} %" for count in sorted(sent.values()))
    print(f"{number} raylets: {total} dispatches, by owner {shares}")


if __name__ == "__main__":
    main()
