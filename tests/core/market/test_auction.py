"""Sealed-bid second-price auctions. Reference: money.md (Auctions)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from core.errors import ErrorCode
from core.market.auction import (
    AuctionTerms,
    Award,
    Bid,
    Exclusion,
    award_auction,
    bid_problem,
    find_exclusion,
    live_lock_micro,
    merge_bids,
)
from core.money import micro_from_credits

RESERVE = 100
TERMS = AuctionTerms(reserve_micro=RESERVE, closes_ms=1_000, stake_bps=1_000)
# Few amounts, so that ties are common, and some above the reserve.
AMOUNTS = st.integers(0, RESERVE + 10)


def bid(did: str, amount: int, **fields: Any) -> Bid:
    """Return a punctual bid of a neutral agent with stake enough."""
    return replace(Bid(did, amount, None, 50, 0, 0.5), **fields)


def closed(*bids: Bid, reserve: int = RESERVE, barred: tuple[str, ...] = ()) -> Award | None:
    return award_auction([b for b in bids if b.agent_did not in barred], reserve_micro=reserve)


def won(*bids: Bid, **options: Any) -> tuple[str, int] | None:
    """Return the winner and its price."""
    found = closed(*bids, **options)
    return None if found is None else (found.agent_did, found.price_micro)


@st.composite
def fields_of_bids(draw: st.DrawFn) -> list[Bid]:
    amounts = draw(st.lists(AMOUNTS, max_size=7))
    return [
        bid(
            f"did:{number}",
            amount,
            reputation=draw(st.sampled_from([0.2, 0.5, 0.9])),
            received_ms=draw(st.integers(0, 2)),
        )
        for number, amount in enumerate(amounts)
    ]


def profit(cost: int, own: Bid, others: list[Bid], is_barred: bool) -> int:
    """Return what a bidder of this cost gains by this bid."""
    found = closed(own, *others, barred=(own.agent_did,) if is_barred else ())
    return found.price_micro - cost if found and found.agent_did == own.agent_did else 0


# -- the mechanism --------------------------------------------------------------------------------


@given(AMOUNTS, AMOUNTS, fields_of_bids(), st.sampled_from([0.2, 0.5, 0.9]), st.booleans())
def test_no_bidder_gains_by_bidding_other_than_its_cost(
    cost: int, deviation: int, others: list[Bid], reputation: float, is_barred: bool
) -> None:
    """Against every field with at least one bid that takes part; alone, rule 7 pays one's own."""
    if not any(other.amount_micro <= RESERVE for other in others):
        others = [*others, bid("did:rival", RESERVE)]
    own = bid("did:own", cost, reputation=reputation, received_ms=1)
    honest = profit(cost, own, others, is_barred)
    assert honest >= 0
    assert profit(cost, replace(own, amount_micro=deviation), others, is_barred) <= honest


@given(fields_of_bids(), st.randoms(use_true_random=False))
def test_the_order_of_the_bids_does_not_matter(bids: list[Bid], random: Any) -> None:
    before = closed(*bids)
    random.shuffle(bids)
    assert closed(*bids) == before


@given(fields_of_bids())
def test_the_price_lies_between_the_own_bid_and_the_reserve(bids: list[Bid]) -> None:
    found = closed(*bids)
    if found is None:
        assert all(b.amount_micro > RESERVE for b in bids)
    else:
        lowest = min(b.amount_micro for b in bids)
        assert lowest <= found.price_micro <= RESERVE
        assert lowest in [b.amount_micro for b in bids if b.agent_did == found.agent_did]


# -- numbered cases -------------------------------------------------------------------------------


def test_case_20_a_bid_above_the_reserve_neither_wins_nor_sets_the_price() -> None:
    assert won(bid("a", 30), bid("b", 101)) == ("a", 30)
    assert won(bid("b", 101)) is None
    assert won(bid("a", 30), bid("b", 100)) == ("a", 100)


def test_case_21_ties_go_by_reputation_then_receipt_then_did_at_the_tied_price() -> None:
    first = bid("d", 20, reputation=0.9, received_ms=5)
    second = bid("c", 20, reputation=0.5, received_ms=3)
    third = bid("a", 20, reputation=0.5, received_ms=4)
    fourth = bid("b", 20, reputation=0.5, received_ms=4)
    assert won(fourth, third, second, first) == ("d", 20)
    assert won(fourth, third, second) == ("c", 20)
    assert won(fourth, third, bid("e", 25)) == ("a", 20)


def test_case_22_a_bid_of_zero_wins_and_is_paid_the_second() -> None:
    assert won(bid("a", 0), bid("b", 7)) == ("a", 7)
    assert won(bid("a", 0)) == ("a", 0)
    assert bid_problem(0, TERMS, received_ms=0, has_bid=False) is None


