"""Measures the service beside DBOS and Restate, in interleaved rounds; writes a report.

Run as `python -m bench.peers [--rounds N] [--workloads NAME,…] [--resume FILE] [--quick]` after
`make peers`. Each round starts a system afresh, alone on the machine, runs the block's workloads
and ends it; the order of the systems changes from round to round. Compare ratios within a run:
absolute figures drift with the machine. Refuses to measure what does not write through to disk.
"""

from __future__ import annotations

import argparse
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import uvloop

from bench.checkouts import Checkout
from bench.peers import environment
from bench.peers.durability import POSTGRES, RESTATE, refuse_unless_durable
from bench.peers.graphs import CROWDED
from bench.peers.loads import FULL, SMALL, Load, Round
from bench.peers.machine import describe_machine
from bench.peers.report import OURS, write_report
from bench.peers.results import Results
from bench.peers.systems.callboard import callboard
from bench.peers.systems.dbos import dbos
from bench.peers.systems.restate import restate
from bench.peers.systems.system import System
from bench.peers.workloads import QUICK, WORKLOADS, Workload, blocks
from bench.workflows import stub
from tests.platform.deployments import ROOT

ROUNDS = 5
AGENTS, CROWD = 2, 100
WANTED = {OURS: POSTGRES, "dbos": POSTGRES, "restate": RESTATE}


@contextmanager
def started(name: str, ports: list[int], crowd: int) -> Iterator[System]:
    """Run a system by name, ready for its first workflow.

    Args:
        ports: of the stub agents.
        crowd: how many agents offer the crowded capability.
    """
    if name == OURS:
        with callboard() as ours:
            uvloop.run(ours.prepare(ports, crowd=crowd))
            yield ours
        return
    with tempfile.TemporaryDirectory(prefix="callboard-bench-") as folder, ExitStack() as stack:
        if name == "dbos":
            yield stack.enter_context(dbos(Path(folder), ports))
        else:
            yield stack.enter_context(restate(Path(folder), ports))


def measure_system(name: str, workloads: list[Workload], number: int, results: Results) -> None:
    """Start a system, measure the workloads once each, and end it."""
    crowd = CROWD if any(one.job.capability == CROWDED for one in workloads) else 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        agents = [stack.enter_context(stub(folder)) for _ in range(AGENTS)]
        system = stack.enter_context(started(name, [port for _, port in agents], crowd))
        answers = system.ask_durability()
        refuse_unless_durable(name, answers, WANTED[name])
        versions = environment.versions(name) if name != OURS else {}
        results.systems[name] = {
            "versions": versions, "settings": system.settings(), "durability": answers,
        }  # fmt: skip
        load = Load(system, [psutil.Process(agent.pid) for agent, _ in agents], results.scale)
        time.sleep(results.scale.settle_s)
        for workload in workloads:
            measured = uvloop.run(load.measure(workload, number))
            results.add(measured)
            print_round(measured)


def print_round(measured: Round) -> None:
    """Print one line."""
    waits = ", ".join(f"{name} {ms:.1f} ms" for name, ms in measured.latencies_ms.items())
    rate = f"{measured.rate:7.1f}/s" if measured.workflows else "     idle"
    cpu = sum(measured.cpu_s.values())
    per = 1_000 * cpu / measured.workflows if measured.workflows else 100 * cpu / measured.seconds
    unit = "CPU-ms per workflow" if measured.workflows else "% of a core"
    print(
        f"{measured.workload:16} round {measured.number + 1} {measured.system:10} {rate}"
        f"  {per:6.2f} {unit}  {waits}",
        flush=True,
    )


def list_unmeasured(
    block: list[Workload], system: str, number: int, results: Results
) -> list[Workload]:
    """Return the workloads of a block that a system still has to run in a round, in its order.

    The order turns from round to round: what comes later finds more stored.
    """
    return [
        one
        for one in (block if number % 2 == 0 else reversed(block))
        if system in one.systems and not results.has(one.name, system, number)
    ]


def run(results: Results, planned: list[list[Workload]], rounds: int) -> None:
    """Measure what is not measured yet, block by block and round by round."""
    for block in planned:
        systems = [name for name in WANTED if any(name in one.systems for one in block)]
        for number in range(rounds):
            turn = number % len(systems)
            for name in systems[turn:] + systems[:turn]:
                if left := list_unmeasured(block, name, number, results):
                    measure_system(name, left, number, results)


def open_results(options: argparse.Namespace) -> Results:
    """Return the results to go on with, or new ones."""
    commit = Checkout.at(None).commit
    if options.resume is not None:
        found = Results.read(options.resume)
        if found.commit != commit and not options.report:
            raise SystemExit(f"{options.resume}: got commit {found.commit}, expected {commit}")
        return found
    prefix, scale = ("quick", SMALL) if options.quick else ("peers", FULL)
    return Results.new(options.output, prefix, commit, scale, describe_machine())


def end(number: int, frame: object) -> None:
    """End like Ctrl-C does: what was started is ended too."""
    raise SystemExit(f"ended by signal {number}")


def main() -> None:
    """Measure and report."""
    signal.signal(signal.SIGTERM, end)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--workloads", help=f"of {', '.join(WORKLOADS)}; separated by commas")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="results to go on with")
    parser.add_argument("--quick", action="store_true", help="one short round beside the peers")
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "results", metavar="DIR")
    parser.add_argument("--report", action="store_true", help="only write the report of --resume")
    options = parser.parse_args()
    names = list(QUICK if options.quick else WORKLOADS)
    if options.workloads is not None:
        names = options.workloads.split(",")
    planned = blocks(names, is_one=options.quick)
    if options.report and options.resume is None:
        parser.error("--report: expected --resume FILE")
    if any(set(one.systems) - {OURS} for block in planned for one in block):
        environment.require()
    results = open_results(options)
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    if not options.report:
        run(results, planned, rounds)
    print(f"results: {results.path}\nreport: {write_report(results)}")


if __name__ == "__main__":
    main()
