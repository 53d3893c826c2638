"""The peers' bench: the graphs are the same, nothing is measured twice or without durability."""

from __future__ import annotations

import xml.etree.ElementTree
from pathlib import Path

import psycopg
import pytest

from bench.peers.__main__ import list_unmeasured
from bench.peers.durability import (
    POSTGRES,
    RESTATE,
    NotDurable,
    ask_postgres,
    read_restate,
    refuse_unless_durable,
)
from bench.peers.graphs import GRAPHS, generations, manifest, node_body
from bench.peers.loads import SMALL, Round, quantiles
from bench.peers.plots import bars
from bench.peers.report import ratio_text, write_report
from bench.peers.results import Results
from bench.peers.workloads import QUICK, WORKLOADS, blocks
from tests.conftest import Database

PRINTED = """\
2026-11-23T00:47:28Z INFO restate_server: loaded configuration
[bifrost.local]
rocksdb-memory-ratio = 0.5
rocksdb-disable-wal = false
rocksdb-disable-wal-fsync = false

[worker.storage]
rocksdb-log-level = "error"

[log-server]
rocksdb-disable-wal-fsync = false
"""


@pytest.mark.parametrize("shape", GRAPHS)
def test_a_manifest_has_the_edges_that_the_peers_run(shape: str) -> None:
    nodes = manifest(shape)["nodes"]
    assert isinstance(nodes, dict)
    assert {name: tuple(node.get("dependsOn", ())) for name, node in nodes.items()} == GRAPHS[shape]
    for name, node in nodes.items():
        sent = node_body(shape, name, dict.fromkeys(GRAPHS[shape], "ok"))["inputs"]
        assert isinstance(sent, dict)
        assert sent.keys() == {*node["payload"], *node.get("inputMappings", ())}


def test_a_generation_comes_after_all_its_parents() -> None:
    assert generations("chain3") == [["a"], ["b"], ["c"]]
    assert [len(nodes) for nodes in generations("fan10")] == [1, 8, 1]


def test_quantiles_are_measured_values() -> None:
    assert quantiles([float(n) for n in range(100, 0, -1)]) == {"p50": 50, "p95": 95, "p99": 99}
    assert quantiles([7.0]) == {"p50": 7.0, "p95": 7.0, "p99": 7.0}
    assert quantiles([]) == {}


def test_a_server_without_fsync_is_asked_and_refused(database: Database) -> None:
    """The tests' own server has fsync off, and everything else on."""
    answers = ask_postgres(database.owner_url)
    assert answers == {**POSTGRES, "fsync": "off"}
    with pytest.raises(NotDurable, match=r"fsync: got off, expected on$"):
        refuse_unless_durable("dbos", answers, POSTGRES)


def test_a_role_that_does_not_wait_for_the_disk_is_refused(database: Database) -> None:
    with psycopg.connect(database.superuser_url, autocommit=True) as connection:
        connection.execute("CREATE ROLE bench_forgetful")
        try:
            connection.execute("ALTER ROLE bench_forgetful SET synchronous_commit = off")
            answers = ask_postgres(database.owner_url)
        finally:
            connection.execute("DROP ROLE bench_forgetful")
    assert answers["synchronous_commit"] == "off"
    with pytest.raises(NotDurable, match="synchronous_commit: got off, expected on"):
        refuse_unless_durable("dbos", answers, POSTGRES)


def test_a_server_with_everything_on_is_measured() -> None:
    refuse_unless_durable("dbos", dict(POSTGRES), POSTGRES)


def test_restate_is_durable_by_what_it_prints() -> None:
    refuse_unless_durable("restate", read_restate(PRINTED), RESTATE)


@pytest.mark.parametrize("name", ["rocksdb-disable-wal", "rocksdb-disable-wal-fsync"])
def test_restate_without_its_log_on_disk_is_refused(name: str) -> None:
    changed = PRINTED.replace(f"{name} = false", f"{name} = true", 1)
    with pytest.raises(NotDurable):
        refuse_unless_durable("restate", read_restate(changed), RESTATE)


def test_a_server_that_does_not_answer_is_refused() -> None:
    with pytest.raises(NotDurable, match="got no answer"):
        refuse_unless_durable("restate", read_restate("nothing of it"), RESTATE)


def results_in(folder: Path, rounds: int) -> Results:
    """Return results of a chain on two systems, ours twice as fast and half as slow."""
    results = Results.new(folder, "peers", "abc1234", SMALL, {"cores": "2"})
    for number in range(rounds):
        for system, rate in (("callboard", 200), ("restate", 100 + number)):
            results.add(
                Round(
                    "chain3:waiting", system, number, 5 * rate, 5.0,
                    {"p50": 1_000 / rate, "p95": 20.0, "p99": 30.0},
                    {"engine": 1.0, "client": 0.5}, {"engine": 100.0},
                    {"transactions": 15.0 * rate, "rows_written": 0.0, "wal_bytes": 0.0},
                )
            )  # fmt: skip
    return results


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    results = results_in(tmp_path, 2)
    assert Results.read(results.path) == results


