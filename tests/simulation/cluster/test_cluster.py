"""Hundreds of small clusters in which everything around members and ledgers goes wrong.

A failing run prints its seed; `pytest tests/simulation/cluster --seed N` repeats exactly that run.
The invariants are numbered in decision tests-and-benchmarks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import pytest

from tests.simulation.cluster.cluster_troubles import KEEPING_KINDS, KINDS
from tests.simulation.cluster.cluster_world import ClusterWorld
from tests.simulation.garbage import few_collections
from tests.simulation.violation import Violation

RUNS_ANY, RUNS_PER_KIND, RUNS_SILENT, RUNS_SPLIT = 30, 12, 45, 12
SOAK_RUNS, SOAK_RUNS_TOLD = 20_000, 1_000


def run_worlds(kind: str, seeds: Iterable[int], **clocks: float) -> list[ClusterWorld]:
    """Run the clusters of these seeds, with one kind of trouble, or with any (`kind` empty)."""
    with few_collections():
        return [ClusterWorld(seed, kind, **clocks).run() for seed in seeds]


@pytest.mark.parametrize("kind", KEEPING_KINDS)
def test_members_that_live_keep_their_shards_whatever_else_fails(
    kind: str, only_seed: int | None
) -> None:
    """I4 to I6, I9: joins and drains, upgrades, starvation, frozen and replaced ledgers, a database
    that is away: each alone takes no shard from a member that lives, and ends none."""
    worlds = run_worlds(kind, range(RUNS_PER_KIND) if only_seed is None else (only_seed,))
    assert sum(world.checks.sends for world in worlds) > 50 * len(worlds)
    if kind == "calm" and only_seed is None:
        assert sum(world.checks.gives for world in worlds) > len(worlds)
        assert not sum(world.checks.repeated for world in worlds)
        assert sum(len(world.database.rows.gone) for world in worlds) > len(worlds)
    if kind == "upgrade" and only_seed is None:
        assert sum(world.checks.new_forms for world in worlds) > 3 * len(worlds)
        assert sum(bool(world.checks.set_aside) for world in worlds) < len(worlds)
    if kind == "standby" and only_seed is None:
        assert sum(world.database.expired for world in worlds) >= len(worlds) / 2
        assert sum(world.handed_over for world in worlds) > len(worlds) / 2


def test_nothing_is_sent_for_a_shard_that_another_holds(only_seed: int | None) -> None:
    """I1 to I3, I7, with any trouble, several at once."""
    worlds = run_worlds("", range(RUNS_ANY) if only_seed is None else (only_seed,))
    if only_seed is None:
        assert sum(world.checks.takes for world in worlds) > 10 * len(worlds)
        assert sum(world.checks.shared for world in worlds) > len(worlds)
        assert sum(world.checks.repeated for world in worlds) > len(worlds)


@pytest.mark.parametrize(
    ("kind", "runs"), [("silent", RUNS_SILENT), ("split", RUNS_SPLIT), ("takeover", RUNS_SPLIT)]
)
def test_member_that_is_cut_off_sends_nothing_once_its_shards_are_taken(
    kind: str, runs: int, only_seed: int | None
) -> None:
    """I1: for about as long as a lease lasts; and by a ledger that another has replaced, also one
    that stood by while that one was silent."""
    worlds = run_worlds(kind, range(runs) if only_seed is None else (only_seed,))
    if only_seed is None:
        assert sum(world.checks.takes for world in worlds) > 8 * len(worlds)
        if kind == "takeover":
            assert sum(world.database.expired for world in worlds) > len(worlds) / 2


def test_cluster_is_decided_by_its_seed_alone() -> None:
    """Goal: a failure can be replayed. Method: two runs of one seed end with the same rows."""
    first, second = ClusterWorld(11).run(), ClusterWorld(11).run()
    assert first.database.rows == second.database.rows
    assert first.clock.now_us == second.clock.now_us


def test_clocks_that_differ_by_more_than_a_lease_allows_are_noticed() -> None:
    """Goal: the checks see what they are for. Method: a fence and a lease are only safe together
    while clocks differ by less than their ratio."""
    with pytest.raises(Violation, match=r"^I1"):
        run_worlds("silent", range(RUNS_SILENT), rate_ratio_max=1.5)


@pytest.mark.soak
def test_soak_of_clusters_keeps_every_promise(
    drawn_from: int, has_time: Callable[[], bool], capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of them with any trouble, half with one kind; every bad seed is told."""
    kinds = [kind for one in KINDS for kind in ("", one)]
    began_s, bad, sends, runs = time.process_time(), [], 0, 0

    def tell() -> None:
        took_s = time.process_time() - began_s
        with capsys.disabled():
            print(  # noqa: T201
                f"clusters {drawn_from}-{drawn_from + runs - 1}: {sends} sends, {took_s:.1f} CPU-s,"
                f" {len(bad)} violations {bad}",
                flush=True,
            )

    with few_collections():
        while runs < SOAK_RUNS and has_time():
            seed = drawn_from + runs
            kind = kinds[runs % len(kinds)]
            try:
                sends += ClusterWorld(seed, kind).run().checks.sends
            except (Violation, Exception) as error:
                bad.append(f"({kind!r}, {seed}): {error}")
            runs += 1
            if runs % SOAK_RUNS_TOLD == 0:
                tell()
    tell()
    assert not bad
