"""What ranks the candidates for a node, and the choice of one with its reasons; pure.

A candidate's score is the weighted sum of five parts, each better when higher; the weights are
settings. A choice carries its reasons, so that a payer can see the candidates and their scores.
They are stored as the figures they follow from and are computed when they are read, because most
are never read. `ranked_candidates.py` chooses.
Reference: features.md (Selection, Targeted routing), money.md (Reputation). Decision
reputation-and-ranking, with the figures.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from core.json_text import read_json, write_json
from core.market.reputation import NEUTRAL, Tally, score, speed
from core.money import credits_number

SHOWN_MAX: Final = 10
TOO_DEAR: Final = "too_dear"


@dataclass(frozen=True, slots=True)
class RankingRules:
    """The weights of the parts, of which only the proportions count, and the share of trials.

    `trial_tasks`: number of outcomes from which on an agent is no longer new. `trial_share_bps`:
    the share of choices between new and proven agents that goes to a new one, basis points.
    `weights`: in their order here. `proportions`: the same with a sum of 1.

    Raises:
        ValueError: no weight is more than 0.
    """

    reputation: int = 25
    availability: int = 40
    price: int = 15
    latency: int = 10
    success: int = 10
    trial_tasks: int = 10
    trial_share_bps: int = 1_000
    weights: tuple[int, ...] = field(init=False, repr=False, compare=False)
    proportions: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        weights = (self.reputation, self.availability, self.price, self.latency, self.success)
        if min(weights) < 0 or sum(weights) <= 0:
            raise ValueError(f"got the weights {weights}, expected none below 0 and one above")
        shares = tuple(weight / sum(weights) for weight in weights)
        # Derived once: choices are frequent.
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "proportions", shares)


DEFAULT_RULES: Final = RankingRules()


class Standing(NamedTuple):
    """An agent's reputation in the form the ranking reads; all 0 to 1, `total` is a count."""

    score: float = NEUTRAL
    speed: float = NEUTRAL
    success_rate: float = NEUTRAL
    total: int = 0


UNPROVEN: Final = Standing()


class Candidate(NamedTuple):
    """An agent that offers the capability, from the view of the dispatching process.

    `price_micro`: its price; for an agent paid by tokens a comparable figure (`is_bounded` false:
    the price limit does not apply). `in_flight`: its open and queued orders here. `order`: decides
    between equals, by the order of registration, or of bidders by reputation and time. `load`: the
    share of its capacity that it reports as taken, 0 to 1. `excluded`: why it must not be chosen;
    it is shown, not ranked. `limit_micro_max`: the largest price limit for which the stake of
    one paid by tokens suffices.
    """

    did: str
    price_micro: int
    in_flight: int
    max_concurrency: int
    order: Any
    load: float = 0.0
    standing: Standing = UNPROVEN
    excluded: str | None = None
    is_bounded: bool = True
    owner_did: str = ""
    limit_micro_max: float = math.inf

    @property
    def taken_share(self) -> float:
        """The share of its capacity that is taken, by what is known here or by its own report."""
        return max(self.in_flight / self.max_concurrency, self.load)


class Weighed(NamedTuple):
    """A candidate in a choice's reasons; `parts`: before weighting, empty if excluded."""

    did: str
    price_micro: int
    score: float
    parts: dict[str, float]
    reason_excluded: str | None = None


