"""Heartbeats, changes and departures of agents, row by row of the contract.

Section 3 (who may).
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.contract.conftest import (
    Caller,
    Json,
    MakeAgent,
    MakeCaller,
    answer,
    client,
    refusal,
    unique,
    wait,
)
from tests.platform.deployments import RunningDeployment

REGISTER = "/v1/agents/register"


def register(caller: Caller, did: str | None = None, **members: object) -> Json:
    """Register an agent; return the reply, the card beside it."""
    card = {
        "did": did or unique("did:net:beat-"),
        "endpoint": "http://127.0.0.1:9",
        "version": 1,
        "capabilities": [{"id": unique("cap.beat."), "description": "d"}],
        **members,
    }
    return {**answer(caller.http.post(REGISTER, json={"acard": card})), "card": card}


def beat(http: httpx.Client, agent: str, /, **body: Any) -> httpx.Response:
    """Send a heartbeat in the form with the agent in the path."""
    return http.post(f"/v1/agents/{quote(agent, safe='')}/heartbeat", json=body)


def shown(http: httpx.Client, did: str) -> Json:
    """Return the agent as anybody sees it."""
    return answer(http.get(f"/v1/agents/{did}"))


def test_an_agent_that_never_sent_one_counts_as_available(
    payer: Caller, anonymous: httpx.Client
) -> None:
    did = register(payer)["did"]
    agent = shown(anonymous, did)
    assert (agent["availability"], agent["live"]) == ("available", None)


def test_heartbeat_with_the_agent_in_the_path(payer: Caller, anonymous: httpx.Client) -> None:
    did = register(payer)["did"]
    reply = answer(beat(payer.http, did, status="busy", load=40, queueDepth=3, version="1.2"))
    assert (reply["ok"], reply["ack"], reply["availability"]) == (True, True, 0.78)
    live = shown(anonymous, did)["live"]
    assert (live["status"], live["load"], live["queueDepth"]) == ("busy", 0.4, 3)
    assert live["version"] == "1.2"
    assert live["heartbeatAt"] is not None
    answer(beat(payer.http, did, load=0.25))
    assert shown(anonymous, did)["live"]["load"] == 0.25


def test_heartbeat_with_the_agent_in_the_body(payer: Caller, anonymous: httpx.Client) -> None:
    did = register(payer)["did"]
    body = {"did": did, "load": 0.5, "latency_ms": 120, "queue_depth": 2}
    reply = answer(payer.http.post("/v1/heartbeat", json=body))
    assert (reply["ok"], reply["ack"], reply["availability"]) == (True, True, 0.712)
    live = shown(anonymous, did)["live"]
    assert (live["load"], live["latency_ms"], live["queueDepth"]) == (0.5, 120, 2)


def test_availability_is_what_the_agent_says(payer: Caller, anonymous: httpx.Client) -> None:
    did = register(payer)["did"]
    for status, share, availability in (
        ("unhealthy", 0, "unhealthy"),
        ("DRAINING", 0, "unhealthy"),
        ("offline", 0, "offline"),
        ("healthy", 1, "available"),
    ):
        assert answer(beat(payer.http, did, status=status))["availability"] == share
        assert shown(anonymous, did)["availability"] == availability


def test_a_heartbeat_without_a_body_says_that_the_agent_lives(payer: Caller) -> None:
    did = register(payer)["did"]
    reply = answer(payer.http.post(f"/v1/agents/{did}/heartbeat"))
    assert (reply["status"], reply["availability"]) == ("healthy", 1)


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("status", "splendid"),
        ("status", 1),
        ("load", -0.1),
        ("load", 101),
        ("load", "0.5"),
        ("load", True),
        ("queueDepth", -1),
        ("queueDepth", 1.5),
        ("queueDepth", 2**40),
        ("version", ""),
        ("version", ["1"]),
        ("latency_ms", -1),
        ("did", "did:net:another"),
    ],
)
def test_a_wrong_member_is_refused_by_name(payer: Caller, member: str, value: object) -> None:
    did = register(payer)["did"]
    problem = refusal(beat(payer.http, did, **{member: value}), 400, "INVALID_REQUEST")
    assert [item["path"] for item in problem["errors"]] == [member]


def test_only_the_agents_owner_an_admin_or_its_token_may(
    deployment: RunningDeployment, payer: Caller, admin: Caller, make_caller: MakeCaller
) -> None:
    mine, other = register(payer), register(payer)
    refusal(beat(make_caller().http, mine["did"]), 403, "FORBIDDEN")
    with client(deployment.url) as nobody:
        refusal(beat(nobody, mine["did"]), 401, "UNAUTHORIZED")
    answer(beat(admin.http, mine["did"]))
    token = mine["heartbeatToken"]
    with client(deployment.url, token) as agent:
        answer(beat(agent, mine["did"]))
        answer(agent.post("/v1/heartbeat", json={"did": mine["did"], "load": 1}))
        refusal(beat(agent, other["did"]), 403, "FORBIDDEN")
        # It opens nothing else.
        refusal(agent.get("/v1/ledger/balance"), 403, "INSUFFICIENT_SCOPE")
        refusal(agent.delete(f"/v1/agents/{mine['did']}"), 403, "INSUFFICIENT_SCOPE")
        again = {"acard": mine["card"]}
        refusal(agent.post(REGISTER, json=again), 403, "INSUFFICIENT_SCOPE")
    with client(deployment.url) as agent:
        agent.headers["Authorization"] = f"Bearer {token}"
        answer(beat(agent, mine["did"]))
        agent.headers["Authorization"] = f"Bearer {token[:-1]}{'0' if token[-1] != '0' else '1'}"
        refusal(beat(agent, mine["did"]), 401, "UNAUTHORIZED")


def test_a_token_never_speaks_for_the_owner_of_the_same_did(
    deployment: RunningDeployment, payer: Caller, admin: Caller
) -> None:
    """It is for its own agent and its calls are the agent's, even if another has its name."""
    did = unique("did:net:same-")
    token = register(payer, did)["heartbeatToken"]
    made = answer(admin.http.post("/v1/keys", json={"ownerDid": did}))
    with client(deployment.url, made["key"]) as owner, client(deployment.url, token) as agent:
        worker = register(Caller(did, made["key"], made["keyId"], owner))["did"]
        answer(beat(agent, did))
        refusal(beat(agent, worker, status="offline"), 403, "FORBIDDEN")
        flat = agent.post("/v1/heartbeat", json={"did": worker, "status": "offline"})
        refusal(flat, 403, "FORBIDDEN")
        assert shown(owner, worker)["availability"] == "available"
        counted = owner.get("/v1/agents?limit=1").headers["x-ratelimit-remaining"]
        for _ in range(3):
            answer(agent.get("/v1/agents?limit=1"))
        left = owner.get("/v1/agents?limit=1").headers["x-ratelimit-remaining"]
        # A new minute may have begun between the two.
        assert int(left) in (int(counted) - 1, 999)


