"""Numbers keep their value on every way through the service; a hostile one is refused as such.

Section 2 (Strictness), section 5 (Reply, Input mapping).
"""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import httpx
import pytest
from nacl.signing import SigningKey

from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    answer,
    refusal,
)
from tests.contract.test_execution_async import PATH, begin, handed_in, later, one_node

Json = dict[str, Any]
WIDE = {
    "18 digits": 616581622363398142,
    "20 digits": 18446744073709551617,
    "negative": -(2**63) - 1,
    "128 digits": 10**128 - 1,
    "2^53": 2**53,
}
DOUBLES = {"1e17": 1e17, "2^53": 9007199254740992.0, "-0": -0.0, "1e300": 1e300, "least": 5e-324}
NUMBERS: Json = {"wide": WIDE, "doubles": DOUBLES, "list": list(WIDE.values())}
LONG = 10**128
JSON_TYPE = {"content-type": "application/json"}


def returns(result: Any, **members: Any) -> Any:
    """Return an agent that answers with this result."""
    return lambda _: (200, {"status": "success", "result": result, **members})


@pytest.mark.parametrize("padding", [0, 20_000, 80_000], ids=["small", "value process", "blob"])
def test_numbers_keep_their_digits_on_their_way_to_a_child(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller, padding: int
) -> None:
    """Payload, result, mapping, template, verification, parents, metrics, record, hash."""
    whole = {**NUMBERS, "text": "x" * padding}
    source = make_agent(returns(whole, metrics={"big": 2**70}))
    child = make_agent()
    verifier = make_agent(returns({"valid": True}), ownerDid=make_caller().did)
    payload = {"own": NUMBERS, "text": "n={{n}} {{ own }}"}
    nodes = {
        "a": {
            "capabilityId": source.capability,
            "payload": payload,
            "requiresVerification": True,
            "verifierCapabilityId": verifier.capability,
        },
        "b": {
            "capabilityId": child.capability,
            "payload": payload,
            "dependsOn": ["a"],
            "inputMappings": {
                "all": "$.a.result",
                "n": "$.a.result.wide['20 digits']",
                "last": "$.a.result.list[3]",
                "double": "$.a.result['\\u0064oubles']['1e17']",
            },
        },
    }
    record = payer.run({"nodes": nodes})
    assert record["status"] == "success", record["nodes"]
    (sent,) = (dispatch["inputs"] for dispatch in source.stub.dispatches)
    assert sent["own"]["wide"] == WIDE
    assert verifier.stub.dispatches[0]["inputs"]["result"]["wide"] == WIDE
    (taken,) = (dispatch["inputs"] for dispatch in child.stub.dispatches)
    assert taken["all"] == whole
    assert {type(number) for number in taken["all"]["list"]} == {int}
    assert (taken["n"], taken["last"]) == (WIDE["20 digits"], WIDE["128 digits"])
    assert taken["double"] == 1e17
    assert taken["text"].startswith(f"n={WIDE['20 digits']} {{")
    assert child.stub.dispatches[0]["parents"]["a"]["result"]["wide"] == WIDE
    assert record["nodes"]["a"]["result"] == whole
    assert record["nodes"]["a"]["metrics"]["big"] == 2**70
    assert record["nodes"]["b"]["result"]["inputs"]["all"]["wide"] == WIDE


def test_numbers_of_a_result_that_is_handed_in_keep_their_digits(
    payer: Caller, make_agent: MakeAgent, anonymous: httpx.Client
) -> None:
    agent = make_agent(later)
    path = begin(payer, one_node(agent.capability))
    agent.stub.wait_dispatched()
    dispatch = agent.stub.dispatches[0]
    refused = anonymous.post(PATH, json=handed_in(dispatch, result={"l": [LONG]}))
    assert refusal(refused, 400, "INVALID_REQUEST")["errors"][0]["path"] == "result.l[0]"
    twice = json.dumps(handed_in(dispatch)).replace('{"n": 1}', '{"n": 1, "n": 2}').encode()
    refused = anonymous.post(PATH, content=twice, headers=JSON_TYPE)
    assert refusal(refused, 400, "INVALID_REQUEST")["errors"][0]["path"] == "result.n"
    answer(anonymous.post(PATH, json=handed_in(dispatch, result=NUMBERS, metrics={"m": 10**100})))
    record = payer.finished(path)
    assert record["nodes"]["a"]["result"] == NUMBERS
    assert record["nodes"]["a"]["metrics"]["m"] == 10**100


