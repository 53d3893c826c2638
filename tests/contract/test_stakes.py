"""Stakes and reputation, row by row.

Spec: Stake, Reputation; money.md (Stakes).
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from nacl.signing import SigningKey

from core.canonical import hash_text
from tests.contract.audit_events import events_of
from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    answer,
    chain_of,
    refusal,
    unique,
)

STAKES = "/v1/stakes"
UNSTAKE = "/v1/stakes/unstake"
KEY = SigningKey(bytes(range(32)))


def test_a_stake_is_deposited_read_and_withdrawn(payer: Caller) -> None:
    path = f"{STAKES}/{payer.did}"
    before = answer(payer.http.get(path))
    assert (before["stakedAmount"], before["lockedAmount"], before["updatedAt"]) == (0, 0, None)
    staked = answer(payer.http.post(STAKES, json={"amount": 40}))
    assert (staked["success"], staked["balance"], staked["walletDid"]) == (True, 60, payer.did)
    read = answer(payer.http.get(path))
    assert read == {key: staked[key] for key in read}
    assert (read["agentDid"], read["stakedAmount"], read["lockedAmount"]) == (payer.did, 40, 0)
    back = answer(payer.http.post(UNSTAKE, json={"amount": "0.5", "agentDid": payer.did}))
    assert (back["stakedAmount"], back["balance"]) == (39.5, 60.5)
    assert payer.balance()["balance"] == 60.5


def test_case_30_only_what_is_free_comes_back(payer: Caller) -> None:
    answer(payer.http.post(STAKES, json={"amount": 1}))
    refusal(payer.http.post(UNSTAKE, json={"amount": 1.000001}), 409, "STAKE_LOCKED")
    answer(payer.http.post(UNSTAKE, json={"amount": 1}))
    assert payer.balance()["balance"] == 100


@pytest.mark.parametrize("path", [STAKES, UNSTAKE])
@pytest.mark.parametrize("amount", [0, -1, "1.0000001", True, None])
def test_a_bad_amount_is_400(payer: Caller, path: str, amount: object) -> None:
    refused = refusal(payer.http.post(path, json={"amount": amount}), 400, "INVALID_REQUEST")
    assert refused["errors"][0]["path"] == "amount"


def test_a_stake_above_the_balance_is_refused_as_lacking_credits(payer: Caller) -> None:
    refusal(payer.http.post(STAKES, json={"amount": 101}), 401, "INSUFFICIENT_CREDITS")
    refused = payer.http.post(STAKES, json={"amount": 1, "agentDid": "me"})
    assert refusal(refused, 400, "INVALID_REQUEST")["errors"][0]["path"] == "agentDid"


def test_an_owner_stakes_for_its_agent_and_strangers_do_not_see_it(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller, admin: Caller
) -> None:
    agent = make_agent(owner=payer)
    body = {"amount": 5, "agentDid": agent.did}
    assert answer(payer.http.post(STAKES, json=body))["walletDid"] == payer.did
    stranger = make_caller(10)
    refusal(stranger.http.post(STAKES, json=body), 403, "FORBIDDEN")
    refusal(stranger.http.post(UNSTAKE, json=body), 403, "FORBIDDEN")
    refusal(stranger.http.get(f"{STAKES}/{agent.did}"), 404, "NOT_FOUND")
    for caller in (payer, admin):
        encoded = quote(agent.did, safe="")
        assert answer(caller.http.get(f"{STAKES}/{encoded}"))["stakedAmount"] == 5
    answer(payer.http.post(UNSTAKE, json=body))
    assert payer.balance()["balance"] == 100


def test_case_27_an_administrator_takes_what_is_locked_for_a_node(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller, admin: Caller
) -> None:
    """A tenth of the bid is locked by the auction's terms; the rest of the stake stays."""
    owner = make_caller(10)
    standing = {"price_cents": 5, "standingBid": {"bidAmount": 0.1}}
    agent = make_agent(owner=owner, is_held=True, price=standing, stake=1)
    node = {"capabilityId": agent.capability, "selection": "auction", "maxCostCredits": 1}
    workflow_id = answer(payer.publish({"nodes": {"a": node}}))["workflowId"]
    agent.stub.wait_dispatched()
    before = payer.balance()["balance"]
    path, headers = f"{STAKES}/slash", {"Idempotency-Key": unique("k")}
    body = {"agentDid": agent.did, "workflowId": workflow_id, "nodeId": "a", "reason": "it leaks"}
    for caller in (payer, owner):
        refusal(caller.http.post(path, json=body), 403, "INSUFFICIENT_SCOPE")
    refusal(admin.http.post(path, json={**body, "nodeId": "b"}), 404, "NOT_FOUND")
    refusal(admin.http.post(path, json={**body, "agentDid": owner.did}), 409, "CONFLICT")
    for name, value in (("agentDid", "me"), ("workflowId", "w"), ("nodeId", ""), ("reason", None)):
        refused = refusal(admin.http.post(path, json={**body, name: value}), 400, "INVALID_REQUEST")
        assert refused["errors"][0]["path"] == name
    first = admin.http.post(path, json=body, headers=headers)
    slashed = answer(first)
    assert (slashed["creditsSlashed"], slashed["payerDid"]) == (0.01, payer.did)
    assert (slashed["stakedAmount"], slashed["lockedAmount"]) == (0.99, 0)
    again = admin.http.post(path, json=body, headers=headers)
    assert answer(again) == slashed
    assert again.headers["idempotency-replayed"] == "true"
    assert answer(admin.http.post(path, json=body))["creditsSlashed"] == 0, "the lock has ended"
    assert payer.balance()["balance"] == pytest.approx(before + 0.01)
    agent.stub.gate.set()
    record = payer.finished(f"/v1/workflows/{workflow_id}")
    assert record["status"] == "success", record
    assert answer(owner.http.get(f"{STAKES}/{agent.did}"))["stakedAmount"] == 0.99