def test_an_owners_did_cannot_be_registered_by_another(payer: Caller, admin: Caller) -> None:
    did = unique("did:net:owner-")
    answer(admin.http.post("/v1/keys", json={"ownerDid": did}))
    agent = {"did": did, "endpoint": "http://127.0.0.1:9", "version": 1}
    body = {"acard": {**agent, "capabilities": [{"id": unique("cap.beat.")}]}}
    refusal(payer.http.post(REGISTER, json=body), 403, "FORBIDDEN")
    answer(admin.http.post(REGISTER, json={**body, "ownerDid": did}))


def test_heartbeats_count_in_the_machine_class(make_caller: MakeCaller) -> None:
    caller = make_caller(rateClass="standard")
    did = register(caller)["did"]
    reply = beat(caller.http, did)
    assert (reply.status_code, reply.headers["x-ratelimit-limit"]) == (200, "6000")


def test_heartbeat_of_an_unknown_agent_is_404(payer: Caller) -> None:
    refusal(beat(payer.http, "did:net:nobody"), 404, "NOT_FOUND")
    refusal(payer.http.post("/v1/heartbeat", json={"did": "x"}), 404, "NOT_FOUND")
    refusal(payer.http.post("/v1/heartbeat", json={"load": 1}), 400, "INVALID_REQUEST")


