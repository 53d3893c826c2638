"""Auctions, row by row: windows, standing and live bids, what is sealed, who is paid what.

Spec: Bid; Settlement rules 7; money.md (Auctions, Stakes).
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from tests.contract.audit_events import events_of
from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    RegisteredAgent,
    answer,
    refusal,
)

Json = dict[str, Any]
# Every bid of a test is to arrive by then, on a busy machine too.
WINDOW_MS = 2_500
RESERVE = 1


@pytest.fixture
def bidders(
    make_agent: MakeAgent, make_caller: MakeCaller, capability: str
) -> list[tuple[Caller, RegisteredAgent]]:
    """Two agents, each with an owner, that have staked enough for the reserve."""
    made = []
    for _ in range(2):
        owner = make_caller(10)
        agent = make_agent(capability=capability, owner=owner, stake=1)
        made.append((owner, agent))
    return made


def manifest(capability: str, window_ms: int = WINDOW_MS, **node: Any) -> Json:
    """Return one node to be auctioned."""
    return {
        "nodes": {
            "a": {
                "capabilityId": capability,
                "selection": "auction",
                "auctionWindowMs": window_ms,
                "maxCostCredits": RESERVE,
                **node,
            }
        }
    }


def auctioned(payer: Caller, capability: str, window_ms: int = WINDOW_MS) -> str:
    """Publish and return the auction's path."""
    record = answer(payer.publish(manifest(capability, window_ms)))
    return f"/v1/auctions/{record['workflowId']}/a"


def bid(caller: Caller, path: str, agent: RegisteredAgent, amount: object, **body: Any) -> Any:
    """Bid for an agent."""
    return caller.http.post(
        f"{path}/bids", json={"bidAmount": amount, "agentDid": agent.did, **body}
    )


def ended(payer: Caller, path: str) -> Json:
    """Return the workflow of an auction when it has ended."""
    workflow = path.split("/")[3]
    return payer.finished(f"/v1/workflows/{workflow}")


def test_case_20_live_bids_are_sealed_and_the_second_lowest_is_paid(
    payer: Caller, bidders: list[tuple[Caller, RegisteredAgent]], capability: str
) -> None:
    (one, cheap), (two, dear) = bidders
    path = auctioned(payer, capability)
    placed = answer(bid(one, path, cheap, 0.2, etaMs=400))
    assert (placed["bidAmount"], placed["etaMs"], placed["stakeOffered"]) == (0.2, 400, None)
    answer(bid(two, path, dear, "0.5", stakeOffered=1))
    sealed = answer(payer.http.get(path))
    assert (sealed["status"], sealed["reserveCredits"], sealed["round"]) == ("open", RESERVE, 1)
    assert sealed["rounds"][0]["bids"] is None
    record = ended(payer, path)
    assert record["status"] == "success", record
    node = record["nodes"]["a"]
    assert (node["agentDid"], node["costCredits"]) == (cheap.did, 0.5)
    assert node["selection"]["priceCredits"] == 0.5
    shown = answer(two.http.get(path))
    assert (shown["status"], shown["winnerDid"]) == ("awarded", cheap.did)
    bids = shown["rounds"][0]["bids"]
    assert [(b["agentDid"], b["bidAmount"], b["excluded"]) for b in bids] == [
        (cheap.did, 0.2, None),
        (dear.did, 0.5, None),
    ]
    assert payer.balance()["balance"] == 99.5


def test_standing_bids_decide_at_once_without_a_window(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller, capability: str
) -> None:
    for amount in (0.3, 0.4):
        owner = make_caller(1)
        price = {"price_cents": 90, "standingBid": {"bidAmount": amount}}
        make_agent(capability=capability, owner=owner, price=price, stake=1)
    record = payer.run(manifest(capability, 0))
    assert record["status"] == "success", record
    assert record["nodes"]["a"]["costCredits"] == 0.4
    shown = answer(payer.http.get(f"/v1/auctions/{record['id']}/a"))
    assert (shown["rounds"][0]["bids"], shown["rounds"][0]["unlistedBids"]) == ([], 2)
    own = answer(owner.http.get(f"/v1/auctions/{record['id']}/a"))["rounds"][0]
    assert ([b["bidAmount"] for b in own["bids"]], own["unlistedBids"]) == ([0.4], 1)