def test_a_wrong_signature_costs_the_lock_although_another_agent_succeeds(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller, admin: Caller
) -> None:
    """Decision stakes-and-slashing."""
    owner, capability = make_caller(10), unique("cap.test.") + ".v1"

    def forge(dispatch: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return 200, {"status": "success", "result": {"n": 1}, "signature": "ed25519:AAAA"}

    forger, honest = (
        make_agent(
            reply,
            capability=capability,
            owner=owner,
            price={"price_cents": 5, "standingBid": {"bidAmount": amount}},
        )
        for reply, amount in ((forge, 0.1), (signing(KEY), 0.2))
    )
    for agent, key in ((forger, bytes(32)), (honest, bytes(KEY.verify_key))):
        card = {"publicKey": base64.b64encode(key).decode()}
        answer(owner.http.patch(f"/v1/agents/{agent.did}", json=card))
        answer(owner.http.post(STAKES, json={"amount": 1, "agentDid": agent.did}))
    node = {"capabilityId": capability, "selection": "auction", "maxCostCredits": 1}
    record = payer.run({"nodes": {"a": node}})
    assert (record["status"], record["nodes"]["a"]["agentDid"]) == ("success", honest.did)
    stakes = [answer(admin.http.get(f"{STAKES}/{one.did}")) for one in (forger, honest)]
    assert [one["stakedAmount"] for one in stakes] == [0.99, 1]
    found = answer(admin.http.get(f"/v1/audit?targetId={forger.did}&targetType=stake"))["entries"]
    events = [event for entry in found for event in events_of(entry)]
    (slashed,) = (one["payload"] for one in events if one["type"] == "stake.slashed")
    assert (slashed["reason"], slashed["amountCredits"]) == ("wrong_signature", "0.01")


def refuse_at_first(dispatch: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Fail an attempt for good, without a refusal of the inputs."""
    return 404, {"eventId": dispatch["eventId"], "status": "error", "error": "cannot do this"}


def test_an_auctions_winner_that_fails_is_slashed_although_a_round_follows(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller, admin: Caller
) -> None:
    """Issue row 17: the second round finds no agent, or another one; the first one's lock pays."""
    owner, capability = make_caller(30), unique("cap.test.") + ".v1"
    failing = make_agent(
        refuse_at_first,
        capability=capability,
        owner=owner,
        price={"price_cents": 5, "standingBid": {"bidAmount": 0.1}},
    )
    answer(owner.http.post(STAKES, json={"amount": 10, "agentDid": failing.did}))
    node = {"capabilityId": capability, "selection": "auction", "maxCostCredits": 1}
    record = payer.run({"nodes": {"a": node}})
    assert record["nodes"]["a"]["error"]["code"] == "AGENT_ERROR"
    locked = 0.01  # a tenth of the bid, of which a tenth is lost
    assert answer(admin.http.get(f"{STAKES}/{failing.did}"))["stakedAmount"] == 10 - locked / 10
    second = make_agent(
        capability=capability,
        owner=owner,
        price={"price_cents": 5, "standingBid": {"bidAmount": 0.2}},
    )
    answer(owner.http.post(STAKES, json={"amount": 10, "agentDid": second.did}))
    record = payer.run({"nodes": {"a": node}})
    assert (record["status"], record["nodes"]["a"]["agentDid"]) == ("success", second.did)
    before = 10 - locked / 10
    assert answer(admin.http.get(f"{STAKES}/{failing.did}"))["stakedAmount"] < before
    assert answer(admin.http.get(f"{STAKES}/{second.did}"))["stakedAmount"] == 10
    found = answer(admin.http.get(f"/v1/audit?targetId={failing.did}&targetType=stake"))["entries"]
    events = [event for entry in found for event in events_of(entry)]
    slashed = [one["payload"] for one in events if one["type"] == "stake.slashed"]
    assert [one["evidence"]["code"] for one in slashed] == ["AGENT_ERROR"] * 2
    assert {one["payerDid"] for one in slashed} == {payer.did}


def signing(key: SigningKey) -> Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]:
    """Return an agent's answer that is signed as the contract says."""

    def answer_signed(dispatch: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        result = {"inputs": dispatch["inputs"]}
        text = f"{dispatch['nodeId']}:{dispatch['workflowId']}:{hash_text(result)}"
        signature = base64.b64encode(key.sign(text.encode()).signature).decode()
        return 200, {"status": "success", "result": result, "signature": f"ed25519:{signature}"}

    return answer_signed


def test_stakes_are_audited(payer: Caller, admin: Caller) -> None:
    answer(payer.http.post(STAKES, json={"amount": 2}))
    answer(payer.http.post(UNSTAKE, json={"amount": 1}))
    found = answer(admin.http.get(f"/v1/audit?targetId={payer.did}&targetType=stake"))["entries"]
    events = [event for entry in found for event in events_of(entry)]
    assert [(event["type"], event["payload"]["amountCredits"]) for event in events] == [
        ("stake.withdrawn", "1"),
        ("stake.deposited", "2"),
    ]


def test_case_41_an_agent_without_history_is_neutral(payer: Caller) -> None:
    did = unique("did:net:nobody-")
    assert answer(payer.http.get(f"/v1/reputation/{did}")) == {
        "agentDid": did,
        "overallScore": 0.5,
        "successRate": 0.5,
        "completionRate": 0.5,
        "avgLatencyMs": None,
        "totalTasks": 0,
        "successfulTasks": 0,
        "failedTasks": 0,
        "cancelledTasks": 0,
        "updatedAt": None,
    }


def test_reputation_counts_what_an_agent_finished(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    agent = make_agent()
    payer.run(chain_of(agent.capability, "ab"))
    read = answer(make_caller().http.get(f"/v1/reputation/{agent.did}"))
    assert (read["totalTasks"], read["successfulTasks"], read["failedTasks"]) == (2, 2, 0)
    assert (read["successRate"], read["completionRate"]) == (1, 1)
    speed = 1 - read["avgLatencyMs"] / 60_000
    assert read["overallScore"] == pytest.approx(0.5 + 0.3 * speed + 0.2, abs=1e-4)
    assert read["updatedAt"] is not None


def test_reputation_counted_again_is_the_same(
    make_agent: MakeAgent, payer: Caller, admin: Caller
) -> None:
    agent = make_agent()
    payer.run(chain_of(agent.capability, "ab"))
    path = "/v1/reputation/rebuild"
    checked = answer(admin.http.post(path, json={"check": True}))
    assert (checked["isSame"], checked["differences"], checked["rebuilt"]) == (True, [], 0)
    assert checked["agents"] >= 1
    assert answer(admin.http.post(path))["rebuilt"] == 0
    refusal(payer.http.post(path, json={"check": True}), 403, "INSUFFICIENT_SCOPE")
