"""Agent registration and look-up, and what a dispatch looks like, row by row.

Spec: Agent card, Registry, Dispatch request, Authentication 3.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from urllib.parse import quote

import httpx
import pytest
import rfc8785
from nacl.signing import SigningKey

from core.trust.identity.card_signature import signed_registration
from tests.contract.conftest import (
    Caller,
    Json,
    MakeAgent,
    MakeCaller,
    answer,
    chain_of,
    refusal,
    unique,
)

REGISTER = "/v1/agents/register"
SECRET = "the-secret-that-nobody-reads"


def card(did: str | None = None, **members: object) -> Json:
    return {
        "did": did or unique("did:net:agent-"),
        "endpoint": "http://127.0.0.1:9",
        "version": 1,
        "capabilities": [{"id": unique("cap.x.") + ".v1", "description": "d"}],
        **members,
    }


def test_register_answers_ok_success_did_registered(payer: Caller) -> None:
    two = [{"id": "cap.one.v1", "description": ""}, {"id": "cap.two.v1", "description": ""}]
    acard = card(capabilities=two)
    reply = answer(payer.http.post(REGISTER, json={"acard": acard}))
    assert reply["ok"] is reply["success"] is True
    assert reply["did"] == reply["id"] == acard["did"]
    assert reply["registered"] == 2


def test_card_comes_back_as_registered_unknown_members_kept(
    payer: Caller, anonymous: httpx.Client
) -> None:
    acard = card(
        metadata={"name": "N", "author": "A", "model": "M", "x": 1},
        vendor={"nested": [1, None]},
        capabilities=[
            {
                "id": "cap.x.v1",
                "description": "d",
                "inputSchema": {"type": "object"},
                "outputSchema": {"type": "object"},
                "price_cents": 3,
                "tags": ["t"],
            }
        ],
    )
    answer(payer.http.post(REGISTER, json={"acard": acard}))
    record = answer(anonymous.get(f"/v1/agents/{acard['did']}"))
    assert record["acard"] == acard
    assert {name: record[name] for name in acard} == acard
    assert record["ownerDid"] == payer.did
    assert record["status"] == "active"


@pytest.mark.parametrize("path", ["/v1/agents/", "/v1/agent/"])
@pytest.mark.parametrize("did", ["did:net:x-{}", "did:web:host%3A8080-{}"])
def test_an_agents_did_may_be_raw_or_percent_encoded(
    payer: Caller, anonymous: httpx.Client, path: str, did: str
) -> None:
    did = did.format(unique(""))
    answer(payer.http.post(REGISTER, json={"acard": card(did)}))
    assert answer(anonymous.get(path + quote(did, safe="")))["did"] == did
    raw = httpx.URL(str(anonymous.base_url)).copy_with(raw_path=(path + did).encode())
    assert answer(anonymous.get(raw))["did"] == did


def test_unknown_agent_is_404(anonymous: httpx.Client) -> None:
    refusal(anonymous.get("/v1/agents/did:net:nobody"), 404, "NOT_FOUND")
    refusal(anonymous.get("/v1/agents/nonsense"), 404, "NOT_FOUND")


def test_a_secret_beside_the_card_is_never_shown(payer: Caller, anonymous: httpx.Client) -> None:
    """In either path the card's members may stand in the body itself."""
    for path in ("/v1/agents/register", "/v1/agent/register"):
        acard = card()
        beside = {"signingSecret": SECRET, "ownerDid": payer.did}
        answer(payer.http.post(path, json={**acard, **beside}))
        shown = anonymous.get(f"/v1/agents/{acard['did']}")
        assert answer(shown)["acard"] == acard
        assert SECRET not in shown.text


@pytest.mark.parametrize(
    ("where", "members"),
    [
        ("signingSecret", {"signingSecret": SECRET}),
        ("signing_secret", {"signing_secret": SECRET}),
        ("heartbeatToken", {"heartbeatToken": SECRET}),
        ("X-API-Key", {"X-API-Key": SECRET}),
        ("metadata.privateKey", {"metadata": {"privateKey": SECRET}}),
        ("auth[0].password", {"auth": [{"password": SECRET}]}),
        ("endpoint", {"endpoint": f"http://user:{SECRET}@127.0.0.1:9/"}),
    ],
)
def test_a_card_with_a_secret_in_it_is_refused(
    payer: Caller, anonymous: httpx.Client, where: str, members: Json
) -> None:
    acard = card()
    path = f"/v1/agents/{acard['did']}"
    with_secret = {**acard, **members}
    forms = [
        (payer.http.post, "/v1/agents/register", {"acard": with_secret}),
        (payer.http.patch, path, {"acard": members}),
    ]
    if where != "signingSecret":
        # In the body itself that one stands beside the card.
        forms.append((payer.http.post, "/v1/agent/register", with_secret))
        forms.append((payer.http.patch, path, members))
    answer(payer.http.post("/v1/agents/register", json={"acard": acard}))
    for send, target, body in forms:
        problem = refusal(send(target, json=body), 400, "INVALID_REQUEST")
        assert [item["path"] for item in problem["errors"]] == [f"acard.{where}"]
    bulk = {"agents": [{"acard": with_secret}]}
    (result,) = answer(payer.http.post("/v1/agents/register/bulk", json=bulk))["results"]
    assert result["code"] == "INVALID_REQUEST"
    assert answer(anonymous.get(path))["acard"] == acard


