"""The order in which a draft's nodes are drawn."""

from __future__ import annotations

from callboard.cli.tree import order

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