def test_a_resumed_run_measures_what_is_missing(tmp_path: Path) -> None:
    results = Results.read(results_in(tmp_path, 2).path)
    (block,) = blocks(["chain3:waiting", "chain3:bulk"])
    left = [
        (system, number, one.name)
        for system in ("callboard", "dbos")
        for number in range(3)
        for one in list_unmeasured(block, system, number, results)
    ]
    waiting = {(system, number) for system, number, name in left if name == "chain3:waiting"}
    assert waiting == {("callboard", 2), ("dbos", 0), ("dbos", 1), ("dbos", 2)}
    assert sum(name == "chain3:bulk" for _, _, name in left) == 6
    assert [name for system, number, name in left if (system, number) == ("dbos", 1)] == [
        "chain3:bulk",
        "chain3:waiting",
    ]


def test_the_cost_of_candidates_is_a_ratio_within_rounds(tmp_path: Path) -> None:
    results = Results.new(tmp_path, "peers", "abc1234", SMALL, {})
    for number in range(4):
        for name, count in (("candidates-2:bulk", 100), ("candidates-100:bulk", 90)):
            results.add(Round(name, "callboard", number, count * (number + 1), 1.0))
    assert "| bulk | 0.90 (0.90 to 0.90) |" in write_report(results).read_text("utf-8")


def test_early_dispatch_is_compared_beside_agents_of_the_same_time(tmp_path: Path) -> None:
    results = Results.new(tmp_path, "peers", "abc1234", SMALL, {})
    for number in range(4):
        for name, count in (("agents-20ms:waiting", 100), ("early-20ms:waiting", 120)):
            results.add(Round(name, "callboard", number, count * (number + 1), 1.0))
    text = write_report(results).read_text("utf-8")
    section = text.split("## Early dispatch, agents of 20 ms\n")[1]
    assert "| waiting | 1.20 (1.20 to 1.20) |" in section
    assert "## Early dispatch\n" not in text


def test_results_of_another_format_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    path.write_text('{"format": 0}', "utf-8")
    with pytest.raises(SystemExit, match="got format 0, expected 1"):
        Results.read(path)


def test_earlier_results_are_those_of_the_same_kind_and_format(tmp_path: Path) -> None:
    results = results_in(tmp_path, 1)
    for name, text in (
        ("peers-2000.json", '{"format": 0}'),
        ("quick-2000.json", results.path.read_text("utf-8")),
        ("peers-2001.json", results.path.read_text("utf-8")),
        ("peers-9999.json", results.path.read_text("utf-8")),
    ):
        (tmp_path / name).write_text(text, "utf-8")
    found = [one.path.name for one in results.read_earlier()]
    assert found == ["peers-2001.json", results.path.name]


def test_an_unknown_workload_is_refused() -> None:
    with pytest.raises(SystemExit, match="got chain4:bulk, expected some of"):
        blocks(["chain4:bulk"])
    assert [one.name for block in blocks(list(WORKLOADS)) for one in block] == list(WORKLOADS)
    assert [len(block) for block in blocks(list(QUICK), is_one=True)] == [len(QUICK)]


def test_a_ratio_has_an_interval_from_four_rounds_on() -> None:
    assert ratio_text([4, 1], [1, 1]) == "2.00 (2 rounds)"
    assert ratio_text([2, 2, 2, 2], [1, 1, 1, 1]) == "2.00 (2.00 to 2.00)"


def test_a_report_has_ratios_figures_and_plots(tmp_path: Path) -> None:
    results = results_in(tmp_path, 4)
    text = write_report(results).read_text("utf-8")
    line = next(one for one in text.splitlines() if one.startswith("| chain of 3, 32 callers | r"))
    assert [cell.strip()[:4] for cell in line.split("|")[3:6]] == ["1.97", "0.51", "1.00"]
    # 1.0 s of the engine in 1,000 workflows of 3 nodes; half as much again with the client.
    assert "| 200 (200 to 200) | 5.0 | 20.0 | 30.0 | 0.33 | 0.50 |" in text
    assert "| chain of 3, 32 callers | callboard | 1.00 | 0.00 | 0.00 |" in text
    # Two cores have 2,000 ms a second and a workflow takes 1.5 ms of them; Restate ran 101.5.
    assert "| chain of 3, 32 callers | callboard | 0.50 | 200 | 15 % | 1333 | 13.14 |" in text
    assert f"| {results.began} | abc1234 | 1.97 |" in text


def test_a_chart_is_well_formed_whatever_is_named() -> None:
    chart = bars("a < b & c", {"chain": {"one": (2.0, 1.0, 3.0)}, "idle": {"two": (0.0, 0.0, 0.0)}})
    assert xml.etree.ElementTree.fromstring(chart).get("aria-label") == "a < b & c"
