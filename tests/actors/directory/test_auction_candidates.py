"""Who takes part in an auction as its owner sees it, before any price is formed.

Spec: Settlement rules 7; money.md (Auctions, Stakes).
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
from core.market.reputation import score
from core.workflow.actions import SelectBidder
from core.workflow.events import AgentNotSelected, AgentSelected, AuctionClosed
from tests.actors.directory.test_agent_directory import CAPABILITY, KEYS, paid, row
from tests.costs import line_steps

A, B, C = "did:x:a", "did:x:b", "did:x:c"
CLOSES = 1_000
RESERVE = 1_000_000


def bidder(did: str, bid: Any = None, **more: Any) -> dict[str, Any]:
    """Return an agent's row with a standing bid in credits."""
    capability: dict[str, Any] = {"id": CAPABILITY}
    if bid is not None:
        capability["standingBid"] = {"bidAmount": bid}
    more.setdefault("owner", f"{did}:owner")
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
    payer_did = fields.pop("payer_did", "")
    action = SelectBidder("n", CAPABILITY, 1, RESERVE, 1_000, CLOSES, live, **fields)
    answer = known.select_bidder(action, CLOSES, payer_did=payer_did)
    assert answer.closed is not None
    won = None
    if isinstance(answer, AgentSelected):
        won = (answer.agent_did, answer.price_micro)
    return won, dict(answer.closed.excluded)


def test_who_promises_its_result_after_the_timeout_does_not_bid() -> None:
    """A bid's promise comes before the card's; ten seconds by default exclude nobody."""
    slow = {"price_cents": 1, "etaMs": 60_000}
    rows = [
        row(
            A,
            card={"capabilities": [{"id": CAPABILITY, "standingBid": {"bidAmount": 0.1}, **slow}]},
        ),
        row(C, card={"capabilities": [{"id": CAPABILITY, **slow}]}),
        bidder(B, 0.5),
    ]
    known = directory(*rows)
    in_time, late = replace(live(C, 200_000), eta_ms=400), replace(live(B, 300_000), eta_ms=501)
    won, excluded = award(known, in_time, timeout_ms=500)
    assert (won, excluded) == ((C, 500_000), {A: "too_slow"})
    won, excluded = award(known, late, timeout_ms=500)
    assert (won, excluded) == (None, {A: "too_slow", B: "too_slow"})
    assert award(known, late, timeout_ms=60_000)[0] == (A, 300_000)


def live(did: str, micro: int, *, received_ms: int = 1, stake_micro: int | None = None) -> Bid:
    return Bid(did, micro, None, stake_micro, received_ms)


def test_case_24_who_is_excluded_does_not_set_the_price() -> None:
    known = directory(bidder(A, 0.3), bidder(B, 0.5), bidder(C, 0.1))
    known.put([bidder(C, 0.1, status="inactive")])
    late, gone = live(B, 200_000, received_ms=CLOSES), live(C, 100_000)
    won, excluded = award(known, late, gone)
    assert won == (A, 300_000)  # alone: its own bid
    assert excluded == {B: "late", C: "agent_inactive"}


def test_locked_stake_counts_only_where_there_is_no_other() -> None:
    known = directory(bidder(A, 0.3), bidder(B, 0.5))
    known.stakes.apply_parts({A: (0, RESERVE)})
    assert award(known) == ((B, 500_000), {A: "under_staked"})
    known.stakes.apply_parts({B: (0, 0)})
    assert award(known) == ((A, 300_000), {B: "under_staked"})


def test_case_25_who_has_failed_before_and_who_bids_above_the_reserve_are_left_out() -> None:
    known = directory(bidder(A, 0.1), bidder(B, 0.5), bidder(C, 1.5))
    won, excluded = award(known, exclude=(A,))
    assert won == (B, 500_000)
    assert excluded == {A: "failed_before", C: "above_reserve"}


def test_the_stake_asked_is_that_of_the_bid_and_the_reasons_name_the_lowest() -> None:
    known = directory(bidder(A, 0.1), bidder(B, 0.5), bidder(C, 2))
    bids = (live(B, 500_000),)
    action = SelectBidder("n", CAPABILITY, 2, RESERVE, 1_000, CLOSES, bids)
    answer = known.select_bidder(action, CLOSES)
    assert isinstance(answer, AgentSelected)
    assert answer.stake_micro == 100_000 // 10
    assert answer.selection_json is not None
    assert json.loads(answer.selection_json) == {
        "agentDid": A,
        "auctionRound": 2,
        "priceCredits": 0.5,
        "bids": [{"agentDid": B, "bidAmount": 0.5}],
        "unshown": 2,
    }


