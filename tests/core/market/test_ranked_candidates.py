"""The kept order of candidates: its choice is that of weighing all of them, at a bounded cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.market import ranked_candidates
from core.market.ranked_candidates import POOL_MAX, Node, RankedCandidates
from core.market.ranking import DEFAULT_RULES, Candidate, RankingRules, Standing
from tests.core.market.full_weighing import weigh_all
from tests.costs import line_steps

RULES = RankingRules(trial_tasks=3, trial_share_bps=5_000)
PROVEN = Standing(0.9, 0.9, 0.9, 1_000)


def drawn(random: Random, number: int, *, price_micro: int | None = None) -> Candidate:
    """Return a candidate as it may be at some time."""
    share = [random.randint(0, 4) / 4 for _ in range(3)]
    return Candidate(
        f"did:{number}",
        random.randint(0, 6) if price_micro is None else price_micro,
        random.randint(0, 4),
        random.randint(1, 3),
        number,
        random.choice((0.0, 0.0, 0.5, 1.0)),
        Standing(share[0], share[1], share[2], random.randint(0, 5)),
        None,
        random.random() < 0.8,
        f"owner:{random.randint(0, 2)}",
        random.choice((math.inf, 0, 1, 3, 5)),
    )


def agree(
    kept: RankedCandidates, known: dict[str, Candidate], node: Node, seed: int | None = None
) -> bool:
    """Say whether the choice is that of weighing all."""
    found = kept.choose(node, seed)
    field = [
        one
        for one in known.values()
        if one.did not in node.refused and one.owner_did not in node.owners
    ]
    expected = weigh_all(field, price_max_micro=node.price_max_micro, rules=RULES, seed=seed)
    if found is None:
        return not expected.ranked
    return found == (expected.ranked, expected.cheapest_micro, expected.is_trial)


def change(
    kept: RankedCandidates, known: dict[str, Candidate], number: int, random: Random, drops: float
) -> None:
    """Drop a candidate, by that chance, or put another in its place."""
    did = f"did:{number}"
    if random.random() < drops:
        kept.drop(did)
        known.pop(did, None)
    else:
        known[did] = drawn(random, number)
        kept.put(known[did])


@given(st.integers(0, 2**32), st.integers(1, POOL_MAX))
def test_up_to_a_pool_every_choice_is_that_of_weighing_all(seed: int, count: int) -> None:
    random = Random(seed)
    known: dict[str, Candidate] = {}
    for number in range(count):
        known[f"did:{number}"] = drawn(random, number)
    kept = RankedCandidates(RULES, list(known.values()))
    for _ in range(30):
        number = random.randrange(count)
        change(kept, known, number, random, 0.2)
        barred = set(random.sample(sorted(known), min(len(known), random.choice((0, 0, 1, 5)))))
        lot = random.choice((None, random.getrandbits(64)))
        owners = random.choice(((), (), ("owner:0",), ("owner:1", "owner:2"), ("owner:9",)))
        limit = random.randint(0, 7)
        assert agree(kept, known, Node(limit, limit, barred, owners), lot)
        assert list(kept) == sorted(known.values(), key=list(kept).index)


def test_a_new_cheapest_of_very_many_is_followed_when_that_pays() -> None:
    """Goal: a price that goes up and down does not have all candidates ranked for each choice."""
    random = Random(7)
    count = 10 * POOL_MAX
    known = {
        f"did:{number}": drawn(random, number, price_micro=random.randint(50, 99))
        for number in range(count)
    }
    kept = RankedCandidates(RULES, list(known.values()))
    known["did:0"] = known["did:0"]._replace(price_micro=1, is_bounded=True)
    kept.put(known["did:0"])
    node = Node(1_000, 1_000)
    for _ in range(count // POOL_MAX):
        assert kept.choose(node) is not None
    assert agree(kept, known, node)
    places = dict(kept._places)
    known["did:0"] = known["did:0"]._replace(price_micro=99)
    kept.put(known["did:0"])
    for _ in range(count // POOL_MAX - 1):
        found = kept.choose(node)
        assert found is not None
        assert found.cheapest_micro == min(one.price_micro for one in known.values())
    assert sum(kept._places[did] is not place for did, place in places.items()) == 1


def test_each_new_one_of_very_many_gets_its_trials() -> None:
    kept = RankedCandidates(
        RankingRules(trial_share_bps=10_000),
        [Candidate(f"did:{number}", 1, 0, 1, number, 0.0, PROVEN) for number in range(200)]
        + [Candidate(f"new:{number}", 1, 0, 1, 200 + number) for number in range(100)],
    )
    tried = set()
    for lot in range(100):
        found = kept.choose(Node(9, 9), lot * 10_000)
        assert found is not None
        assert found.is_trial
        tried.add(found.did)
    assert len(tried) == 100
    others = {f"did:{number}" for number in range(200)} - {"did:7"}
    refused = others | {f"new:{number}" for number in range(50)}
    found = kept.choose(Node(9, 9, refused), 0)
    assert found is not None
    assert (found.did, found.is_trial) == ("new:50", True)


# -- the cost of a choice among very many ---------------------------------------------------------


def of_price(number: int, price_micro: int, **more: Any) -> Candidate:
    return Candidate(f"did:{number}", price_micro, 0, 9, number, 0.0, PROVEN)._replace(**more)


COUNT = 10_000
Field = tuple[list[Candidate], Node]


def too_dear(*last: Candidate) -> Field:
    return [*(of_price(number, 9) for number in range(COUNT)), *last], Node(1, 1)


def too_small_a_stake(*last: Candidate) -> Field:
    field = [of_price(number, 9, is_bounded=False, limit_micro_max=9) for number in range(COUNT)]
    return [*field, *last], Node(10, 10)


def dear_ones_first() -> Field:
    worse = Standing(0.0, 0.0, 0.0, 1_000)
    field = [
        of_price(number, 9) if number % 2 else of_price(number, 5, standing=worse)
        for number in range(COUNT)
    ]
    return field, Node(5, 5)


def of_an_owner(owned: int, others: int) -> Field:
    field = [
        of_price(number, 5, owner_did="owner:0" if number < owned else "owner:1")
        for number in range(owned + others)
    ]
    return field, Node(9, 9, owners=("owner:0",))


def shut() -> Field:
    field = [of_price(number, 5) for number in range(COUNT)]
    refused = {f"did:{number}" for number in range(256)}
    return field, Node(9, 9, refused)


# Very many candidates of which a choice may take few, or those at the end of each order.
FIELDS: dict[str, Callable[[], Field]] = {
    "too dear": too_dear,
    "too dear but for the last": lambda: too_dear(of_price(COUNT, 1)),
    "too dear beside one by tokens": lambda: too_dear(of_price(COUNT, 20, is_bounded=False)),
    "too small a stake": too_small_a_stake,
    "too small a stake but for the last": lambda: too_small_a_stake(
        of_price(COUNT, 10, is_bounded=False, limit_micro_max=10)
    ),
    "the better half too dear": dear_ones_first,
    "an owner of a quarter": lambda: of_an_owner(COUNT // 4, COUNT - COUNT // 4),
    "an owner of all but one": lambda: of_an_owner(COUNT, 1),
    "an owner of all": lambda: of_an_owner(COUNT, 0),
    "shut for the payer": shut,
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_choice_among_very_many_has_a_bound_whatever_it_may_not_take(name: str) -> None:
    """One workflow of a thousand nodes held its owner for 5 s, each with a walk over all."""
    candidates, node = FIELDS[name]()
    kept = RankedCandidates(DEFAULT_RULES, candidates)
    known = {one.did: one for one in candidates}
    # What is remembered is made by the first.
    assert agree(kept, known, node)
    assert line_steps(lambda: kept.choose(node, 0)) < COUNT
    failing = node._replace(price_max_micro=1_000)
    assert line_steps(lambda: kept.find_cheapest(failing)) < COUNT
    for number in range(10):
        kept.put(candidates[number]._replace(in_flight=1))
    assert line_steps(lambda: kept.choose(node)) < COUNT


@given(st.integers(0, 2**32))
def test_of_very_many_one_that_may_be_taken_is_found_if_there_is_one(seed: int) -> None:
    """Goal: a pool of a few and few looks, with all restrictions at once, hide no candidate."""
    random = Random(seed)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ranked_candidates, "POOL_MAX", 3)
        patched.setattr(ranked_candidates, "LOOKS_MAX", 4)
        known: dict[str, Candidate] = {}
        for number in range(60):
            known[f"did:{number}"] = drawn(random, number)
        kept = RankedCandidates(RULES, list(known.values()))
        for _ in range(100):
            change(kept, known, random.randrange(90), random, 0.4)
            limit, owners = random.randint(0, 7), random.choice(((), ("owner:0",), ("owner:1",)))
            refused = set(random.sample(sorted(known), 9))
            node = Node(limit, limit, refused, owners)
            open_dids = {
                one.did
                for one in known.values()
                if one.did not in refused
                and one.owner_did not in owners
                and (one.price_micro <= limit if one.is_bounded else one.limit_micro_max >= limit)
            }
            found = kept.choose(node)
            assert ({one.did for one in found.candidates} if found else set()) <= open_dids
            assert (found is None) == (not open_dids)
            lowest = kept.find_cheapest(node)
            assert (lowest is None) == (not open_dids)