def test_a_schema_may_name_what_is_secret_in_inputs(payer: Caller, anonymous: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"apiKey": {"type": "string"}}, "password": "x"}
    acard = card()
    acard["capabilities"][0]["inputSchema"] = schema
    answer(payer.http.post("/v1/agents/register", json={"acard": acard}))
    assert answer(anonymous.get(f"/v1/agents/{acard['did']}"))["acard"] == acard


def test_bulk_register_answers_in_order(payer: Caller) -> None:
    cards = [card(), {"did": "nonsense"}, card()]
    body = {"agents": [{"acard": item} for item in cards]}
    first, second, third = answer(payer.http.post(f"{REGISTER}/bulk", json=body))["results"]
    assert (first["did"], third["did"]) == (cards[0]["did"], cards[2]["did"])
    assert second["code"] == "INVALID_REQUEST"
    assert "acard.endpoint" in {problem["path"] for problem in second["errors"]}


def test_list_filters_by_capability_and_pages(payer: Caller, anonymous: httpx.Client) -> None:
    capability = unique("cap.many.")
    dids = sorted(unique("did:net:m-") for _ in range(3))
    for did in dids:
        acard = card(did, capabilities=[{"id": capability, "description": ""}])
        answer(payer.http.post(REGISTER, json={"acard": acard}))
    path = f"/v1/agents?capabilityId={capability}"
    page = answer(anonymous.get(f"{path}&limit=2"))
    rest = answer(anonymous.get(f"{path}&limit=2&cursor={page['nextCursor']}"))
    assert [row["did"] for row in page["agents"] + rest["agents"]] == dids
    assert rest["nextCursor"] is None


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"did": "nonsense"}, "acard.did"),
        ({"endpoint": "ftp://127.0.0.1"}, "acard.endpoint"),
        ({"endpoint": 3}, "acard.endpoint"),
        ({"version": "1"}, "acard.version"),
        ({"capabilities": []}, "acard.capabilities"),
        ({"capabilities": [{"id": "bad id"}]}, "acard.capabilities[0].id"),
        ({"capabilities": [{"id": "a"}, {"id": "a"}]}, "acard.capabilities"),
        ({"publicKey": "short"}, "acard.publicKey"),
    ],
)
def test_a_bad_card_names_the_path(payer: Caller, change: Json, path: str) -> None:
    response = payer.http.post(REGISTER, json={"acard": card(**change)})
    body = refusal(response, 400, "INVALID_REQUEST")
    assert path in {problem["path"] for problem in body["errors"]}, body["errors"]


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://10.0.0.1/agent",
        "http://169.254.169.254/latest",
        "http://[fe80::1]:80",
        "http://192.168.1.1",
        "http://0x0a000001/",
        "http://[::ffff:10.0.0.1]/",
    ],
)
def test_an_endpoint_beyond_the_egress_policy_is_403(payer: Caller, endpoint: str) -> None:
    response = payer.http.post(REGISTER, json={"acard": card(endpoint=endpoint)})
    refusal(response, 403, "POLICY_DENIED")


def test_anothers_agent_cannot_be_replaced(
    payer: Caller, make_caller: MakeCaller, admin: Caller, anonymous: httpx.Client
) -> None:
    acard = card()
    answer(payer.http.post(REGISTER, json={"acard": acard}))
    changed = {**acard, "version": 2}
    thief = make_caller()
    refusal(thief.http.post(REGISTER, json={"acard": changed}), 403, "FORBIDDEN")
    assert answer(anonymous.get(f"/v1/agents/{acard['did']}"))["version"] == 1
    for somebody in (payer, admin):
        answer(somebody.http.post(REGISTER, json={"acard": changed}))
    assert answer(anonymous.get(f"/v1/agents/{acard['did']}"))["ownerDid"] == payer.did


