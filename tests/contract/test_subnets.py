"""Subnets and policies, row by row: made, joined, left, and what they hide, refuse and count.

Spec: Subnet, Subnet policy.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from nacl.signing import SigningKey

from serve_app.api import all_operations
from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    RegisteredAgent,
    answer,
    client,
    refusal,
    unique,
)
from tests.contract.signers import Signer
from tests.platform.deployments import RunningDeployment

Json = dict[str, Any]
SUBNETS, POLICIES = "/v1/federation/subnets", "/v1/federation/policies"


def subnet(caller: Caller, kind: str = "private", *listed: str, **more: Any) -> str:
    """Create a subnet; return its id."""
    body = {"name": "team", "memberDids": list(listed), "policyType": kind, **more}
    return str(answer(caller.http.post(SUBNETS, json=body))["id"])


def add(caller: Caller, subnet_id: str, did: str) -> httpx.Response:
    """List a DID, or let it join."""
    return caller.http.post(f"{SUBNETS}/{subnet_id}/members", json={"memberDid": did})


def remove(caller: Caller, subnet_id: str, did: str) -> httpx.Response:
    """Remove a DID."""
    return caller.http.delete(f"{SUBNETS}/{subnet_id}/members", params={"memberDid": did})


def shared(owner: Caller, *members: Caller, kind: str = "private") -> str:
    """Create a subnet that these callers have joined."""
    subnet_id = subnet(owner, kind, *(one.did for one in members))
    for one in members:
        answer(add(one, subnet_id, one.did))
    return subnet_id


def policy(caller: Caller, subnet_id: str, kind: str, **terms: Any) -> str:
    """Add a policy; return its id."""
    body = {"subnetId": subnet_id, "policyType": kind, **terms}
    return str(answer(caller.http.post(POLICIES, json=body))["id"])


def listed(caller: Caller, **query: Any) -> dict[str, Json]:
    """Return the subnets that a caller may see, by id."""
    page = answer(caller.http.get(SUBNETS, params={"memberDid": caller.did, **query}))
    return {one["id"]: one for one in page["subnets"]}


def placed(owner: Caller, agent: RegisteredAgent, **members: Any) -> None:
    """Change members of an agent's card."""
    answer(owner.http.patch(f"/v1/agents/{agent.did}", json=members))


def task(capability: str, *names: str, **settings: Any) -> Json:
    """Return a manifest of nodes of one capability."""
    nodes = {name: {"capabilityId": capability, "payload": {}} for name in names or ("a",)}
    return {"nodes": nodes, "settings": settings}


def error_of(record: Json) -> Json:
    """Return why the one node of a workflow failed."""
    assert record["status"] == "failed", record
    error: Json = record["nodes"]["a"]["error"]
    return error


@pytest.fixture
def stranger(make_caller: MakeCaller) -> Caller:
    """A caller that is in no subnet."""
    return make_caller(100)


@pytest.fixture
def member(make_caller: MakeCaller) -> Caller:
    """Another caller, who joins subnets here."""
    return make_caller(100)


@pytest.fixture
def nobody(deployment: RunningDeployment) -> Iterator[httpx.Client]:
    """A caller without a key."""
    with client(deployment.url) as http:
        yield http


