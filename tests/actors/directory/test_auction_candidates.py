"""Who takes part in an auction as its owner sees it, before any price is formed.

Reference: money.md (Auctions, Stakes).
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from actors.directory import auction_candidates
from actors.directory.auction_candidates import LISTED_MAX, WEIGHED_MAX, AuctioningDirectory
from actors.ports import Contact
from core.errors import NodeErrorCode
from core.market.agent_liveness import Liveness
from core.market.auction import Bid
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


def happen(random: Random, did: str, at_ms: int, known: tuple[AuctioningDirectory, ...]) -> None:
    """Let the same happen to an agent in all directories."""
    what, part = random.randrange(6), random.choice((0, 1_000, 40_000, RESERVE))
    bid, owner = random.choice((None, 0, 0.1, 0.3, 0.5, 0.9)), f"o{random.randrange(24)}"
    status = random.choice(("active", "active", "inactive"))
    tally = paid(successful=random.randrange(5), failed=random.randrange(5))
    is_probe_ok, locked = random.random() < 0.5, random.choice((0, RESERVE))
    for one in known:
        if what < 2:
            one.put([bidder(did, bid, owner=owner, status=status, updated_ms=at_ms)], at_ms=at_ms)
        elif what == 2:
            one.stakes.apply_parts({did: (part, locked)})
        elif what == 3:
            one.standings.apply_tallies({did: tally})
        elif what == 4:
            one.apply_liveness({did: Liveness(probe_ms=at_ms, is_probe_ok=is_probe_ok)})
        else:
            one.revocations.apply_rows([{"did": did, "expires_ms": at_ms + 9, "ended_ms": None}])


@pytest.mark.parametrize("seed", range(20))
def test_who_is_not_weighed_changes_neither_winner_nor_price(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared with the award over every bid, whatever happens to agents between two rounds."""
    random = Random(seed)
    dids = [f"did:x:a{number}" for number in range(60)]
    rows = [bidder(did, random.randrange(1, 12) / 10, owner=f"o{did[-1]}") for did in dids]
    known, full = (directory(*rows, score_min_percent=20) for _ in range(2))
    if seed % 2:
        for one in (known, full):
            one.stakes.apply_parts(dict.fromkeys(dids, (0, RESERVE)))
    for at_ms in range(CLOSES, CLOSES + 60):
        for _ in range(random.choice((0, 1, 5, 40))):
            happen(random, random.choice(dids), at_ms, (known, full))
        bids = tuple(
            live(did, random.randrange(RESERVE))
            for did in random.sample(dids, random.choice((0, 0, 2)))
        )
        action = SelectBidder(
            "n", CAPABILITY, 1, random.choice((200_000, RESERVE)), 1_000, at_ms, bids,
            exclude=tuple(random.sample(dids, 3)),
        )  # fmt: skip
        monkeypatch.setattr(auction_candidates, "WEIGHED_MAX", 8)
        found = known.select_bidder(action, at_ms, payer_did="o1")
        monkeypatch.setattr(auction_candidates, "WEIGHED_MAX", 1_000)
        expected = full.select_bidder(action, at_ms, payer_did="o1")
        assert found.closed is not None
        assert expected.closed is not None
        assert found.closed.winner_did == expected.closed.winner_did
        assert found.closed.price_micro == expected.closed.price_micro
        counts = (len(one.closed.bids) + one.closed.unlisted for one in (found, expected))
        assert len(set(counts)) == 1


class CountingDirectory(AuctioningDirectory):
    """Counts how often a bidder is weighed."""

    weighed = 0

    def _weigh(self, *asked: Any) -> Any:
        self.weighed += 1
        return super()._weigh(*asked)


def test_a_thousand_rounds_rank_the_bidders_once_and_anew_when_many_have_left() -> None:
    known = directory(*crowd(100, 0.1), bidder(A, 0.8), bidder(B, 0.9), kind=CountingDirectory)
    assert isinstance(known, CountingDirectory)
    for _ in range(1_000):
        assert closed_of(known, at_ms=CLOSES - 1).winner_did == "did:x:crowd0"
    assert known.weighed == 102
    gone = Liveness(probe_ms=CLOSES, is_probe_ok=False)
    known.apply_liveness({f"did:x:crowd{number}": gone for number in range(100)})
    for _ in range(1_000):
        closed = closed_of(known)
        assert (closed.winner_did, closed.price_micro) == (A, 900_000)
    assert known.weighed == 204


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
    assert known.weighed == shut + 2
    others = known.select_bidder(action, CLOSES + 41, payer_did="patient")
    assert isinstance(others, AgentSelected)
    assert others.agent_did == "did:x:crowd0"
