"""The workloads, by what is measured: which callers do what, on which systems, in which block.

The workloads of a block share a start of each system; blocks are independent of each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bench.peers.graphs import CAPABILITY, CROWDED, SLOW, TITLES

ALL = ("callboard", "restate", "dbos")
CALLERS = 32
# Together, workflows a second.
PACE = 200
# What an agent of the slow capability takes for a node.
SLOW_MS = 20
Kind = Literal["callers", "paced", "accepted", "bulk", "idle"]


@dataclass(frozen=True, slots=True)
class Job:
    """A workflow to run: its shape, and the capability that its nodes need, where that counts.

    `is_early`: its nodes have no side effects, so that they are dispatched early.
    """

    shape: str
    capability: str = CAPABILITY
    is_early: bool = False


@dataclass(frozen=True, slots=True)
class Workload:
    """One line of the report.

    Attributes:
        name: in results and options.
        title: in the report.
        block: the workloads with the same share a start.
        count: of callers, or of workflows in bulk; 0 when idle.
    """

    name: str
    title: str
    block: str
    kind: Kind
    count: int
    job: Job
    systems: tuple[str, ...] = ALL


def _of_shape(shape: str) -> list[Workload]:
    job, title = Job(shape), TITLES[shape]
    return [
        Workload(f"{shape}:alone", f"{title}, alone", shape, "callers", 1, job),
        Workload(f"{shape}:waiting", f"{title}, 32 callers", shape, "callers", CALLERS, job),
        Workload(f"{shape}:bulk", f"{title}, bulk of 1,000", shape, "bulk", 1_000, job),
    ]


def _crowded(name: str, what: str, capability: str) -> list[Workload]:
    job, ours, block = Job("chain3", capability), ("callboard",), "candidates"
    title = f"chain of 3, {what}"
    return [
        Workload(f"{name}:waiting", f"{title}, 32 callers", block, "callers", CALLERS, job, ours),
        Workload(f"{name}:bulk", f"{title}, bulk of 1,000", block, "bulk", 1_000, job, ours),
    ]


def _early() -> list[Workload]:
    job, ours, title = Job("chain3", is_early=True), ("callboard",), "chain of 3, early dispatch"
    return [
        Workload("early:alone", f"{title}, alone", "chain3", "callers", 1, job, ours),
        Workload("early:waiting", f"{title}, 32 callers", "chain3", "callers", CALLERS, job, ours),
        Workload("early:bulk", f"{title}, bulk of 1,000", "chain3", "bulk", 1_000, job, ours),
    ]


def _slow() -> list[Workload]:
    found, ours, slow = [], ("callboard",), f"agents of {SLOW_MS} ms"
    for name, what, is_early in (
        (f"agents-{SLOW_MS}ms", slow, False),
        (f"early-{SLOW_MS}ms", f"early dispatch, {slow}", True),
    ):
        job, title = Job("chain3", SLOW, is_early), f"chain of 3, {what}"
        for case, cases, kind, count in (
            ("alone", "alone", "callers", 1),
            ("waiting", "32 callers", "callers", CALLERS),
            ("bulk", "bulk of 1,000", "bulk", 1_000),
        ):
            found.append(
                Workload(f"{name}:{case}", f"{title}, {cases}", "slow", kind, count, job, ours)
            )
    return found


WORKLOADS: dict[str, Workload] = {
    one.name: one
    for one in (
        *_of_shape("chain3"),
        *_early(),
        *_slow(),
        *_of_shape("fan10"),
        Workload(
            "chain3:paced", f"chain of 3, {CALLERS} callers paced to {PACE}/s", "paced", "paced",
            CALLERS, Job("chain3"), ("callboard", "restate"),
        ),
        *(
            Workload(
                f"accepted:{count}", f"accepted without waiting, {count} callers", "accepted",
                "accepted", count, Job("chain3"), ("callboard", "restate"),
            )
            for count in (1, 32, 256)
        ),
        Workload("idle", "idle", "idle", "idle", 0, Job("chain3"), ("callboard",)),
        *_crowded("candidates-2", "2 agents to choose from", CAPABILITY),
        *_crowded("candidates-100", "100 agents to choose from", CROWDED),
    )
}  # fmt: skip
# By option only: they last.
LARGE: dict[str, Workload] = {
    one.name: one
    for one in (
        Workload(
            f"{shape}:bulk10k", f"{TITLES[shape]}, bulk of 10,000", f"{shape} large", "bulk",
            10_000, Job(shape),
        )
        for shape in ("chain3", "fan10")
    )
}  # fmt: skip
QUICK = (
    "chain3:alone", "chain3:waiting", "chain3:bulk", "fan10:alone", "fan10:waiting", "fan10:bulk",
)  # fmt: skip


def blocks(names: list[str], *, is_one: bool = False) -> list[list[Workload]]:
    """Return the workloads of these names by block, in the order of the tables above.

    Args:
        names: of workloads.
        is_one: put all into one block: fewer starts, for a quick look.

    Raises:
        SystemExit: a name is none of a workload.
    """
    known = WORKLOADS | LARGE
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"got {', '.join(unknown)}, expected some of {', '.join(known)}")
    found: dict[str, list[Workload]] = {}
    for name, workload in known.items():
        if name in names:
            found.setdefault("" if is_one else workload.block, []).append(workload)
    return list(found.values())
