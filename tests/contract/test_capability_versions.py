"""Capability versions, row by row: published, listed, deprecated, negotiated, asked for by nodes.

Spec: Capability version; decision versions-and-schemas.
"""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Any

import httpx
import pytest

from tests.contract.audit_events import events_of
from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    RegisteredAgent,
    answer,
    refusal,
    unique,
)

Json = dict[str, Any]
VERSIONS = "/v1/capabilities/versions"
NEGOTIATE = "/v1/capabilities/negotiate"
TEXT: Json = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
LONGER: Json = {**TEXT, "properties": {"text": {"type": "string"}, "limit": {"type": "integer"}}}
OTHER: Json = {"type": "object", "properties": {"text": {"type": "integer"}}, "required": ["text"]}


def path_of(capability: str) -> str:
    return f"/v1/capabilities/{capability}/versions"


def version(capability: str, number: str, **more: object) -> Json:
    """Return the body that publishes a version."""
    body = {"capabilityId": capability, "version": number, "inputSchema": TEXT}
    return {**body, "outputSchema": TEXT, "changelog": f"What is in {number}.", **more}


def publish(caller: Caller, capability: str, number: str, **more: object) -> Json:
    return answer(caller.http.post(VERSIONS, json=version(capability, number, **more)))


@pytest.fixture
def agent(make_agent: MakeAgent, payer: Caller) -> RegisteredAgent:
    """An agent that is proven to be the payer's."""
    return make_agent(ownerDid=payer.did)


def test_versions_are_published_and_listed_newest_first(
    payer: Caller, agent: RegisteredAgent, make_caller: MakeCaller
) -> None:
    capability, other = agent.capability, make_caller()
    refusal(other.http.get(path_of(capability)), 404, "NOT_FOUND")
    first = publish(payer, capability, "1.9.0")
    assert first["versionId"] == first["id"] == f"{capability}@1.9.0"
    assert (first["ownerDid"], first["compatibility"]) == (payer.did, None)
    second = publish(payer, capability, "1.10.0", inputSchema=LONGER, deprecatesVersion="1.9.0")
    assert second["schemaHash"] != first["schemaHash"]
    assert second["compatibility"]["isCompatible"]
    publish(payer, capability, "2.0.0-rc.1", inputSchema=OTHER)
    found = answer(other.http.get(path_of(capability)))
    assert [one["version"] for one in found["versions"]] == ["2.0.0-rc.1", "1.10.0", "1.9.0"]
    assert [one["status"] for one in found["versions"]] == ["active", "active", "deprecated"]
    assert (found["latest"], found["versions"][2]["successor"]) == ("1.10.0", "1.10.0")
    page = answer(other.http.get(path_of(capability), params={"limit": 2}))
    rest = answer(other.http.get(path_of(capability), params={"cursor": page["nextCursor"]}))
    assert [*page["versions"], *rest["versions"]] == found["versions"]
    whole = answer(other.http.get(f"{path_of(capability)}/2.0.0-rc.1"))
    assert (whole["inputSchema"], whole["outputSchema"]) == (OTHER, TEXT)
    assert whole["compatibility"]["breaks"] == [
        {
            "path": "inputSchema.text", "affected": "callers that send inputs as before",
            "was": "string", "now": "integer", "isDecided": True,
        },
    ]  # fmt: skip
    refusal(other.http.get(f"{path_of(capability)}/3.0.0"), 404, "NOT_FOUND")


def test_a_version_keeps_what_its_number_promises(payer: Caller, agent: RegisteredAgent) -> None:
    """It says which member breaks whom; another major version may break it."""
    capability = agent.capability
    publish(payer, capability, "1.0.0", inputSchema=LONGER)
    publish(payer, capability, "1.2.0", inputSchema=LONGER)
    wrong = version(capability, "1.1.0", inputSchema=OTHER, outputSchema={"type": "object"})
    refused = refusal(payer.http.post(VERSIONS, json=wrong), 400, "INVALID_REQUEST")
    found = {(one["path"], one["got"]) for one in refused["errors"]}
    assert ("inputSchema.text", "integer") in found
    assert ("outputSchema.text", "absent") in found
    between = version(capability, "1.1.0", inputSchema={"type": "object"})
    refused = refusal(payer.http.post(VERSIONS, json=between), 400, "INVALID_REQUEST")
    assert "1.2.0" in refused["errors"][0]["expected"]
    publish(payer, capability, "2.0.0", inputSchema=OTHER)
    same = version(capability, "2.0.0", inputSchema=OTHER)
    refusal(payer.http.post(VERSIONS, json=same), 409, "CONFLICT")


