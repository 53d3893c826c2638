"""Which agent takes a node, of several that could, and why."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.market.ranked_candidates import Node, RankedCandidates
from core.market.ranking import (
    DEFAULT_RULES,
    SHOWN_MAX,
    TOO_DEAR,
    UNPROVEN,
    Candidate,
    Choice,
    RankingRules,
    Standing,
    build_standing,
    render_reasons,
    trial_seed,
)
from core.market.reputation import Tally
from tests.core.market.full_weighing import weigh_all

PROVEN = Standing(score=0.9, speed=0.9, success_rate=0.9, total=1_000)
WORSE = Standing(score=0.4, speed=0.4, success_rate=0.4, total=1_000)
SHARES = st.integers(0, 100).map(lambda percent: percent / 100)
STANDINGS = st.builds(Standing, SHARES, SHARES, SHARES, st.integers(0, 20))


def candidate(did: str, **fields: Any) -> Candidate:
    """Return an idle new candidate of concurrency 10."""
    values: dict[str, Any] = {
        "price_micro": 1, "in_flight": 0, "max_concurrency": 10, "order": 0, **fields,
    }  # fmt: skip
    return Candidate(did, **values)


def choose_agent(
    candidates: Iterable[Candidate],
    *,
    price_max_micro: int,
    rules: RankingRules = DEFAULT_RULES,
    seed: int | None = None,
) -> Choice:
    """Return the choice among these, with the reasons of those that are not open to it."""
    field = list(candidates)
    ranked = RankedCandidates(rules, [one for one in field if one.excluded is None])
    best = ranked.choose(Node(price_max_micro, price_max_micro), seed)
    expected = weigh_all(field, price_max_micro=price_max_micro, rules=rules, seed=seed)
    if best is None:
        assert not expected.ranked
        return expected
    assert best == (expected.ranked, expected.cheapest_micro, expected.is_trial)
    return expected


def chosen(*candidates: Candidate, price_max_micro: int = 10, **options: Any) -> str | None:
    return choose_agent(candidates, price_max_micro=price_max_micro, **options).did


@st.composite
def drawn_field(
    draw: st.DrawFn, standings: st.SearchStrategy[Standing] = STANDINGS
) -> list[Candidate]:
    """Draw candidates of distinct names and orders."""
    count = draw(st.integers(0, 15))
    orders = draw(st.permutations(range(count)))
    return [
        Candidate(
            f"did:{order}",
            draw(st.integers(0, 12)),
            draw(st.integers(0, 40)),
            draw(st.integers(1, 20)),
            order,
            draw(SHARES),
            draw(standings),
        )
        for order in orders
    ]


# -- load, as of agents that nothing else tells apart ----------------------------------------------


def test_the_one_with_the_smaller_share_taken_is_chosen() -> None:
    assert chosen(candidate("a", in_flight=2), candidate("b", in_flight=3)) == "a"
    large = candidate("large", in_flight=5, max_concurrency=100)
    assert chosen(candidate("small", in_flight=1), large) == "large"


def test_a_reported_load_counts_where_it_is_more_than_what_is_known() -> None:
    assert chosen(candidate("a", load=0.9), candidate("b", in_flight=5)) == "b"
    assert chosen(candidate("a", load=0.2, in_flight=5), candidate("b", in_flight=4)) == "b"
    assert chosen(candidate("a", load=0.5, in_flight=3), candidate("b", load=0.5)) == "b"


def test_equals_are_taken_in_order_and_the_dear_are_left_out() -> None:
    assert chosen(candidate("a", order=2), candidate("b", order=1)) == "b"
    assert chosen(candidate("a", price_micro=11), candidate("b", order=9)) == "b"
    assert chosen(candidate("a", price_micro=11)) is None


@given(drawn_field(st.just(UNPROVEN)), st.integers(0, 2**64 - 1))
def test_new_agents_of_one_price_are_chosen_by_load_then_order(
    drawn: list[Candidate], seed: int
) -> None:
    field = [c._replace(price_micro=5) for c in drawn]

    def place(c: Candidate) -> tuple[float, float, int]:
        share = c.in_flight / c.max_concurrency
        return max(share, c.load), share, c.order

    expected = min(field, key=place, default=None)
    assert chosen(*field, seed=seed) == (expected.did if expected else None)


# -- the other parts ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "better",
    [
        {"standing": PROVEN._replace(score=0.91)},
        {"standing": PROVEN._replace(speed=0.91)},
        {"standing": PROVEN._replace(success_rate=0.91)},
        {"price_micro": 7},
        {"in_flight": 4},
        {"load": 0.4},
    ],
    ids=lambda better: next(iter(better)),
)
def test_what_is_better_in_one_part_and_equal_elsewhere_wins(better: dict[str, Any]) -> None:
    base = candidate("b", standing=PROVEN, price_micro=8, in_flight=5, load=0.5)
    if "load" in better:
        base = base._replace(in_flight=0)
    if "in_flight" in better:
        base = base._replace(load=0.0)
    assert chosen(base._replace(did="better", order=9, **better), base) == "better"
    assert chosen(base._replace(did="a", order=9), base) == "b"


def test_a_queue_sends_work_to_whoever_is_idle_however_good_its_owner() -> None:
    best = candidate("best", standing=Standing(1.0, 1.0, 1.0, 1_000), in_flight=30)
    assert chosen(best, candidate("idle", standing=WORSE)) == "idle"


def test_weights_decide_what_counts() -> None:
    cheap = candidate("cheap", standing=WORSE)
    good = candidate("good", standing=PROVEN, price_micro=3)
    by_price = RankingRules(reputation=0, availability=0, price=1, latency=0, success=0)
    by_reputation = RankingRules(reputation=1, availability=0, price=0, latency=0, success=0)
    assert chosen(cheap, good, rules=by_price) == "cheap"
    assert chosen(cheap, good, rules=by_reputation) == "good"


def test_weights_of_nothing_are_refused() -> None:
    for weights in ({"reputation": -1}, dict.fromkeys(RankingRules().__slots__[:5], 0)):
        with pytest.raises(ValueError, match="got the weights"):
            RankingRules(**weights)


def test_only_the_proportions_of_the_weights_count() -> None:
    field = [candidate(str(n), standing=PROVEN, price_micro=n, order=n) for n in range(1, 6)]
    doubled = RankingRules(reputation=50, availability=80, price=30, latency=20, success=20)
    ones, twos = (
        choose_agent(field, price_max_micro=9, rules=r) for r in (RankingRules(), doubled)
    )
    first, second = ([some.weigh(one)[0] for one in some.ranked] for some in (ones, twos))
    assert first == pytest.approx(second)


@given(
    drawn_field(), st.integers(0, 12), st.integers(0, 2**64 - 1), st.randoms(use_true_random=False)
)
def test_the_order_in_which_candidates_come_does_not_matter(
    field: list[Candidate], price_max: int, seed: int, random: Any
) -> None:
    shuffled = list(field)
    random.shuffle(shuffled)
    for rules in (RankingRules(), RankingRules(trial_share_bps=10_000)):
        first, again = (
            choose_agent(some, price_max_micro=price_max, rules=rules, seed=seed)
            for some in (field, shuffled)
        )
        assert again.did == first.did
        assert again.is_trial == first.is_trial
        assert again.unshown == first.unshown


def test_a_price_by_tokens_is_weighed_but_never_too_dear() -> None:
    by_tokens = candidate("tokens", price_micro=11, is_bounded=False)
    assert chosen(by_tokens) == "tokens"
    assert chosen(by_tokens, candidate("fixed", price_micro=10)) == "fixed"


# -- reasons --------------------------------------------------------------------------------------


@given(drawn_field(), st.integers(0, 12), st.none() | st.integers(0, 2**64 - 1))
def test_reasons_are_few_complete_and_agree_with_the_choice(
    field: list[Candidate], price_max: int, seed: int | None
) -> None:
    choice = choose_agent(field, price_max_micro=price_max, seed=seed)
    affordable = {c.did for c in field if c.price_micro <= price_max}
    weighed, excluded = choice.ranked, [one for one, _ in choice.excluded]
    shown = [one.did for one in (*weighed, *excluded)]
    assert len(set(shown)) == len(shown) == min(len(field), SHOWN_MAX)
    assert len(shown) + choice.unshown == len(field)
    assert {w.did for w in weighed} <= affordable
    assert {one.did for one in excluded} <= {c.did for c in field} - affordable
    assert (choice.did is None) == (not affordable)
    if choice.did is not None:
        assert choice.did in [w.did for w in weighed]
        ranked = weighed[:-1] if choice.is_trial else weighed
        scores = [choice.weigh(one)[0] for one in ranked]
        assert all(one >= other for one, other in pairwise(scores))
        if not choice.is_trial:
            assert choice.did == weighed[0].did


@given(drawn_field())
def test_a_score_is_the_weighed_mean_of_the_parts_shown(field: list[Candidate]) -> None:
    rules = RankingRules(reputation=1, availability=2, price=3, latency=4, success=6)
    choice = choose_agent(field, price_max_micro=12, rules=rules)
    for score, parts in map(choice.weigh, choice.ranked):
        total = sum(getattr(rules, name) * part for name, part in parts.items())
        assert score == pytest.approx(total / 16)
        assert all(0 <= part <= 1 for name, part in parts.items() if name != "availability")


def test_who_is_excluded_is_shown_with_its_reason_after_the_others() -> None:
    field = [
        candidate("ill", excluded="agent_unhealthy"),
        candidate("dear", price_micro=11),
        candidate("taken", standing=PROVEN),
    ]
    choice = choose_agent(field, price_max_micro=10)
    assert choice.did == "taken"
    reasons = [(one.did, why) for one, why in choice.excluded]
    assert reasons == [("ill", "agent_unhealthy"), ("dear", TOO_DEAR)]
    nobody = choose_agent(field[:2], price_max_micro=10)
    assert nobody.did is None
    assert (list(nobody.ranked), nobody.excluded) == ([], choice.excluded)
    many = [candidate(str(n), excluded="agent_offline") for n in range(13)]
    assert choose_agent([*many, field[2]], price_max_micro=10).unshown == 4
    assert choose_agent(many, price_max_micro=10).unshown == 3


def test_reasons_as_json_hold_credits_and_round_numbers() -> None:
    field = [candidate("a", price_micro=50_000), candidate("b", price_micro=90_000)]
    assert choose_agent(field, price_max_micro=50_000).to_json() == {
        "agentDid": "a",
        "isTrial": False,
        "candidates": [
            {
                "agentDid": "a",
                "priceCredits": 0.05,
                "score": 0.775,
                "parts": {
                    "reputation": 0.5, "availability": 1.0, "price": 1.0, "latency": 0.5,
                    "success": 0.5,
                },
            },
            {"agentDid": "b", "priceCredits": 0.09, "excluded": "too_dear"},
        ],
        "unshown": 0,
    }  # fmt: skip


@given(drawn_field(), st.integers(0, 12), st.none() | st.integers(0, 2**64 - 1))
def test_reasons_are_the_same_after_they_were_stored_as_figures(
    field: list[Candidate], price_max: int, seed: int | None
) -> None:
    rules = RankingRules(reputation=1, availability=2, price=3, latency=4, success=6)
    choice = choose_agent(field, price_max_micro=price_max, rules=rules, seed=seed)
    shown = json.dumps(choice.to_json(), separators=(",", ":"))
    assert json.loads(render_reasons(choice.to_text())) == json.loads(shown)


def test_reasons_that_were_stored_as_they_are_shown_stay_so() -> None:
    """Rows of older versions, and of auctions."""
    stored = '{"agentDid":"did:dump:worker","isTrial":false,"candidates":[],"unshown":0}'
    assert render_reasons(stored) == stored


# -- trials ---------------------------------------------------------------------------------------


def trials(count: int, *field: Candidate, **options: Any) -> list[Choice]:
    """Return the choices of so many attempts."""
    return [
        choose_agent(field, price_max_micro=10, seed=trial_seed(f"w{number}", "n", 1), **options)
        for number in range(count)
    ]


def test_new_agents_get_their_share_of_the_choices_and_each_its_part() -> None:
    proven = candidate("proven", standing=PROVEN)
    found = trials(4_000, proven, candidate("new1", order=1), candidate("new2", order=2))
    counts = {did: sum(c.did == did for c in found) for did in ("new1", "new2")}
    assert 160 <= counts["new1"] <= 240
    assert 160 <= counts["new2"] <= 240
    assert all(c.is_trial == (c.did != "proven") for c in found)


def test_a_share_of_nothing_makes_no_trials_and_one_of_all_makes_only_trials() -> None:
    field = (candidate("proven", standing=PROVEN), candidate("new"))
    assert {c.did for c in trials(50, *field, rules=RankingRules(trial_share_bps=0))} == {"proven"}
    assert {c.did for c in trials(50, *field, rules=RankingRules(trial_share_bps=10_000))} == {
        "new"
    }
    assert chosen(*field) == "proven"


def test_an_agent_is_new_until_it_has_its_tasks() -> None:
    rules = RankingRules(trial_tasks=3, trial_share_bps=10_000)
    proven = candidate("proven", standing=PROVEN)
    for total, did in ((2, "tried"), (3, "proven")):
        tried = candidate("tried", standing=WORSE._replace(total=total))
        assert chosen(proven, tried, rules=rules, seed=0) == did


def test_trials_go_only_to_new_agents_with_room_and_never_above_the_price() -> None:
    rules = RankingRules(trial_share_bps=10_000)
    proven = candidate("proven", standing=PROVEN, in_flight=9)
    for barred in ({"in_flight": 10}, {"load": 1.0}, {"price_micro": 11}, {"excluded": "x"}):
        assert chosen(proven, candidate("new", **barred), rules=rules, seed=0) == "proven"
    assert chosen(proven, candidate("new", in_flight=9, load=0.9), rules=rules, seed=0) == "new"


def test_a_trial_is_shown_even_when_ten_are_better() -> None:
    field = [candidate(str(n), standing=PROVEN, order=n) for n in range(11)]
    choice = choose_agent(
        [*field, candidate("new", in_flight=5)],
        price_max_micro=10,
        rules=RankingRules(trial_share_bps=10_000),
        seed=0,
    )
    assert choice.is_trial
    assert [one.did for one in choice.ranked] == [*map(str, range(9)), "new"]


def test_a_seed_belongs_to_one_attempt() -> None:
    seeds = {
        trial_seed(*key) for key in [("w", "n", 1), ("w", "n", 2), ("w", "m", 1), ("v", "n", 1)]
    }
    assert len(seeds) == 4
    assert trial_seed("w", "n", 1) == 13_459_471_973_419_446_532


def test_standing_is_what_the_tally_says() -> None:
    assert build_standing(Tally(), latency_ms_max=100) == UNPROVEN
    assert build_standing(Tally(3, 1, 0, 75), latency_ms_max=100) == Standing(0.8, 0.75, 0.75, 4)
