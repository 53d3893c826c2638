"""Who takes part in an auction as its owner sees it, before any price is formed.

Spec: Settlement rules 7; money.md cases 20 to 26.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from actors.directory.auction_candidates import LISTED_MAX, AuctioningDirectory
from actors.directory.standing_bidders import WEIGHED_MAX
from actors.ports import Contact
from core.errors import NodeErrorCode
from core.market.agent_liveness import Liveness
from core.market.auction import AuctionTerms, Bid, award_auction, find_exclusion, merge_bids
from core.market.reputation import Tally, score
from core.workflow.actions import SelectBidder
from core.workflow.events import AgentNotSelected, AgentSelected, AuctionClosed
from tests.actors.directory.test_agent_directory import CAPABILITY, KEYS, row
from tests.core.market.test_ranked_candidates import count_lines

A, B, C = "did:x:a", "did:x:b", "did:x:c"
CLOSES = 1_000
RESERVE = 1_000_000


def bidder(did: str, bid: Any = None, **more: Any) -> dict[str, Any]:
    """Return an agent's row with a standing bid in credits."""
    capability: dict[str, Any] = {"id": CAPABILITY}
    if bid is not None:
        capability["standingBid"] = {"bidAmount": bid}
    return row(did, card={"capabilities": [capability]}, **more)


def directory(
    *rows: dict[str, Any],
    score_min_percent: int = 0,
    kind: type[AuctioningDirectory] = AuctioningDirectory,
) -> AuctioningDirectory:
    """Return a directory whose agents have all staked enough."""
    made = kind(
        service="callboard",
        deployment_keys=KEYS,
        default_secret=None,
        max_concurrency=32,
        score_min_percent=score_min_percent,
    )
    made.put(rows)
    made.stakes.apply_parts({one["did"]: (RESERVE, 0) for one in rows})
    return made


def award(known: AuctioningDirectory, *live: Bid, **fields: Any) -> tuple[Any, dict[str, str]]:
    """Award a round; return the winner with its price, None for none, and who was excluded."""
    action = SelectBidder("n", CAPABILITY, 1, RESERVE, 1_000, CLOSES, live, **fields)
    answer = known.select_bidder(action, CLOSES)
    assert answer.closed is not None
    won = None
    if isinstance(answer, AgentSelected):
        won = (answer.agent_did, answer.price_micro)
    return won, dict(answer.closed.excluded)


def live(did: str, micro: int, *, received_ms: int = 1, stake_micro: int | None = None) -> Bid:
    return Bid(did, micro, None, stake_micro, received_ms)


def test_a_live_bid_replaces_the_standing_one_of_its_agent() -> None:
    known = directory(bidder(A, 0.1), bidder(B, 0.5))
    assert award(known)[0] == (A, 500_000)
    assert award(known, live(A, 600_000))[0] == (B, 600_000)


def test_case_24_who_is_excluded_does_not_set_the_price() -> None:
    known = directory(bidder(A, 0.3), bidder(B, 0.5), bidder(C, 0.1))
    known.put([bidder(C, 0.1, status="inactive")])
    late, gone = live(B, 200_000, received_ms=CLOSES), live(C, 100_000)
    won, excluded = award(known, late, gone)
    assert won == (A, 300_000)  # alone: its own bid
    assert excluded == {B: "late", C: "agent_inactive"}


