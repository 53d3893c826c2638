"""Scores of the candidates for a node, and the reasons of a choice between candidates.

A candidate's score is the weighted sum of five parts. A higher part is better. The weights are
settings. A choice has reasons, so that a payer can see the candidates and their scores. Most
reasons are never read. A node's row therefore stores only the figures, and the reasons are
computed from the figures when they are read. `ranked_candidates.py` makes the choice. Pure.
Reference: features.md (Selection, Targeted routing), money.md (Reputation). Decision
reputation-and-ranking.
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
    """The weights of the parts of a score, and the share of trials.

    Only the proportions of the weights matter. `trial_tasks`: an agent with fewer final outcomes is
    new. `trial_share_bps`: the share of choices in which a new agent gets a trial, basis points. It
    applies to nodes that may take both new and proven agents. `weights`: the five weights, in the
    order of their fields. `proportions`: the weights, scaled to a sum of 1.

    Raises:
        ValueError: a weight is negative, or all weights are 0.
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
        # Computed only once, because choices are frequent.
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "proportions", shares)


DEFAULT_RULES: Final = RankingRules()


class Standing(NamedTuple):
    """The figures of an agent's reputation that the ranking uses.

    `score`, `speed`, `success_rate`: 0 to 1. `total`: the number of final outcomes.
    """

    score: float = NEUTRAL
    speed: float = NEUTRAL
    success_rate: float = NEUTRAL
    total: int = 0


UNPROVEN: Final = Standing()


class Candidate(NamedTuple):
    """An agent that offers the capability, as the dispatching process knows it.

    `price_micro`: the agent's price. For an agent that is paid by tokens it is a typical cost.
    `is_bounded`: whether the node's price limit applies. It does not apply to agents that are paid
    by tokens. `in_flight`: the open and queued dispatches of this process to the agent. `order`:
    decides between candidates of equal score. For agents, this is the order of registration; for
    bidders, the reputation and then the time of the bid. `load`: the share of the agent's capacity
    that the agent reports as taken, 0 to 1. `excluded`: why the agent must not be chosen. Excluded
    candidates are shown but not ranked. `limit_micro_max`: for an agent that is paid by tokens, the
    largest price limit for which the agent's stake suffices.
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
        """The taken share of the agent's capacity.

        This is the larger one of two values: the share that this process counts, and the reported
        load.
        """
        return max(self.in_flight / self.max_concurrency, self.load)


class Choice(NamedTuple):
    """The figures from which the reasons of a choice are computed.

    `ranked`: candidates, the best first. `excluded`: candidates with the reason of their exclusion.
    The two lists have at most ten candidates together. `unshown`: the number of further candidates.
    `is_trial`: a new agent was chosen for a trial; it is the last of `ranked`.
    """

    ranked: Sequence[Candidate]
    excluded: Sequence[tuple[Candidate, str]]
    cheapest_micro: int
    rules: RankingRules
    unshown: int = 0
    is_trial: bool = False

    @property
    def did(self) -> str | None:
        """The DID of the chosen agent, None if no candidate was ranked."""
        return self.ranked[-1 if self.is_trial else 0].did if self.ranked else None

    def to_json(self) -> dict[str, Any]:
        """Return the reasons in the form that a workflow record shows."""
        shown: list[dict[str, Any]] = []
        for one in self.ranked:
            score, parts = self.weigh(one)
            rounded = {name: round(part, 4) for name, part in parts.items()}
            shown.append({**_named(one), "score": round(score, 4), "parts": rounded})
        shown += [{**_named(one), "excluded": reason} for one, reason in self.excluded]
        return {
            "agentDid": self.did,
            "isTrial": self.is_trial,
            "candidates": shown,
            "unshown": self.unshown,
        }

    def to_text(self) -> str:
        """Return the figures as the JSON text that a node's row stores."""
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
        """Return the choice whose figures `to_text` wrote."""
        is_trial, unshown, cheapest_micro, weights, ranked, excluded = read_json(text)
        candidates = [
            Candidate(did, asked, in_flight, most, 0, load, Standing(*parts))
            for did, asked, in_flight, most, load, *parts in ranked
        ]
        others = [(Candidate(did, asked, 0, 1, 0), reason) for did, asked, reason in excluded]
        rules = RankingRules(*weights)
        return cls(candidates, others, cheapest_micro, rules, unshown, is_trial)

    def weigh(self, candidate: Candidate) -> tuple[float, dict[str, float]]:
        """Return the score of a ranked candidate, and its parts before weighting, by name."""
        place = sort_key(candidate, self.cheapest_micro, self.rules)
        asked, standing = candidate.price_micro, candidate.standing
        parts = {
            "reputation": standing.score,
            "availability": 1.0 - candidate.taken_share,
            "price": 1.0 if asked == self.cheapest_micro else self.cheapest_micro / asked,
            "latency": standing.speed,
            "success": standing.success_rate,
        }
        return -place[0], parts


def build_standing(tally: Tally, *, latency_ms_max: int) -> Standing:
    """Return an agent's standing, which the caller may cache until the agent's next outcome.

    Args:
        latency_ms_max: the average latency at which the speed is 0, milliseconds.
    """
    return Standing(
        score(tally, latency_ms_max=latency_ms_max),
        speed(tally, latency_ms_max=latency_ms_max),
        tally.success_rate,
        tally.total,
    )


def trial_seed(workflow_id: str, node: str, attempt: int) -> int:
    """Return the seed of an attempt's trial decision; the same attempt gets the same seed."""
    digest = hashlib.blake2b(f"{workflow_id}/{node}/{attempt}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def render_reasons(text: str) -> str:
    """Return the reasons of a choice as compact JSON, in the form that a workflow record shows.

    Args:
        text: the stored text of a node. Auctions and older versions stored the shown form, which
            is returned unchanged.
    """
    if text.startswith("{"):
        return text
    return write_json(Choice.of_text(text).to_json()).decode()


Place = tuple[float, float, Any, Candidate]


def sort_key(candidate: Candidate, cheapest_micro: float, rules: RankingRules) -> Place:
    """Return the sort key of a candidate; the best candidate has the lowest key.

    The key compares the scores first, the highest first. Equal scores are decided by the lower
    taken share, then by `order`. The score has five parts:

    - the reputation score, the success rate and the speed of the agent;
    - availability: 1 less the taken share of the agent's concurrency. If the reported load is
      higher than this share, the load counts, because other owners dispatch to the agent too. For
      an agent with a queue the availability is negative;
    - price: the lowest price divided by the candidate's price, at most 1.

    Args:
        cheapest_micro: the lowest price of a candidate that may be chosen, micro-credits.
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


def _named(one: Candidate) -> dict[str, Any]:
    return {"agentDid": one.did, "priceCredits": credits_number(one.price_micro)}
