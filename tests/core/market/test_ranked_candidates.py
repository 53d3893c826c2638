"""The kept order of candidates: its choice is that of weighing all of them, at a bounded cost."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from core.market.ranked_candidates import PASSES_MAX, POOL_MAX, RankedCandidates
from core.market.ranking import DEFAULT_RULES, SHOWN_MAX, Candidate, RankingRules, Standing
from tests.core.market.full_weighing import weigh_all

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
        is_bounded=random.random() < 0.8,
    )


def agree(
    kept: RankedCandidates,
    known: dict[str, Candidate],
    limit: int,
    seed: int | None,
    barred: set[str],
) -> bool:
    """Say whether the choice is that of weighing all."""
    admits = (lambda one: one.did not in barred) if barred else None
    found = kept.choose(limit, seed=seed, admits=admits)
    field = [one for one in known.values() if one.did not in barred]
    expected = weigh_all(field, price_max_micro=limit, rules=RULES, seed=seed)
    if found is None:
        return not expected.ranked
    return found == (expected.ranked, expected.cheapest_micro, expected.is_trial)


@given(st.integers(0, 2**32), st.integers(1, POOL_MAX))
def test_up_to_a_pool_every_choice_is_that_of_weighing_all(seed: int, count: int) -> None:
    random = Random(seed)
    kept, known = RankedCandidates(RULES), {}
    for number in range(count):
        known[f"did:{number}"] = drawn(random, number)
    kept.fill(list(known.values()))
    for _ in range(30):
        number = random.randrange(count)
        if random.random() < 0.2:
            kept.drop(f"did:{number}")
            known.pop(f"did:{number}", None)
        else:
            one = known[f"did:{number}"] = drawn(random, number)
            kept.put(one)
        barred = set(random.sample(sorted(known), min(len(known), random.choice((0, 0, 1, 5)))))
        lot = random.choice((None, random.getrandbits(64)))
        assert agree(kept, known, random.randint(0, 7), lot, barred)
        assert list(kept) == sorted(known.values(), key=list(kept).index)


def test_of_very_many_too_while_the_cheapest_is_the_same() -> None:
    random = Random(5)
    kept, known = RankedCandidates(RULES), {"did:0": drawn(random, 0, price_micro=2)}
    for number in range(1, 10 * POOL_MAX):
        known[f"did:{number}"] = drawn(random, number, price_micro=random.randint(2, 9))
    kept.fill(list(known.values()))
    for _ in range(300):
        number = random.randrange(1, len(known))
        one = known[f"did:{number}"] = drawn(random, number, price_micro=random.randint(2, 9))
        kept.put(one)
        barred = {f"did:{random.randrange(1, len(known))}" for _ in range(3)}
        assert agree(kept, known, 9, None, barred)
        assert agree(kept, known, 9, random.getrandbits(64), set())


def test_a_new_cheapest_of_very_many_is_followed_when_that_pays() -> None:
    """Goal: a price that goes up and down does not have all candidates ranked for each choice."""
    random = Random(7)
    count = 10 * POOL_MAX
    known = {
        f"did:{number}": drawn(random, number, price_micro=random.randint(50, 99))
        for number in range(count)
    }
    kept = RankedCandidates(RULES)
    kept.fill(list(known.values()))
    known["did:0"] = known["did:0"]._replace(price_micro=1, is_bounded=True)
    kept.put(known["did:0"])
    for _ in range(count // POOL_MAX):
        assert kept.choose(1_000) is not None
    assert agree(kept, known, 1_000, None, set())
    places = dict(kept._places)
    known["did:0"] = known["did:0"]._replace(price_micro=99)
    kept.put(known["did:0"])
    for _ in range(count // POOL_MAX - 1):
        found = kept.choose(1_000)
        assert found is not None
        assert found.cheapest_micro == min(one.price_micro for one in known.values())
    assert sum(kept._places[did] is not place for did, place in places.items()) == 1


def test_where_the_cheapest_may_not_be_taken_the_next_ones_price_counts() -> None:
    dear = [Candidate(f"did:{number}", 100, 0, 9, number, 0.0, PROVEN) for number in range(100)]
    better = PROVEN._replace(score=1.0, speed=1.0)
    kept = RankedCandidates(DEFAULT_RULES)
    kept.fill(
        [
            *dear,
            Candidate("did:free", 0, 0, 9, 100, 0.0, PROVEN),
            Candidate("did:cheap", 40, 0, 9, 101, 0.0, PROVEN),
            Candidate("did:better", 100, 0, 9, 102, 0.0, better),
        ]
    )
    found = kept.choose(100, admits=lambda one: one.did != "did:free")
    assert found is not None
    assert [one.did for one in found.candidates[:2]] == ["did:cheap", "did:better"]
    assert found.cheapest_micro == 40


class Asked:
    """Admits some, and counts how often it is asked."""

    def __init__(self, *dids: str) -> None:
        self.dids = dids
        self.times = 0

    def __call__(self, one: Candidate) -> bool:
        self.times += 1
        return one.did in self.dids


def crowd(count: int, **last: object) -> RankedCandidates:
    """Return so many equal good candidates, and one that is worse than all of them."""
    kept = RankedCandidates(DEFAULT_RULES)
    worst = Candidate("did:last", 9, 0, 10, count, standing=Standing(0.0, 0.0, 0.0, 50))
    field = [Candidate(f"did:{number}", 5, 0, 1, number, 0.0, PROVEN) for number in range(count)]
    kept.fill([*field, worst._replace(**last)])  # type: ignore[arg-type]
    return kept


def test_the_only_one_within_the_limit_is_found_behind_thousands_that_are_too_dear() -> None:
    found = crowd(10_000, price_micro=3).choose(4)
    assert found is not None
    assert [one.did for one in found.candidates] == ["did:last"]


def test_the_only_one_admitted_is_found_behind_thousands_and_each_is_asked_at_most_twice() -> None:
    kept, admits = crowd(10_000), Asked("did:last")
    found = kept.choose(9, admits=admits)
    assert found is not None
    assert found.did == "did:last"
    assert admits.times <= 2 * 10_001 + PASSES_MAX + POOL_MAX


def test_thousands_that_are_full_come_after_one_with_room() -> None:
    kept = crowd(10_000)
    for one in list(kept):
        if one.did != "did:last":
            kept.put(one._replace(in_flight=3))
    admits = Asked("did:last", *(f"did:{number}" for number in range(10_000)))
    found = kept.choose(9, admits=admits)
    assert found is not None
    assert found.did == "did:last"
    assert admits.times <= SHOWN_MAX + 1


def test_each_new_one_of_very_many_gets_its_trials() -> None:
    kept = RankedCandidates(RankingRules(trial_share_bps=10_000))
    kept.fill(
        [Candidate(f"did:{number}", 1, 0, 1, number, 0.0, PROVEN) for number in range(200)]
        + [Candidate(f"new:{number}", 1, 0, 1, 200 + number) for number in range(100)]
    )
    tried = set()
    for lot in range(100):
        found = kept.choose(9, seed=lot * 10_000)
        assert found is not None
        assert found.is_trial
        tried.add(found.did)
    assert len(tried) == 100
    found = kept.choose(9, seed=0, admits=Asked("did:7", "new:50"))
    assert found is not None
    assert (found.did, found.is_trial) == ("new:50", True)
