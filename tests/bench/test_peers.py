"""The peers' bench: the graphs are the same, and nothing is measured without durability."""

from __future__ import annotations

import psycopg
import pytest

from bench.peers.durability import (
    POSTGRES,
    RESTATE,
    NotDurable,
    ask_postgres,
    read_restate,
    refuse_unless_durable,
)
from bench.peers.graphs import GRAPHS, generations, manifest, node_body
from bench.peers.loads import Round, quantiles
from bench.peers.report import ratio_text, write_report
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


def rounds_of(count: int) -> list[Round]:
    """Return rounds of a chain on two systems, ours twice as fast and half as slow."""
    return [
        Round(
            "chain3:waiting", system, number, 5 * rate, 5.0,
            {"p50": 1_000 / rate, "p95": 20.0, "p99": 30.0},
            {"engine": 1.0, "client": 0.5}, 100.0,
            {"transactions": 15.0 * rate, "rows_written": 0.0, "wal_bytes": 0.0},
        )
        for number in range(count)
        for system, rate in (("callboard", 200), ("restate", 100 + number))
    ]  # fmt: skip


def test_a_ratio_has_an_interval_from_four_rounds_on() -> None:
    assert ratio_text([4, 1], [1, 1]) == "2.00 (2 rounds)"
    assert ratio_text([2, 2, 2, 2], [1, 1, 1, 1]) == "2.00 (2.00 to 2.00)"


def test_a_report_has_ratios_and_figures() -> None:
    idle = Round("idle", "callboard", 0, 0, 30.0, {}, {"engine": 0.6})
    text = write_report("Of a test", [*rounds_of(4), idle], {"cores": "2"}, {})
    line = next(one for one in text.splitlines() if one.startswith("| chain3:waiting | restate |"))
    assert [cell.strip()[:4] for cell in line.split("|")[3:6]] == ["1.97", "0.51", "1.00"]
    # 1.5 s of CPU in 1,000 workflows of 3 nodes.
    assert (
        "| 200 (200 to 200) | 5.0 | 20.0 | 30.0 | 500 | client 167, engine 333 | 100 | 1.00" in text
    )
    assert "| idle | callboard | 0 (0 to 0) | - | - | - | 2 | engine 2 | 0 | - | - |" in text
