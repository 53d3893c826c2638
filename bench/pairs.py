"""Total CPU per node of two checkouts, in interleaved pairs, as a ratio with a 95 % interval.

Run as `python -m bench.pairs A [B] [--pairs N] [--runs bulk:chain3,…]`: A is the folder of the
checkout to compare with, B that of the other one (default: this one). Both deployments are up all
the time, with stub agents of their own; the two sides of a pair run one after the other, in an
order that changes from pair to pair. After half of the pairs both are restarted, B first, because
the deployment started second was measured to cost 2 to 3 % more. Every process is counted, agents
and client included; both use this checkout's client. Cases: `bulk`, `single` (32 clients that
wait), `paced` (the same at set times, 200 a second together) and `alone`; but for bulk the latency
is compared too. `--hot` measures one run, `single:chain3`, for at most 20 s a side.

A ratio below 1 means that B costs more. Prints; asserts nothing about times. Refuses to run when
the two deployments differ in a setting that both know, or have different builds of Python: one
built without optimisation was measured to cost 1.2 times as much. Decision tests-and-benchmarks.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from bench.checkouts import Checkout
from bench.figures.intervals import ratio_interval
from bench.workflows import NODES, PACE, SHAPES, Figures, Service, measure, stubs

# Fewer pairs give no useful interval.
PAIRS_LEAST, PAIRS_MIN = 4, 10
ALL_RUNS = "bulk:chain3,single:chain3,bulk:fan10,single:fan10"
HOT_RUN = "single:chain3"
# Duration of a side in `--hot`, at most 20 s on a machine that becomes slower.
HOT_S = 12.0
TRIAL = 200
NOT_THE_SERVICE = {"client", "agents"}


@dataclass(slots=True)
class Side:
    """One checkout's deployment with its measurements."""

    name: str
    checkout: Checkout
    service: Service
    settings: dict[str, Any]
    measured: dict[str, list[Figures]] = field(default_factory=dict)


