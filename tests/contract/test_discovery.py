"""Discovery, row by row, with exactly what clients send.

Spec: Settlement rules 9 (discovery ranking).
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.conftest import Caller, MakeAgent, answer, refusal, unique

Json = dict[str, Any]
SENT = "/v1/agent/discovery"


def word() -> str:
    """Return a word that no other test's agents have."""
    return "w" + unique("").replace("-", "").replace(".", "")[-12:] + "x"


def described(make_agent: MakeAgent, words: str, cents: int = 10, **card: Any) -> Any:
    """Start and register an agent with this description."""
    return make_agent(price={"price_cents": cents, "description": words, **card})


def test_what_clients_send_finds_cards_and_results(payer: Caller, make_agent: MakeAgent) -> None:
    """The bytes of the HTTP reference: a query alone, and with what else is sent."""
    name = word()
    agent = described(make_agent, f"Counts {name} in a text")
    for body in (
        {"query": name},
        {"query": f"please count {name}", "limit": 5, "minReputation": 0.5},
    ):
        reply = answer(
            payer.http.post(
                SENT,
                content=json.dumps(body).encode(),
                headers={"Content-Type": "application/json"},
            )
        )
        (found,) = [one for one in reply["results"] if one["agentDid"] == agent.did]
        assert found == {
            "agentDid": agent.did,
            "capabilityId": agent.capability,
            "description": f"Counts {name} in a text",
            "score": found["score"],
            "reputation": 0.5,
            "agent": {"did": agent.did, "name": None, "endpoint": agent.stub.url},
            "why": found["why"],
        }
        assert any(name in reason for reason in found["why"])
        assert agent.card in reply["agents"]


def test_get_finds_by_words_id_beginning_and_owner(
    payer: Caller, make_agent: MakeAgent, make_caller: Any
) -> None:
    owner = make_caller(0)
    name, stem = word(), f"cap.{word()}."
    agent = make_agent(
        capability=f"{stem}count.v1",
        price={"price_cents": 7, "description": name},
        owner=owner,
    )
    other = make_agent(capability=f"{stem}other.v1")
    queries: list[tuple[Json, list[str]]] = [
        ({"q": name}, [agent.did]),
        ({"capabilityId": agent.capability}, [agent.did]),
        ({"capabilityId": f"{stem}*"}, sorted([agent.did, other.did])),
        ({"capabilityId": f"{stem}cou*"}, [agent.did]),
        ({"ownerDid": owner.did}, [agent.did]),
        ({"q": name, "capabilityId": other.capability}, []),
    ]
    for query, dids in queries:
        reply = answer(payer.http.get("/v1/discover", params=query))
        assert sorted(one["agentDid"] for one in reply["results"]) == dids, query


@pytest.mark.parametrize(
    ("kept", "left_out"),
    [
        ({"maxPriceCents": 10}, {"maxPriceCents": 9}),
        ({"minReputation": 0.5}, {"minReputation": 0.51}),
        ({"maxLatencyMs": 1}, {"region": "elsewhere"}),
        ({"subnet": "own"}, {"subnet": "elsewhere"}),
        ({"availability": "available"}, {"availability": "offline"}),
    ],
)
def test_filters(
    payer: Caller, admin: Caller, make_agent: MakeAgent, kept: Json, left_out: Json
) -> None:
    name = word()
    agent = described(make_agent, name)
    team = {"name": "lab", "policyType": "public"}
    subnet_id = answer(admin.http.post("/v1/federation/subnets", json=team))["id"]
    card = {**agent.card, "metadata": {"subnet": subnet_id}}
    kept = {name: subnet_id if value == "own" else value for name, value in kept.items()}
    answer(admin.http.post("/v1/agents/register", json={"acard": card}))
    found = answer(payer.http.get("/v1/discover", params={"q": name, **kept}))
    assert [one["agentDid"] for one in found["results"]] == [agent.did]
    none = answer(payer.http.get("/v1/discover", params={"q": name, **left_out}))
    assert (none["results"], none["agents"]) == ([], [])


def test_a_filter_of_cards_looks_beyond_the_best(payer: Caller, make_agent: MakeAgent) -> None:
    """Twice as many as are asked for are looked at first, the others if these do not pass."""
    name = word()
    *_, cheap = (
        make_agent(
            capability=f"cap.{name}.{part}.v1",
            price={"price_cents": 1 if part == "d" else 10, "description": "Some"},
        )
        for part in "abcd"
    )
    asked = {"q": name, "limit": "1", "maxPriceCents": "5"}
    found = answer(payer.http.get("/v1/discover", params=asked))
    assert [one["agentDid"] for one in found["results"]] == [cheap.did]
    assert [one["did"] for one in found["agents"]] == [cheap.did]


def test_region_is_the_cards(payer: Caller, make_agent: MakeAgent) -> None:
    name = word()
    agent = described(make_agent, name)
    changed = {"metadata": {"region": "eu-west"}}
    owner = payer.http
    refusal(owner.patch(f"/v1/agents/{agent.did}", json=changed), 403, "FORBIDDEN")
    none = answer(payer.http.get("/v1/discover", params={"q": name, "region": "eu-west"}))
    assert none["results"] == []


