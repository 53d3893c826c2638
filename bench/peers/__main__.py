"""Measures the service beside DBOS and Restate, in interleaved rounds; writes a report.

Run as `python -m bench.peers [--rounds N] [--workloads NAME,…] [--systems NAME,…] [--quick]` after
`make peers`. Each round starts a system afresh, alone on the machine, runs the workloads and ends
the system; the order of the systems changes from round to round. Compare ratios within a run:
absolute figures drift with the machine. Refuses to measure what does not write through to disk.
Neither peer does escrow, payments, receipts or audit; the service does all of them.
"""

from __future__ import annotations

import argparse
import datetime
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import uvloop

from bench.checkouts import Checkout
from bench.peers import environment
from bench.peers.durability import POSTGRES, RESTATE, refuse_unless_durable
from bench.peers.loads import FULL, SMALL, WORKLOADS, Load, Round, Scale
from bench.peers.machine import describe_machine
from bench.peers.report import OURS, write_report
from bench.peers.systems.callboard import callboard
from bench.peers.systems.dbos import dbos
from bench.peers.systems.restate import restate
from bench.peers.systems.system import System
from bench.workflows import stub
from tests.platform.deployments import ROOT

ROUNDS = 5
AGENTS = 2
WANTED = {OURS: POSTGRES, "restate": RESTATE, "dbos": POSTGRES}


@contextmanager
def started(name: str, ports: list[int]) -> Iterator[System]:
    """Run a system by name, ready for its first workflow.

    Args:
        ports: of the stub agents.
    """
    if name == OURS:
        with callboard() as ours:
            uvloop.run(ours.prepare(ports))
            yield ours
        return
    start = dbos if name == "dbos" else restate
    with (
        tempfile.TemporaryDirectory(prefix="callboard-bench-") as folder,
        start(Path(folder), ports) as peer,
    ):
        yield peer


def measure_system(
    name: str, workloads: Sequence[str], number: int, scale: Scale
) -> tuple[list[Round], dict[str, object]]:
    """Start a system, measure the workloads once each, and end it.

    Returns: the rounds; the system's versions, settings and answers about durability.
    """
    rounds = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        agents = [stack.enter_context(stub(folder)) for _ in range(AGENTS)]
        system = stack.enter_context(started(name, [port for _, port in agents]))
        answers = system.ask_durability()
        refuse_unless_durable(name, answers, WANTED[name])
        versions = environment.versions(name) if name != OURS else {}
        load = Load(system, [psutil.Process(agent.pid) for agent, _ in agents], scale)
        for workload in workloads:
            rounds.append(uvloop.run(load.measure(workload, number)))
            print_round(rounds[-1])
        return rounds, {**versions, **system.settings(), **answers}


def print_round(measured: Round) -> None:
    """Print one line."""
    waits = ", ".join(f"{name} {ms:.1f} ms" for name, ms in measured.latencies_ms.items())
    rate = f"{measured.rate:7.1f}/s" if measured.workflows else "     idle"
    cpu_s = sum(measured.cpu_s.values())
    print(
        f"{measured.workload:16} round {measured.number + 1} {measured.system:10} {rate}"
        f"  {cpu_s:6.2f} CPU-s in {measured.seconds:.1f} s  {waits}",
        flush=True,
    )


def end(number: int, frame: object) -> None:
    """End like Ctrl-C does: what was started is ended too."""
    raise SystemExit(f"ended by signal {number}")


def main() -> None:
    """Measure and report."""
    signal.signal(signal.SIGTERM, end)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="separated by commas")
    parser.add_argument("--systems", default=",".join(WANTED), help="separated by commas")
    parser.add_argument("--quick", action="store_true", help="one short round")
    options = parser.parse_args()
    workloads, systems = options.workloads.split(","), options.systems.split(",")
    if unknown := {*workloads, *systems} - WORKLOADS.keys() - WANTED.keys():
        parser.error(f"got {', '.join(unknown)}, expected some of {[*WORKLOADS, *WANTED]}")
    if set(systems) - {OURS}:
        environment.require()
    machine, began = describe_machine(), datetime.datetime.now(datetime.UTC)
    scale, rounds = (SMALL, 1) if options.quick else (FULL, options.rounds)
    measured: list[Round] = []
    told: dict[str, object] = {}
    for number in range(rounds):
        turn = number % len(systems)
        for name in systems[turn:] + systems[:turn]:
            # The order of the workloads turns too: later ones find more stored.
            in_turn = workloads if number % 2 == 0 else workloads[::-1]
            found, told[name] = measure_system(name, in_turn, number, scale)
            measured += found
    title = f"The service at {Checkout.at(None).commit} beside its peers, {began:%Y-%m-%d %H:%M}"
    report = write_report(title, measured, machine, told)
    path = ROOT / "bench" / "results" / f"peers-{began:%Y%m%dT%H%M%SZ}.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text(report, encoding="utf-8")
    print(report, f"report: {path}", sep="\n")


if __name__ == "__main__":
    main()