def test_a_line_begins_with_a_proven_agent_and_is_its_owners(
    payer: Caller, agent: RegisteredAgent, make_caller: MakeCaller, admin: Caller
) -> None:
    stranger = make_caller()
    card = {**agent.card, "did": unique("did:net:agent-")}
    answer(stranger.http.post("/v1/agents/register", json={"acard": card}))  # an unproven claim
    body = version(agent.capability, "1.0.0")
    refusal(stranger.http.post(VERSIONS, json=body), 403, "FORBIDDEN")
    refusal(stranger.http.post(VERSIONS, json={**body, "ownerDid": payer.did}), 403, "FORBIDDEN")
    publish(payer, agent.capability, "1.0.0")
    later = version(agent.capability, "1.1.0")
    refusal(stranger.http.post(VERSIONS, json=later), 403, "FORBIDDEN")
    path = f"{path_of(agent.capability)}/1.0.0/deprecate"
    refusal(stranger.http.post(path), 403, "FORBIDDEN")
    given = publish(admin, agent.capability, "1.1.0", ownerDid=stranger.did)
    assert given["ownerDid"] == stranger.did
    refusal(payer.http.post(path), 403, "FORBIDDEN")
    answer(stranger.http.post(path, json={"successor": "1.1.0"}))


def test_a_line_begins_with_the_owner_of_the_oldest_agent(
    make_agent: MakeAgent, make_caller: MakeCaller, admin: Caller
) -> None:
    """Each caller's own DID is proven, so a card of its own may name any capability."""
    author, squatter = make_caller(), make_caller()
    agent, other = (make_agent(ownerDid=author.did) for _ in range(2))

    def claim(capability: str) -> None:
        offered = [{"id": capability, "description": ""}]
        card = {"did": squatter.did, "endpoint": "http://127.0.0.1:9", "version": 1}
        card["capabilities"] = [*offered, {"id": other.capability, "description": ""}]
        answer(squatter.http.post("/v1/agents/register", json={"acard": card}))

    claim(agent.capability)
    taken = squatter.http.post(VERSIONS, json=version(agent.capability, "1.0.0"))
    assert "comes first" in refusal(taken, 403, "FORBIDDEN")["detail"]
    assert publish(author, agent.capability, "1.0.0")["ownerDid"] == author.did
    refusal(squatter.http.post(VERSIONS, json=version(other.capability, "1.0.0")), 403, "FORBIDDEN")
    answer(admin.http.delete(f"/v1/agents/{other.did}"))
    while_it_is_down = squatter.http.post(VERSIONS, json=version(other.capability, "1.0.0"))
    refusal(while_it_is_down, 403, "FORBIDDEN")
    late = make_agent(ownerDid=author.did)
    claim(late.capability)
    given = publish(admin, late.capability, "1.0.0", ownerDid=author.did)
    assert given["ownerDid"] == author.did