def test_what_field_clients_send(payer: Caller, member: Caller) -> None:
    body = {
        "name": "team",
        "memberDids": [member.did],
        "policyType": "private",
        "description": "ours",
    }
    made = answer(payer.http.post(SUBNETS, json=body))
    assert made["id"] == made["subnetId"]
    shown = {name: made[name] for name in (*body, "ownerDid", "joinedDids")}
    assert shown == {
        **body,
        "memberDids": sorted([payer.did, member.did]),
        "ownerDid": payer.did,
        "joinedDids": [payer.did],
    }
    page = answer(payer.http.get(SUBNETS, params={"memberDid": member.did}))
    assert page["subnets"] == [made]
    other = unique("did:net:other-")
    assert answer(add(payer, made["id"], other)) == {
        "success": True,
        "subnetId": made["id"],
        "memberDid": other,
        "isJoined": False,
    }
    assert answer(remove(payer, made["id"], other))["success"] is True
    refusal(remove(payer, made["id"], other), 404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("kind", "of_listed", "of_others"),
    [("private", 200, 404), ("invite_only", 200, 403), ("public", 200, 200)],
)
def test_who_may_see_and_join(
    payer: Caller, member: Caller, stranger: Caller, kind: str, of_listed: int, of_others: int
) -> None:
    subnet_id = subnet(payer, kind, member.did)
    everybodys = answer(stranger.http.get(SUBNETS, params={"memberDid": member.did}))["subnets"]
    assert (subnet_id in {one["id"] for one in everybodys}) is (kind != "private")
    assert subnet_id in listed(member)
    assert listed(member)[subnet_id]["joinedDids"] == [payer.did]
    assert add(member, subnet_id, member.did).status_code == of_listed
    assert add(stranger, subnet_id, stranger.did).status_code == of_others
    joined = listed(member)[subnet_id]["joinedDids"]
    assert member.did in joined
    assert (stranger.did in joined) is (of_others == 200)
    # Who leaves has to be listed again.
    answer(remove(member, subnet_id, member.did))
    assert add(member, subnet_id, member.did).status_code == of_others


def test_only_the_owner_of_a_subnet_changes_it(
    payer: Caller, member: Caller, stranger: Caller, admin: Caller
) -> None:
    subnet_id = shared(payer, member)
    policy_id = policy(payer, subnet_id, "deny_capability", capability="cap.x.*")
    another = {"subnetId": subnet_id, "policyType": "require_approval"}
    for caller, status, code in ((member, 403, "FORBIDDEN"), (stranger, 404, "NOT_FOUND")):
        refusal(add(caller, subnet_id, unique("did:net:")), status, code)
        refusal(remove(caller, subnet_id, payer.did), status, code)
        refusal(caller.http.post(POLICIES, json=another), status, code)
        refusal(caller.http.delete(f"{POLICIES}/{policy_id}"), status, code)
    # A stranger's replies are those about a subnet that is not there.
    absent = str(uuid.uuid4())
    for of_hidden, of_absent in (
        (add(stranger, subnet_id, stranger.did), add(stranger, absent, stranger.did)),
        (remove(stranger, subnet_id, payer.did), remove(stranger, absent, payer.did)),
    ):
        different = {"requestId", "instance"}
        assert {n: v for n, v in of_hidden.json().items() if n not in different} == {
            n: v for n, v in of_absent.json().items() if n not in different
        }
    (shown,) = answer(member.http.get(POLICIES, params={"subnetId": subnet_id}))["policies"]
    assert (shown["id"], shown["capability"]) == (policy_id, "cap.x.*")
    hidden = answer(stranger.http.get(POLICIES, params={"subnetId": subnet_id}))
    assert hidden["policies"] == []
    answer(admin.http.delete(f"{POLICIES}/{policy_id}"))
    refusal(payer.http.delete(f"{POLICIES}/{policy_id}"), 404, "NOT_FOUND")
    assert answer(payer.http.get(POLICIES, params={"subnetId": subnet_id}))["policies"] == []


def test_an_agent_joins_by_its_owner_or_an_administrator(
    payer: Caller, member: Caller, admin: Caller, make_agent: MakeAgent
) -> None:
    own, other = make_agent(owner=payer), make_agent(owner=member)
    subnet_id = subnet(payer, "private", own.did, other.did)
    assert listed(payer)[subnet_id]["joinedDids"] == sorted([payer.did, own.did])
    # Its owner is shown the private subnet, and decides.
    assert subnet_id in listed(member, memberDid=other.did)
    assert answer(add(member, subnet_id, other.did))["isJoined"]
    refusal(add(member, subnet_id, member.did), 403, "FORBIDDEN")
    assert answer(add(admin, subnet_id, unique("did:net:")))["isJoined"]
    answer(remove(member, subnet_id, other.did))
    assert subnet_id not in listed(member, memberDid=other.did)