class Choice(NamedTuple):
    """The data of a choice's reasons, best first.

    `ranked` and `excluded` have at most ten together; `unshown`: the number of further candidates.
    `is_trial`: the choice went to a new agent for a trial, which is the last of the ranked.
    """

    ranked: Sequence[Candidate]
    excluded: Sequence[tuple[Candidate, str]]
    cheapest_micro: int
    rules: RankingRules
    unshown: int = 0
    is_trial: bool = False

    @property
    def did(self) -> str | None:
        """The chosen agent, None without a candidate."""
        return self.ranked[-1 if self.is_trial else 0].did if self.ranked else None

    @property
    def weighed(self) -> list[Weighed]:
        """The reasons, computed on demand."""
        shown = [self._weigh(candidate) for candidate in self.ranked]
        return shown + [
            Weighed(candidate.did, candidate.price_micro, 0.0, {}, reason)
            for candidate, reason in self.excluded
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the reasons as a workflow record shows them."""
        return {
            "agentDid": self.did,
            "isTrial": self.is_trial,
            "candidates": [_weighed_json(weighed) for weighed in self.weighed],
            "unshown": self.unshown,
        }

    def to_text(self) -> str:
        """Return the figures that the reasons follow from, as a node's row holds them."""
        ranked = [
            (did, asked, in_flight, most, load, standing[0], standing[1], standing[2])
            for did, asked, in_flight, most, _, load, standing, _, _, _, _ in self.ranked
        ]
        excluded = [(one.did, one.price_micro, reason) for one, reason in self.excluded]
        figures = (
            self.is_trial,
            self.unshown,
            self.cheapest_micro,
            self.rules.weights,
            ranked,
            excluded,
        )
        return write_json(figures).decode()

    @classmethod
    def of_text(cls, text: str) -> Choice:
        """Return the choice whose figures a text holds."""
        is_trial, unshown, cheapest_micro, weights, ranked, excluded = read_json(text)
        candidates = [
            Candidate(did, asked, in_flight, most, 0, load, Standing(*parts))
            for did, asked, in_flight, most, load, *parts in ranked
        ]
        others = [(Candidate(did, asked, 0, 1, 0), reason) for did, asked, reason in excluded]
        rules = RankingRules(*weights)
        return cls(candidates, others, cheapest_micro, rules, unshown, is_trial)

    def _weigh(self, candidate: Candidate) -> Weighed:
        place = find_place(candidate, self.cheapest_micro, self.rules)
        asked, standing = candidate.price_micro, candidate.standing
        parts = {
            "reputation": standing.score,
            "availability": 1.0 - candidate.taken_share,
            "price": 1.0 if asked == self.cheapest_micro else self.cheapest_micro / asked,
            "latency": standing.speed,
            "success": standing.success_rate,
        }
        return Weighed(candidate.did, asked, -place[0], parts)


def build_standing(tally: Tally, *, latency_ms_max: int) -> Standing:
    """Return an agent's standing, which the caller may cache until its next outcome."""
    return Standing(
        score(tally, latency_ms_max=latency_ms_max),
        speed(tally, latency_ms_max=latency_ms_max),
        tally.success_rate,
        tally.total,
    )


def trial_seed(workflow_id: str, node: str, attempt: int) -> int:
    """Return the seed of an attempt's trial decision, deterministic per attempt."""
    digest = hashlib.blake2b(f"{workflow_id}/{node}/{attempt}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def render_reasons(text: str) -> str:
    """Return the reasons of a choice as a workflow record shows them, compact JSON.

    Args:
        text: a node's; of an auction, and in rows that an older version wrote, it is as it is
            shown.
    """
    if text.startswith("{"):
        return text
    return write_json(Choice.of_text(text).to_json()).decode()


Place = tuple[float, float, Any, Candidate]


def find_place(candidate: Candidate, cheapest_micro: float, rules: RankingRules) -> Place:
    """Return a candidate's place, the least of which is the best.

    By its score; of equal ones the less loaded, then the earlier registered. The parts: reputation;
    success rate; speed; availability, 1 less the taken share of the agent's concurrency (its
    reported load counts if it is higher, because other owners give it work too), below 0 for an
    agent with a queue; price, the cheapest candidate's divided by its own.

    Args:
        cheapest_micro: the lowest price of a candidate that may be chosen.
    """
    reputation, availability, price, latency, success = rules.proportions
    _, asked, in_flight, max_concurrency, order, load, standing, _, _, _, _ = candidate
    share = in_flight / max_concurrency
    score = (
        reputation * standing[0]
        + availability * (1.0 - (share if share > load else load))
        + price * (1.0 if asked <= cheapest_micro else cheapest_micro / asked)
        + latency * standing[1]
        + success * standing[2]
    )
    return (-score, share, order, candidate)


def _weighed_json(weighed: Weighed) -> dict[str, Any]:
    did, price_micro, score, parts, reason_excluded = weighed
    credits = credits_number(price_micro)
    if reason_excluded is not None:
        return {"agentDid": did, "priceCredits": credits, "excluded": reason_excluded}
    return {
        "agentDid": did,
        "priceCredits": credits,
        "score": round(score, 4),
        "parts": {name: round(part, 4) for name, part in parts.items()},
    }
