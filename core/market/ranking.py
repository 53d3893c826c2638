"""The choice of a node's agent among candidates, with its reasons; pure.

A candidate's score is the weighted sum of five parts, each better when higher; the weights are
settings. A choice carries its reasons, so that a payer can see the candidates and their scores. New
agents get a fixed share of the choices, because otherwise they could never build a reputation.

Every dispatch makes a choice: one or two passes over tuples. The reasons are computed on demand.
Spec: What the service does 3; Targeted routing; Settlement rules 9. contract.md section 6
(Discovery, ranking inputs). Decision 0063, with the figures.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Any, Final, NamedTuple

from core.market.reputation import NEUTRAL, Tally, score, speed
from core.money import credits_number

SHOWN_MAX: Final = 10
BPS: Final = 10_000
TOO_DEAR: Final = "too_dear"


@dataclass(frozen=True, slots=True)
class RankingRules:
    """The weights of the parts, of which only the proportions count, and the share of trials.

    `trial_tasks`: number of outcomes from which on an agent is no longer new. `trial_share_bps`:
    the share of choices between new and proven agents that goes to a new one, basis points.
    `proportions`: the weights in their order here, with a sum of 1.

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
    proportions: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        weights = (self.reputation, self.availability, self.price, self.latency, self.success)
        if min(weights) < 0 or sum(weights) <= 0:
            raise ValueError(f"got the weights {weights}, expected none below 0 and one above")
        shares = tuple(weight / sum(weights) for weight in weights)
        object.__setattr__(self, "proportions", shares)  # derived once: choices are frequent


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
    the price limit does not apply). `in_flight`: its open and queued orders here. `order`:
    registration order, for a stable choice. `load`: the share of its capacity that it reports as
    taken, 0 to 1. `excluded`: why it must not be chosen; it is shown, not ranked.
    """

    did: str
    price_micro: int
    in_flight: int
    max_concurrency: int
    order: int
    load: float = 0.0
    standing: Standing = UNPROVEN
    excluded: str | None = None
    is_bounded: bool = True


class Weighed(NamedTuple):
    """A candidate in a choice's reasons; `parts`: before weighting, empty if excluded."""

    did: str
    price_micro: int
    score: float
    parts: dict[str, float]
    reason_excluded: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen agent (None: no candidate) and the data of the reasons, best first.

    `ranked` and `excluded` have at most ten together; `unshown`: the number of further candidates.
    `is_trial`: the choice went to a new agent for a trial.
    """

    did: str | None
    ranked: Sequence[Candidate]
    excluded: Sequence[tuple[Candidate, str]]
    cheapest_micro: int
    rules: RankingRules
    unshown: int = 0
    is_trial: bool = False

    @property
    def weighed(self) -> list[Weighed]:
        """The reasons, computed on demand, because most choices have one candidate."""
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

    def _weigh(self, candidate: Candidate) -> Weighed:
        asked, standing = candidate.price_micro, candidate.standing
        parts = {
            "reputation": standing.score,
            "availability": 1.0 - _taken_share(candidate),
            "price": 1.0 if asked == self.cheapest_micro else self.cheapest_micro / asked,
            "latency": standing.speed,
            "success": standing.success_rate,
        }
        weighted = zip(self.rules.proportions, parts.values(), strict=True)
        return Weighed(candidate.did, asked, sum(share * part for share, part in weighted), parts)


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


def choose_agent(
    candidates: Iterable[Candidate],
    *,
    price_max_micro: int,
    rules: RankingRules = DEFAULT_RULES,
    seed: int | None = None,
    others: int = 0,
) -> Choice:
    """Choose the candidate of the highest score; of equal ones the less loaded, then the earlier.

    The parts: reputation; success rate; speed; availability, 1 less the taken share of the agent's
    concurrency (its reported load counts if it is higher, because other owners give it work too),
    below 0 for an agent with a queue; price, the cheapest candidate's divided by its own.

    Args:
        candidates: agents offering the capability, one per DID.
        price_max_micro: the node's price limit; agents above it are excluded.
        rules: the weights and the trials.
        seed: `trial_seed` of this attempt; None: no trials.
        others: how many more agents offer the capability and were not looked at.
    """
    open_to: list[Candidate] = []
    excluded: list[tuple[Candidate, str]] = []
    for candidate in candidates:
        if candidate.excluded is not None:
            excluded.append((candidate, candidate.excluded))
        elif candidate.price_micro > price_max_micro and candidate.is_bounded:
            excluded.append((candidate, TOO_DEAR))
        else:
            open_to.append(candidate)
    if len(open_to) == 1:
        did: str | None = open_to[0].did
        best, cheapest_micro, is_trial = open_to, open_to[0].price_micro, False
    elif open_to:
        best, cheapest_micro, is_trial = _rank(open_to, rules, seed)
        did = best[-1].did if is_trial else best[0].did
    else:
        did, best, cheapest_micro, is_trial = None, [], 0, False
    unshown = len(open_to) + len(excluded) - SHOWN_MAX
    if unshown <= 0:
        return Choice(did, best, excluded, cheapest_micro, rules, others, is_trial)
    shown = excluded[: SHOWN_MAX - len(best)]
    return Choice(did, best, shown, cheapest_micro, rules, unshown + others, is_trial)


def rank(candidates: list[Candidate], rules: RankingRules) -> list[Candidate]:
    """Return candidates that may all be chosen, best first."""
    cheapest_micro = min(candidate.price_micro for candidate in candidates)
    places = sorted(_places(candidates, cheapest_micro, rules))
    return [candidates[place[-1]] for place in places]


def _rank(
    candidates: list[Candidate], rules: RankingRules, seed: int | None
) -> tuple[list[Candidate], int, bool]:
    """Return the best candidates in order, the cheapest price, and whether the last is on trial."""
    cheapest_micro = min([candidate.price_micro for candidate in candidates])
    places = _places(candidates, cheapest_micro, rules)
    best = sorted(places) if len(places) <= SHOWN_MAX else nsmallest(SHOWN_MAX, places)
    trial = None if seed is None else _pick_trial(candidates, rules, seed)
    if trial is not None:
        # The agent on trial is listed last, instead of the tenth if need be.
        best = [place for place in best if place[-1] != trial][: SHOWN_MAX - 1]
        best.append(places[trial])
    return [candidates[place[-1]] for place in best], cheapest_micro, trial is not None


_Place = tuple[float, float, int, int]  # score negated, share taken, order, index: the least first


def _places(candidates: list[Candidate], cheapest_micro: int, rules: RankingRules) -> list[_Place]:
    reputation, availability, price, latency, success = rules.proportions
    places = []
    for index, candidate in enumerate(candidates):
        _, asked, in_flight, max_concurrency, order, load, standing, _, _ = candidate
        share = in_flight / max_concurrency
        score = (
            reputation * standing[0]
            + availability * (1.0 - (share if share > load else load))
            + price * (1.0 if asked == cheapest_micro else cheapest_micro / asked)
            + latency * standing[1]
            + success * standing[2]
        )
        places.append((-score, share, order, index))
    return places


def _pick_trial(candidates: list[Candidate], rules: RankingRules, seed: int) -> int | None:
    """Return the index of the new agent that gets a trial, None without a trial."""
    turn, lot = seed % BPS, seed // BPS
    if turn >= rules.trial_share_bps:
        return None
    new = [
        index
        for index, candidate in enumerate(candidates)
        if candidate.standing.total < rules.trial_tasks
    ]
    if len(new) == len(candidates):
        return None
    # Only idle agents: a trial that waits in a queue does not measure the agent.
    idle = [index for index in new if _taken_share(candidates[index]) < 1.0]
    idle.sort(key=lambda index: candidates[index].order)
    return idle[lot % len(idle)] if idle else None


def _taken_share(candidate: Candidate) -> float:
    return max(candidate.in_flight / candidate.max_concurrency, candidate.load)


def _weighed_json(weighed: Weighed) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "agentDid": weighed.did,
        "priceCredits": credits_number(weighed.price_micro),
    }
    if weighed.reason_excluded is not None:
        return {**shown, "excluded": weighed.reason_excluded}
    parts = {name: round(part, 4) for name, part in weighed.parts.items()}
    return {**shown, "score": round(weighed.score, 4), "parts": parts}