def test_an_agent_that_cannot_be_reached_is_probed_and_shown_as_offline(
    payer: Caller, anonymous: httpx.Client, free_address: str
) -> None:
    agent = register(payer, endpoint=free_address)
    did, capability = agent["did"], agent["card"]["capabilities"][0]["id"]
    node = {"capabilityId": capability, "maxRetries": 0}
    for _ in range(3):  # the third opens the circuit, and so it is probed
        assert payer.run({"nodes": {"only": node}})["status"] == "failed"
    # Not by those without a key: they share a thousand reads a minute.
    wait(lambda: shown(payer.http, did)["live"] is not None, "a probe")
    found = shown(anonymous, did)
    assert (found["availability"], found["live"]["isProbeOk"]) == ("offline", False)
    assert found["live"]["heartbeatAt"] is None
    answer(beat(payer.http, did))
    assert shown(anonymous, did)["availability"] == "available", "its own word is newer"


@pytest.mark.parametrize("is_flat", [False, True])
def test_a_change_of_status_is_in_force_when_it_is_answered(
    is_flat: bool, payer: Caller, make_agent: MakeAgent
) -> None:
    """The HTTP reference: the next dispatch sees it, each time that the status changes."""
    agent = make_agent(owner=payer)
    node = {
        "capabilityId": agent.capability,
        "targetAgentId": agent.did,
        "waitForAgentMs": 0,
    }
    for status, details in (
        ("unhealthy", "agent_unhealthy"),
        ("healthy", None),
        ("offline", "agent_offline"),
        ("busy", None),
        ("draining", "agent_unhealthy"),
    ):
        if is_flat:
            body = {"did": agent.did, "status": status}
            answer(payer.http.post("/v1/heartbeat", json=body))
        else:
            answer(beat(payer.http, agent.did, status=status))
        sent = len(agent.stub.dispatches)
        record = payer.run({"nodes": {"a": node}})
        if details is None:
            assert record["status"] == "success", record
        else:
            assert record["nodes"]["a"]["error"]["details"] == details, record
            assert len(agent.stub.dispatches) == sent


def test_another_agent_takes_over_at_once_when_one_says_that_it_is_unwell(
    payer: Caller, make_agent: MakeAgent
) -> None:
    first = make_agent(owner=payer, price_cents=1)
    second = make_agent(owner=payer, price_cents=90, capability=first.capability)
    for unwell, well in ((first, second), (second, first)):
        answer(beat(payer.http, well.did, status="healthy"))
        answer(beat(payer.http, unwell.did, status="maintenance"))
        record = payer.run({"nodes": {"a": {"capabilityId": first.capability}}})
        assert record["nodes"]["a"]["agentDid"] == well.did


# -- PATCH -----------------------------------------------------------------------------------------


def test_patch_changes_members_and_keeps_the_others(payer: Caller, anonymous: httpx.Client) -> None:
    agent = register(payer, metadata={"name": "N", "model": "M"}, maxConcurrency=4)
    path = f"/v1/agents/{agent['did']}"
    patch = {"version": 2, "metadata": {"model": None, "author": "A"}, "maxConcurrency": None}
    reply = answer(payer.http.patch(path, json=patch))
    assert (reply["ok"], reply["did"], reply["isNew"]) == (True, agent["did"], False)
    expected = {**agent["card"], "version": 2, "metadata": {"name": "N", "author": "A"}}
    del expected["maxConcurrency"]
    assert shown(anonymous, agent["did"])["acard"] == expected
    answer(payer.http.patch(path, json={"acard": {"version": 3}}))
    assert shown(anonymous, agent["did"])["version"] == 3