def test_case_24_under_staked_bids_are_excluded_whatever_they_bid() -> None:
    known = directory(bidder(A, 0.3), bidder(B, 0.5), bidder(C, 0.7))
    known.stakes.apply_parts({B: (RESERVE // 10 - 1, 0)})
    won, excluded = award(known, live(C, 400_000, stake_micro=1))
    assert won == (A, 300_000)
    assert excluded == {B: "under_staked", C: "under_staked"}


def test_locked_stake_counts_only_where_there_is_no_other() -> None:
    known = directory(bidder(A, 0.3), bidder(B, 0.5))
    known.stakes.apply_parts({A: (0, RESERVE)})
    assert award(known) == ((B, 500_000), {A: "under_staked"})
    known.stakes.apply_parts({B: (0, 0)})
    assert award(known) == ((A, 300_000), {B: "under_staked"})


def test_a_floor_of_reputation_excludes_and_the_worse_pay_more_stake() -> None:
    known = directory(bidder(A, 0.3), bidder(B, 0.5), score_min_percent=30)
    known.standings.apply_tallies({A: Tally(failed=5)})
    assert award(known) == ((B, 500_000), {A: "low_reputation"})


def test_case_21_of_equal_bids_the_better_known_wins_at_that_bid() -> None:
    known = directory(bidder(A, 0.3), bidder(B, 0.3))
    known.standings.apply_tallies({B: Tally(successful=5, latency_ms_sum=50)})
    assert award(known)[0] == (B, 300_000)


def test_case_25_who_has_failed_before_and_who_bids_above_the_reserve_are_left_out() -> None:
    known = directory(bidder(A, 0.1), bidder(B, 0.5), bidder(C, 1.5))
    won, excluded = award(known, exclude=(A,))
    assert won == (B, 500_000)
    assert excluded == {A: "failed_before", C: "above_reserve"}


def test_the_stake_asked_is_that_of_the_reserve_and_the_reasons_name_the_lowest() -> None:
    known = directory(bidder(A, 0.1), bidder(B, 0.5))
    answer = known.select_bidder(SelectBidder("n", CAPABILITY, 2, RESERVE, 1_000, CLOSES), CLOSES)
    assert isinstance(answer, AgentSelected)
    assert answer.stake_micro == RESERVE // 10
    assert answer.selection_json is not None
    assert json.loads(answer.selection_json) == {
        "agentDid": A,
        "auctionRound": 2,
        "priceCredits": 0.5,
        "bids": [{"agentDid": A, "bidAmount": 0.1}, {"agentDid": B, "bidAmount": 0.5}],
        "unshown": 0,
    }


def test_a_holder_goes_on_at_its_price_unless_it_is_away() -> None:
    known = directory(bidder(A, 0.1))
    fields: dict[str, Any] = {"holder_did": A, "holder_price_micro": 7}
    action = SelectBidder("n", CAPABILITY, 1, RESERVE, 1_000, CLOSES, **fields)
    answer = known.select_bidder(action, CLOSES)
    assert isinstance(answer, AgentSelected)
    assert (answer.price_micro, answer.closed) == (7, None)
    known.put([bidder(A, 0.1, status="inactive")])
    refused = known.select_bidder(action, CLOSES)
    assert isinstance(refused, AgentNotSelected)
    assert refused.failure.code is NodeErrorCode.AGENT_UNAVAILABLE
    assert refused.failure.details == "agent_inactive"


def crowd(count: int, credits: float = 0.9) -> list[dict[str, Any]]:
    """Return the rows of so many agents with the same standing bid."""
    return [bidder(f"did:x:crowd{number}", credits) for number in range(count)]


def closed_of(known: AuctioningDirectory, *live: Bid, at_ms: int = CLOSES) -> AuctionClosed:
    """Return the record of an awarded round."""
    action = SelectBidder("n", CAPABILITY, 1, RESERVE, 1_000, CLOSES, live)
    closed = known.select_bidder(action, at_ms).closed
    assert closed is not None
    return closed


def test_a_round_among_a_thousand_standing_bids_lists_only_the_lowest() -> None:
    """Every standing bid was a row, and all of them one audit entry of the writer's."""
    known = directory(*crowd(1_000), bidder(A, 0.3), bidder(B, 0.5))
    closed = closed_of(known)
    assert (closed.winner_did, closed.price_micro) == (A, 500_000)
    assert [bid.agent_did for bid in closed.bids[:2]] == [A, B]
    assert (len(closed.bids), closed.unlisted) == (WEIGHED_MAX, 1_002 - WEIGHED_MAX)


def test_live_bids_of_a_thousand_agents_are_all_weighed_and_the_lowest_listed() -> None:
    rows = crowd(1_000)
    known = directory(*rows)
    bids = [live(one["did"], 1_000 - place) for place, one in enumerate(rows)]
    closed = closed_of(known, *bids)
    assert (closed.winner_did, closed.price_micro) == (rows[-1]["did"], 2)
    assert (len(closed.bids), closed.unlisted) == (LISTED_MAX, 1_000 - LISTED_MAX)
    # A live bid stands for its agent: the standing one is none besides.
    assert not any(bid.is_standing for bid in closed.bids)


def test_a_crowd_that_cannot_take_part_does_not_hide_who_can() -> None:
    known = directory(*crowd(200, 0.1), bidder(A, 0.8), bidder(B, 0.9))
    known.stakes.apply_parts({f"did:x:crowd{number}": (1, 0) for number in range(200)})
    assert award(known) == ((A, 900_000), {})


@pytest.mark.parametrize("seed", range(20))
def test_who_is_not_weighed_changes_neither_winner_nor_price(seed: int) -> None:
    """Compared with the award over every bid, with stakes, scores, equal bids and failed agents."""
    random = Random(seed)
    dids = [f"did:x:a{number}" for number in range(60)]
    micros = {did: random.randrange(1, 12) * 100_000 for did in dids}
    known = directory(*(bidder(did, micros[did] / 10**6) for did in dids), score_min_percent=20)
    stakes = {}
    for did in dids:
        free, locked = random.choice([(RESERVE, 0), (0, RESERVE), (random.randrange(RESERVE), 0)])
        stakes[did] = (free, free + locked)
        known.stakes.apply_parts({did: (free, locked)})
    tallies = {
        did: Tally(successful=random.randrange(5), failed=random.randrange(5)) for did in dids
    }
    known.standings.apply_tallies(tallies)
    failed = tuple(random.sample(dids, 5))
    bids = [live(did, random.randrange(RESERVE)) for did in random.sample(dids, 2)]
    scores = {did: score(tally, latency_ms_max=60_000) for did, tally in tallies.items()}
    standing = [Bid(did, micros[did], None, None, 0, is_standing=True) for did in dids]
    every = [replace(one, reputation=scores[one.agent_did]) for one in merge_bids(standing, bids)]
    terms = AuctionTerms(RESERVE, CLOSES, 1_000, 0.2)
    expected = None
    for part in (0, 1):
        eligible = [
            one
            for one in every
            if one.agent_did not in failed
            and not find_exclusion(
                one, terms, stake_free_micro=stakes[one.agent_did][part], is_revoked=False
            )
        ]
        expected = expected or award_auction(eligible, reserve_micro=RESERVE)
    won = award(known, *bids, exclude=failed)[0]
    assert expected is not None
    assert won == (expected.agent_did, expected.price_micro)


class CountingDirectory(AuctioningDirectory):
    """Counts how often the bidders of a capability are ranked."""

    ranked = 0

    def _rank_bidders(self, capability_id: str, at_ms: int) -> Any:
        self.ranked += 1
        return super()._rank_bidders(capability_id, at_ms)


def test_a_thousand_rounds_rank_the_bidders_once_and_anew_when_many_have_left() -> None:
    known = directory(*crowd(100, 0.1), bidder(A, 0.8), bidder(B, 0.9), kind=CountingDirectory)
    assert isinstance(known, CountingDirectory)
    for _ in range(1_000):
        assert closed_of(known, at_ms=CLOSES - 1).winner_did == "did:x:crowd0"
    assert known.ranked == 1
    gone = Liveness(probe_ms=CLOSES, is_probe_ok=False)
    known.apply_liveness({f"did:x:crowd{number}": gone for number in range(100)})
    for _ in range(1_000):
        closed = closed_of(known)
        assert (closed.winner_did, closed.price_micro) == (A, 900_000)
    assert known.ranked == 2


def test_a_round_does_not_go_through_thousands_whose_stake_is_too_small() -> None:
    known = directory(*crowd(4_000, 0.1), bidder(A, 0.8), bidder(B, 0.9))
    known.stakes.apply_parts({f"did:x:crowd{number}": (1, 1) for number in range(4_000)})
    assert award(known) == ((A, 900_000), {})
    assert count_lines(lambda: award(known)) < 2_000


def test_circuits_of_one_payers_own_do_not_rank_the_bidders_for_each_round() -> None:
    """Each round of such a payer ranked all bidders anew: 50 ms among 10,000."""
    shut = 3 * WEIGHED_MAX
    known = directory(*crowd(shut, 0.1), bidder(A, 0.8), bidder(B, 0.9), kind=CountingDirectory)
    assert isinstance(known, CountingDirectory)
    for number in range(shut):
        for _ in range(3):
            known.begin(f"did:x:crowd{number}")
            known.note_outcome(
                f"did:x:crowd{number}", Contact.UNANSWERED, CLOSES, payer_did="hasty"
            )
    action = SelectBidder("n", CAPABILITY, 1, RESERVE, 1_000, CLOSES)
    for at_ms in range(CLOSES, CLOSES + 40):
        found = known.select_bidder(action, at_ms, payer_did="hasty")
        assert isinstance(found, AgentSelected)
        assert (found.agent_did, found.price_micro) == (A, 900_000)
    assert known.ranked == 1
    others = known.select_bidder(action, CLOSES + 41, payer_did="patient")
    assert isinstance(others, AgentSelected)
    assert others.agent_did == "did:x:crowd0"
