"""The structure of a manifest: dependencies, topological order, mappings, and their defects.

Reads names alone, so that all structural defects of a manifest are found even when its other parts
are broken. Reference: features.md (Nodes).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from core.errors import Problem, ProblemList
from core.records.bounds import NODE_NAME_CHARS_MAX
from core.records.mapping import (
    EXPECTED,
    InputMapping,
    MappingSyntaxError,
    parse_mapping,
)

# What `$.trigger.result` of a workflow with a trigger maps: the cause of its run.
TRIGGER_SOURCE: Final = "trigger"
# Each search for a cycle walks all nodes, and 10,000 nodes can form 5,000 cycles.
CYCLES_MAX = 10

_PLAIN_NAME = re.compile(r"[\w-]+")


@dataclass(slots=True)
class GraphPlan:
    """`order` is topological and stable (manifest order among equals); valid without problems."""

    order: list[str] = field(default_factory=list)
    parents: dict[str, tuple[str, ...]] = field(default_factory=dict)
    children: dict[str, list[str]] = field(default_factory=dict)
    mappings: dict[str, tuple[InputMapping, ...]] = field(default_factory=dict)
    problems: ProblemList = field(default_factory=ProblemList)


def node_path(name: str) -> str:
    """Return a node's path in its manifest, for problems; of a name that is too long, its start."""
    if len(name) > NODE_NAME_CHARS_MAX:
        # Many problems of one node would repeat a name of any length.
        name = f"{name[: NODE_NAME_CHARS_MAX - 1]}…"
    return f"nodes.{name}" if _PLAIN_NAME.fullmatch(name) else f"nodes['{name}']"


def plan_graph(
    depends_on: Mapping[str, Sequence[str]],
    expressions: Mapping[str, Mapping[str, str]],
    path_of: Callable[[str], str] = node_path,
    *,
    has_trigger: bool = False,
) -> GraphPlan:
    """Sort the nodes and parse their mappings; every defect becomes a problem, nothing is raised.

    Args:
        depends_on: for every node, in manifest order, the names it waits for.
        expressions: for every node with mappings, input name to expression.
        path_of: a node's path in the client's own form.
        has_trigger: mappings may name `TRIGGER_SOURCE`, which is then no node.
    """
    plan = GraphPlan()
    _link(plan, depends_on, path_of)
    is_acyclic = _sort(plan, path_of)
    given = frozenset((TRIGGER_SOURCE,) if has_trigger else ())
    _read_mappings(plan, expressions, given, is_acyclic, path_of)
    return plan


def _link(
    plan: GraphPlan, depends_on: Mapping[str, Sequence[str]], path_of: Callable[[str], str]
) -> None:
    children: dict[str, list[str]] = {name: [] for name in depends_on}
    for name, wanted in depends_on.items():
        parents: dict[str, None] = {}
        for position, parent in enumerate(wanted):
            if parent in children and parent != name:
                # A parent named twice counts once.
                if parent not in parents:
                    parents[parent] = None
                    children[parent].append(name)
                continue
            path = f"{path_of(name)}.dependsOn[{position}]"
            got = "the node itself" if parent == name else _shown(parent)
            plan.problems.append(Problem(path, got, "the name of another node"))
        plan.parents[name] = tuple(parents)
    plan.children = children


def _sort(plan: GraphPlan, path_of: Callable[[str], str]) -> bool:
    """Fill `order`; each cycle found becomes a problem and is cut, up to `CYCLES_MAX`."""
    unmet = {name: len(parents) for name, parents in plan.parents.items()}
    ready = [name for name, count in unmet.items() if count == 0]
    done = cycles = 0
    while len(plan.order) < len(unmet) and cycles < CYCLES_MAX:
        plan.order += ready
        ready = []
        while done < len(plan.order):
            for child in plan.children[plan.order[done]]:
                unmet[child] -= 1
                if unmet[child] == 0:
                    plan.order.append(child)
            done += 1
        if len(plan.order) < len(unmet):
            cycles += 1
            cut = _cut_cycle(plan, unmet, set(plan.order), path_of)
            unmet[cut] = 0
            ready = [cut]
    return cycles == 0


def _cut_cycle(
    plan: GraphPlan,
    unmet: dict[str, int],
    sorted_names: set[str],
    path_of: Callable[[str], str],
) -> str:
    """Report one cycle among the unsorted nodes and return the node where it is cut."""
    name = next(name for name in unmet if name not in sorted_names)
    seen: dict[str, None] = {}
    while name not in seen:
        seen[name] = None
        name = next(parent for parent in plan.parents[name] if parent not in sorted_names)
    walk = list(seen)
    cycle = walk[walk.index(name) :]
    # The walk went from child to parent; the cycle is reported at its first node of the manifest.
    positions = {member: position for position, member in enumerate(plan.parents)}
    first = min(cycle, key=positions.__getitem__)
    turn = cycle.index(first)
    cycle = cycle[turn:] + cycle[:turn]
    position = plan.parents[first].index(cycle[1] if len(cycle) > 1 else first)
    shown = " → ".join([*cycle[:10], *(["…"] if len(cycle) > 10 else []), first])
    plan.problems.append(
        Problem(
            f"{path_of(first)}.dependsOn[{position}]",
            f"a cycle: {shown}",
            "dependencies without a cycle",
        )
    )
    return first


def _read_mappings(
    plan: GraphPlan,
    expressions: Mapping[str, Mapping[str, str]],
    given: frozenset[str],
    is_acyclic: bool,
    path_of: Callable[[str], str],
) -> None:
    ancestors: dict[str, int] | None = None
    bits: dict[str, int] = {}
    for name, by_input in expressions.items():
        mappings: list[InputMapping] = []
        parents = given.union(plan.parents.get(name, ()))
        for input_name, expression in by_input.items():
            path = f"{path_of(name)}.inputMappings.{input_name}"
            try:
                source, steps = parse_mapping(expression)
            except MappingSyntaxError as error:
                plan.problems.append(Problem(path, f"{_shown(expression)}: {error}", EXPECTED))
                continue
            if source not in parents:
                is_known = source in plan.parents
                if is_known and is_acyclic and ancestors is None:
                    bits = {node: 1 << index for index, node in enumerate(plan.order)}
                    ancestors = _ancestors(plan, bits)
                # With a cycle "before" has no meaning; the cycle itself is reported.
                if not is_known or (ancestors is not None and not ancestors[name] & bits[source]):
                    got = f"{_shown(source)}, " + (
                        "which does not run before this node" if is_known else "which is not a node"
                    )
                    plan.problems.append(Problem(path, got, "a node that this one depends on"))
                    continue
            mappings.append(InputMapping(input_name, source, steps, expression))
        plan.mappings[name] = tuple(mappings)


def _ancestors(plan: GraphPlan, bits: dict[str, int]) -> dict[str, int]:
    """Return for every node the set of its ancestors, one bit each."""
    ancestors: dict[str, int] = {}
    for name in plan.order:
        reached = 0
        for parent in plan.parents[name]:
            reached |= bits[parent] | ancestors.get(parent, 0)
        ancestors[name] = reached
    return ancestors


def _shown(text: str) -> str:
    return f"'{text}'" if len(text) <= 80 else f"'{text[:79]}…'"