def test_a_result_is_judged_by_a_schema_with_integers_of_many_digits(
    payer: Caller, make_agent: MakeAgent
) -> None:
    least = 2**70
    schema = {"properties": {"n": {"type": "integer", "minimum": least}}}
    price = {"price_cents": 1, "outputSchema": schema}
    record = payer.run(one_node(make_agent(returns({"n": least}), price=price).capability))
    assert record["status"] == "success", record
    agent = make_agent(returns({"n": least - 1}), price=price)
    record = payer.run(one_node(agent.capability, maxRetries=0))
    assert record["nodes"]["a"]["error"]["code"] == "OUTPUT_SCHEMA"


@pytest.mark.parametrize(
    ("result", "is_handed_in"),
    [({"n": [10**4_000]}, False), ({"n": [-(10**100)]}, False), ({"n": 2**53}, True)],
    ids=["too long", "signed", "signed and handed in"],
)
def test_what_libraries_cannot_read_or_sign_costs_no_stake(
    payer: Caller, admin: Caller, make_agent: MakeAgent, make_caller: MakeCaller, result: Json,
    is_handed_in: bool,
) -> None:  # fmt: skip
    owner, signature = make_caller(10), "ed25519:AAAA"
    price = {"price_cents": 5, "standingBid": {"bidAmount": 0.1}}
    reply = later if is_handed_in else returns(result, signature=signature)
    agent = make_agent(reply, owner=owner, price=price, stake=1)
    card = {"publicKey": base64.b64encode(bytes(SigningKey(bytes(32)).verify_key)).decode()}
    answer(owner.http.patch(f"/v1/agents/{agent.did}", json=card))
    node = {"selection": "auction", "maxCostCredits": 1, "maxRetries": 0}
    path = begin(payer, one_node(agent.capability, **node))
    if is_handed_in:
        agent.stub.wait_dispatched()
        body = handed_in(agent.stub.dispatches[0], result=result, signature=signature)
        answer(payer.http.post(PATH, json=body))
    error = payer.finished(path)["nodes"]["a"]["error"]
    assert error["code"] in ("INVALID_REPLY", "AUCTION_FAILED", "NO_CANDIDATE"), error
    assert answer(admin.http.get(f"/v1/stakes/{agent.did}"))["stakedAmount"] == 1


@pytest.mark.parametrize("text", [str(LONG), "-" + "7" * 129, "9" * 4_300, "1" * 5_000])
@pytest.mark.parametrize(
    ("path", "body", "at"),
    [
        ("/v1/workflows/publish", '{"nodes":{"a":{"capabilityId":"c","payload":{"x":[%s]}}}}',
         "nodes.a.payload.x[0]"),
        ("/v1/ledger/deposit", '{"amount":%s}', "amount"),
        ("/v1/agents/register", '{"acard":{"did":"did:x:y","z":{"n":%s}}}', "acard.z.n"),
        ("/v1/ledger/deposit", '{"amount":1,"unheardOf":%s}', "unheardOf"),
    ],
)  # fmt: skip
def test_an_integer_of_more_than_128_digits_is_refused_where_it_is(
    admin: Caller, path: str, body: str, at: str, text: str
) -> None:
    refused = admin.http.post(path, content=body % text, headers=JSON_TYPE)
    assert refused.status_code == 400, refused.text
    problem = refused.json()["errors"][0]
    assert (problem["path"], problem["got"]) == (at, "an integer of more than 128 digits")


