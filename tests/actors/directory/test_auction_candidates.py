"""Who takes part in an auction as its owner sees it, before any price is formed.

Spec: Settlement rules 7; money.md cases 20 to 26.
"""

from __future__ import annotations

import json
from typing import Any

from actors.directory.auction_candidates import AuctioningDirectory
from core.errors import NodeErrorCode
from core.market.auction import Bid
from core.market.reputation import Tally
from core.workflow.actions import SelectBidder
from core.workflow.events import AgentNotSelected, AgentSelected
from tests.actors.directory.test_agent_directory import CAPABILITY, KEY, row

A, B, C = "did:x:a", "did:x:b", "did:x:c"
CLOSES = 1_000
RESERVE = 1_000_000


def bidder(did: str, bid: Any = None, **more: Any) -> dict[str, Any]:
    """Return an agent's row with a standing bid in credits."""
    capability: dict[str, Any] = {"id": CAPABILITY}
    if bid is not None:
        capability["standingBid"] = {"bidAmount": bid}
    return row(did, card={"capabilities": [capability]}, **more)


def directory(*rows: dict[str, Any], score_min_percent: int = 0) -> AuctioningDirectory:
    """Return a directory whose agents have all staked enough."""
    made = AuctioningDirectory(
        service="callboard",
        deployment_key=KEY,
        default_secret=None,
        max_concurrency=32,
        score_min_percent=score_min_percent,
    )
    made.put(rows)
    made.stakes.apply_rows(
        {"agent_did": one["did"], "free_micro": RESERVE, "locked_micro": 0} for one in rows
    )
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
    known.stakes.apply_rows([{"agent_did": B, "free_micro": RESERVE // 10 - 1, "locked_micro": 0}])
    won, excluded = award(known, live(C, 400_000, stake_micro=1))
    assert won == (A, 300_000)
    assert excluded == {B: "under_staked", C: "under_staked"}


def test_locked_stake_counts_only_where_there_is_no_other() -> None:
    known = directory(bidder(A, 0.3), bidder(B, 0.5))
    known.stakes.apply_rows([{"agent_did": A, "free_micro": 0, "locked_micro": RESERVE}])
    assert award(known) == ((B, 500_000), {A: "under_staked"})
    known.stakes.apply_rows([{"agent_did": B, "free_micro": 0, "locked_micro": 0}])
    assert award(known) == ((A, 300_000), {B: "under_staked"})


def test_a_floor_of_reputation_excludes_and_the_worse_pay_more_stake() -> None:
    known = directory(bidder(A, 0.3), bidder(B, 0.5), score_min_percent=30)
    known.apply_tallies({A: Tally(failed=5)})
    assert award(known) == ((B, 500_000), {A: "low_reputation"})


def test_case_21_of_equal_bids_the_better_known_wins_at_that_bid() -> None:
    known = directory(bidder(A, 0.3), bidder(B, 0.3))
    known.apply_tallies({B: Tally(successful=5, latency_ms_sum=50)})
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
