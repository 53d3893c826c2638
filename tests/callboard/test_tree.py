"""The tree that `watch` draws. Spec: Node states."""

from __future__ import annotations

import io

from rich.console import Console

from callboard.cli.tree import order, render

PARENTS = {
    "report": ["keywords", "summarise"],
    "fetch": [],
    "summarise": ["extract"],
    "extract": ["fetch"],
    "keywords": ["extract"],
}


def test_every_node_comes_after_its_parents() -> None:
    placed = order(PARENTS)
    names = [name for name, _, _ in placed]
    assert sorted(names) == sorted(PARENTS)
    for name, parents in PARENTS.items():
        assert all(names.index(parent) < names.index(name) for parent in parents)


def test_a_node_hangs_below_its_deepest_parent_and_names_the_others() -> None:
    placed = {
        name: (deepest, others)
        for name, deepest, others in order({"a": [], "b": ["a"], "c": ["a", "b"]})
    }
    assert placed == {"a": (None, []), "b": ("a", []), "c": ("b", ["a"])}


def test_nodes_without_known_parents_are_roots() -> None:
    assert order({"a": ["elsewhere"]}) == [("a", None, [])]


def test_the_tree_shows_status_agent_time_and_cost() -> None:
    record = {
        "id": "w1",
        "intent": "Report",
        "status": "running",
        "nodes": {
            "fetch": {
                "status": "success",
                "agentDid": "did:net:f",
                "metrics": {"latency_ms": 7},
                "costCredits": 0.01,
            },
            "extract": {"status": "running", "agentDid": "did:net:x"},
        },
    }
    console = Console(file=io.StringIO(), width=100, record=True)
    console.print(render(record, PARENTS))
    assert console.export_text().splitlines() == [
        "Report: running",
        "└── ✓ fetch  success  did:net:f  7 ms  0.01 credits",
        "    └── ▶ extract  running  did:net:x",
    ]
