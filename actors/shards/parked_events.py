"""What is heard of a shard's workflows while the shard is handed over: kept, then heard or told on.

Bounded by what is open in the shard: each order has one final event, each timer one.
shards.md (Hand-over). Decision 0200.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from core.shards.shard import shard_of
from core.workflow.events import Event

Done = Callable[[bool], None]


class Parked(NamedTuple):
    """An event of a workflow; `done` receives whether it was applied, if there is one."""

    workflow_id: str
    event: Event
    done: Done | None


class ParkedEvents:
    """Events by shard, in their order."""

    def __init__(self) -> None:
        self._events: defaultdict[int, list[Parked]] = defaultdict(list)

    def __repr__(self) -> str:
        return f"<ParkedEvents {sum(map(len, self._events.values()))}>"

    def park(self, workflow_id: str, event: Event, done: Done | None) -> None:
        """Keep an event."""
        self._events[shard_of(workflow_id)].append(Parked(workflow_id, event, done))

    def take(self, shard: int) -> list[Parked]:
        """Remove and return a shard's events."""
        return self._events.pop(shard, [])


def refuse(parked: list[Parked]) -> None:
    """Answer those who wait for these events: they were not applied here."""
    for one in parked:
        if one.done is not None:
            one.done(False)