def test_a_private_subnets_agent_is_hidden_from_others(
    payer: Caller,
    member: Caller,
    stranger: Caller,
    admin: Caller,
    nobody: httpx.Client,
    make_agent: MakeAgent,
) -> None:
    """Others get what they get of an agent that is not there: in reads, searches and work."""
    subnet_id = shared(payer, member)
    invited = stranger
    answer(add(payer, subnet_id, invited.did))
    agent = make_agent(owner=payer)
    card_path, capability = f"/v1/agents/{agent.did}", agent.capability
    assert stranger.run(task(capability))["status"] == "success"
    placed(payer, agent, subnet=subnet_id)

    def seen_by(http: httpx.Client, *, has_key: bool = True) -> set[bool]:
        replies = [
            http.get(card_path),
            http.get("/v1/agents", params={"capabilityId": capability}),
        ]
        if has_key:
            replies.append(http.get(f"{card_path}/versions"))
            for query in ({"capabilityId": capability}, {"q": capability}, {"ownerDid": payer.did}):
                replies.append(http.get("/v1/discover", params=query))
            replies.append(http.post("/v1/agent/discovery", json={"query": capability}))
        found = [
            one.status_code == 200 and (agent.did in one.text or "/versions" in one.url.path)
            for one in replies
        ]
        return set(found)

    assert seen_by(payer.http) == seen_by(member.http) == {True}
    assert seen_by(invited.http) == {False}
    assert seen_by(nobody, has_key=False) == {False}
    assert admin.http.get(card_path).status_code == 200
    refusal(stranger.http.patch(card_path, json={"version": 2}), 404, "NOT_FOUND")
    # Work: the member's nodes find it, by the capability and as a target.
    assert member.run(task(capability))["status"] == "success"
    aimed = task(capability)
    aimed["nodes"]["a"]["targetAgentId"] = agent.did
    assert member.run(aimed)["status"] == "success"
    calls = len(agent.stub.dispatches)
    error = error_of(stranger.run(task(capability)))
    assert error["code"] == "NO_CANDIDATE"
    told, _, hint = error["message"].partition(";")
    assert told == f"no agent can take {capability!r}: no agent offers it"
    assert capability not in hint
    error = error_of(stranger.run(aimed))
    assert (error["code"], error["details"]) == ("AGENT_UNAVAILABLE", "agent_not_found")
    # Nor does an estimate, a hint or the draft of a workflow tell of it.
    dry = answer(stranger.publish({**task(capability), "dryRun": True}))
    assert (dry["estimatedCredits"], dry["candidates"]) == (0, {"a": []})
    near = error_of(stranger.run(task(capability.replace(".v1", ".v2"))))
    assert f"did you mean {capability!r}" not in near["message"]
    drafted = stranger.http.post("/v1/workflows/suggest", json={"description": f"do {capability}"})
    assert agent.did not in drafted.text
    assert len(agent.stub.dispatches) == calls
    dry = answer(member.publish({**task(capability), "dryRun": True}))
    assert (dry["estimatedCredits"], dry["candidates"]) == (0.1, {"a": [agent.did]})