def test_case_23_the_first_bid_is_final_and_case_22_what_is_no_amount(
    payer: Caller, bidders: list[tuple[Caller, RegisteredAgent]], capability: str
) -> None:
    (one, agent), (two, other) = bidders
    path = auctioned(payer, capability, 60_000)
    answer(bid(one, path, agent, 0.2))
    refusal(bid(one, path, agent, 0.2), 409, "CONFLICT")
    refusal(bid(one, path, agent, 0.1), 409, "CONFLICT")
    for amount in (-1, "0.0000001", None, True, RESERVE + 0.1):
        refused = refusal(bid(two, path, other, amount), 400, "INVALID_REQUEST")
        assert "bidAmount" in str(refused)
    answer(bid(two, path, other, 0))


@pytest.mark.parametrize("node", ["a/b", "a/bids", "50% of/it?#", "a%2Fb", "été 一/二"])
def test_a_nodes_name_may_hold_anything_that_is_encoded_in_paths(
    payer: Caller, bidders: list[tuple[Caller, RegisteredAgent]], capability: str, node: str
) -> None:
    ((one, agent), _) = bidders
    body = manifest(capability, 60_000)
    body["nodes"] = {node: body["nodes"]["a"]}
    workflow_id = answer(payer.publish(body))["workflowId"]
    path = f"/v1/auctions/{workflow_id}/{quote(node, safe='')}"
    assert answer(payer.http.get(path))["nodeId"] == node
    assert answer(bid(one, path, agent, 0.2))["nodeId"] == node
    refusal(bid(one, path, agent, 0.2), 409, "CONFLICT")
    refusal(payer.http.get(f"{path}%2F"), 404, "NOT_FOUND")


def test_strangers_neither_see_an_auction_nor_bid_in_it(
    payer: Caller,
    bidders: list[tuple[Caller, RegisteredAgent]],
    capability: str,
    make_caller: MakeCaller,
    make_agent: MakeAgent,
    admin: Caller,
) -> None:
    (one, agent), _ = bidders
    path = auctioned(payer, capability, 60_000)
    stranger = make_caller(1)
    refusal(stranger.http.get(path), 404, "NOT_FOUND")
    refusal(bid(stranger, path, agent, 0.1), 404, "NOT_FOUND")
    refusal(bid(payer, path, agent, 0.1), 403, "FORBIDDEN")
    elsewhere = make_agent(owner=one)
    refused = refusal(bid(one, path, elsewhere, 0.1), 400, "INVALID_REQUEST")
    assert refused["errors"][0]["path"] == "agentDid"
    answer(bid(admin, path, agent, 0.1))
    # It was a conflict: a rival learned that the agent had bid.
    refusal(bid(payer, path, agent, 0.1), 403, "FORBIDDEN")
    refusal(payer.http.get(path.replace("/a", "/b")), 404, "NOT_FOUND")


def test_case_24_after_the_close_a_bid_is_late(
    payer: Caller, bidders: list[tuple[Caller, RegisteredAgent]], capability: str
) -> None:
    (one, agent), (two, other) = bidders
    path = auctioned(payer, capability)
    answer(bid(one, path, agent, 0.2))
    assert ended(payer, path)["nodes"]["a"]["costCredits"] == 0.2  # alone: its own bid
    refusal(bid(two, path, other, 0.1), 409, "CONFLICT")