def test_case_22_a_negative_bid_is_refused() -> None:
    refused = bid_problem(-1, TERMS, received_ms=0, has_bid=False)
    assert refused is not None
    assert refused.code is ErrorCode.INVALID_REQUEST
    assert [problem.path for problem in refused.problems] == ["bidAmount"]


@pytest.mark.parametrize("amount", [0.0000001, "0.0000001", float("nan"), "NaN", float("inf")])
def test_case_22_a_bid_with_more_than_six_decimals_or_no_number_is_refused(amount: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        micro_from_credits(amount)


@pytest.mark.parametrize(
    ("amount", "received_ms", "has_bid", "code"),
    [
        (RESERVE, 999, False, None),
        (RESERVE + 1, 0, False, ErrorCode.INVALID_REQUEST),
        (50, 0, True, ErrorCode.CONFLICT),
        (50, 1_000, False, ErrorCode.CONFLICT),
    ],
)
def test_case_23_first_bids_are_final_and_late_or_dear_ones_refused(
    amount: int, received_ms: int, has_bid: bool, code: ErrorCode | None
) -> None:
    refused = bid_problem(amount, TERMS, received_ms=received_ms, has_bid=has_bid)
    assert (None if refused is None else refused.code) is code


def test_case_23_one_bid_per_agent_its_live_one_before_its_standing_one() -> None:
    standing = [bid("a", 10), bid("b", 20)]
    assert merge_bids(standing, [bid("b", 5), bid("c", 9)]) == [
        bid("a", 10), bid("b", 5), bid("c", 9),
    ]  # fmt: skip
    with pytest.raises(AssertionError, match="one bid per agent"):
        closed(bid("a", 10), bid("a", 90))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"received_ms": 999}, None),
        ({"received_ms": 1_000}, Exclusion.LATE),
        ({"is_revoked": True}, Exclusion.REVOKED),
        ({"amount_micro": 101}, Exclusion.ABOVE_RESERVE),
        ({"reputation": 0.29}, Exclusion.LOW_REPUTATION),
        ({"reputation": 0.3, "stake_offered_micro": 6}, None),
        ({"reputation": 0.3, "stake_offered_micro": 5}, Exclusion.UNDER_STAKED),
        ({"reputation": 1.0, "stake_offered_micro": 3}, None),
        ({"reputation": 1.0, "stake_free_micro": 2}, Exclusion.UNDER_STAKED),
        # The stake is asked of the bid, never of the payer's reserve.
        ({"amount_micro": 0, "stake_free_micro": 0}, None),
    ],
)
def test_case_24_who_is_excluded_and_why(changes: dict[str, Any], why: Exclusion | None) -> None:
    values = {"stake_free_micro": 1_000, "is_revoked": False, **changes}
    looks = {name: values.pop(name) for name in ("stake_free_micro", "is_revoked")}
    terms = replace(TERMS, score_min=0.3)
    assert find_exclusion(bid("a", 50, **values), terms, **looks) is why


def owned(*bids: Bid) -> tuple[str, int] | None:
    """Return the winner and its price where agents `x1`, `x2` and so on have the owner `x`."""
    return won(*(replace(one, owner_did=one.agent_did[0]) for one in bids))


def test_rule_7_the_second_price_is_the_best_bid_of_another_owner() -> None:
    assert owned(bid("x1", 10), bid("x2", 100)) == ("x1", 10), "alone: its own bid"
    assert owned(bid("x1", 10), bid("x2", 100), bid("y1", 30)) == ("x1", 30)
    assert owned(bid("y1", 30), bid("x1", 40), bid("x2", 20), bid("z1", 90)) == ("x2", 30)


@given(st.lists(st.integers(0, RESERVE), min_size=1, max_size=3), fields_of_bids())
def test_rule_7_no_owner_gains_by_more_bids_of_its_own(more: list[int], others: list[Bid]) -> None:
    own = bid("did:own", 20, owner_did="own")
    extra = [bid(f"did:own{n}", micro, owner_did="own") for n, micro in enumerate(more)]
    alone, together = closed(own, *others), closed(own, *extra, *others)
    assert alone is not None
    assert together is not None
    if together.agent_did == own.agent_did:
        assert together.price_micro == alone.price_micro


@pytest.mark.parametrize(
    ("offered", "free", "locked"), [(None, 99, 15), (10, 99, 10), (None, 7, 7), (9, 7, 7)]
)
def test_a_live_bid_locks_the_most_that_it_may_require(
    offered: int | None, free: int, locked: int
) -> None:
    found = live_lock_micro(100, stake_bps=1_000, offered_micro=offered, free_micro=free)
    assert found == locked