def test_patch_is_judged_like_a_registration(payer: Caller, make_caller: MakeCaller) -> None:
    agent = register(payer)
    path = f"/v1/agents/{agent['did']}"
    problem = refusal(payer.http.patch(path, json={"version": 0}), 400, "INVALID_REQUEST")
    assert [item["path"] for item in problem["errors"]] == ["acard.version"]
    refusal(payer.http.patch(path, json={"did": "did:net:x"}), 400, "INVALID_REQUEST")
    refusal(payer.http.patch(path, json=[]), 400, "INVALID_REQUEST")
    private = {"endpoint": "http://10.0.0.1/"}
    refusal(payer.http.patch(path, json=private), 403, "POLICY_DENIED")
    refusal(make_caller().http.patch(path, json={"version": 2}), 403, "FORBIDDEN")
    refusal(payer.http.patch("/v1/agents/did:net:no", json={"version": 2}), 404, "NOT_FOUND")
    text = payer.http.patch(path, content="x", headers={"content-type": "text/plain"})
    refusal(text, 415, "UNSUPPORTED_MEDIA_TYPE")


def test_patch_keeps_the_heartbeat_token_good(deployment: RunningDeployment, payer: Caller) -> None:
    agent = register(payer)
    changed = answer(payer.http.patch(f"/v1/agents/{agent['did']}", json={"version": 2}))
    assert changed["heartbeatToken"] == agent["heartbeatToken"]
    with client(deployment.url, agent["heartbeatToken"]) as http:
        answer(beat(http, agent["did"]))


# -- DELETE ----------------------------------------------------------------------------------------


def test_delete_deregisters_and_the_card_stays_its_owners_to_read(
    deployment: RunningDeployment, payer: Caller, anonymous: httpx.Client, make_caller: MakeCaller
) -> None:
    agent = register(payer)
    did, capability = agent["did"], agent["card"]["capabilities"][0]["id"]
    path = f"/v1/agents/{did}"
    refusal(make_caller().http.delete(path), 403, "FORBIDDEN")
    for _ in range(2):
        reply = answer(payer.http.delete(path))
        assert (reply["ok"], reply["success"], reply["did"]) == (True, True, did)
        assert reply["status"] == "inactive"
    for http in (anonymous, payer.http, make_caller().http):
        refusal(http.get(path), 404, "NOT_FOUND")
    refusal(make_caller().http.delete(path), 404, "NOT_FOUND")
    for http in (anonymous, make_caller().http):
        refusal(http.get(f"{path}?includeInactive=true"), 404, "NOT_FOUND")
    found = answer(payer.http.get(f"{path}?includeInactive=true"))
    assert (found["status"], found["availability"]) == ("inactive", "inactive")
    listed = f"/v1/agents?capabilityId={capability}"
    assert answer(anonymous.get(listed))["agents"] == []
    refusal(anonymous.get(f"{listed}&status=inactive"), 401, "UNAUTHORIZED")
    assert answer(make_caller().http.get(f"{listed}&status=inactive"))["agents"] == []
    others = f"{listed}&status=inactive&ownerDid={payer.did}"
    refusal(make_caller().http.get(others), 403, "FORBIDDEN")
    gone = answer(payer.http.get(f"{listed}&status=inactive"))["agents"]
    assert [item["did"] for item in gone] == [did]
    refusal(beat(payer.http, did), 409, "CONFLICT")
    refusal(payer.http.patch(path, json={"version": 2}), 409, "CONFLICT")
    events = answer(audit_of(payer, did))["entries"]
    assert [event["eventType"] for event in events] == ["agent.deregistered", "agent.registered"]
    back = answer(payer.http.post(REGISTER, json={"acard": agent["card"]}))
    assert back["isNew"] is False
    assert shown(anonymous, did)["status"] == "active"
    with client(deployment.url, agent["heartbeatToken"]) as old:
        refusal(beat(old, did), 401, "UNAUTHORIZED")
    with client(deployment.url, back["heartbeatToken"]) as new:
        answer(beat(new, did))


def audit_of(caller: Caller, did: str) -> httpx.Response:
    """Ask for the audit entries about an agent."""
    return caller.http.get(f"/v1/audit?targetType=agent&targetId={did}")


def test_delete_of_an_unknown_agent_is_404(payer: Caller) -> None:
    refusal(payer.http.delete("/v1/agents/did:net:nobody"), 404, "NOT_FOUND")
