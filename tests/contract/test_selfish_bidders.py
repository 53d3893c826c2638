"""Auctions that neither payers nor bidders can rob: owners, sealed bids, locked stakes, next bids.

Spec: money.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
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
from tests.contract.stub_agent import Answer, succeed
from tests.contract.test_auctions import auctioned, bid, ended, manifest

Json = dict[str, Any]
Bidder = tuple[Caller, RegisteredAgent]
MakeBidder = Callable[..., Bidder]
# Amounts whose digits are found wherever they are shown.
BID, ETA_MS, OFFERED = 0.217003, 38_117, 0.777013
# A tenth of the bid is locked for it: 0.0217003, rounded up.
SECRETS = {"0.217003", "217003", "38117", "0.777013", "777013", "0.021701", "21701"}
# A number that is no part of an identifier or of a hash.
NUMBER = re.compile(r"(?<![\w.-])\d+(?:\.\d+)?(?![\w-])")


@pytest.fixture
def make_bidder(make_agent: MakeAgent, make_caller: MakeCaller, capability: str) -> MakeBidder:
    """Make an agent with a stake of 1, and its owner; `standing`: what its card bids."""

    def make(
        standing: float | Json | None = None,
        *,
        reply: Answer = succeed,
        owner: Caller | None = None,
        **agent: Any,
    ) -> Bidder:
        owner = owner or make_caller(10)
        offer = standing if isinstance(standing, dict) else {"bidAmount": standing}
        price = {"price_cents": 90} | ({} if standing is None else {"standingBid": offer})
        terms = {"capability": capability, "price": price, "stake": 1, **agent}
        return owner, make_agent(reply, owner=owner, **terms)

    return make


def stake_of(admin: Caller, agent: RegisteredAgent) -> tuple[float, float]:
    """Return an agent's stake, and what of it is locked."""
    read = answer(admin.http.get(f"/v1/stakes/{quote(agent.did, safe='')}"))
    return read["stakedAmount"], read["lockedAmount"]


# -- row 7: owners ---------------------------------------------------------------------------------


def test_row_7_the_payers_own_agent_neither_sets_the_price_nor_wins(
    payer: Caller, make_bidder: MakeBidder, capability: str
) -> None:
    _, honest = make_bidder(0.2)
    make_bidder(0.9)
    _, undercutting = make_bidder(0.21, owner=payer)
    record = payer.run(manifest(capability, 0))
    assert record["status"] == "success", record
    assert record["nodes"]["a"]["agentDid"] == honest.did
    assert record["spentCredits"] == 0.9, "not one step above the lowest"
    bids = answer(payer.http.get(f"/v1/auctions/{record['id']}/a"))["rounds"][0]["bids"]
    (own,) = (one for one in bids if one["agentDid"] == undercutting.did)
    assert (own["bidAmount"], own["excluded"]) == (0.21, "payers_own")


def test_row_7_a_second_bid_of_the_same_owner_does_not_raise_its_price(
    payer: Caller, make_bidder: MakeBidder, capability: str
) -> None:
    owner, _ = make_bidder(0.1)
    _, second = make_bidder(1, owner=owner)
    record = payer.run(manifest(capability, 0))
    assert (record["status"], record["spentCredits"]) == ("success", 0.1), record
    shown = answer(owner.http.get(f"/v1/auctions/{record['id']}/a"))["rounds"][0]["bids"]
    assert {one["agentDid"]: one["excluded"] for one in shown}[second.did] == "same_owner"


