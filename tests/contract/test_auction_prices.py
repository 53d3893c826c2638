"""What auctions pay through the real commands: no agent gains by bidding other than its cost, and
one that takes no part sets no price.

Spec: Settlement rules 7; money.md (Auctions); decision auctions.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

import pytest

from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    RegisteredAgent,
    answer,
    refusal,
)
from tests.contract.test_auctions import WINDOW_MS, Json, auctioned, bid, ended

Bidder = tuple[Caller, RegisteredAgent]


@pytest.fixture
def make_bidder(
    make_agent: MakeAgent, make_caller: MakeCaller, capability: str
) -> Callable[..., Bidder]:
    """Make an agent with an owner; a bid asks of a newcomer a stake of a tenth of it."""

    def make(stake: float = 0.1) -> Bidder:
        owner = make_caller(10)
        return owner, make_agent(capability=capability, owner=owner, stake=stake)

    return make


def outcome(payer: Caller, path: str) -> tuple[str, float]:
    """Return who got the node and what the payer paid for it."""
    record = ended(payer, path)
    assert record["status"] == "success", record
    assert payer.balance()["balance"] == pytest.approx(100 - record["spentCredits"])
    return record["nodes"]["a"]["agentDid"], record["spentCredits"]


def shown_bids(payer: Caller, path: str) -> dict[str, Json]:
    """Return the bids of the first round by agent, readable after its close."""
    bids = answer(payer.http.get(path))["rounds"][0]["bids"]
    return {one["agentDid"]: one for one in bids}


def test_no_bidder_gains_by_bidding_other_than_its_cost(
    make_caller: MakeCaller, make_bidder: Callable[..., Bidder], capability: str
) -> None:
    """A cost of 0.4 against a bid of 0.5 gains 0.1, told truly; any other bid gains no more."""
    amounts = (0, 0.4, 0.49, 0.51)
    (one, agent), (two, rival) = (make_bidder(1) for _ in range(2))
    payers = [make_caller(100) for _ in amounts]
    paths = [auctioned(payer, capability, len(amounts) * WINDOW_MS // 2) for payer in payers]
    for path, own in zip(paths, amounts, strict=True):
        answer(bid(two, path, rival, 0.5))
        answer(bid(one, path, agent, own))
    for payer, path, own in zip(payers, paths, amounts, strict=True):
        winner, paid = outcome(payer, path)
        gain = paid - 0.4 if winner == agent.did else 0
        assert gain <= 0.1 + 1e-9, own
        if own <= 0.4:
            assert gain == pytest.approx(0.1), "its own bid does not set its price"
        assert paid == max(own, 0.5) if winner == rival.did else paid == 0.5, own


def test_case_21_of_two_equal_bids_the_earlier_wins_and_is_paid_them(
    payer: Caller, make_bidder: Callable[..., Bidder], capability: str
) -> None:
    (one, first), (two, second) = make_bidder(), make_bidder()
    path = auctioned(payer, capability)
    answer(bid(two, path, second, 0.3))
    answer(bid(one, path, first, 0.3))
    assert outcome(payer, path) == (second.did, 0.3)


def test_case_20_one_bidder_is_paid_its_own_bid(
    payer: Caller, make_bidder: Callable[..., Bidder], capability: str
) -> None:
    owner, agent = make_bidder()
    path = auctioned(payer, capability)
    answer(bid(owner, path, agent, 0.3))
    assert outcome(payer, path) == (agent.did, 0.3)


def test_case_24_a_lowest_bidder_that_has_left_does_not_set_the_price(
    payer: Caller, make_bidder: Callable[..., Bidder], capability: str, admin: Caller
) -> None:
    """It would win if it were there; alone, the second is paid its own bid and not the third's."""
    (one, gone), (two, stays) = make_bidder(), make_bidder()
    path = auctioned(payer, capability)
    answer(bid(one, path, gone, 0.1))
    answer(bid(two, path, stays, 0.3))
    answer(admin.http.delete(f"/v1/agents/{quote(gone.did, safe='')}"))
    assert outcome(payer, path) == (stays.did, 0.3)
    bids = shown_bids(payer, path)
    assert (bids[gone.did]["bidAmount"], bids[gone.did]["excluded"]) == (0.1, "agent_inactive")
    assert bids[stays.did]["excluded"] is None


def test_case_24_an_under_staked_bid_neither_wins_nor_sets_the_price(
    payer: Caller, make_bidder: Callable[..., Bidder], capability: str
) -> None:
    """One lowest without any stake, one between that offers too little of what it has."""
    bare, modest, paid, dear = make_bidder(0), make_bidder(1), make_bidder(), make_bidder()
    path = auctioned(payer, capability)
    answer(bid(*_of(bare, path), 0.1))
    answer(bid(*_of(modest, path), 0.35, stakeOffered=0.034999))
    answer(bid(*_of(paid, path), 0.3))
    answer(bid(*_of(dear, path), 0.5))
    assert outcome(payer, path) == (paid[1].did, 0.5)
    excluded = {did: one["excluded"] for did, one in shown_bids(payer, path).items()}
    assert excluded == {
        bare[1].did: "under_staked",
        modest[1].did: "under_staked",
        paid[1].did: None,
        dear[1].did: None,
    }


def test_case_24_a_late_bid_neither_wins_nor_sets_the_price(
    payer: Caller, make_bidder: Callable[..., Bidder], capability: str
) -> None:
    early, dear, late = make_bidder(), make_bidder(), make_bidder()
    path = auctioned(payer, capability)
    answer(bid(*_of(early, path), 0.3))
    answer(bid(*_of(dear, path), 0.5))
    assert outcome(payer, path) == (early[1].did, 0.5)
    refusal(bid(*_of(late, path), 0.1), 409, "CONFLICT")
    assert late[1].did not in shown_bids(payer, path)


def _of(bidder: Bidder, path: str) -> tuple[Caller, str, RegisteredAgent]:
    return bidder[0], path, bidder[1]