def test_row_9_an_old_agent_that_offers_it_later_is_not_the_oldest(
    make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    """It began a line with version 9.0.0, and the capability's own agent got 403."""
    author, rival = make_caller(), make_caller()

    def offer_of(*capabilities: str) -> Json:
        offered = [{"id": one, "description": ""} for one in capabilities]
        card = {"did": rival.did, "endpoint": "http://127.0.0.1:9", "version": 1}
        return {"acard": {**card, "capabilities": offered}}

    own = unique("cap.test.")
    answer(rival.http.post("/v1/agents/register", json=offer_of(own)))
    agent = make_agent(ownerDid=author.did)
    answer(rival.http.post("/v1/agents/register", json=offer_of(agent.capability, own)))
    body = version(agent.capability, "9.0.0")
    refusal(rival.http.post(VERSIONS, json=body), 403, "FORBIDDEN")
    assert publish(author, agent.capability, "1.0.0")["ownerDid"] == author.did
    assert publish(rival, own, "1.0.0")["ownerDid"] == rival.did


def test_row_9_the_owner_of_the_oldest_proven_agent_takes_over_a_line(
    make_agent: MakeAgent, make_caller: MakeCaller, admin: Caller
) -> None:
    author, rival = make_caller(), make_caller()
    agent = make_agent(owner=author)  # an unproven claim, so that the rival's own DID goes before
    capability = agent.capability
    card = {"did": rival.did, "endpoint": "http://127.0.0.1:9", "version": 1}
    card["capabilities"] = [{"id": capability, "description": ""}]
    answer(rival.http.post("/v1/agents/register", json={"acard": card}))
    publish(rival, capability, "9.0.0")
    body = version(capability, "9.0.1")
    refusal(author.http.post(VERSIONS, json=body), 403, "FORBIDDEN")
    proven = {"acard": agent.card, "ownerDid": author.did}
    answer(admin.http.post("/v1/agents/register", json=proven))
    assert publish(author, capability, "9.0.1")["ownerDid"] == author.did
    (entry,) = answer(author.http.get(f"/v1/audit?targetId={capability}@9.0.1"))["entries"]
    assert events_of(entry)[0]["payload"]["formerOwnerDid"] == rival.did
    refusal(rival.http.post(VERSIONS, json=version(capability, "9.0.2")), 403, "FORBIDDEN")
    refusal(rival.http.post(f"{path_of(capability)}/9.0.0/deprecate"), 403, "FORBIDDEN")
    answer(author.http.post(f"{path_of(capability)}/9.0.0/deprecate"))
    publish(admin, capability, "9.1.0", ownerDid=rival.did)
    given = author.http.post(VERSIONS, json=version(capability, "9.2.0"))
    refusal(given, 403, "FORBIDDEN")
    assert publish(rival, capability, "9.2.0")["ownerDid"] == rival.did


def test_row_9_a_newcomer_takes_no_line_over(
    make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    """Its fresh DID is proven, and the DID of the line's owner may not be."""
    author, rival = make_caller(), make_caller()
    capability = make_agent(owner=author).capability
    publish(author, capability, "1.0.0")
    card = {"did": rival.did, "endpoint": "http://127.0.0.1:9", "version": 1}
    card["capabilities"] = [{"id": capability, "description": ""}]
    answer(rival.http.post("/v1/agents/register", json={"acard": card}))
    refusal(rival.http.post(VERSIONS, json=version(capability, "9.0.0")), 403, "FORBIDDEN")
    assert publish(author, capability, "1.0.1")["ownerDid"] == author.did


def test_a_deprecated_version_warns(payer: Caller, agent: RegisteredAgent) -> None:
    capability = agent.capability
    publish(payer, capability, "1.0.0")
    publish(payer, capability, "2.0.0")
    path = f"{path_of(capability)}/1.0.0"
    assert "deprecation" not in payer.http.get(path).headers
    done = answer(payer.http.post(f"{path}/deprecate", json={"successor": "2.0.0"}))
    assert int(done["sunsetAt"][:4]) == int(done["deprecatedAt"][:4]) + 1
    read = payer.http.get(path)
    assert answer(read)["sunsetAt"] == done["sunsetAt"]
    sunset = parsedate_to_datetime(read.headers["sunset"]).isoformat()
    assert sunset[:19] == done["sunsetAt"][:19]
    assert read.headers["deprecation"].startswith("@")
    assert f'{path_of(capability)}/2.0.0>; rel="successor-version"' in read.headers["link"]
    asked = {"capabilityId": capability, "supportedVersions": ["1.x"]}
    negotiated = payer.http.post(NEGOTIATE, json=asked)
    assert negotiated.headers["sunset"] == read.headers["sunset"]
    refusal(payer.http.post(f"{path}/deprecate"), 409, "CONFLICT")
    for ranges, is_warned in (
        (["@1.0.0"], True), (["@^1"], True), (["@>=1"], False), ([""], False),
        (["@1.0.0", "@>=1"], True),
    ):  # fmt: skip
        nodes = {str(n): {"capability": f"{capability}{one}"} for n, one in enumerate(ranges)}
        response = payer.publish({"nodes": nodes, "dryRun": True})
        assert ("sunset" in response.headers) is is_warned, answer(response)


def test_a_version_is_negotiated_with_the_way_to_the_latest(
    payer: Caller, agent: RegisteredAgent
) -> None:
    capability = agent.capability
    publish(payer, capability, "1.0.0")
    publish(payer, capability, "1.1.0", deprecatesVersion="1.0.0")
    publish(payer, capability, "2.0.0", inputSchema=OTHER)

    def ask(*supported: str, **more: str) -> httpx.Response:
        body = {"capabilityId": capability, "supportedVersions": supported, **more}
        return payer.http.post(NEGOTIATE, json=body)

    newest = answer(ask("1.x", "^2"))
    assert (newest["version"], newest["migrationPath"]) == ("2.0.0", [])
    older = answer(ask(">=1 <3", preferredVersion="1.0.0"))
    assert (older["version"], older["status"], older["latest"]) == ("1.0.0", "deprecated", "2.0.0")
    steps = older["migrationPath"]
    assert [one["toVersion"] for one in steps] == ["1.1.0", "2.0.0"]
    assert [one["isCompatible"] for one in steps] == [True, False]
    assert steps[1]["breaks"][0]["path"] == "inputSchema.text"
    assert steps[1]["changelog"] == "What is in 2.0.0."
    refused = refusal(ask("3.x"), 406, "NOT_ACCEPTABLE")
    assert "2.0.0, 1.1.0, 1.0.0" in refused["detail"]
    unknown = {"capabilityId": unique("cap.none."), "supportedVersions": ["1.x"]}
    refusal(payer.http.post(NEGOTIATE, json=unknown), 404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"version": "1.0"}, "version"),
        ({"version": "1.0.0+build"}, "version"),
        ({"capabilityId": "a@1"}, "capabilityId"),
        ({"inputSchema": "text"}, "inputSchema"),
        ({"inputSchema": {"type": "txt"}}, "inputSchema.type"),
        ({"inputSchema": {"$ref": "http://127.0.0.1:9/x"}}, "inputSchema.$ref"),
        ({"inputSchema": {"$ref": "file:///etc/passwd"}}, "inputSchema.$ref"),
        ({"inputSchema": {"$schema": "http://127.0.0.1:9/x"}}, "inputSchema.$schema"),
        ({"outputSchema": {"items": {"$id": "http://x.org"}}}, "outputSchema.items.$id"),
        ({"outputSchema": {"description": "x" * 33_000}}, "outputSchema"),
        ({"changelog": "x" * 10_001}, "changelog"),
        ({"deprecatesVersion": "one"}, "deprecatesVersion"),
        ({"versions": 1}, "versions"),
    ],
)
def test_bad_input_is_refused(payer: Caller, wrong: Json, path: str) -> None:
    body = version("cap.test.none.v1", "1.0.0", **wrong)
    refused = refusal(payer.http.post(VERSIONS, json=body), 400, "INVALID_REQUEST")
    assert refused["errors"][0]["path"] == path