def test_every_read_is_silent_about_a_hidden_agent(
    payer: Caller, member: Caller, stranger: Caller, make_agent: MakeAgent
) -> None:
    """Each GET replies for its DID or name as for one that does not exist."""
    agent, name = make_agent(owner=payer), unique("n-")
    named = {"name": name, "agentDid": agent.did, "durationMonths": 1}
    answer(payer.http.post("/v1/identity/names", json=named))
    answer(payer.http.post("/v1/stakes", json={"amount": 1, "agentDid": agent.did}))
    assert member.run(task(agent.capability))["status"] == "success"
    key = base64.b64encode(bytes(SigningKey.generate().verify_key)).decode()
    placed(payer, agent, subnet=shared(payer, member), publicKey=key)
    revoking = {"did": agent.did, "reason": "lost", "evidence": {}}
    answer(payer.http.post("/v1/trust/revoke", json=revoking))
    there = {"did": agent.did, "receipt": agent.did, "name": name}
    absent = {"did": unique("did:net:agent-"), "name": unique("n-")}
    absent["receipt"] = absent["did"]

    def read(caller: Caller, path: str, values: dict[str, str]) -> tuple[int, str]:
        reply = caller.http.get(path.format_map(values))
        body = {n: v for n, v in reply.json().items() if n not in ("requestId", "instance")}
        text = json.dumps(body).replace(values["did"], "did").replace(values["name"], "name")
        return reply.status_code, text

    told: dict[str, set[str]] = {payer.did: set(), member.did: set()}
    for operation in all_operations():
        path, in_path = operation.path, set(re.findall(r"{(\w+)}", operation.path))
        if operation.method != "GET" or not in_path or not in_path <= there.keys():
            continue
        nothing = read(stranger, path, absent)
        assert read(stranger, path, there) == nothing, path
        for caller in (payer, member):
            if read(caller, path, there) != nothing:
                told[caller.did].add(path)
    assert told[payer.did] > told[member.did]
    assert told[member.did] >= {
        "/v1/agents/{did}",
        "/v1/agents/{did}/names",
        "/v1/agents/{did}/versions",
        "/v1/identity/names/{name}",
        "/v1/reputation/{did}",
        "/v1/revoked/{did}",
        "/v1/trust/key-history/{did}",
    }
    for caller in (payer, member, stranger):
        page = answer(caller.http.get("/v1/revoked", params={"limit": 100}))
        dids = [one["did"] for one in page["revocations"]]
        while page["nextCursor"]:
            query = {"limit": 100, "cursor": page["nextCursor"]}
            page = answer(caller.http.get("/v1/revoked", params=query))
            dids += [one["did"] for one in page["revocations"]]
        assert (agent.did in dids) is (caller is not stranger)


def test_a_subnet_ends_with_its_members_and_policies(
    payer: Caller, member: Caller, stranger: Caller, make_agent: MakeAgent
) -> None:
    subnet_id = shared(payer, member)
    agent, other = make_agent(owner=payer), make_agent()
    placed(payer, agent, subnet=subnet_id)
    policy(payer, subnet_id, "deny_capability", capability=other.capability)
    path = f"{SUBNETS}/{subnet_id}"
    assert answer(member.http.get(path)) == listed(member)[subnet_id]
    for method in ("GET", "DELETE"):
        refusal(stranger.http.request(method, path), 404, "NOT_FOUND")
    refusal(member.http.delete(path), 403, "FORBIDDEN")
    assert error_of(member.run(task(other.capability)))["code"] == "POLICY_DENIED"
    assert answer(payer.http.delete(path)) == {"success": True, "id": subnet_id}
    for caller in (payer, member):
        assert subnet_id not in listed(caller)
        refusal(caller.http.get(path), 404, "NOT_FOUND")
        refusal(caller.http.delete(path), 404, "NOT_FOUND")
        refusal(add(caller, subnet_id, caller.did), 404, "NOT_FOUND")
        page = answer(caller.http.get(POLICIES, params={"subnetId": subnet_id}))
        assert page["policies"] == []
    assert member.run(task(other.capability))["status"] == "success"
    # The card still names the subnet: only the agent's owner sees it, and may register it anew.
    refusal(member.http.get(f"/v1/agents/{agent.did}"), 404, "NOT_FOUND")
    aimed = task(agent.capability)
    aimed["nodes"]["a"]["targetAgentId"] = agent.did
    for manifest, details in ((task(agent.capability), None), (aimed, "agent_not_found")):
        assert error_of(member.run(manifest)).get("details") == details
    answer(payer.http.post("/v1/agents/register", json={"acard": {**agent.card, "version": 9}}))
    assert member.run(aimed)["status"] == "success"


def test_a_key_that_was_just_made_creates_no_subnet(nobody: httpx.Client) -> None:
    body = {"name": "team", "policyType": "public"}
    detail = refusal(nobody.post(SUBNETS, json=body, auth=Signer()), 403, "FORBIDDEN")["detail"]
    assert "register an agent or create a key" in detail