def test_f8_no_winner_is_told_without_amounts_or_stakes_of_standing_bids() -> None:
    known = directory(bidder(A, 1.5), bidder(B, 0.5), bidder(C, 0.5))
    known.stakes.apply_parts({B: (0, 0)})
    known.put([bidder(C, 0.5, status="inactive")])
    action = SelectBidder("n", CAPABILITY, 1, RESERVE, 1_000, CLOSES, (live(C, 400_000),))
    answer = known.select_bidder(action, CLOSES)
    assert isinstance(answer, AgentNotSelected)
    told = "of 3 bids 1 deregistered a moment ago, 2 not eligible"
    assert answer.failure.message == f"no bid is eligible: {told}"


def test_rule_7_the_payers_own_agents_neither_win_nor_set_the_price() -> None:
    known = directory(
        bidder(A, 0.1, owner="payer"), bidder(B, 0.5), bidder(C, 0.2, owner="payers owner")
    )
    known.put([bidder("payer", owner="payers owner")])
    action = SelectBidder("n", CAPABILITY, 1, RESERVE, 1_000, CLOSES, (live(A, 510_000),))
    answer = known.select_bidder(action, CLOSES, payer_did="payer")
    assert isinstance(answer, AgentSelected)
    assert (answer.agent_did, answer.price_micro) == (B, 500_000)
    assert answer.closed is not None
    assert dict(answer.closed.excluded) == {A: "payers_own", C: "payers_own"}


def test_rule_7_of_an_owner_only_the_best_bid_counts() -> None:
    known = directory(bidder(A, 0.1, owner="x"), bidder(B, 1, owner="x"))
    assert award(known) == ((A, 100_000), {B: "same_owner"})
    assert award(known, live(B, 50_000)) == ((B, 50_000), {A: "same_owner"})


def test_an_owner_whose_agent_has_failed_comes_after_all_others() -> None:
    """Three agents of one owner that win and decline do not use up the node's moves."""
    rows = [bidder(f"did:x:{number}", 0.1, owner="x") for number in range(3)]
    known = directory(*rows, bidder(A, 0.8), bidder(B, 0.9))
    tried = {"did:x:1": "same_owner", "did:x:2": "same_owner"}
    assert award(known, exclude=("did:x:0",)) == (
        (A, 900_000), {"did:x:0": "failed_before", **tried},
    )  # fmt: skip
    assert award(known, exclude=("did:x:0", A, B))[0] == ("did:x:1", 100_000)


def test_no_standing_bid_comes_to_the_bids_of_an_earlier_round() -> None:
    """Who has read what was bid may have changed its card."""
    known = directory(bidder(A, 0.1), bidder(B, 0.2))
    earlier = (replace(live(B, 500_000), is_standing=True), live(C, 700_000))
    known.put([bidder(C)])
    known.stakes.apply_parts({C: (RESERVE, 0)})
    assert award(known, *earlier, is_frozen=True) == ((B, 700_000), {})


def test_what_a_live_bid_has_locked_counts_for_it() -> None:
    known = directory(bidder(A, 0.9), bidder(B, 0.8))
    known.stakes.apply_parts({A: (0, 100_000), B: (0, 0)})
    bids = replace(live(A, 500_000), stake_locked_micro=50_000)
    assert award(known, bids) == ((A, 500_000), {B: "under_staked"})


@pytest.mark.parametrize("owners", [1, 3])
def test_ten_thousand_low_bids_of_few_owners_do_not_hide_another_owners(owners: int) -> None:
    crowded = [
        bidder(f"did:x:crowd{number}", 0.1, owner=f"x{number % owners}") for number in range(10_000)
    ]
    known = directory(*crowded, bidder(A, 0.8), bidder(B, 0.9))
    won, _ = award(known)
    assert won is not None
    assert won[1] == (800_000 if owners == 1 else 100_000)
    assert award(known, payer_did="x0")[0][1] == (900_000 if owners == 1 else 100_000)
    assert line_steps(lambda: award(known)) < 2_000


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
        did: paid(successful=random.randrange(5), failed=random.randrange(5)) for did in dids
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

    def _rank_bidders(self, key: tuple[str, int], at_ms: int) -> Any:
        self.ranked += 1
        return super()._rank_bidders(key, at_ms)


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
    assert line_steps(lambda: award(known)) < 2_000


def test_who_accepts_the_payers_verifiers_is_looked_up_once_for_all_bids() -> None:
    """It was for each bid: 512 looks at verifiers for each of 1,024 bids."""
    card = {"capabilities": [{"id": "cap.judge.v1"}]}
    judges = [row(f"did:x:judge{number}", card=card, owner="j") for number in range(600)]
    rows = crowd(200)
    known = directory(*rows, *judges)
    bids = tuple(live(one["did"], place) for place, one in enumerate(rows))
    action = SelectBidder(
        "n", CAPABILITY, 1, RESERVE, 1_000, CLOSES, bids, verifier_capability_id="cap.judge.v1"
    )
    assert line_steps(lambda: known.select_bidder(action, CLOSES)) < 60_000


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
