"""Revocation, row by row: who is revoked, by whom, until when; what becomes of its work.

Spec: Revocation, /v1/trust/revoke, /v1/revoked, Agent interface; money.md (Settlement, Auctions).
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.contract.conftest import (
    PATIENCE_S,
    Caller,
    MakeAgent,
    MakeCaller,
    RegisteredAgent,
    answer,
    refusal,
    unique,
)
from tests.contract.stub_agent import succeed
from tests.contract.test_auctions import bid, bidders, ended, manifest
from tests.contract.test_execution_async import handed_in, later
from tests.contract.test_targeted_routing import details_of

__all__ = ["bidders"]  # a fixture

Json = dict[str, Any]
REVOKE = "/v1/trust/revoke"
REVOKED = "/v1/revoked"


def request(did: str, **changes: object) -> Json:
    """Return the body of a revocation."""
    return {"did": did, "reason": "It lies.", "evidence": {"seen": 1}, **changes}


def revoke(caller: Caller, did: str, **changes: object) -> Json:
    """Revoke and return the reply."""
    return answer(caller.http.post(REVOKE, json=request(did, **changes)))


def test_a_revocation_is_shown_until_it_is_taken_back(
    admin: Caller, payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent()
    path = f"{REVOKED}/{agent.did}"
    trusted = {"did": agent.did, "revoked": False, "reason": None, "revokedAt": None}
    assert answer(payer.http.get(path)) == {**trusted, "expiresAt": None}
    made = revoke(admin, agent.did)
    assert (made["success"], made["id"], made["revoked"]) == (True, agent.did, True)
    assert (made["reason"], made["evidence"]) == ("It lies.", {"seen": 1})
    assert (made["expiresAt"], made["revokedByDid"]) == (None, admin.did)
    shown = answer(payer.http.get(f"{REVOKED}/{quote(agent.did, safe='')}"))
    public = {name: made[name] for name in made if name not in ("success", "id", "evidence")}
    assert shown == public, "the evidence is between the two of them"
    assert answer(admin.http.get(path))["evidence"] == {"seen": 1}
    assert answer(payer.http.get(f"/v1/agents/{agent.did}"))["isRevoked"] is True
    refusal(admin.http.post(REVOKE, json=request(agent.did)), 409, "ALREADY_REVOKED")
    back = answer(admin.http.delete(path))
    assert (back["success"], back["revoked"], back["did"]) == (True, False, agent.did)
    refusal(admin.http.delete(path), 404, "NOT_FOUND")
    assert answer(payer.http.get(path))["revoked"] is False
    assert answer(payer.http.get(f"/v1/agents/{agent.did}"))["isRevoked"] is False
    events = answer(admin.http.get("/v1/audit", params={"targetId": agent.did}))["entries"]
    assert [event["eventType"] for event in events] == [
        "agent.unrevoked", "agent.revoked", "agent.registered",
    ]  # fmt: skip


def test_all_that_are_revoked_are_listed_page_by_page(admin: Caller, payer: Caller) -> None:
    """Also of DIDs that are not registered."""
    dids = sorted(unique("did:net:ghost-") for _ in range(3))
    for did in dids:
        revoke(admin, did)
    found: list[str] = []
    cursor: str | None = None
    while cursor is not None or not found:
        params = {"limit": 2} if cursor is None else {"limit": 2, "cursor": cursor}
        page = answer(payer.http.get(REVOKED, params=params))
        assert len(page["revocations"]) <= 2
        found += [one["did"] for one in page["revocations"]]
        cursor = page["nextCursor"]
    assert [did for did in found if did in dids] == dids
    assert found == sorted(found)


def test_who_may_revoke_and_who_may_take_back(
    admin: Caller, payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    agent, stranger = make_agent(owner=payer), make_caller(0)
    path = f"{REVOKED}/{agent.did}"
    refusal(stranger.http.post(REVOKE, json=request(agent.did)), 403, "FORBIDDEN")
    revoke(payer, agent.did)
    refusal(stranger.http.delete(path), 403, "FORBIDDEN")
    answer(payer.http.delete(path))
    revoke(admin, agent.did)
    refusal(payer.http.delete(path), 403, "FORBIDDEN")
    answer(admin.http.delete(path))
    itself = make_caller(0)
    assert revoke(itself, itself.did)["revokedByDid"] == itself.did


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"did": "me"}, "did"),
        ({"did": None}, "did"),
        ({"reason": ""}, "reason"),
        ({"reason": "x" * 1_001}, "reason"),
        ({"evidence": "it says so"}, "evidence"),
        ({"evidence": {"n": 10**128}}, "evidence.n"),
        ({"expiresAt": "soon"}, "expiresAt"),
        ({"expiresAt": 5}, "expiresAt"),
    ],
)
def test_bad_input_changes_nothing(admin: Caller, wrong: Json, path: str) -> None:
    did = unique("did:net:ghost-")
    refused = admin.http.post(REVOKE, json={**request(did), **wrong})
    assert refusal(refused, 400, "INVALID_REQUEST")["errors"][0]["path"] == path
    assert answer(admin.http.get(f"{REVOKED}/{did}"))["revoked"] is False


@pytest.mark.parametrize("missing", ["did", "reason", "evidence"])
def test_what_is_required_is_asked_for(admin: Caller, missing: str) -> None:
    body = request(unique("did:net:ghost-"))
    del body[missing]
    refused = refusal(admin.http.post(REVOKE, json=body), 400, "INVALID_REQUEST")
    assert refused["errors"][0]["path"] == missing


def test_a_revocation_expires_by_itself(
    admin: Caller, payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent()
    past = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
    refused = admin.http.post(REVOKE, json=request(agent.did, expiresAt=past))
    refusal(refused, 400, "INVALID_REQUEST")
    soon = (datetime.now(UTC) + timedelta(seconds=5)).isoformat(timespec="milliseconds")
    expires_at = soon.replace("+00:00", "Z")
    assert revoke(admin, agent.did, expiresAt=soon)["expiresAt"] == expires_at
    deadline = time.monotonic() + PATIENCE_S
    while (details := details_of(payer, agent.capability, agent.did)) is not None:
        assert details == "agent_revoked"
        assert time.monotonic() < deadline
    assert answer(payer.http.get(f"{REVOKED}/{agent.did}"))["revoked"] is False
    assert datetime.now(UTC) >= datetime.fromisoformat(soon)


# -- what becomes of its work ----------------------------------------------------------------------


def test_a_revoked_agent_gets_no_work_from_the_reply_on(
    admin: Caller, payer: Caller, make_agent: MakeAgent
) -> None:
    """As a target, as one of several, as the only one; until it is taken back."""
    agent = make_agent()
    other = make_agent(capability=agent.capability)
    revoke(admin, agent.did)
    assert details_of(payer, agent.capability, agent.did) == "agent_revoked"
    node = {"capabilityId": agent.capability, "maxRetries": 0}
    for _ in range(5):
        assert payer.run({"nodes": {"a": node}})["nodes"]["a"]["agentDid"] == other.did
    revoke(admin, other.did)
    record = payer.run({"nodes": {"a": node}})
    assert record["nodes"]["a"]["error"]["code"] == "NO_CANDIDATE"
    reply = answer(payer.publish({"nodes": {"a": node}, "dryRun": True}))
    assert reply["candidates"] == {"a": []}
    answer(admin.http.delete(f"{REVOKED}/{agent.did}"))
    assert payer.run({"nodes": {"a": node}})["nodes"]["a"]["agentDid"] == agent.did
    assert len(agent.stub.dispatches) == 1


def test_unknown_comes_before_revoked_and_revoked_before_inactive(
    admin: Caller, payer: Caller, make_agent: MakeAgent
) -> None:
    """The order of the contract's list."""
    ghost = unique("did:net:ghost-")
    revoke(admin, ghost)
    agent = make_agent()
    assert details_of(payer, agent.capability, ghost) == "agent_not_found"
    answer(admin.http.delete(f"/v1/agents/{agent.did}"))
    assert details_of(payer, agent.capability, agent.did) == "agent_inactive"
    revoke(admin, agent.did)
    assert details_of(payer, agent.capability, agent.did) == "agent_revoked"