def test_row_7_standing_bids_are_read_by_their_owner_and_administrators_alone(
    payer: Caller, make_bidder: MakeBidder, make_caller: MakeCaller, capability: str, admin: Caller
) -> None:
    offer = {"bidAmount": BID, "etaMs": ETA_MS, "stakeOffered": OFFERED}
    owner, agent = make_bidder(offer)
    make_bidder(0.6)
    record = payer.run(manifest(capability, 0))
    assert (record["nodes"]["a"]["agentDid"], record["spentCredits"]) == (agent.did, 0.6), record
    did = quote(agent.did, safe="")
    paths = (
        f"/v1/agents/{did}",
        f"/v1/agents/{did}/versions",
        f"/v1/agents?capabilityId={capability}",
        f"/v1/agents?ownerDid={owner.did}",
        f"/v1/discover?capabilityId={capability}",
        f"/v1/workflows/{record['id']}",
        f"/v1/auctions/{record['id']}/a",
        "/v1/audit?limit=100",
        f"/v1/audit?targetId={record['id']}",
        f"/v1/audit?targetType=stake&targetId={did}",
        "/v1/ledger/transactions",
    )
    found = "".join(payer.http.get(path).text for path in paths)
    assert agent.did in found
    assert agent.did not in str(answer(payer.http.get(paths[6]))["rounds"][0]["bids"])
    assert SECRETS.isdisjoint(NUMBER.findall(found))
    assert not SECRETS.isdisjoint(NUMBER.findall(owner.http.get(paths[0]).text))
    # The hash in the lineage is that of the card as everybody reads it, so no amount can be tried.
    (place,) = answer(payer.http.get(paths[1]))["versions"]
    own_did = make_caller(ownerDid=agent.did)
    for reader in (owner, own_did, admin):
        shown = answer(reader.http.get(paths[0]))["acard"]["capabilities"]
        assert shown[0]["standingBid"] == offer
    read = answer(owner.http.get(paths[6]))["rounds"][0]["bids"]
    assert {one["agentDid"]: one["bidAmount"] for one in read}[agent.did] == BID
    assert place["cardHash"] == answer(owner.http.get(paths[1]))["versions"][0]["cardHash"]


def test_f8_why_no_standing_bid_wins_tells_neither_amounts_nor_stakes(
    payer: Caller, make_bidder: MakeBidder, make_agent: MakeAgent, capability: str
) -> None:
    make_bidder(2)
    make_agent(capability=capability, price={"standingBid": {"bidAmount": 0.5}})
    record = payer.run(manifest(capability, 0))
    error = record["nodes"]["a"]["error"]
    assert (error["code"], error["message"]) == (
        "NO_CANDIDATE",
        "no bid is eligible: of 2 bids 2 not eligible",
    )


# -- row 8: locked stakes --------------------------------------------------------------------------


def test_row_8_a_bidder_that_withdraws_its_stake_at_the_close_fails_no_node(
    payer: Caller, make_bidder: MakeBidder, capability: str, admin: Caller
) -> None:
    nothing, little, honest = make_bidder(), make_bidder(), make_bidder()
    free, cheap = auctioned(payer, capability), auctioned(payer, capability)
    for path, (owner, agent), amount in (
        (free, nothing, 0),
        (free, honest, 0.5),
        (cheap, little, 0.01),
        (cheap, honest, 0.5),
    ):
        answer(bid(owner, path, agent, amount))
    # A bid of 0 locks nothing; any other 1.5 tenths, the most that it may need.
    assert stake_of(admin, nothing[1]) == (1, 0)
    assert stake_of(admin, little[1]) == (1, 0.0015)
    assert stake_of(admin, honest[1]) == (1, 0.15)
    for (owner, agent), most in ((nothing, 1), (little, 0.9985)):
        body = {"amount": 1, "agentDid": agent.did}
        if most < 1:
            refusal(owner.http.post("/v1/stakes/unstake", json=body), 409, "STAKE_LOCKED")
        answer(owner.http.post("/v1/stakes/unstake", json={**body, "amount": most}))
    for path, (_, winner) in ((free, nothing), (cheap, little)):
        record = ended(payer, path)
        node = record["nodes"]["a"]
        assert (record["status"], node["agentDid"], node["costCredits"]) == (
            "success", winner.did, 0.5,
        )  # fmt: skip
    # A round that has closed has freed what its bids had locked.
    assert [stake_of(admin, agent) for _, agent in (nothing, little, honest)] == [
        (0, 0), (0.0015, 0), (1, 0),
    ]  # fmt: skip