def test_a_member_that_leaves_loses_the_agents_and_takes_its_own(
    payer: Caller, member: Caller, make_agent: MakeAgent
) -> None:
    subnet_id = shared(payer, member)
    agent = make_agent(owner=member)
    placed(member, agent, subnet=subnet_id)
    assert payer.run(task(agent.capability))["status"] == "success"
    answer(remove(payer, subnet_id, member.did))
    assert error_of(payer.run(task(agent.capability)))["code"] == "NO_CANDIDATE"
    refusal(payer.http.get(f"/v1/agents/{agent.did}"), 404, "NOT_FOUND")
    assert answer(member.http.get(f"/v1/agents/{agent.did}"))["subnet"] == subnet_id
    # The card may be registered anew only without the subnet.
    version = {**agent.card, "version": 2}
    kept = member.http.post("/v1/agents/register", json={"acard": {**version, "subnet": subnet_id}})
    refusal(kept, 400, "INVALID_REQUEST")
    answer(member.http.post("/v1/agents/register", json={"acard": version}))
    assert payer.run(task(agent.capability))["status"] == "success"


def test_private_and_public_agents_compete(
    payer: Caller, member: Caller, stranger: Caller, make_agent: MakeAgent
) -> None:
    """A member's node takes the cheaper of both; another's never the private one."""
    subnet_id = shared(payer, member)
    open_to_all = make_agent(owner=payer, price_cents=5)
    private = make_agent(owner=payer, capability=open_to_all.capability, price_cents=1)
    placed(payer, private, subnet=subnet_id)
    manifest = task(private.capability, maxBudgetCredits=1)
    chosen = {caller.did: caller.run(manifest)["nodes"]["a"] for caller in (member, stranger)}
    assert chosen[member.did]["agentDid"] == private.did
    assert {one["agentDid"] for one in chosen[member.did]["selection"]["candidates"]} == {
        private.did,
        open_to_all.did,
    }
    assert chosen[stranger.did]["agentDid"] == open_to_all.did
    assert "selection" not in chosen[stranger.did]


def test_auctions_of_others_are_not_won_by_private_agents(
    payer: Caller, member: Caller, stranger: Caller, make_agent: MakeAgent
) -> None:
    subnet_id = shared(payer, member)
    offered = {"price_cents": 10, "standingBid": {"bidAmount": 0.01}}
    agent = make_agent(owner=payer, price=offered, stake=1)
    placed(payer, agent, subnet=subnet_id)
    manifest = task(agent.capability)
    manifest["nodes"]["a"] |= {"selection": "auction", "maxCostCredits": 1}
    record = member.run(manifest)
    assert record["nodes"]["a"].get("agentDid") == agent.did, record
    error = error_of(stranger.run(manifest))
    assert error["code"] == "NO_CANDIDATE"
    assert agent.did not in str(error)
    # Who offers the capability too may read the auction, but not that the agent has bid.
    make_agent(owner=stranger, capability=agent.capability)
    path = f"/v1/auctions/{record['id']}/a"
    bids = [
        (len(round_["bids"]), round_["unlistedBids"])
        for caller in (payer, member, stranger)
        for round_ in answer(caller.http.get(path))["rounds"]
    ]
    assert bids == [(1, 0), (0, 1), (0, 0)]
    assert agent.did not in stranger.http.get(path).text


@pytest.mark.parametrize("place", ["card", "metadata"])
def test_a_card_names_a_subnet_that_its_owner_has_joined(
    payer: Caller, member: Caller, make_agent: MakeAgent, place: str
) -> None:
    theirs, own = subnet(member, "public"), subnet(payer, "public")
    agent = make_agent(owner=payer)

    def register(named: Any) -> httpx.Response:
        said = {"subnet": named}
        card = {**agent.card, **(said if place == "card" else {"metadata": said})}
        return payer.http.post("/v1/agents/register", json={"acard": card})

    refused = [refusal(register(one), 400, "INVALID_REQUEST") for one in (theirs, uuid.uuid4().hex)]
    refused.append(refusal(register(str(uuid.uuid4())), 400, "INVALID_REQUEST"))
    refused.append(refusal(register("lab"), 400, "INVALID_REQUEST"))
    problems = [one["errors"] for one in refused]
    assert {one["expected"] for (one,) in problems} == {
        f"the id of a subnet that {payer.did} has joined"
    }
    answer(register(own))
    query = {"capabilityId": agent.capability, "subnet": own}
    (found,) = answer(member.http.get("/v1/discover", params=query))["results"]
    assert found["agentDid"] == agent.did
    answer(remove(payer, own, payer.did))
    assert answer(member.http.get("/v1/discover", params=query))["results"] == []