@pytest.mark.parametrize("is_accepted", [False, True], ids=["at work", "accepted"])
def test_case_19_work_in_flight_goes_to_another_and_what_comes_late_is_unpaid(
    admin: Caller, payer: Caller, make_agent: MakeAgent, anonymous: httpx.Client, is_accepted: bool
) -> None:
    first = make_agent(later) if is_accepted else make_agent(is_held=True)
    record = answer(payer.publish({"nodes": {"a": {"capabilityId": first.capability}}}))
    first.stub.wait_dispatched()
    second = make_agent(capability=first.capability)
    revoke(admin, first.did)
    first.stub.wait_cancelled()
    path = f"/v1/workflows/{record['workflowId']}"
    node = payer.finished(path)["nodes"]["a"]
    assert (node["status"], node["agentDid"]) == ("success", second.did)
    late = handed_in(first.stub.dispatches[0])
    code = "ESCROW_RELEASED"
    refusal(anonymous.post("/v1/workflows/nodeResult", json=late), 409, code)
    first.stub.gate.set()
    assert paid(admin, first) == 0
    assert paid(admin, second) == pytest.approx(0.095)
    assert node["attempts"] == 2


def test_case_19_of_an_agent_alone_its_nodes_fail_and_the_money_returns(
    admin: Caller, payer: Caller, make_agent: MakeAgent
) -> None:
    """What it was paid before stays its own; it loses no reputation by being revoked."""
    may_end = threading.Event()

    def holding_b(dispatch: Json) -> tuple[int, Json]:
        if dispatch["nodeId"] == "b":
            may_end.wait(PATIENCE_S)
        return succeed(dispatch)

    agent = make_agent(holding_b)
    first = {"capabilityId": agent.capability, "targetAgentId": agent.did}
    manifest = {"nodes": {"a": first, "b": {**first, "dependsOn": ["a"]}}}
    record = answer(payer.publish(manifest))
    for _ in manifest["nodes"]:
        agent.stub.wait_dispatched()
    revoke(admin, agent.did)
    done = payer.finished(f"/v1/workflows/{record['workflowId']}")
    may_end.set()
    assert (done["status"], done["nodes"]["b"]["error"]["code"]) == ("failed", "REVOKED")
    assert done["nodes"]["a"]["status"] == "success"
    assert paid(admin, agent) == pytest.approx(0.095)
    assert payer.balance()["balance"] == pytest.approx(99.9)
    counts = answer(payer.http.get(f"/v1/reputation/{agent.did}"))
    assert (counts["successfulTasks"], counts["failedTasks"]) == (1, 0)