def test_deep_and_recursive_schemas_are_refused_or_taken(
    payer: Caller, agent: RegisteredAgent
) -> None:
    deep: Json = {}
    for _ in range(40):
        deep = {"items": deep}
    body = version(agent.capability, "1.0.0", inputSchema=deep)
    refused = refusal(payer.http.post(VERSIONS, json=body), 400, "INVALID_REQUEST")
    assert refused["errors"][0]["path"] == "inputSchema"
    tree = {"type": "object", "properties": {"child": {"$ref": "#"}}}
    publish(payer, agent.capability, "1.0.0", inputSchema=tree)
    again = publish(payer, agent.capability, "1.0.1", inputSchema=tree)
    assert again["compatibility"]["isCompatible"]


@pytest.mark.parametrize(
    "wrong",
    [{"supportedVersions": []}, {"supportedVersions": ["one"]}, {"supportedVersions": ["1"] * 101},
     {"preferredVersion": ">>1"}, {"supportedVersions": "1"}],
)  # fmt: skip
def test_a_bad_negotiation_is_refused(payer: Caller, wrong: Json) -> None:
    body = {"capabilityId": "cap.test.none.v1", "supportedVersions": ["1"], **wrong}
    refusal(payer.http.post(NEGOTIATE, json=body), 400, "INVALID_REQUEST")


def offer(agent: RegisteredAgent, number: str) -> Json:
    """Return a registration that says which version of its capability an agent offers."""
    capability = {**agent.card["capabilities"][0], "version": number}
    return {"acard": {**agent.card, "capabilities": [capability]}}


