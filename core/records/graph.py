"""Parses input mapping expressions, and sorts the nodes of a manifest topologically.

An expression `$.{node}.result.{path}` is parsed once into steps. The syntax is the specification's
subset of RFC 9535: names after dots, `['x']`, `["x"]` and `[n]`. Escapes are decoded. After a dot,
a name may also begin with a digit and contain dashes, as node names may.
Reference: features.md (Inputs).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from core.errors import Problem, ProblemList
from core.json_bounds import INTEGER_MAX
from core.message import Message
from core.records.bounds import NODE_NAME_CHARS_MAX

Step = str | int

EXPRESSION_CHARS_MAX = 1_024
EXPECTED = "$.{node}.result.{path} with dotted fields, ['field'] and [0] only"

_BLANK: Final = r"[ \t\n\r]*+"
_STEP: Final = re.compile(
    rf"{_BLANK}(?:\.(?P<name>[\w\x80-\ud7ff\ue000-\U0010ffff-]++)"
    rf"|\[{_BLANK}(?:'(?P<single>(?:[^'\\\x00-\x1f]|\\.)*+)'"
    rf'|"(?P<double>(?:[^"\\\x00-\x1f]|\\.)*+)"|(?P<index>0|[1-9][0-9]{{0,15}})){_BLANK}\])',
    re.ASCII,
)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_ESCAPED: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "/": "/", "\\": "\\"}
# The beginnings of RFC 9535 steps that are not supported, and their names for messages.
_REFUSED: Final = {
    "..": "a search at any depth",
    ".*": "a wildcard",
    "[*": "a wildcard",
    "[?": "a filter",
    "[-": "a negative index",
}


class MappingSyntaxError(ValueError):
    """A text is not an input mapping expression. The message describes the defect."""


class InputMapping(Message, frozen=True):
    """An input `input_name` with the value at `steps` inside the result of the node `source`."""

    input_name: str
    source: str
    steps: tuple[Step, ...]
    expression: str


@lru_cache(maxsize=8_192)
def parse_mapping(expression: str) -> tuple[str, tuple[Step, ...]]:
    """Return the node that the expression names and the steps inside its result.

    Raises `MappingSyntaxError`. Reference: features.md (Inputs).
    """
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise MappingSyntaxError(f"an expression of {len(expression)} characters")
    if not expression.startswith("$"):
        raise MappingSyntaxError("a path that does not begin with $")
    steps: list[Step] = []
    at = 1
    while at < len(expression):
        match = _STEP.match(expression, at)
        if match is None:
            raise MappingSyntaxError(_defect(expression, at))
        steps.append(_step(match, at))
        at = match.end()
    if len(steps) < 2 or not isinstance(steps[0], str) or steps[1] != "result":
        raise MappingSyntaxError("a path that does not begin with a node's name and result")
    return steps[0], tuple(steps[2:])


def _step(match: re.Match[str], at: int) -> Step:
    name, index = match["name"], match["index"]
    if name is not None:
        return name
    place = f"at character {at + 1}"
    if index is not None:
        if int(index) > INTEGER_MAX:
            raise MappingSyntaxError(f"an index beyond 2^53 {place}")
        return int(index)
    is_single = match["single"] is not None
    text = match["single"] if is_single else match["double"]
    if "\\" not in text:
        return text
    known = {**_ESCAPED, "'": "'"} if is_single else {**_ESCAPED, '"': '"'}

    def decoded(escape: re.Match[str]) -> str:
        code, char = escape.groups()
        if code is None and char not in known:
            raise MappingSyntaxError(f"the unknown escape \\{char} in the name {place}")
        return known[char] if code is None else chr(int(code, 16))

    try:
        halves = _ESCAPE.sub(decoded, text)
        return halves.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise MappingSyntaxError(f"half of a surrogate pair in the name {place}") from None


def _defect(expression: str, at: int) -> str:
    """Describe the syntax error at a position."""
    rest = re.sub(r"[ \t\n\r]", "", expression[at:])
    found = _REFUSED.get(rest[:2])
    if found is None and re.match(r"\[[0-9]+[:,]|\[('[^']*'|\"[^\"]*\"),|\[:", rest):
        found = "several fields or indices at once"
    elif found is None and re.match(r"\[[0-9]", rest):
        found = "an index that is no whole number below 2^53"
    return f"{found or 'text that is not a step of a path'} at character {at + 1}"


# The name of the source in `$.trigger.result`, the result of the trigger that started a run.
TRIGGER_SOURCE: Final = "trigger"
# Each search for a cycle walks all nodes, and 10,000 nodes can form 5,000 cycles.
CYCLES_MAX = 10

_PLAIN_NAME = re.compile(r"[\w-]+")


@dataclass(slots=True)
class GraphPlan:
    """The sorted graph of a manifest. It is valid only if `problems` is empty.

    `order`: the names of the nodes in topological order. Nodes without dependencies come first, in
    manifest order. The keys of `parents`, `children` and `mappings` are node names.
    """

    order: list[str] = field(default_factory=list)
    parents: dict[str, tuple[str, ...]] = field(default_factory=dict)
    children: dict[str, list[str]] = field(default_factory=dict)
    mappings: dict[str, tuple[InputMapping, ...]] = field(default_factory=dict)
    problems: ProblemList = field(default_factory=ProblemList)


def node_path(name: str) -> str:
    """Return a node's path in its manifest, for problems. A name that is too long is cut."""
    if len(name) > NODE_NAME_CHARS_MAX:
        # Each problem of the node repeats its name, so the name must be bounded.
        name = f"{name[: NODE_NAME_CHARS_MAX - 1]}…"
    return f"nodes.{name}" if _PLAIN_NAME.fullmatch(name) else f"nodes['{name}']"


def plan_graph(
    depends_on: Mapping[str, Sequence[str]],
    expressions: Mapping[str, Mapping[str, str]],
    path_of: Callable[[str], str] = node_path,
    *,
    has_trigger: bool = False,
) -> GraphPlan:
    """Sort the nodes and parse their mappings. Defects become problems of the plan.

    Args:
        depends_on: for every node, in manifest order, the names of the nodes that it depends on.
        expressions: for every node with mappings, the expressions by input name.
        path_of: returns the path of a node in the form that the client sent.
        has_trigger: whether mappings may use the source `TRIGGER_SOURCE`, which is not a node.
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
                # A parent that is listed twice counts once.
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
    """Fill `order`; report each cycle, up to `CYCLES_MAX`, and cut the cycle to continue.

    Returns: whether the graph has no cycle.
    """
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
    # The walk went from child to parent. Report the cycle at the node that comes first in the
    # manifest.
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
                # In a graph with a cycle, the order of the nodes is not defined. Only the cycle is
                # reported.
                if not is_known or (ancestors is not None and not ancestors[name] & bits[source]):
                    got = f"{_shown(source)}, " + (
                        "which does not run before this node" if is_known else "which is not a node"
                    )
                    plan.problems.append(Problem(path, got, "a node that this one depends on"))
                    continue
            mappings.append(InputMapping(input_name, source, steps, expression))
        plan.mappings[name] = tuple(mappings)


def _ancestors(plan: GraphPlan, bits: dict[str, int]) -> dict[str, int]:
    """Return, for every node, the set of its ancestors as a bit mask."""
    ancestors: dict[str, int] = {}
    for name in plan.order:
        reached = 0
        for parent in plan.parents[name]:
            reached |= bits[parent] | ancestors.get(parent, 0)
        ancestors[name] = reached
    return ancestors


def _shown(text: str) -> str:
    return f"'{text}'" if len(text) <= 80 else f"'{text[:79]}…'"