def test_reputation_ranks_what_words_leave_equal(payer: Caller, make_agent: MakeAgent) -> None:
    name = word()
    good, unknown = (described(make_agent, name) for _ in range(2))
    payer.run({"nodes": {"a": {"capabilityId": good.capability}}})
    reply = answer(payer.http.get("/v1/discover", params={"q": name}))
    assert [one["agentDid"] for one in reply["results"]] == [good.did, unknown.did]
    first, second = reply["results"]
    assert first["reputation"] > second["reputation"] == 0.5
    reputation = answer(payer.http.get(f"/v1/reputation/{good.did}"))
    assert first["reputation"] == reputation["overallScore"]


def test_names_of_schema_fields_are_found_and_said(payer: Caller, make_agent: MakeAgent) -> None:
    name = word()
    fields = {"type": "object", "properties": {f"{name}Total": {"type": "integer"}}}
    agent = described(make_agent, "Adds up", outputSchema=fields)
    for words in (f"{name}Total", f"the {name} of a bill"):
        (found,) = answer(payer.http.post(SENT, json={"query": words}))["results"]
        assert found["agentDid"] == agent.did
        assert f"schema fields: {name.lower()}" in found["why"][0]


def test_versions_are_asked_for_as_nodes_ask(
    payer: Caller, admin: Caller, make_agent: MakeAgent
) -> None:
    """Published ones alone; a card's number that was not published takes no part."""
    older = make_agent(ownerDid=payer.did)
    newer, other = (make_agent(capability=older.capability) for _ in range(2))
    for number in ("1.0.0", "1.2.0"):
        body = {"capabilityId": older.capability, "version": number, "changelog": "New."}
        body |= {"inputSchema": {"type": "object"}, "outputSchema": {"type": "object"}}
        answer(payer.http.post("/v1/capabilities/versions", json=body))
    for agent, number in ((older, "1.0.0"), (newer, "1.2.0"), (other, "9.0.0")):
        capability = {**agent.card["capabilities"][0], "version": number}
        card = {**agent.card, "capabilities": [capability]}
        answer(admin.http.post("/v1/agents/register", json={"acard": card}))

    def found(versions: str) -> list[Json]:
        query = {"capabilityId": older.capability + versions}
        results: list[Json] = answer(payer.http.get("/v1/discover", params=query))["results"]
        return results

    (one,) = found("@>=1.2")
    assert one["agentDid"] == newer.did
    assert "version 1.2.0 in >=1.2" in one["why"]
    assert {each["agentDid"] for each in found("@1")} == {older.did, newer.did}
    assert found("@>=2") == []
    assert len(found("")) == 3


def test_agent_that_is_gone_or_revoked_is_not_found(
    payer: Caller, admin: Caller, make_agent: MakeAgent
) -> None:
    """Gone from every look-up, search, draft and selection at once; its history stays."""
    name = word()
    gone, revoked = (described(make_agent, f"Paints {name}") for _ in range(2))
    draft = {"description": name}
    by_id, by_capability = f"/v1/agents/{gone.did}", {"capabilityId": gone.capability}
    suggest = "/v1/workflows/suggest"
    node = {"nodes": {"a": {**by_capability, "waitForAgentMs": 0}}}
    assert payer.run(node)["status"] == "success"
    assert len(answer(payer.http.post(SENT, json={"query": name}))["results"]) == 2
    assert answer(payer.http.post(suggest, json=draft))["choices"]
    answer(admin.http.delete(by_id))
    refusal(payer.http.get(by_id), 404, "NOT_FOUND")
    assert answer(payer.http.get("/v1/agents", params=by_capability))["agents"] == []
    assert answer(payer.http.get("/v1/discover", params=by_capability))["results"] == []
    assert payer.run(node)["nodes"]["a"]["error"]["code"] == "NO_CANDIDATE"
    target = {"targetAgentId": gone.did, "waitForAgentMs": 0}
    told = payer.run({"nodes": {"a": {**by_capability, **target}}})
    assert told["nodes"]["a"]["error"]["code"] == "AGENT_UNAVAILABLE"
    body = {"did": revoked.did, "reason": "a test", "evidence": {}}
    answer(admin.http.post("/v1/trust/revoke", json=body))
    assert answer(payer.http.post(SENT, json={"query": name}))["results"] == []
    refusal(payer.http.post(suggest, json=draft), 422, "NO_CAPABILITY_MATCH")
    assert answer(payer.http.get(f"{by_id}/versions"))["versions"]
    assert answer(payer.http.get(f"/v1/reputation/{gone.did}"))["successfulTasks"] == 1
    shown = answer(admin.http.get(by_id, params={"includeInactive": "true"}))
    assert shown["status"] == "inactive"


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ({}, "q"),
        ({"capabilityId": "no id!"}, "capabilityId"),
        ({"capabilityId": "cap.a.v1@"}, "capabilityId"),
        ({"capabilityId": "cap.a.*@>=1"}, "capabilityId"),
        ({"capabilityId": "cap.a.v1@>>1"}, "capabilityId"),
        ({"q": "x", "minReputation": "2"}, "minReputation"),
        ({"q": "x", "maxPriceCents": "-1"}, "maxPriceCents"),
        ({"q": "x", "availability": "perhaps"}, "availability"),
    ],
)
def test_bad_query_is_refused_by_its_member(payer: Caller, query: Json, path: str) -> None:
    body = refusal(payer.http.get("/v1/discover", params=query), 400, "INVALID_REQUEST")
    assert [error["path"] for error in body["errors"]] == [path]
