"""The report of a run as Markdown: the machine, what was tuned, ratios, figures by process kind.

Ratios come first, because they are what a run can claim: each is that of the two systems' rounds of
the same number, as a geometric mean, with its 95 % interval from 4 rounds on.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.figures.intervals import ratio_interval
from bench.peers.graphs import GRAPHS
from bench.peers.loads import Round
from bench.peers.plots import bars
from bench.peers.results import Results
from bench.peers.systems.system import AGENTS, CLIENT, DATABASE, WORKERS
from bench.peers.workloads import ALL, LARGE, SLOW_MS, WORKLOADS, Workload

OURS, PEERS = "callboard", ("restate", "dbos")
_INTERVAL_FROM, _EARLIER_MAX = 4, 10
_NOT_THE_SYSTEM = {AGENTS, CLIENT}


def write_report(results: Results) -> Path:
    """Write the report and its plots beside the results; return the report's path."""
    path, scale = results.path.with_suffix(".md"), results.scale
    lines = [
        f"# The service at {results.commit} beside Restate and DBOS, {results.began}",
        "",
        "Each round starts a system afresh, alone on the machine, with the same stub agents and the"
        " same callers; the order of the systems changes from round to round. fsync is on: the"
        " servers were asked. Neither peer does escrow, payments, receipts or audit; the service"
        " does all of them in every workflow. Ratios within this run count; absolute figures drift"
        " with the machine. Each claim is from `python -m bench.peers`.",
        "",
        f"Rounds last {scale.alone_s:g} s alone, {scale.callers_s:g} s with many callers,"
        f" {scale.accepted_s:g} s of publishes without waiting and {scale.idle_s:g} s idle, after"
        f" {scale.warm_up_s:g} s of the same load; bulks are {scale.bulk_share:.0%} of the number"
        " in their names.",
        "",
        *_machine(results),
        *_ratios(results),
        *_crowd(results),
        *_early(results),
        *_most(results),
        *_plots(results),
        *_figures(results),
        *_kinds(results),
        *_database(results),
        *_earlier(results),
        *_systems(results),
    ]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def measured(results: Results, workload: str, system: str) -> list[Round]:
    """Return a workload's rounds on a system by number."""
    found = [one for one in results.rounds if one.workload == workload and one.system == system]
    return sorted(found, key=lambda one: one.number)