@pytest.mark.parametrize(
    ("path", "body", "at"),
    [
        ("/v1/ledger/deposit", '{"amount":1,"amount":2}', "amount"),
        # Of more than the reading in pieces needs.
        ("/v1/workflows", '{"nodes":[' + '{"id":"x"},' * 20_000 + '1],"nodes":[]}', "nodes"),
    ],
    ids=["small", "in pieces"],
)
def test_a_member_that_stands_twice_is_named(admin: Caller, path: str, body: str, at: str) -> None:
    refused = admin.http.post(path, content=body, headers=JSON_TYPE)
    problem = refusal(refused, 400, "INVALID_REQUEST")["errors"][0]
    assert problem == {
        "path": at, "got": "the member twice", "expected": "each member of an object once",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("coding", "status"),
    [("gzip", 415), ("GZIP", 415), ("br, gzip", 415), ("zstd", 415), ("identity", 200), ("", 200),
     ("identity, identity", 200), ("identity, gzip", 415), ("x" * 300, 415)],
)  # fmt: skip
def test_a_coded_body_is_415_with_what_is_accepted(admin: Caller, coding: str, status: int) -> None:
    body = json.dumps({"amount": 1}).encode()
    body = gzip.compress(body) if status == 415 else body
    headers = {**JSON_TYPE, "content-encoding": coding}
    response = admin.http.post("/v1/ledger/deposit", content=body, headers=headers)
    if status == 200:
        answer(response)
        return
    refusal(response, 415, "UNSUPPORTED_MEDIA_TYPE")
    assert response.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("spelt", ["5000.0", "5e3", "5000"])
def test_a_whole_double_is_a_whole_number(payer: Caller, make_agent: MakeAgent, spelt: str) -> None:
    agent = make_agent()
    offer, ms = f'"{agent.capability}"', spelt
    node = f'{{"capabilityId":{offer},"timeoutMs":{ms},"maxRetries":0.0}}'
    other = f'{{"capability":{offer},"timeout":{ms}}}'
    limits = f'"maxCents":{ms},"settings":{{"maxRuntimeMs":{ms}}}'
    text = f'{{"nodes":{{"a":{node},"b":{other}}},{limits}}}'
    published = payer.http.post(
        "/v1/workflows/publish", content=text, headers={**JSON_TYPE, "prefer": "wait=30"}
    )
    record = payer.finished(
        f"/v1/workflows/{answer(published).get('workflowId') or answer(published)['id']}"
    )
    assert record["status"] == "success", record
    answer(payer.http.get(f"/v1/workflows/{record['id']}/budget"))
    refused = payer.http.post(
        "/v1/workflows/publish", content=text.replace(spelt, "5000.5"), headers=JSON_TYPE
    )
    problems = refusal(refused, 400, "INVALID_MANIFEST")["errors"]
    assert {problem["path"] for problem in problems} == {
        "maxCents", "nodes.a.timeoutMs", "nodes.b.timeout", "settings.maxRuntimeMs",
    }  # fmt: skip


def test_whole_doubles_in_other_bodies(
    admin: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    owner = make_caller(10)
    agent = make_agent(owner=owner)
    card = {**agent.card, "version": 2.0, "maxConcurrency": 3.0}
    card["capabilities"][0]["price_cents"] = 7.0
    answer(owner.http.post("/v1/agents/register", json={"acard": card}))
    shown = answer(owner.http.get(f"/v1/agents/{agent.did}"))
    assert json.dumps(shown["acard"]["version"] if "acard" in shown else shown["version"]) == "2"
    quota = {"maxWorkflowsPerDay": 5.0, "maxSpendPerDayCents": 1e3}
    answer(admin.http.post(f"/v1/quotas/{owner.did}", json=quota))
    refused = admin.http.post(f"/v1/quotas/{owner.did}", json={"maxWorkflowsPerDay": 5.5})
    assert refusal(refused, 400, "INVALID_REQUEST")["errors"][0]["path"] == "maxWorkflowsPerDay"


@pytest.mark.parametrize("step", ["[18446744073709551616]", "['\\x41']"])
def test_a_wrong_step_of_a_mapping_is_400_and_named(payer: Caller, step: str) -> None:
    mapping = {"x": f"$.a.result.l{step}"}
    nodes = {
        "a": {"capabilityId": "c"},
        "b": {"capabilityId": "c", "dependsOn": ["a"], "inputMappings": mapping},
    }
    problem = refusal(payer.publish({"nodes": nodes}), 400, "INVALID_MANIFEST")["errors"][0]
    assert problem["path"] == "nodes.b.inputMappings.x"
    assert "character" in problem["got"]
