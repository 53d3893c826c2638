"""The weighing of every candidate at each choice: what `RankedCandidates` must agree with."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest

from core.market.ranked_candidates import BPS
from core.market.ranking import (
    DEFAULT_RULES,
    SHOWN_MAX,
    TOO_DEAR,
    Candidate,
    Choice,
    RankingRules,
)


def weigh_all(
    candidates: Iterable[Candidate],
    *,
    price_max_micro: int,
    rules: RankingRules = DEFAULT_RULES,
    seed: int | None = None,
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
    """
    open_to: list[Candidate] = []
    excluded: list[tuple[Candidate, str]] = []
    for candidate in candidates:
        if candidate.excluded is not None:
            excluded.append((candidate, candidate.excluded))
        elif candidate.price_micro > price_max_micro and candidate.is_bounded:
            excluded.append((candidate, TOO_DEAR))
        elif candidate.limit_micro_max < price_max_micro and not candidate.is_bounded:
            excluded.append((candidate, "under_staked"))
        else:
            open_to.append(candidate)
    if len(open_to) == 1:
        best, cheapest_micro, is_trial = open_to, open_to[0].price_micro, False
    elif open_to:
        best, cheapest_micro, is_trial = _rank(open_to, rules, seed)
    else:
        best, cheapest_micro, is_trial = [], 0, False
    unshown = len(open_to) + len(excluded) - SHOWN_MAX
    if unshown <= 0:
        return Choice(best, excluded, cheapest_micro, rules, 0, is_trial)
    shown = excluded[: SHOWN_MAX - len(best)]
    return Choice(best, shown, cheapest_micro, rules, unshown, is_trial)


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
        _, asked, in_flight, max_concurrency, order, load, standing, _, _, _, _ = candidate
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
    idle = [index for index in new if candidates[index].taken_share < 1.0]
    idle.sort(key=lambda index: candidates[index].order)
    return idle[lot % len(idle)] if idle else None
