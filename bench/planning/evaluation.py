"""Precision and recall of plans: nodes, edges, mappings, values of the cases beside this file."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from core.planning.offers import Offer, members_of
from core.planning.plan import plan

CASES: Final = Path(__file__).parent / "cases"
_KINDS: Final[dict[str, dict[str, Any]]] = {
    "text": {"type": "string"},
    "number": {"type": "number"},
    "list": {"type": "array"},
    "object": {"type": "object"},
    "flag": {"type": "boolean"},
    "any": {},
    "image": {"type": "string", "contentMediaType": "image/png"},
    "audio": {"type": "string", "contentMediaType": "audio/wav"},
}


@dataclass(frozen=True, slots=True)
class Case:
    """A description with the graph that is expected.

    `maps`: (node, input, node, output). `gives`: (node, input, value as text), of the description.
    """

    says: str
    nodes: frozenset[str]
    maps: frozenset[tuple[str, str, str, str]]
    gives: frozenset[tuple[str, str, str]]
    is_set_aside: bool

    def edges(self) -> frozenset[tuple[str, str]]:
        """Return the pairs of nodes of which the first fills an input of the second."""
        return frozenset((source, target) for target, _, source, _ in self.maps)


def schema_of(members: Iterable[str]) -> dict[str, Any]:
    """Return the JSON Schema of members written as `name: kind!`."""
    parted = [one.partition(": ")[::2] for one in members]
    return {
        "type": "object",
        "properties": {name: _KINDS[kind.removesuffix("!")] for name, kind in parted},
        "required": [name for name, kind in parted if kind.endswith("!")],
    }


def read_offers() -> list[Offer]:
    """Return what the agents of the evaluation offer."""
    rooms = tomllib.loads((CASES / "capabilities.toml").read_text(encoding="utf-8"))
    return [
        Offer(
            f"cap.{room}.{name}.v1",
            one["says"],
            members_of(schema_of(one["in"])),
            members_of(schema_of(one["out"])),
        )
        for room, capabilities in rooms.items()
        for name, one in capabilities.items()
    ]


def read_cases() -> list[Case]:
    """Return the cases in the order of their file, with those that are set aside."""
    found = tomllib.loads((CASES / "descriptions.toml").read_text(encoding="utf-8"))["case"]
    return [
        Case(
            one["says"],
            frozenset(f"cap.{name}.v1" for name in one["nodes"]),
            frozenset(_mapping(text) for text in one["maps"]),
            frozenset(_value(text) for text in one.get("gives", ())),
            one.get("set_aside", number % 3 == 2),
        )
        for number, one in enumerate(found)
    ]


def _mapping(text: str) -> tuple[str, str, str, str]:
    (target, wanted), (source, output) = (end.rsplit(".", 1) for end in text.split(" < "))
    return f"cap.{target}.v1", wanted, f"cap.{source}.v1", output


def _value(text: str) -> tuple[str, str, str]:
    place, value = text.split(" = ")
    target, wanted = place.rsplit(".", 1)
    return f"cap.{target}.v1", wanted, value


def planned(case: Case, offers: list[Offer]) -> Case:
    """Return what the planner makes of a case's description."""
    found = plan(case.says, offers)
    maps = {
        (step.offer.capability_id, wanted, source.offer.capability_id, output)
        for step in found.steps
        for wanted, (source, output) in step.sources.items()
    }
    nodes = frozenset(step.offer.capability_id for step in found.steps)
    gives = frozenset(
        (step.offer.capability_id, name, str(value))
        for step in found.steps
        for name, value in step.payload.items()
    )
    return Case(case.says, nodes, frozenset(maps), gives, case.is_set_aside)


@dataclass(slots=True)
class Score:
    """Of all cases together: how many were found, expected, and both."""

    found: int = 0
    expected: int = 0
    both: int = 0

    def add(self, found: frozenset[Any], expected: frozenset[Any]) -> None:
        """Count one case."""
        self.found += len(found)
        self.expected += len(expected)
        self.both += len(found & expected)

    @property
    def precision(self) -> float:
        """The share of what was found that was expected."""
        return self.both / self.found if self.found else 1.0

    @property
    def recall(self) -> float:
        """The share of what was expected that was found."""
        return self.both / self.expected if self.expected else 1.0


def scores(cases: Iterable[Case], offers: list[Offer]) -> dict[str, Score]:
    """Return the scores of nodes, edges, mappings and given values over cases."""
    total = {"nodes": Score(), "edges": Score(), "mappings": Score(), "values": Score()}
    for case in cases:
        found = planned(case, offers)
        total["nodes"].add(found.nodes, case.nodes)
        total["edges"].add(found.edges(), case.edges())
        total["mappings"].add(found.maps, case.maps)
        total["values"].add(found.gives, case.gives)
    return total