def list_differing_settings(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """Return the settings known to both whose values differ, with both values."""
    return [
        f"{name}: {first[name]} and {second[name]}"
        for name in sorted(first.keys() & second.keys())
        if first[name] != second[name]
    ]


def start(stack: ExitStack, name: str, checkout: Checkout, toml: str) -> Side:
    """Start a side's deployment and its stub agents."""
    home = stack.enter_context(checkout.deployment(toml))
    ports = stack.enter_context(stubs(home, 2))
    side = Side(name, checkout, Service(home, ports), checkout.settings(home))
    asyncio.run(side.service.prepare())
    return side


def run(side: Side, name: str, count: int) -> Figures:
    """Measure a run once; `name` is case and shape."""
    case, shape = name.split(":")
    return asyncio.run(measure(side.service, shape, case, count))


def fitting_count(sides: list[Side], name: str, seconds: float) -> int:
    """Warm both sides up; return how many workflows the slower side finishes in that time."""
    for side in sides:
        run(side, name, TRIAL)
    if name.startswith("paced:"):
        return int(PACE * seconds)
    slowest = min(run(side, name, TRIAL).rate for side in sides)
    return max(TRIAL, int(slowest * seconds) // 100 * 100)


def cpu_per_node_us(figures: Figures, name: str, *, is_service_alone: bool = False) -> float:
    """Return CPU microseconds per node, of all processes or without agents and client."""
    spent_s = sum(
        seconds
        for kind, seconds in figures.cpu.items()
        if not (is_service_alone and kind in NOT_THE_SERVICE)
    )
    return 1e6 * spent_s / figures.workflows / NODES[name.split(":")[1]]


def quantile_ms(figures: Figures, percent: int) -> float:
    """Return the least latency that so many in a hundred do not exceed."""
    ordered = sorted(figures.latencies_ms)
    return ordered[-(-len(ordered) * percent // 100) - 1]


def show(first: list[Figures], second: list[Figures], name: str, count: int) -> None:
    """Print a run's ratios with their interval."""
    pairs = list(zip(first, second, strict=True))
    print(f"{name}, {count} workflows a side, {len(pairs)} pairs, CPU-µs/node")
    for what, is_service_alone in (("every process", False), ("service alone", True)):
        costs = [
            [cpu_per_node_us(figures, name, is_service_alone=is_service_alone) for figures in pair]
            for pair in pairs
        ]
        ratios = [a / b for a, b in costs]
        found = ratio_interval(ratios)
        medians = [statistics.median(column) for column in zip(*costs, strict=True)]
        print(
            f"  {what}: A {medians[0]:.0f}, B {medians[1]:.0f} (medians);"
            f" A/B {found.mean:.3f}, 95 % interval {found.low:.3f} to {found.high:.3f}"
            " (t on the logarithms of the pairs' ratios)"
        )
        print(f"    pairs: {' '.join(f'{ratio:.3f}' for ratio in ratios)}")
    print("  by kind, CPU-µs/node, A and B (medians), A/B of the means:")
    for kind in sorted({kind for pair in pairs for figures in pair for kind in figures.cpu}):
        columns = [
            [1e6 * one.cpu.get(kind, 0) / one.workflows / NODES[name.split(":")[1]] for one in side]
            for side in zip(*pairs, strict=True)
        ]
        (a, b), sums = map(statistics.median, columns), [sum(column) for column in columns]
        share = f"{sums[0] / sums[1]:.3f}" if sums[1] else "-"
        print(f"    {kind}: {a:.0f} and {b:.0f}, {share}")
    for percent in (50, 99) if first[0].latencies_ms else ():
        waits = [[quantile_ms(figures, percent) for figures in pair] for pair in pairs]
        found = ratio_interval([a / b for a, b in waits])
        medians = [statistics.median(column) for column in zip(*waits, strict=True)]
        print(
            f"  p{percent}, ms: A {medians[0]:.1f}, B {medians[1]:.1f} (medians);"
            f" A/B {found.mean:.3f}, 95 % interval {found.low:.3f} to {found.high:.3f}"
        )
    rates = [a.rate / b.rate for a, b in pairs]
    found = ratio_interval(rates)
    print(
        f"  workflows a second, A/B {found.mean:.3f}, 95 % interval {found.low:.3f} to"
        f" {found.high:.3f}; pairs: {' '.join(f'{rate:.3f}' for rate in rates)}",
        flush=True,
    )


def main() -> None:
    """Compare two checkouts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", metavar="A", help="folder of the checkout to compare with")
    parser.add_argument("second", metavar="B", nargs="?", help="folder; default: this checkout")
    parser.add_argument("--pairs", type=int, default=PAIRS_MIN)
    parser.add_argument("--runs", default=ALL_RUNS, help="case:shape, separated by commas")
    parser.add_argument("--seconds", type=float, default=HOT_S, help="of one side of a pair")
    parser.add_argument("--hot", action="store_true", help=f"only {HOT_RUN}")
    parser.add_argument("--toml", default="", help="settings of both deployments")
    options = parser.parse_args()
    names = [HOT_RUN] if options.hot else options.runs.split(",")
    for name in names:
        case, _, shape = name.partition(":")
        if case not in ("bulk", "single", "alone", "paced") or shape not in SHAPES:
            parser.error(f"--runs: got {name}, expected bulk, single, alone or paced : {SHAPES}")
    if options.pairs < PAIRS_LEAST:
        parser.error(f"--pairs: got {options.pairs}, expected {PAIRS_LEAST} or more")
    if options.pairs < PAIRS_MIN:
        print(f"{options.pairs} pairs: a trial, {PAIRS_MIN} and more are a measurement")
    kept: dict[str, dict[str, list[Figures]]] = {"A": {}, "B": {}}
    folders = (("A", options.first), ("B", options.second))
    builds = {name: Checkout.at(folder).interpreter for name, folder in folders}
    if builds["A"] != builds["B"]:
        raise SystemExit(
            f"got Python {builds['A']} in A and {builds['B']} in B, expected the same build:"
            " make one environment anew, with PYTHON=/path/to/python3 make venv"
        )
    halves = (-(-options.pairs // 2), options.pairs // 2)
    counts: dict[str, int] = {}
    for is_second, pairs in enumerate(halves):
        with ExitStack() as stack:
            started = {
                name: start(stack, name, Checkout.at(folder), options.toml)
                for name, folder in (reversed(folders) if is_second else folders)
            }
            sides = [started["A"], started["B"]]
            wrong = list_differing_settings(*(side.settings for side in sides))
            if wrong:
                raise SystemExit("got different settings, expected the same: " + "; ".join(wrong))
            for side in sides:
                side.measured = kept[side.name]
            if not is_second:
                introduce(*sides)
            for name in names:
                count = fitting_count(sides, name, options.seconds)
                count = counts.setdefault(name, count)
                for number in range(pairs):
                    for side in sides if number % 2 == 0 else reversed(sides):
                        side.measured.setdefault(name, []).append(run(side, name, count))
    for name in names:
        show(kept["A"][name], kept["B"][name], name, counts[name])


def introduce(first: Side, second: Side) -> None:
    """Print the two sides."""
    for side, other in ((first, second), (second, first)):
        only = sorted(side.settings.keys() - other.settings.keys())
        print(f"{side.name}: {side.checkout.root} at {side.checkout.commit}")
        if only:
            print(f"  settings that only {side.name} has: {', '.join(only)}")


if __name__ == "__main__":
    main()