def ratio_text(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return the geometric mean of the pairs' ratios, with its interval if there are enough.

    Args:
        ours, theirs: one per round, above 0, as many of each.
    """
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    if len(ratios) < _INTERVAL_FROM:
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        return f"{mean:.2f} ({len(ratios)} round{'s' * (len(ratios) > 1)})"
    found = ratio_interval(ratios)
    return f"{found.mean:.2f} ({found.low:.2f} to {found.high:.2f})"


def cpu_ms_per_node(one: Round, workload: Workload, *, is_system_alone: bool) -> float:
    """Return CPU milliseconds per node, with or without agents and client."""
    spent = sum(
        seconds
        for kind, seconds in one.cpu_s.items()
        if not (is_system_alone and kind in _NOT_THE_SYSTEM)
    )
    return 1_000 * spent / one.workflows / len(GRAPHS[workload.job.shape])


def _present(results: Results) -> Iterator[Workload]:
    names = {one.workload for one in results.rounds}
    yield from (one for name, one in (WORKLOADS | LARGE).items() if name in names)


def _pairs(results: Results, name: str, peer: str) -> list[tuple[Round, Round]]:
    theirs = {one.number: one for one in measured(results, name, peer)}
    ours = measured(results, name, OURS)
    return [(one, theirs[one.number]) for one in ours if one.number in theirs]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *rows]
    return [*(f"| {' | '.join(cells)} |" for cells in lines), ""]


def _machine(results: Results) -> list[str]:
    rows = [[name, value] for name, value in results.machine.items()]
    return ["## Machine", "", *_table(["what", "value"], rows)]


def _ratios(results: Results) -> list[str]:
    rows = []
    for workload in _present(results):
        for peer in PEERS:
            pairs = _pairs(results, workload.name, peer)
            if not pairs:
                continue
            rates = ratio_text(*zip(*((a.rate, b.rate) for a, b in pairs), strict=True))
            waits = ["-", "-"]
            if pairs[0][0].latencies_ms:
                waits = [
                    ratio_text(
                        *zip(
                            *((a.latencies_ms[at], b.latencies_ms[at]) for a, b in pairs),
                            strict=True,
                        )
                    )
                    for at in ("p50", "p99")
                ]
            rows.append([workload.title, peer, rates, *waits])
    if not rows:
        return []
    heads = ["workload", "beside", "throughput, ours / theirs", "p50, ours / theirs",
             "p99, ours / theirs"]  # fmt: skip
    return [
        "## Ratios", "",
        "Geometric means of the rounds' ratios, with 95 % intervals. Throughput above 1 and waits"
        " below 1 are in our favour.", "", *_table(heads, rows),
    ]  # fmt: skip


def _own(
    results: Results, title: str, heads: Sequence[str], other: str, one: str, cases: Sequence[str]
) -> list[str]:
    """Return the throughput of one of our workloads to that of another, in the same rounds.

    Args:
        other, one: beginnings of their names, before the case.
    """
    rows = []
    for case in cases:
        before = {a.number: a for a in measured(results, f"{other}:{case}", OURS)}
        after = measured(results, f"{one}:{case}", OURS)
        pairs = [(a.rate, before[a.number].rate) for a in after if a.number in before]
        if pairs:
            rows.append([case, ratio_text(*zip(*pairs, strict=True))])
    return [f"## {title}", "", *_table(heads, rows)] if rows else []


def _crowd(results: Results) -> list[str]:
    """Return how much the number of candidates costs."""
    heads = ["chain of 3", "throughput with 100 agents to choose from / with 2"]
    cases = ("waiting", "bulk")
    return _own(results, "Candidates", heads, "candidates-2", "candidates-100", cases)


def _early(results: Results) -> list[str]:
    """Return what early dispatch gains, with agents that answer at once and that take time."""
    heads = ["chain of 3", "throughput with early dispatch / without"]
    cases = ("alone", "waiting", "bulk")
    title, slow = "Early dispatch", f"{SLOW_MS}ms"
    return [
        *_own(results, title, heads, "chain3", "early", cases),
        *_own(
            results, f"{title}, agents of {SLOW_MS} ms", heads,
            f"agents-{slow}", f"early-{slow}", cases,
        ),
    ]  # fmt: skip


def _most(results: Results) -> list[str]:
    """Return what the machine could do at most at the measured CPU cost, beside the measured."""
    cores = int(results.machine.get("cores", "0"))
    rows = []
    for workload in _present(results):
        if workload.kind in ("idle", "accepted", "paced"):
            continue
        nodes = len(GRAPHS[workload.job.shape])
        restate = [one.rate for one in measured(results, workload.name, "restate")]
        for system in ALL:
            rounds = measured(results, workload.name, system)
            if not rounds or not cores:
                continue
            costs = [cpu_ms_per_node(one, workload, is_system_alone=False) for one in rounds]
            cost_ms, rate = statistics.median(costs), statistics.median(one.rate for one in rounds)
            most = 1_000 * cores / (nodes * cost_ms)
            ratio = f"{most / statistics.median(restate):.2f}" if restate else "-"
            rows.append([
                workload.title, system, f"{cost_ms:.2f}", f"{rate:.0f}",
                f"{100 * rate / most:.0f} %", f"{most:.0f}", ratio,
            ])  # fmt: skip
    heads = ["workload", "system", "CPU-ms per node", "workflows/s", "cores busy with it",
             "workflows/s, all cores busy", "that / Restate's measured"]  # fmt: skip
    note = "Medians; CPU of all processes, agents and client included: they share the machine."
    return ["## At most", "", note, "", *_table(heads, rows)] if rows else []


def _middle(rounds: Sequence[Round], of: str) -> str:
    values = sorted(one.latencies_ms[of] for one in rounds if one.latencies_ms)
    return f"{statistics.median(values):.1f}" if values else "-"


def _figures(results: Results) -> list[str]:
    rows = []
    for workload in _present(results):
        for system in ALL:
            rounds = measured(results, workload.name, system)
            if not rounds or workload.kind == "idle":
                continue
            rates = [one.rate for one in rounds]
            cpu = [
                statistics.median(
                    cpu_ms_per_node(one, workload, is_system_alone=alone) for one in rounds
                )
                for alone in (True, False)
            ]
            rows.append([
                workload.title, system,
                f"{statistics.median(rates):.0f} ({min(rates):.0f} to {max(rates):.0f})",
                *(_middle(rounds, of) for of in ("p50", "p95", "p99")),
                # What is accepted runs partly after the round.
                *("-" if workload.kind == "accepted" else f"{one:.2f}" for one in cpu),
            ])  # fmt: skip
    heads = ["workload", "system", "workflows/s (least to most)", "p50 ms", "p95 ms", "p99 ms",
             "CPU-ms per node", "with agents and client"]  # fmt: skip
    note = "Medians of the rounds. In bulk no caller waits for a single workflow."
    return ["## Figures", "", note, "", *_table(heads, rows)]


def _kinds(results: Results) -> list[str]:
    """Return CPU and memory by kind of process, and what the idle service takes."""
    rows = []
    for workload in _present(results):
        for system in ALL:
            rounds = measured(results, workload.name, system)
            if not rounds:
                continue
            nodes = [one.workflows * len(GRAPHS[workload.job.shape]) for one in rounds]
            kinds = sorted({kind for one in rounds for kind in one.cpu_s})
            cells = []
            for kind in kinds:
                if workload.kind == "idle":
                    shares = [100 * one.cpu_s.get(kind, 0.0) / one.seconds for one in rounds]
                    cells.append(f"{kind} {statistics.median(shares):.1f} %")
                else:
                    spent = [
                        1_000_000 * one.cpu_s.get(kind, 0.0) / count
                        for one, count in zip(rounds, nodes, strict=True)
                    ]
                    cells.append(f"{kind} {statistics.median(spent):.0f}")
            memory = statistics.median(sum(one.memory_mib.values()) for one in rounds)
            rows.append([workload.title, system, ", ".join(cells), f"{memory:.0f}"])
    return [
        "## CPU and memory by kind of process", "",
        f"CPU-µs per node, medians; idle: % of a core. “{DATABASE}” is Postgres, “{WORKERS}” run a"
        " peer's steps. Memory is the sum of the proportional set sizes after a round.", "",
        *_table(["workload", "system", "CPU by kind", "memory, MiB"], rows),
    ]  # fmt: skip


def _database(results: Results) -> list[str]:
    rows = []
    for workload in _present(results):
        for system in ALL:
            rounds = [one for one in measured(results, workload.name, system) if one.database]
            if not rounds or workload.kind == "idle":
                continue
            nodes = len(GRAPHS[workload.job.shape])
            rows.append([
                workload.title, system,
                *(
                    f"{statistics.median(per_node):.2f}"
                    for per_node in (
                        [one.database[of] / one.workflows / nodes for one in rounds]
                        for of in ("transactions", "rows_written", "wal_bytes")
                    )
                ),
            ])  # fmt: skip
    heads = ["workload", "system", "transactions", "rows written", "WAL bytes"]
    return ["## Postgres, per node", "", "Medians.", "", *_table(heads, rows)]


def _earlier(results: Results) -> list[str]:
    """Return the throughput of the last runs of this kind in the folder, as multiples of Restate's.

    That of Restate in the same run, so that the machine's hour matters less.
    """
    runs = results.read_earlier()[-_EARLIER_MAX:]
    names = [
        one.name for one in _present(results) if one.kind != "idle" and PEERS[0] in one.systems
    ]
    rows = []
    for one in runs:
        cells = []
        for name in names:
            pairs = _pairs(one, name, PEERS[0])
            ratios = [ours.rate / theirs.rate for ours, theirs in pairs]
            cells.append(f"{statistics.median(ratios):.2f}" if ratios else "-")
        rows.append([one.began, one.commit, *cells])
    note = f"Throughput as a multiple of Restate's, of the last {_EARLIER_MAX} runs of this kind."
    return ["## Beside earlier runs", "", note, "", *_table(["began", "commit", *names], rows)]


def _systems(results: Results) -> list[str]:
    lines = ["## Systems", ""]
    for system in ALL:
        if system not in results.systems:
            continue
        rows = [
            [group, name, value]
            for group, values in results.systems[system].items()
            for name, value in values.items()
        ]
        lines += [f"### {system}", "", *_table(["", "what", "value"], rows)]
    return lines


def _plots(results: Results) -> list[str]:
    """Write a plot per case beside the report; return the lines that show them."""
    lines = []
    for ending, title, unit in (
        ("waiting", "32 callers that wait", "workflows/s"),
        ("bulk", "bulk of 1,000", "workflows/s"),
        ("alone", "alone, p50", "ms"),
    ):
        groups: dict[str, dict[str, tuple[float, float, float]]] = {}
        for workload in _present(results):
            if workload.name.partition(":")[2] != ending or workload.systems != ALL:
                continue
            for system in ALL:
                rounds = measured(results, workload.name, system)
                values = [one.latencies_ms["p50"] if unit == "ms" else one.rate for one in rounds]
                if values:
                    found = (statistics.median(values), min(values), max(values))
                    groups.setdefault(workload.title.partition(", ")[0], {})[system] = found
        if groups:
            path = results.path.with_name(f"{results.path.stem}-{ending}.svg")
            path.write_text(bars(f"{title}, {unit}", groups), "utf-8")
            lines += [f"![{title}]({path.name})", ""]
    return ["## Plots", "", "Medians; the line is from the least to the most.", "", *lines]
