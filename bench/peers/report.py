"""The report of a run as Markdown: the machine, ratios, figures, CPU by kind of process.

Ratios come first, because they are what a run can claim: each is that of the two systems' rounds of
the same number, as a geometric mean, with its 95 % interval from 4 rounds on.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from bench.figures.intervals import ratio_interval
from bench.peers.graphs import GRAPHS
from bench.peers.loads import WORKLOADS, Round

OURS, PEERS = "callboard", ("restate", "dbos")
_INTERVAL_FROM = 4
_COUNTED = ("transactions", "wal_bytes")


def write_report(
    title: str, rounds: Sequence[Round], machine: Mapping[str, str], systems: Mapping[str, object]
) -> str:
    """Return the report.

    Args:
        machine: what the run was measured on.
        systems: versions, settings and the servers' answers about durability, by system.
    """
    lines = [f"# {title}", ""]
    lines += [f"- {name}: {value}" for name, value in (*machine.items(), *systems.items())]
    lines += ["", "## Ratios, ours / theirs", "", "Geometric means of the rounds' ratios.", ""]
    lines += _table(["workload", "beside", "workflows/s", "p50", "p99"], _ratios(rounds))
    lines += ["## Figures", "", "Medians of the rounds; idle: CPU in % of a core.", ""]
    heads = ["workload", "system", "workflows/s (least to most)", "p50 ms", "p95 ms", "p99 ms"]
    heads += ["CPU-µs per node", "by kind of process", "memory, MiB", "transactions per node"]
    lines += _table([*heads, "WAL bytes per node"], _figures(rounds))
    return "\n".join(lines) + "\n"


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


def _measured(rounds: Sequence[Round], workload: str, system: str) -> list[Round]:
    return [one for one in rounds if (one.workload, one.system) == (workload, system)]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *rows]
    return [*(f"| {' | '.join(cells)} |" for cells in lines), ""]


def _ratios(rounds: Sequence[Round]) -> list[list[str]]:
    rows = []
    for workload in WORKLOADS:
        ours = _measured(rounds, workload, OURS)
        for peer in PEERS:
            theirs = {one.number: one for one in _measured(rounds, workload, peer)}
            pairs = [(one, theirs[one.number]) for one in ours if one.number in theirs]
            if not pairs or not pairs[0][0].workflows:
                continue
            rates = ratio_text([a.rate for a, _ in pairs], [b.rate for _, b in pairs])
            waits = [
                ratio_text(*([one[side].latencies_ms[of] for one in pairs] for side in (0, 1)))
                for of in ("p50", "p99")
                if pairs[0][0].latencies_ms
            ] or ["-", "-"]
            rows.append([workload, peer, rates, *waits])
    return rows


def _figures(rounds: Sequence[Round]) -> list[list[str]]:
    found = (_measured(rounds, one, system) for one in WORKLOADS for system in (OURS, *PEERS))
    return [_row(one) for one in found if one]


def _row(rounds: Sequence[Round]) -> list[str]:
    """Return the figures of the rounds of one workload on one system."""
    first = rounds[0]
    nodes = len(GRAPHS[WORKLOADS[first.workload].shape])

    def median(of: Callable[[Round], float], digits: int = 0) -> str:
        return f"{statistics.median(map(of, rounds)):.{digits}f}"

    def cpu(one: Round, kind: str) -> float:
        scale = 1e6 / one.workflows / nodes if one.workflows else 100 / one.seconds
        return scale * one.cpu_s.get(kind, 0.0)

    def spent(kind: str) -> str:
        return median(lambda one: cpu(one, kind))

    def wait(name: str) -> str:
        return median(lambda one: one.latencies_ms[name], 1)

    def per_node(name: str) -> str:
        return median(lambda one: one.database[name] / max(1, one.workflows) / nodes, 2)

    rates = [one.rate for one in rounds]
    kinds = sorted({kind for one in rounds for kind in one.cpu_s})
    waits = list(map(wait, first.latencies_ms))
    database = [per_node(name) for name in _COUNTED if first.database]
    return [
        first.workload, first.system,
        f"{statistics.median(rates):.0f} ({min(rates):.0f} to {max(rates):.0f})",
        *(waits or ["-"] * 3),
        median(lambda one: sum(cpu(one, kind) for kind in kinds)),
        ", ".join(f"{kind} {spent(kind)}" for kind in kinds),
        median(lambda one: one.memory_mib),
        *(database or ["-"] * len(_COUNTED)),
    ]  # fmt: skip