def test_case_24_a_revoked_lowest_bidder_does_not_set_the_price(
    admin: Caller,
    payer: Caller,
    bidders: list[tuple[Caller, RegisteredAgent]],
    capability: str,
) -> None:
    """Two bid, the lower one is revoked while the round is open: the other is alone."""
    (one, low), (other, high) = bidders
    record = answer(payer.publish(manifest(capability)))
    path = f"/v1/auctions/{record['workflowId']}/a"
    answer(bid(one, path, low, 0.1))
    answer(bid(other, path, high, 0.7))
    revoke(admin, low.did)
    node = ended(payer, path)["nodes"]["a"]
    assert (node["agentDid"], node["costCredits"]) == (high.did, 0.7)
    (round_,) = answer(payer.http.get(path))["rounds"]
    excluded = {one["agentDid"]: one.get("excluded") for one in round_["bids"]}
    assert excluded == {low.did: "revoked", high.did: None}


def test_case_24_a_revoked_agent_cannot_bid(
    admin: Caller, payer: Caller, bidders: list[tuple[Caller, RegisteredAgent]], capability: str
) -> None:
    (owner, agent), _ = bidders
    record = answer(payer.publish(manifest(capability, 60_000)))
    path = f"/v1/auctions/{record['workflowId']}/a"
    revoke(admin, agent.did)
    refusal(bid(owner, path, agent, 0.1), 403, "FORBIDDEN")
    answer(admin.http.delete(f"{REVOKED}/{agent.did}"))
    answer(bid(owner, path, agent, 0.1))
    answer(payer.cancel(f"/v1/workflows/{record['workflowId']}"))


def paid(admin: Caller, agent: RegisteredAgent) -> float:
    """Return what an agent has in its wallet."""
    return float(answer(admin.http.get(f"/v1/balances/{agent.did}"))["balance"])
