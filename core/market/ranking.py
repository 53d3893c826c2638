"""Which of several agents takes a node: a pure choice over what is known about each.

Spec: What the service does 3; Targeted routing. contract.md section 6 (Discovery, ranking inputs).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """An agent that offers the capability, as seen by the process that will dispatch.

    `in_flight`: what it has been given here and not answered. `order`: registration order, for a
    stable choice. `load`: the share of its capacity that it says is taken, 0 to 1.
    """

    did: str
    price_micro: int
    in_flight: int
    max_concurrency: int
    order: int
    load: float = 0.0


def choose(candidates: Iterable[Candidate], *, price_max_micro: int) -> Candidate | None:
    """Return the least loaded affordable candidate, the earliest registered among equals.

    Load is the share of an agent's own concurrency that is taken, so a large agent gets more. What
    the agent reports counts where it is more than what is known here: others give it work too.

    Args:
        candidates: healthy agents offering the capability.
        price_max_micro: the most the node may cost; dearer agents are no candidates.
    """
    affordable = [c for c in candidates if c.price_micro <= price_max_micro]
    return min(affordable, key=_load, default=None)


def _load(candidate: Candidate) -> tuple[float, float, int]:
    share = candidate.in_flight / candidate.max_concurrency
    return max(share, candidate.load), share, candidate.order