def test_a_cancelled_round_frees_what_its_bids_have_locked(
    payer: Caller, make_bidder: MakeBidder, capability: str, admin: Caller
) -> None:
    owner, agent = make_bidder()
    path = auctioned(payer, capability, 60_000)
    answer(bid(owner, path, agent, BID, stakeOffered=0.011937))
    assert stake_of(admin, agent) == (1, 0.011937), "at most what is offered"
    entries = answer(payer.http.get("/v1/audit?limit=100"))["entries"]
    assert any(entry["eventType"] == "bid.placed" for entry in entries)
    assert "0.011937" not in str(entries), "the lock would tell the sealed bid"
    answer(payer.cancel(f"/v1/workflows/{path.split('/')[3]}"))
    assert stake_of(admin, agent) == (1, 0)


# -- the next bid of the same round ----------------------------------------------------------------


def decline(dispatch: Json) -> tuple[int, Json]:
    return 429, {"error": "full", "__retry_after": 30}


def test_a_winner_that_declines_gives_the_award_to_the_next_bid_at_once(
    payer: Caller, make_bidder: MakeBidder, capability: str, admin: Caller
) -> None:
    declining, next_one = make_bidder(reply=decline), make_bidder()
    make_bidder(0.8)
    path = auctioned(payer, capability)
    answer(bid(declining[0], path, declining[1], 0))
    answer(bid(next_one[0], path, next_one[1], 0.3))
    record = ended(payer, path)
    node = record["nodes"]["a"]
    assert (record["status"], node["agentDid"], node["costCredits"]) == (
        "success", next_one[1].did, 0.8,
    )  # fmt: skip
    first, second = answer(payer.http.get(path))["rounds"]
    assert (first["winnerDid"], first["priceCredits"]) == (declining[1].did, 0.3)
    assert second["openedAt"] == second["closesAt"], "no new window"
    bids = {one["agentDid"]: one["excluded"] for one in second["bids"]}
    assert (bids[declining[1].did], bids[next_one[1].did]) == ("failed_before", None)
    assert stake_of(admin, declining[1]) == (1, 0), "no fault is counted"
    read = answer(payer.http.get(f"/v1/reputation/{declining[1].did}"))
    assert read["totalTasks"] == 0


# -- row 1: slashes --------------------------------------------------------------------------------


def test_row_1_a_payer_gains_nothing_by_a_timeout_before_the_promised_time(
    payer: Caller, make_bidder: MakeBidder, capability: str, admin: Caller
) -> None:
    """The connection is made in time, the agent has promised its result within ten seconds."""
    _, victim = make_bidder(0.1, is_held=True)
    hasty = manifest(capability, 0, timeoutMs=100, maxRetries=0, maxCostCredits=8)
    for _ in range(3):
        record = payer.run(hasty)
        assert record["nodes"]["a"]["error"]["code"] == "AGENT_TIMEOUT", record
    victim.stub.gate.set()
    assert payer.balance()["balance"] == 100
    assert stake_of(admin, victim) == (1, 0)


# -- what its bidders promise and do not do --------------------------------------------------------


def test_a_bid_of_nothing_that_fails_gives_way_to_the_next_bid(
    payer: Caller, make_bidder: MakeBidder, capability: str
) -> None:
    """It kept every auction of a capability from its end; money.md (Auctions)."""
    _, failing = make_bidder(0, reply=lambda _: (500, {"error": "oops"}))
    _, honest = make_bidder(0.2)
    record = payer.run(manifest(capability, 0, maxRetries=0))
    assert record["status"] == "success", record
    assert record["nodes"]["a"]["agentDid"] == honest.did
    assert len(failing.stub.dispatches) == 1


def test_a_bid_that_promises_its_result_after_the_timeout_does_not_win(
    payer: Caller, make_bidder: MakeBidder, capability: str
) -> None:
    _, endless = make_bidder({"bidAmount": 0, "etaMs": 30 * 86_400_000}, is_held=True)
    _, honest = make_bidder(0.2)
    record = payer.run(manifest(capability, 0, timeoutMs=5_000))
    endless.stub.gate.set()
    assert (record["status"], record["nodes"]["a"]["agentDid"]) == ("success", honest.did)
