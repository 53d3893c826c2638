"""Workflows per second and CPU per node on one, two and three raylets of this machine.

Run as `python -m bench.machines.throughput [--raylets 1,2,3] [--rounds N] [--count W]`: starts a
deployment per number of raylets, all with the same two stub agents, and runs `bulk:chain3` and
`bulk:fan10` in turn on each. Prints each round, the rates as ratios to the first deployment's, and
how many dispatches left from each owner. What a machine more costs, not what it brings: the cores
are the same. Asserts nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections import Counter, defaultdict
from contextlib import ExitStack

from bench.checkouts import Checkout
from bench.figures.owner_replies import owner_replies
from bench.machines.lost_machine import await_owners
from bench.machines.raylets import add_raylets
from bench.workflows import NODES, SHAPES, Figures, Service, measure, stubs


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--raylets", default="1,2,3")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=1_000, help="workflows per round")
    parser.add_argument("--toml", default="", help="settings of the deployments")
    options = parser.parse_args()
    checkout, numbers = Checkout.at(None), [int(one) for one in options.raylets.split(",")]
    with ExitStack() as stack:
        services: dict[int, Service] = {}
        for number in numbers:
            home = stack.enter_context(checkout.deployment(options.toml))
            add_raylets(home, number - 1)
            await_owners(home, number)
            ports = stack.enter_context(stubs(home, 2))
            services[number] = Service(home, ports)
            asyncio.run(services[number].prepare())
        for shape in SHAPES:
            measure_shape(shape, services, rounds=options.rounds, count=options.count)
        for number, service in services.items():
            show_spread(checkout, number, service)


def measure_shape(shape: str, services: dict[int, Service], *, rounds: int, count: int) -> None:
    """Run the rounds of a shape, the deployments in turn, and print them."""
    found: dict[int, list[Figures]] = defaultdict(list)
    for service in services.values():
        asyncio.run(measure(service, shape, "bulk", count // 2))  # warm up
    for turn in range(rounds):
        order = list(services) if turn % 2 else list(services)[::-1]
        for number in order:
            found[number].append(asyncio.run(measure(services[number], shape, "bulk", count)))
    first = found[next(iter(services))]
    for number, figures in found.items():
        ratios = [one.rate / other.rate for one, other in zip(figures, first, strict=True)]
        rate = statistics.median(one.rate for one in figures)
        cpu_us = 1_000 * statistics.median(one.cpu_ms for one in figures) / NODES[shape]
        print(
            f"{shape:7} {number} raylets: {rate:7.1f} workflows/s, {cpu_us:5.0f} CPU-us/node;"
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