@pytest.mark.parametrize(
    ("kind", "terms"),
    [
        ("deny_capability", {}),
        ("require_approval", {}),
        ("allow_capability", {"capability": "cap.other.v1"}),
    ],
)
def test_a_policy_refuses_nodes_of_who_has_joined(
    payer: Caller, member: Caller, make_agent: MakeAgent, kind: str, terms: Json
) -> None:
    agent = make_agent()
    subnet_id = subnet(payer, "public", member.did)
    terms = terms or {"capability": agent.capability}
    policy_id = policy(payer, subnet_id, kind, **terms)
    # To be listed by others binds nobody.
    assert member.run(task(agent.capability))["status"] == "success"
    answer(add(member, subnet_id, member.did))
    calls = len(agent.stub.dispatches)
    for manifest in (
        task(agent.capability),
        {"nodes": {"a": {"capabilityId": agent.capability, "targetAgentId": agent.did}}},
    ):
        error = error_of(member.run(manifest))
        assert error["code"] == "POLICY_DENIED"
        assert policy_id in error["message"]
        assert kind in error["message"]
    dry = answer(member.publish({**task(agent.capability), "dryRun": True}))
    assert dry["unavailable"]["a"]["code"] == "POLICY_DENIED"
    query = {"capabilityId": agent.capability}
    assert answer(member.http.get("/v1/discover", params=query))["results"] == []
    assert len(agent.stub.dispatches) == calls
    answer(payer.http.delete(f"{POLICIES}/{policy_id}"))
    assert member.run(task(agent.capability))["status"] == "success"


def test_region_policies_choose_among_agents(payer: Caller, make_agent: MakeAgent) -> None:
    subnet_id = subnet(payer)
    near = make_agent(owner=payer, price_cents=9)
    far = make_agent(owner=payer, capability=near.capability, price_cents=1)
    placed(payer, near, region="eu-west")
    placed(payer, far, metadata={"region": "us-east"})
    policy(payer, subnet_id, "allow_region", region="eu-west")
    manifest = task(near.capability, maxBudgetCredits=1)
    state = payer.run(manifest)["nodes"]["a"]
    assert state["agentDid"] == near.did
    query = {"capabilityId": near.capability}
    (found,) = answer(payer.http.get("/v1/discover", params=query))["results"]
    assert found["agentDid"] == near.did
    # A card without a region counts as in the region of the deployment, which stays allowed.
    here = make_agent(owner=payer, capability=near.capability, price_cents=1)
    own = answer(payer.http.get("/.well-known/callboard.json"))["region"]
    assert payer.run(manifest)["nodes"]["a"]["agentDid"] == here.did
    found = answer(payer.http.get("/v1/discover", params=query))["results"]
    assert {one["agentDid"] for one in found} == {near.did, here.did}
    policy(payer, subnet_id, "deny_region", region=own)
    denied = policy(payer, subnet_id, "deny_region", region="eu-west")
    error = error_of(payer.run(task(near.capability)))
    assert error["code"] == "NO_CANDIDATE"
    assert "3 in a region that a policy of the payer's subnets refuses" in error["message"]
    aimed = task(near.capability)
    aimed["nodes"]["a"]["targetAgentId"] = near.did
    error = error_of(payer.run(aimed))
    assert error["code"] == "POLICY_DENIED"
    assert denied in error["message"]