def test_a_node_takes_a_version_that_it_names(
    payer: Caller, make_agent: MakeAgent, admin: Caller
) -> None:
    """The newest published one of its range; the dispatch says which."""
    older = make_agent(ownerDid=payer.did)
    newer = make_agent(capability=older.capability)
    capability = older.capability
    for number in ("1.0.0", "1.2.0", "2.0.0"):
        publish(payer, capability, number)
    answer(admin.http.post("/v1/agents/register", json=offer(older, "1.2.0")))
    answer(admin.http.post("/v1/agents/register", json=offer(newer, "2.0.0")))

    def run(versions: str, **node: object) -> Json:
        one = {"capabilityId": f"{capability}{versions}", **node}
        record: Json = payer.run({"nodes": {"a": one}})["nodes"]["a"]
        return record

    for versions, chosen, number in (
        ("@^1.0", older, "1.2.0"),
        ("@>=1.2", newer, "2.0.0"),
        ("@1.2.0", older, "1.2.0"),
        ("@>=1, <2", older, "1.2.0"),
    ):
        taken = run(versions)
        assert (taken["status"], taken["agentDid"]) == ("success", chosen.did), taken
        assert chosen.stub.dispatches[-1]["capabilityVersion"] == number
        assert chosen.stub.dispatches[-1]["capabilityId"] == capability
    assert run("")["status"] == "success"
    target = run("@>=1.2", targetAgentId=older.did, allowBroadcastFallback=True)
    assert target["agentDid"] == older.did
    missing = run("@3")
    assert (missing["status"], missing["error"]["code"]) == ("failed", "NO_CANDIDATE")
    dry = {"nodes": {"a": {"capabilityId": f"{capability}@^1.0"}}, "dryRun": True}
    candidates = answer(payer.publish(dry))["candidates"]
    assert candidates == {"a": [older.did]}


def test_owners_know_a_published_version_when_it_is_answered(
    payer: Caller, agent: RegisteredAgent
) -> None:
    for number in (f"1.{minor}.0" for minor in range(10)):
        answer(payer.http.post("/v1/agents/register", json=offer(agent, number)))
        publish(payer, agent.capability, number)
        dry = {"nodes": {"a": {"capabilityId": f"{agent.capability}@{number}"}}, "dryRun": True}
        assert answer(payer.publish(dry))["candidates"] == {"a": [agent.did]}, number


def test_no_card_takes_the_nodes_of_a_range_by_its_number(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    """What is not published in the capability's line is no version of it."""
    agent, thief = make_agent(ownerDid=payer.did), make_caller()
    publish(payer, agent.capability, "1.0.0")
    answer(payer.http.post("/v1/agents/register", json=offer(agent, "1.0.0")))
    other = make_agent(capability=agent.capability, owner=thief)
    answer(thief.http.post("/v1/agents/register", json=offer(other, "999.0.0")))
    node = {"capabilityId": f"{agent.capability}@>=1"}
    taken = payer.run({"nodes": {"a": node}})["nodes"]["a"]
    assert (taken["status"], taken["agentDid"]) == ("success", agent.did)


@pytest.mark.parametrize(
    "node",
    [{"capabilityId": "cap.x.y.v1@"}, {"capabilityId": "cap.x.y.v1@one"},
     {"capabilityId": "cap.x.y.v1@1@2"}, {"capabilityId": "cap.x.y.v1@" + "1" * 65},
     {"capabilityId": "cap.x.y.v1@1", "selection": "auction"},
     {"capabilityId": "cap.x.y.v1", "verifierCapabilityId": "cap.x.z.v1@1"}],
)  # fmt: skip
def test_a_node_that_names_no_range_is_refused(payer: Caller, node: Json) -> None:
    refused = refusal(payer.publish({"nodes": {"a": node}}), 400, "INVALID_MANIFEST")
    assert "apabilityId" in refused["errors"][0]["path"]


@pytest.mark.parametrize(
    "meant", [{"minLength": "x"}, {"required": [{}]}, {"minimum": "x"}, {"pattern": "(?=a)"}]
)
def test_a_reference_to_what_is_no_schema_is_refused(
    payer: Caller, agent: RegisteredAgent, meant: Json
) -> None:
    """Comparing it with the version after it would fail inside the service."""
    schema = {"default": meant, "properties": {"a": {"$ref": "#/default"}}}
    body = version(agent.capability, "1.0.0", inputSchema=schema)
    found = refusal(payer.http.post(VERSIONS, json=body), 400, "INVALID_REQUEST")
    assert all(one["path"].startswith("inputSchema") for one in found["errors"])
