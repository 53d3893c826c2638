"""What the lines of `load.py` say about a fault: when work went on, and who did it.

Pure: times come with the lines, in seconds of one monotonic clock.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from core.shards.shard import shard_of

# A dispatch that was sent before a machine was lost may reach its agent within that time. None of
# another machine can be a resumed one so soon: the lease of the lost one has not ended.
ON_ITS_WAY_S = 0.5


@dataclass(frozen=True, slots=True)
class Call:
    """One dispatch as its agent has seen it.

    Attributes:
        at_s: when.
        machine: the address that it came from.
        workflow, node: what was asked for.
    """

    at_s: float
    machine: str
    workflow: str
    node: str


@dataclass(frozen=True, slots=True)
class Publish:
    """One small publish.

    Attributes:
        at_s: when its outcome was known.
        took_s: how long that took.
        url: of the API.
        error: what it was refused with; empty: it was accepted.
    """

    at_s: float
    took_s: float
    url: str
    error: str = ""


@dataclass(slots=True)
class Timeline:
    """All that happened.

    Attributes:
        chains: the long workflows.
        calls: in their order.
        publishes: the small ones, in their order.
        ends: status by workflow.
    """

    chains: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    publishes: list[Publish] = field(default_factory=list)
    ends: dict[str, str] = field(default_factory=dict)

    def calls_by_chain(self) -> Counter[str]:
        """Return how often the agent was called for each chain."""
        known = set(self.chains)
        return Counter(call.workflow for call in self.calls if call.workflow in known)

    def unfinished_at(self, at_s: float, nodes: int) -> set[str]:
        """Return the chains of which fewer nodes than all had been asked for by then.

        Args:
            at_s: the moment.
            nodes: of each chain.
        """
        asked = {(c.workflow, c.node) for c in self.calls if c.at_s <= at_s}
        counts = Counter(workflow for workflow, _ in asked)
        return {workflow for workflow in self.chains if counts[workflow] < nodes}

    def resumed_s(self, held: Collection[str], struck_s: float, lost: str) -> dict[str, float]:
        """Return by workflow the time from a fault to its next dispatch.

        Args:
            held: the workflows that the fault concerns.
            struck_s: when the fault began.
            lost: the address of the machine that was lost: its dispatches do not count. May be
                empty.
        """
        found: dict[str, float] = {}
        for call in self.calls:
            is_after = call.at_s > struck_s + ON_ITS_WAY_S and call.machine != lost
            if is_after and call.workflow in held:
                found.setdefault(call.workflow, call.at_s - struck_s)
        return found

    def longest_pause_s(self, from_s: float) -> float:
        """Return the longest time between two dispatches of a chain, the later after this."""
        longest = 0.0
        for workflow in self.chains:
            times = [call.at_s for call in self.calls if call.workflow == workflow]
            pauses = [later - sooner for sooner, later in pairwise(times) if later > from_s]
            longest = max(longest, *pauses, 0.0)
        return longest

    def publishes_during(self, from_s: float, lost_url: str) -> tuple[int, int, float]:
        """Return how many small publishes through other APIs were begun, how many were accepted,
        and how long the slowest of these took."""
        seen = [
            one for one in self.publishes if one.at_s - one.took_s > from_s and one.url != lost_url
        ]
        accepted = [one.took_s for one in seen if not one.error]
        return len(seen), len(accepted), max(accepted, default=0.0)


def read_timeline(lines: Iterable[str]) -> Timeline:
    """Read what `load.py` has written; the last line may be half of one."""
    timeline = Timeline()
    for line in lines:
        if not line.endswith("\n"):
            break
        _note(timeline, json.loads(line))
    return timeline


def _note(timeline: Timeline, event: Mapping[str, object]) -> None:
    at_s, workflow = float(str(event["at"])), str(event.get("workflow", ""))
    match event["kind"]:
        case "published":
            timeline.chains.append(workflow)
        case "call":
            call = Call(at_s, str(event["machine"]), workflow, str(event["node"]))
            timeline.calls.append(call)
        case "ended":
            timeline.ends[workflow] = str(event["status"])
        case "accepted" | "refused":
            took_s, url = float(str(event["took_s"])), str(event["via"])
            timeline.publishes.append(Publish(at_s, took_s, url, str(event.get("error", ""))))


def workflows_in(shards: Collection[int], workflows: Iterable[str]) -> set[str]:
    """Return the workflows whose shard is one of these."""
    return {workflow for workflow in workflows if shard_of(workflow) in shards}