def test_a_rate_limit_counts_the_nodes_of_each_member(
    payer: Caller, member: Caller, make_agent: MakeAgent
) -> None:
    agent, other = make_agent(), make_agent()
    subnet_id = shared(payer, member, kind="public")
    prefix = agent.capability.removesuffix("v1") + "*"
    terms = {"capability": prefix, "limitPerMinute": 3}
    policy_id = policy(payer, subnet_id, "rate_limit", **terms)
    refused = refusal(payer.publish(task(agent.capability, *"abcd")), 429, "RATE_LIMITED")
    assert policy_id in refused["detail"]
    # Two and two nodes do not fit into a minute; into a second minute they do.
    for _ in range(3):
        replies = [payer.publish(task(agent.capability, "a", "b")) for _ in range(2)]
        over = [one for one in replies if one.status_code == 429]
        if over:
            break
    (refused_reply,) = over
    assert policy_id in refusal(refused_reply, 429, "RATE_LIMITED")["detail"]
    assert 0 < int(refused_reply.headers["retry-after"]) <= 61
    assert payer.run(task(other.capability, *"abcd"))["status"] == "success"
    assert member.run(task(agent.capability, "a", "b"))["status"] == "success"


@pytest.mark.parametrize(
    ("terms", "wrong"),
    [
        ({"policyType": "deny_capability"}, "capability"),
        ({"policyType": "allow_region"}, "region"),
        ({"policyType": "rate_limit"}, "limitPerMinute"),
        ({"policyType": "allow_region", "region": "eu", "capability": "*"}, "capability"),
        ({"policyType": "require_approval", "region": "eu"}, "region"),
        ({"policyType": "require_approval", "limitPerMinute": 1}, "limitPerMinute"),
        ({"policyType": "allow"}, "policyType"),
        ({"policyType": "deny_capability", "capability": "a b"}, "capability"),
        ({"policyType": "deny_capability", "capability": "**"}, "capability"),
        ({"policyType": "rate_limit", "limitPerMinute": -1}, "limitPerMinute"),
        ({"policyType": "rate_limit", "limitPerMinute": 1.5}, "limitPerMinute"),
        ({"policyType": "allow_region", "region": "e" * 65}, "region"),
        ({"policyType": "allow_region", "region": "EU West"}, "region"),
        ({"policyType": "allow_region", "region": "e\0"}, "$"),
        ({"policyType": "require_approval", "regions": ["eu"]}, "regions"),
    ],
)
def test_a_policy_has_the_members_of_its_type(payer: Caller, terms: Json, wrong: str) -> None:
    body = {"subnetId": str(uuid.uuid4()), **terms}
    refused = refusal(payer.http.post(POLICIES, json=body), 400, "INVALID_REQUEST")
    assert wrong in {one["path"] for one in refused["errors"]}


@pytest.mark.parametrize(
    ("members", "wrong"),
    [
        ({"name": ""}, "name"),
        ({"name": "n" * 513}, "name"),
        ({"policyType": "secret"}, "policyType"),
        ({"memberDids": ["x"]}, "memberDids[0]"),
        ({"memberDids": "did:net:a"}, "memberDids"),
        ({"memberDids": [f"did:net:{n}" for n in range(200)]}, "memberDids"),
        ({"description": 5}, "description"),
        ({"members": []}, "members"),
    ],
)
def test_a_subnet_request_is_checked(payer: Caller, members: Json, wrong: str) -> None:
    body = {"name": "team", "policyType": "private", **members}
    refused = refusal(payer.http.post(SUBNETS, json=body), 400, "INVALID_REQUEST")
    assert wrong in {one["path"] for one in refused["errors"]}