def test_a_card_signed_by_the_agents_key_is_accepted_from_anybody(
    payer: Caller, make_caller: MakeCaller
) -> None:
    key = SigningKey.generate()
    acard = card(publicKey=base64.b64encode(bytes(key.verify_key)).decode())
    answer(payer.http.post(REGISTER, json={"acard": acard}))
    other = make_caller()
    signed = signed_registration(
        {**acard, "version": 2},
        private_key=bytes(key),
        audience=str(other.http.base_url).rstrip("/"),
        owner_did=payer.did,
        issued_ms=time.time_ns() // 1_000_000,
        counter=1,
    )
    registered = answer(other.http.post(REGISTER, json=signed))
    assert (registered["ownerDid"], registered["isNew"]) == (payer.did, False)
    forged = {**signed, "acard": {**acard, "version": 3}}
    refusal(other.http.post(REGISTER, json=forged), 401, "INVALID_SIGNATURE")


def self_signed(key: SigningKey, acard: Json) -> Json:
    """Return the registration of a card with this key's signature over it."""
    signature = base64.b64encode(key.sign(rfc8785.dumps(acard)).signature).decode()
    return {"acard": acard, "acardSignature": f"ed25519:{signature}"}


def test_a_replayed_signed_card_changes_nothing(
    payer: Caller, make_caller: MakeCaller, anonymous: httpx.Client
) -> None:
    """An older card, another one of the same version, one of an agent that has left since."""
    key, replayer = SigningKey.generate(), make_caller()
    first = card(publicKey=base64.b64encode(bytes(key.verify_key)).decode())
    path = f"/v1/agents/{first['did']}"
    older, newest = (self_signed(key, {**first, "version": number}) for number in (1, 3))
    other = self_signed(key, {**newest["acard"], "endpoint": "http://127.0.0.1:10"})
    answer(payer.http.post(REGISTER, json=older))
    answer(payer.http.post(REGISTER, json=newest))
    answer(payer.http.post(f"{path}/heartbeat", json={"status": "draining"}))
    before = answer(anonymous.get(path))
    for replayed in (older, other):
        refusal(replayer.http.post(REGISTER, json=replayed), 403, "FORBIDDEN")
    again = answer(replayer.http.post(REGISTER, json=newest))
    assert "heartbeatToken" not in again, "a card that was seen earns no credential"
    with_secret = {**self_signed(key, {**first, "version": 4}), "signingSecret": "the replayer's"}
    refusal(replayer.http.post(REGISTER, json=with_secret), 403, "FORBIDDEN")
    assert answer(anonymous.get(path)) == before
    answer(payer.http.delete(path))
    refusal(replayer.http.post(REGISTER, json=newest), 403, "FORBIDDEN")
    refusal(anonymous.get(path), 404, "NOT_FOUND")
    # The owner by key may go back; a new version that is signed for no deployment comes from any.
    answer(payer.http.post(REGISTER, json=older))
    newer = self_signed(key, {**first, "version": 4})
    refusal(replayer.http.post(REGISTER, json=newer), 403, "FORBIDDEN")
    assert answer(anonymous.get(path))["version"] == 1


def test_a_key_inside_the_card_of_an_unknown_did_proves_nothing(
    make_caller: MakeCaller, admin: Caller
) -> None:
    """Issue row 10: the stake that the DID's holder has put up stays the holder's."""
    holder, thief = make_caller(10), make_caller()
    answer(holder.http.post("/v1/stakes", json={"amount": 6}))
    key = SigningKey.generate()
    acard = card(publicKey=base64.b64encode(bytes(key.verify_key)).decode(), did=holder.did)
    refusal(thief.http.post(REGISTER, json=self_signed(key, acard)), 403, "FORBIDDEN")
    answer(holder.http.post("/v1/stakes/unstake", json={"amount": 6}))
    # Claimed while nothing was there: what comes later is still not the registrant's.
    second = {**acard, "did": unique("did:net:later-")}
    answer(thief.http.post(REGISTER, json=self_signed(key, second)))
    body = {"amount": 5, "agentDid": second["did"]}
    answer(admin.http.post("/v1/ledger/deposit", json={"amount": 5, "ownerDid": second["did"]}))
    answer(admin.http.post("/v1/stakes", json=body))
    refusal(thief.http.post("/v1/stakes/unstake", json=body), 403, "FORBIDDEN")
    assert answer(admin.http.post("/v1/stakes/unstake", json=body))["walletDid"] == second["did"]