def test_case_26_the_stake_is_locked_until_the_node_ends(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller, capability: str, admin: Caller
) -> None:
    owner = make_caller(10)
    agent = make_agent(
        capability=capability,
        owner=owner,
        is_held=True,
        price={"price_cents": 5, "standingBid": {"bidAmount": 0.1}},
        stake=1,
    )
    published = answer(payer.publish(manifest(capability, 0)))
    agent.stub.wait_dispatched()
    stake = answer(owner.http.get(f"/v1/stakes/{agent.did}"))
    assert (stake["stakedAmount"], stake["lockedAmount"]) == (1, 0.01)  # a tenth of the bid
    answer(payer.cancel(f"/v1/workflows/{published['workflowId']}"))
    assert answer(owner.http.get(f"/v1/stakes/{agent.did}"))["lockedAmount"] == 0
    found = answer(admin.http.get(f"/v1/audit?targetId={agent.did}&targetType=stake"))["entries"]
    events = [event for entry in found for event in events_of(entry)]
    assert [event["type"] for event in events if event["targetId"] == agent.did] == [
        "stake.unlocked",
        "stake.locked",
        "stake.deposited",
    ]


def test_nobody_who_has_staked_enough_is_no_candidate(
    payer: Caller, make_agent: MakeAgent, capability: str
) -> None:
    make_agent(capability=capability, price={"price_cents": 5, "standingBid": {"bidAmount": 0.1}})
    record = payer.run(manifest(capability, 0))
    assert record["nodes"]["a"]["error"]["code"] == "NO_CANDIDATE"
    shown = answer(payer.http.get(f"/v1/auctions/{record['id']}/a"))
    assert shown["status"] == "no_bids"
    assert (shown["rounds"][0]["bids"], shown["rounds"][0]["unlistedBids"]) == ([], 1)
    assert payer.balance()["balance"] == 100


def test_case_20_an_auction_without_any_bound_of_its_cost_is_refused(
    payer: Caller, capability: str
) -> None:
    body = manifest(capability)
    del body["nodes"]["a"]["maxCostCredits"]
    refusal(payer.publish(body), 400, "BUDGET_REQUIRED")


def test_a_cards_standing_bid_is_checked_and_kept(
    payer: Caller, make_agent: MakeAgent, capability: str
) -> None:
    bid_in_card = {"bidAmount": "0.25", "etaMs": 10, "stakeOffered": 1}
    price = {"price_cents": 5, "standingBid": bid_in_card}
    agent = make_agent(capability=capability, price=price, owner=payer)
    stored = answer(payer.http.get(f"/v1/agents/{agent.did}"))
    assert bid_in_card in [one.get("standingBid") for one in _capabilities(stored)]
    card = {**agent.card, "version": 2}
    card["capabilities"] = [{"id": capability, "standingBid": {"bidAmount": -1}}]
    refused = payer.http.post("/v1/agents/register", json={"acard": card})
    path = refusal(refused, 400, "INVALID_REQUEST")["errors"][0]["path"]
    assert path.endswith("capabilities[0].standingBid.bidAmount")


def _capabilities(stored: Json) -> list[Json]:
    card = stored.get("acard") or stored.get("card") or stored
    found: list[Json] = card["capabilities"]
    return found


def test_work_without_an_auction_asks_for_no_stake(
    payer: Caller, make_agent: MakeAgent, admin: Caller
) -> None:
    """The deployment asks for none (`stake_bps` 0): nothing is locked, nothing is said of it."""
    agent = make_agent()
    record = payer.run({"nodes": {"a": {"capabilityId": agent.capability}}})
    assert record["status"] == "success", record
    found = answer(admin.http.get(f"/v1/audit?targetId={agent.did}&targetType=stake"))["entries"]
    assert found == []


def test_cancelling_calls_an_open_auction_off(payer: Caller, capability: str) -> None:
    path = auctioned(payer, capability, 60_000)
    answer(payer.cancel(f"/v1/workflows/{path.split('/')[3]}"))
    assert answer(payer.http.get(path))["status"] == "cancelled"
    assert payer.balance()["balance"] == 100