def test_bounds(payer: Caller, member: Caller) -> None:
    """Each refusal says the way out."""

    def full(reply: httpx.Response, way_out: str) -> None:
        assert refusal(reply, 409, "CONFLICT")["detail"].endswith(f": {way_out} first")

    first = subnet(payer, "private", *(unique("did:net:") for _ in range(199)))
    assert len(listed(payer)[first]["memberDids"]) == 200
    full(add(payer, first, member.did), "remove one")
    policies = [policy(payer, first, "require_approval", capability=f"x{n}*") for n in range(20)]
    one_more = {"subnetId": first, "policyType": "require_approval"}
    full(payer.http.post(POLICIES, json=one_more), "remove one")
    answer(payer.http.delete(f"{POLICIES}/{policies[0]}"))
    policy(payer, first, "require_approval", capability="x*")
    ids = {first, *(subnet(payer, "public") for _ in range(19))}
    body = {"name": "team", "policyType": "public"}
    full(payer.http.post(SUBNETS, json=body), "remove one")
    other = subnet(member, "public")
    full(add(payer, other, payer.did), "leave one")
    # Who has left one joins another, and owns as many as before.
    answer(remove(payer, first, payer.did))
    answer(add(payer, other, payer.did))
    full(add(payer, first, payer.did), "leave one")
    full(payer.http.post(SUBNETS, json=body), "remove one")
    answer(payer.http.delete(f"{SUBNETS}/{first}"))
    ids.add(subnet(payer, "public"))
    page = answer(payer.http.get(SUBNETS))
    assert page["limit"] == 20
    seen = [one["id"] for one in page["subnets"] if one["ownerDid"] == payer.did]
    while page["nextCursor"]:
        page = answer(payer.http.get(SUBNETS, params={"cursor": page["nextCursor"]}))
        seen += [one["id"] for one in page["subnets"] if one["ownerDid"] == payer.did]
    assert sorted(seen) == sorted(ids - {first})


def test_writes_are_silent_about_a_hidden_agent(
    payer: Caller, member: Caller, stranger: Caller, make_agent: MakeAgent
) -> None:
    """Each is refused as if the agent did not exist."""
    agent, own, name = make_agent(owner=payer), make_agent(owner=stranger), unique("n-")
    key = base64.b64encode(bytes(SigningKey.generate().verify_key)).decode()
    placed(payer, agent, subnet=shared(payer, member), publicKey=key)
    named = {"name": name, "agentDid": own.did, "durationMonths": 1}
    answer(stranger.http.post("/v1/identity/names", json=named))
    heir = {"inheritsToDid": stranger.did, "deadManSwitchDays": 30}
    guardians = "/v1/identity/guardians"

    def refusals(did: str) -> list[tuple[int, str]]:
        requests: list[tuple[str, str, Json]] = [
            ("POST", f"/v1/agents/{did}/heartbeat", {}),
            ("POST", "/v1/heartbeat", {"did": did}),
            ("POST", f"/v1/agents/{did}/collect", {"amount": 1}),
            ("PATCH", f"/v1/agents/{did}", {"version": 2}),
            ("DELETE", f"/v1/agents/{did}", {}),
            ("POST", "/v1/stakes", {"amount": 1, "agentDid": did}),
            ("POST", "/v1/stakes/unstake", {"amount": 1, "agentDid": did}),
            ("POST", "/v1/identity/names", {**named, "name": unique("n-"), "agentDid": did}),
            ("POST", f"/v1/identity/names/{name}/transfer", {"agentDid": did}),
            ("POST", "/v1/identity/names/no-such-name/transfer", {"agentDid": did}),
            ("PUT", f"{guardians}/{did}", {"guardians": [], "threshold": 0}),
            ("PUT", f"{guardians}/{own.did}", {"guardians": [did], "threshold": 1}),
            ("POST", "/v1/identity/inheritance", {"agentDid": did, **heir}),
            ("DELETE", f"/v1/identity/inheritance/{did}", {}),
            ("POST", "/v1/trust/rotate-key",
             {"agentDid": did, "newPublicKey": key, "rotationProof": "ed25519:" + key}),
            ("POST", "/v1/trust/revoke", {"did": did, "reason": "x", "evidence": {}}),
            ("DELETE", f"/v1/revoked/{did}", {}),
        ]  # fmt: skip
        replies = [
            stranger.http.request(method, path, json=body if method != "DELETE" else None)
            for method, path, body in requests
        ]
        assert all(one.status_code >= 400 for one in replies)
        return [(one.status_code, one.json()["detail"].replace(did, "DID")) for one in replies]

    assert refusals(agent.did) == refusals(unique("did:net:agent-"))
