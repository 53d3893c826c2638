"""Shortlists: a choice among many agents looks at few, and misses none that it needs."""

from __future__ import annotations

from collections import Counter

from actors.directory.shortlists import ALL_MAX, KEPT_MS_PER_OFFER, LENGTH, NEW_MAX, Shortlists
from actors.ports import AgentEntry
from core.market.agent_liveness import Liveness
from core.market.ranking import DEFAULT_RULES, Candidate, Standing
from core.market.reputation import Tally
from core.workflow.actions import SelectVerifier
from core.workflow.events import AgentNotSelected, AgentSelected, VerifierSelected
from tests.actors.directory.test_agent_directory import CAPABILITY, directory, row, select

PROVEN = Standing(0.9, 0.9, 1.0, 50)


class Offers:
    """So many agents of one capability, and how often one was weighed."""

    def __init__(self, count: int) -> None:
        known = directory(*(row(f"did:x:a{number}") for number in range(count)))
        self.entries: dict[str, AgentEntry] = {
            did: one
            for did in (f"did:x:a{number}" for number in range(count))
            if (one := known.entry(did)) is not None
        }
        self.candidates: dict[str, Candidate] = {}
        self.weighed: Counter[str] = Counter()
        self.shortlists = Shortlists(DEFAULT_RULES)

    def weigh(self, entry: AgentEntry) -> Candidate:
        self.weighed[entry.did] += 1
        usual = Candidate(entry.did, 10_000, 0, 32, entry.order, standing=PROVEN)
        return self.candidates.get(entry.did, usual)

    def looked_at(self, at_ms: int = 0) -> list[str]:
        """Return the agents that a choice looks at."""
        key = (CAPABILITY, False)
        found = self.shortlists.offers(key, self.entries, self.weigh, at_ms)
        return [entry.did for entry in found]


def test_a_thousand_choices_weigh_a_thousand_offers_once() -> None:
    """One workflow of a thousand nodes held its owner for as many passes over all of them."""
    offers = Offers(1_000)
    for _ in range(1_000):
        assert len(offers.looked_at()) == LENGTH
    assert set(offers.weighed.values()) == {1}


def test_few_offers_are_all_looked_at_and_not_weighed_before() -> None:
    offers = Offers(ALL_MAX)
    assert len(offers.looked_at()) == ALL_MAX
    assert not offers.weighed


def test_a_shortlist_is_made_anew_after_a_time_that_grows_with_the_offers() -> None:
    offers = Offers(2_000)
    offers.looked_at(1_000)
    offers.looked_at(1_000 + int(KEPT_MS_PER_OFFER * 2_000) - 1)
    assert set(offers.weighed.values()) == {1}
    offers.looked_at(1_000 + int(KEPT_MS_PER_OFFER * 2_000))
    assert set(offers.weighed.values()) == {2}
    offers.looked_at(0)
    assert set(offers.weighed.values()) == {3}, "a clock that was set back keeps nothing for ever"


def test_it_holds_the_best_the_cheapest_and_some_new_ones() -> None:
    offers = Offers(500)
    for number in range(100, 500):
        did = f"did:x:a{number}"
        standing = Standing() if number < 300 else PROVEN._replace(score=0.1)
        offers.candidates[did] = Candidate(did, 10_000, 0, 32, number, standing=standing)
    best = offers.candidates["did:x:a400"] = Candidate(
        "did:x:a400", 10_000, 0, 32, 400, standing=Standing(1.0, 1.0, 1.0, 99)
    )
    cheap = offers.candidates["did:x:a450"] = Candidate(
        "did:x:a450", 100, 40, 32, 450, standing=PROVEN._replace(score=0.0, total=99)
    )
    found = offers.looked_at()
    assert len(found) == LENGTH
    assert {best.did, cheap.did} <= set(found)
    new = [did for did in found if 100 <= int(did.removeprefix("did:x:a")) < 300]
    assert len(new) >= NEW_MAX


def test_each_new_agent_comes_in_its_turn() -> None:
    offers = Offers(300)
    for did in offers.entries:
        if int(did.removeprefix("did:x:a")) >= 100:
            offers.candidates[did] = Candidate(did, 10_000, 0, 32, 1)
    seen: set[str] = set()
    for turn in range(400):
        seen |= set(offers.looked_at(turn * 1_001))
    assert {did for did in offers.candidates if did in seen} == set(offers.candidates)


def test_agents_that_are_away_do_not_hide_the_others() -> None:
    known = directory(*(row(f"did:x:a{number}") for number in range(1_000)))
    known.apply_liveness(
        {f"did:x:a{number}": Liveness("unhealthy", heartbeat_ms=0) for number in range(999)}
    )
    found = known.select(select(), 1)
    assert isinstance(found, AgentSelected)
    assert found.agent_did == "did:x:a999"


def test_load_counts_at_each_choice() -> None:
    known = directory(*(row(f"did:x:a{number}") for number in range(100)))
    taken: set[str] = set()
    for _ in range(LENGTH - 5):
        found = known.select(select(), 0)
        assert isinstance(found, AgentSelected)
        known.begin(found.agent_did)
        taken.add(found.agent_did)
    assert len(taken) == LENGTH - 5


def test_one_owners_best_agents_leave_room_for_a_verifier_of_another() -> None:
    mine = [row(f"did:x:a{number}", owner="did:x:me") for number in range(200)]
    other = row("did:x:other", owner="did:x:you")
    known = directory(*mine, other)
    good = Tally(successful=50, latency_ms_sum=50)
    known.apply_tallies({one["did"]: good for one in mine})
    known.apply_tallies({"did:x:other": Tally(successful=20, failed=2, latency_ms_sum=20)})
    action = SelectVerifier("n", CAPABILITY, "did:x:a0", (), 10**9)
    found = known.select_verifier(action, 0)
    assert isinstance(found, VerifierSelected)
    assert found.agent_did == "did:x:other"


def test_when_none_is_able_it_says_how_many_offer_it() -> None:
    known = directory(*(row(f"did:x:a{number}") for number in range(100)))
    known.apply_liveness(
        {f"did:x:a{number}": Liveness("unhealthy", heartbeat_ms=0) for number in range(100)}
    )
    found = known.select(select(), 1)
    assert isinstance(found, AgentNotSelected)
    assert "100 offer it" in found.failure.message