def did_of_key(key: SigningKey) -> str:
    """Return the DID that is this key."""
    number = int.from_bytes(b"\xed\x01" + bytes(key.verify_key), "big")
    digits = ""
    while number:
        number, digit = divmod(number, 58)
        digits = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"[digit] + digits
    return f"did:key:z{digits}"


def test_a_did_key_signs_for_itself(make_caller: MakeCaller) -> None:
    """The DID is the key: its signature claims it, and the key inside the card does not matter."""
    key = SigningKey.generate()
    thief_key, did = SigningKey.generate(), did_of_key(key)
    acard = card(publicKey=base64.b64encode(bytes(thief_key.verify_key)).decode(), did=did)
    forged = self_signed(thief_key, acard)
    refusal(make_caller().http.post(REGISTER, json=forged), 401, "INVALID_SIGNATURE")
    answer(make_caller().http.post(REGISTER, json={"acard": acard}))  # claimed without a signature
    owner = make_caller()
    signed = signed_registration(
        {**acard, "version": 2},
        private_key=bytes(key),
        audience=str(owner.http.base_url).rstrip("/"),
        owner_did=owner.did,
        issued_ms=time.time_ns() // 1_000_000,
        counter=1,
    )
    assert answer(owner.http.post(REGISTER, json=signed))["isNew"] is False


def test_dispatch_carries_eventId_capabilityId_inputs_parents(
    payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent()
    record = payer.run(chain_of(agent.capability, "ab"))
    first, second = agent.stub.dispatches
    assert first["eventId"] != second["eventId"]
    assert first["capabilityId"] == first["capability"] == agent.capability
    assert first["inputs"] == first["input"] == {"own": "a"}
    assert first["parents"] == {}
    assert second["parents"]["a"]["result"] == record["nodes"]["a"]["result"]
    assert (second["workflowId"], second["taskId"]) == (record["id"], record["taskId"])
    assert (second["nodeId"], second["attempt"]) == ("b", 1)
    assert agent.stub.paths == ["/callboard/node"] * 2


def test_dispatchPath_of_the_card_is_used_as_is(
    payer: Caller, admin: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent()
    changed = {**agent.card, "dispatchPath": "/my/own/path"}
    answer(admin.http.post(REGISTER, json={"acard": changed}))
    # The directory hears of a change a moment after its commit; both paths reach this agent.
    for _ in range(50):
        assert payer.run(chain_of(agent.capability, "a"))["status"] == "success"
        if agent.stub.paths[-1] == "/my/own/path":
            break
    assert agent.stub.paths[-1] == "/my/own/path"


def test_dispatch_is_signed_with_the_agents_secret(payer: Caller, make_agent: MakeAgent) -> None:
    secret = "a shared secret"
    agent = make_agent(signingSecret=secret)
    payer.run(chain_of(agent.capability, "a"))
    body = json.dumps(agent.stub.dispatches[0], separators=(",", ":"), ensure_ascii=False).encode()
    expected = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    assert agent.stub.headers[0]["x-callboard-signature"] == expected


def test_dispatch_without_a_secret_is_not_signed(payer: Caller, make_agent: MakeAgent) -> None:
    agent = make_agent()
    payer.run(chain_of(agent.capability, "a"))
    headers = agent.stub.headers[0]
    assert "x-callboard-signature" not in headers
    assert headers["x-callboard-event"] == "node.dispatch"
    assert headers["x-callboard-protocol-version"] == "0.4"


def test_an_agent_is_weighed_by_what_is_published_at_once(
    make_agent: MakeAgent, payer: Caller
) -> None:
    """The second of a capability: for the first, an owner asks the ledger anyway."""
    for _ in range(10):
        first = make_agent()
        payer.run(chain_of(first.capability, "a"))
        second = make_agent(capability=first.capability)
        record = payer.run(chain_of(first.capability, "a"))
        weighed = {seen["agentDid"] for seen in record["nodes"]["a"]["selection"]["candidates"]}
        assert weighed == {first.did, second.did}


def test_who_was_deregistered_gets_nothing_that_is_published_at_once(
    make_agent: MakeAgent, payer: Caller, admin: Caller
) -> None:
    for _ in range(10):
        agent = make_agent()
        payer.run(chain_of(agent.capability, "a"))
        answer(admin.http.delete(f"/v1/agents/{quote(agent.did, safe='')}"))
        manifest = chain_of(agent.capability, "a")
        manifest["nodes"]["a"]["waitForAgentMs"] = 0
        record = payer.run(manifest)
        assert record["nodes"]["a"]["error"]["code"] == "NO_CANDIDATE"
