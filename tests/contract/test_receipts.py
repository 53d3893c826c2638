"""Receipts, row by row: one for each payment, signed once, verified with public libraries.

Spec: Receipts, /v1/receipts, /v1/receipts/workflow/{id}, /v1/receipts/verify.
"""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jwt
import pytest
import rfc8785
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from nacl.signing import SigningKey

from callboard import Client
from core.canonical import hash_bytes, hash_text
from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    answer,
    chain_of,
    refusal,
)
from tests.contract.test_execution_async import later, one_node
from tests.contract.test_execution_ends import APPROVED, scripted, verified
from tests.contract.test_field_forms import FieldClient, field  # noqa: F401 (a fixture)
from tests.contract.test_key_rotation import keyed
from tests.contract.test_signing_keys import DESCRIPTION, ROTATE, entry
from tests.contract.test_tasks import publish
from tests.platform.deployments import RunningDeployment

Json = dict[str, Any]
SUBMIT, VERIFY = "/v1/receipts", "/v1/receipts/verify"
BESIDE = ("signature", "checkpoint", "submitted")


def receipts(caller: Caller, of: str, **query: Any) -> list[Json]:
    """Return the receipts of an agent's DID, or of `workflow/{id}`."""
    found: list[Json] = answer(caller.http.get(f"/v1/receipts/{of}", params=query))["receipts"]
    return found


def of_workflow(caller: Caller, workflow_id: str) -> dict[str, Json]:
    """Return the receipts of a workflow by payment line."""
    return {one["nodeId"]: one for one in receipts(caller, f"workflow/{workflow_id}")}


def signing_keys(caller: Caller) -> list[Json]:
    """Return the deployment's signing keys, the newest first."""
    keys: list[Json] = answer(caller.http.get(DESCRIPTION))["signingKeys"]
    return keys


def key_of(caller: Caller, key_id: str) -> Ed25519PublicKey:
    """Return a signing key of the deployment, as it is published."""
    (key,) = (one["publicKey"] for one in signing_keys(caller) if one["keyId"] == key_id)
    return Ed25519PublicKey.from_public_bytes(base64.b64decode(key))


def members_of(receipt: Json) -> Json:
    """Return the signed members of a receipt."""
    return {name: value for name, value in receipt.items() if name not in BESIDE}


def check_signed(caller: Caller, receipt: Json) -> None:
    """Check the signature as anyone can, with libraries that are not the service's."""
    signature = base64.b64decode(receipt["signature"].removeprefix("ed25519:"))
    key_of(caller, receipt["keyId"]).verify(signature, rfc8785.dumps(members_of(receipt)))


def is_valid(caller: Caller, receipt: Json) -> bool:
    """Return what the service says of a receipt."""
    told = answer(caller.http.post(VERIFY, json={"receipt": receipt}))
    assert told["valid"] == (told["reason"] is None)
    assert told["valid"] == (told["keyKnown"] and told["signatureValid"])
    return bool(told["valid"])


def test_a_receipt_says_what_the_ledger_holds_of_a_payment(
    payer: Caller, admin: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent(price_cents=7)
    record = payer.run(one_node(agent.capability, payload={"n": 1}))
    (receipt,) = receipts(payer, f"workflow/{record['id']}")
    node, settled = record["nodes"]["a"], entry(admin, receipt["auditId"])
    events = {event["type"]: event["payload"] for event in settled["payload"]["events"]}
    payment, done = events["payment.settled"], events["node.succeeded"]
    assert receipt == {
        "receiptId": f"rcpt_{payment['entryIds'][0]}",
        "workflowId": record["id"],
        "nodeId": "a",
        "agentDid": agent.did,
        "inputHash": hash_text(agent.stub.dispatches[0]["inputs"]),
        "outputHash": hash_text(node["result"]),
        "startedAt": node["startedAt"],
        "completedAt": node["completedAt"],
        "computeMs": node["metrics"]["latency_ms"],
        "amountCredits": 0.0665,
        "feeCredits": 0.0035,
        "auditId": settled["id"],
        "keyId": signing_keys(payer)[0]["keyId"],
        "signedAt": receipt["signedAt"],
        "signature": receipt["signature"],
        "checkpoint": receipt["checkpoint"],
        "submitted": [],
    }
    assert (done["inputHash"], done["outputHash"]) == (receipt["inputHash"], receipt["outputHash"])
    assert (payment["agentCredits"], payment["feeCredits"]) == ("0.0665", "0.0035")
    assert receipt["signedAt"] >= settled["createdAt"], "not in the payment's way"
    check_signed(payer, receipt)
    again = answer(payer.http.get(f"/v1/receipts/{receipt['receiptId']}"))
    # A checkpoint may be signed in between.
    assert again == {**receipt, "checkpoint": receipt["checkpoint"] or again["checkpoint"]}
    assert receipts(payer, agent.did) == [receipt]
    assert is_valid(payer, receipt)


def test_verifiers_and_settled_tasks_have_receipts_and_free_nodes_none(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    agent = make_agent(price_cents=100)
    judge = make_agent(scripted(APPROVED), price_cents=20, ownerDid=make_caller().did)
    record = payer.run(verified(agent.capability, judge.capability))
    found = of_workflow(payer, record["id"])
    assert {line: (one["agentDid"], one["amountCredits"]) for line, one in found.items()} == {
        "a": (agent.did, 0.95),
        "a#verify": (judge.did, 0.19),
    }
    assert found["a"]["outputHash"] == hash_text(record["nodes"]["a"]["result"])
    assert (found["a#verify"]["inputHash"], found["a#verify"]["outputHash"]) == (None, None)
    slow = make_agent(later, price_cents=50)
    made = publish(payer, f"[{slow.capability}] x", budget=2)
    answer(payer.http.post(f"/v1/tasks/{made['taskId']}/settle"))
    settled = of_workflow(payer, made["workflowId"])["task"]
    assert (settled["amountCredits"], settled["outputHash"]) == (0.475, hash_bytes(b"{}"))
    for one in (*found.values(), settled):
        check_signed(payer, one)
    free = payer.run(one_node(make_agent(price_cents=0).capability))
    assert of_workflow(payer, free["id"]) == {}


def test_a_receipt_stays_the_same_when_the_signing_key_is_rotated(
    payer: Caller, admin: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent()
    read, unread = (payer.run(one_node(agent.capability))["id"] for _ in range(2))
    before = of_workflow(payer, read)["a"]
    rotated = answer(admin.http.post(ROTATE))
    assert before["keyId"] == rotated["formerKeyId"]
    assert of_workflow(payer, read)["a"] == before
    later_signed = of_workflow(payer, unread)["a"]
    assert later_signed["keyId"] == rotated["keyId"]
    for one in (before, later_signed):
        check_signed(payer, one)
        assert is_valid(admin, one)


def test_the_first_signing_is_the_only_one(payer: Caller, make_agent: MakeAgent) -> None:
    agent = make_agent()
    record = payer.run(chain_of(agent.capability, "abcdefgh"))
    paths = (f"workflow/{record['id']}", agent.did)
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(lambda number: receipts(payer, paths[number % 2]), range(16)))
    assert len(read[0]) == 8
    for one in read:  # a checkpoint may be signed between two reads
        assert [{**receipt, "checkpoint": None} for receipt in one] == [
            {**receipt, "checkpoint": None} for receipt in read[0]
        ]


def test_public_libraries_verify_receipts_as_json_web_signatures(
    payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent()
    record = payer.run(chain_of(agent.capability, "abc"))
    expected = receipts(payer, f"workflow/{record['id']}")
    for path, count in (
        (f"workflow/{record['id']}", 3),
        (agent.did, 3),
        (f"{agent.did}?limit=2", 2),
        (expected[0]["receiptId"], 1),
    ):
        reply = payer.http.get(f"/v1/receipts/{path}", headers={"Accept": "application/jose"})
        assert (reply.status_code, reply.headers["content-type"]) == (200, "application/jose")
        lines = reply.text.split("\n")
        assert len(lines) == count
        for line, receipt in zip(lines, expected, strict=False):
            header = jwt.get_unverified_header(line)
            assert header == {"alg": "EdDSA", "kid": receipt["keyId"], "typ": "JOSE"}
            key = key_of(payer, header["kid"])
            assert jwt.decode(line, key, algorithms=["EdDSA"]) == members_of(receipt)
            head, body, _ = line.split(".")
            other = receipt["signature"][8:94].replace("+", "-").replace("/", "_")
            forged = f"{head}.{body}.{other}"
            with pytest.raises(jwt.InvalidSignatureError):
                jwt.decode(forged, key, algorithms=["EdDSA"])
    refused = payer.http.get(
        f"/v1/receipts/{agent.did}?limit=101", headers={"Accept": "application/jose"}
    )
    refusal(refused, 400, "INVALID_REQUEST")
    others = payer.http.get("/v1/workflows", headers={"Accept": "application/jose"})
    refusal(others, 406, "NOT_ACCEPTABLE")


def test_every_change_of_a_receipt_is_found(
    payer: Caller, admin: Caller, make_agent: MakeAgent
) -> None:
    record = payer.run(one_node(make_agent().capability))
    good = of_workflow(payer, record["id"])["a"]
    assert is_valid(admin, {**good, "checkpoint": "x", "submitted": []}), "they are not signed"
    for name, value in members_of(good).items():
        changed = f"{value}0" if isinstance(value, str) else value + 1
        assert not is_valid(admin, {**good, name: changed}), name
        assert not is_valid(admin, {one: good[one] for one in good if one != name}), name
    for wrong in (
        {},
        {**good, "more": 1},
        {**good, "signature": None},
        {**good, "signature": good["signature"][:-4] + "AAAA"},
        {**good, "keyId": ["x"]},
    ):
        assert not is_valid(admin, wrong), wrong
    for body in ({}, {"receipt": []}, {"receipt": good, "jws": "x"}):
        refusal(admin.http.post(VERIFY, json=body), 400, "INVALID_REQUEST")


def test_lists_are_read_page_by_page_and_show_only_what_is_the_callers(
    payer: Caller, admin: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    owner, other, stranger = make_caller(), make_caller(10), make_caller(10)
    agent = make_agent(ownerDid=owner.did)
    mine = [payer.run(one_node(agent.capability))["id"] for _ in range(3)]
    (others,) = [other.run(one_node(agent.capability))["id"]]
    newest_first = [others, *reversed(mine)]
    worker = make_caller(ownerDid=agent.did)
    for caller, seen in (
        (admin, newest_first),
        (owner, newest_first),
        (worker, newest_first),
        (payer, newest_first[1:]),
        (other, [others]),
        (stranger, []),
    ):
        assert [one["workflowId"] for one in receipts(caller, agent.did)] == seen
        for workflow_id in newest_first:
            listed = caller.http.get(f"/v1/receipts/workflow/{workflow_id}")
            if workflow_id in seen:
                (receipt,) = answer(listed)["receipts"]
                answer(caller.http.get(f"/v1/receipts/{receipt['receiptId']}"))
            else:
                refusal(listed, 404, "NOT_FOUND")
    (hidden,) = receipts(other, f"workflow/{others}")
    refusal(payer.http.get(f"/v1/receipts/{hidden['receiptId']}"), 404, "NOT_FOUND")
    page = answer(payer.http.get(f"/v1/receipts/{agent.did}", params={"limit": 2}))
    rest = {"limit": 2, "cursor": page["nextCursor"]}
    end = answer(payer.http.get(f"/v1/receipts/{agent.did}", params=rest))
    assert [one["workflowId"] for one in page["receipts"] + end["receipts"]] == mine[::-1]
    assert end["nextCursor"] is None
    assert receipts(payer, agent.did, offset=2) == end["receipts"]
    assert receipts(payer, "did:net:nobody") == []
    for unknown in (
        "rcpt_0",
        "rcpt_" + "9" * 19,
        "rcpt_" + "9" * 5_000,
        "did:x:" + "d" * 251,
        "rcpt_x",
        "workflow",
        "x",
    ):
        refusal(payer.http.get(f"/v1/receipts/{unknown}"), 404, "NOT_FOUND")


def test_the_agents_part_of_a_workflow_is_all_that_its_owner_sees(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    owner = make_caller()
    agent = make_agent(ownerDid=owner.did)
    manifest = one_node(agent.capability)
    manifest["nodes"]["b"] = {"capabilityId": make_agent().capability}
    workflow_id = payer.run(manifest)["id"]
    assert of_workflow(payer, workflow_id).keys() == {"a", "b"}
    assert of_workflow(owner, workflow_id).keys() == {"a"}


FIELD_RECEIPT = (
    '{"workflowId":"$workflow","nodeId":"a","inputHash":"sha256:$zeros","outputHash":"sha256:$zeros",'
    '"startedAt":"2026-01-31T12:00:00.000Z","completedAt":"2026-01-31T12:00:01.000Z",'
    '"computeMs":1000,"signature":"ed25519:AAAA"}'
)


def test_parties_keep_receipts_of_their_own_beside_ours(
    field: FieldClient,  # noqa: F811 (the fixture)
    payer: Caller,
    admin: Caller,
    make_agent: MakeAgent,
    make_caller: MakeCaller,
) -> None:
    """As the client in the field sends one; each brings one, the same again is the first."""
    owner = make_caller()
    agent = make_agent(ownerDid=owner.did)
    workflow_id = payer.run(one_node(agent.capability))["id"]
    worker = make_caller(ownerDid=agent.did)
    names = {"workflow": workflow_id, "zeros": "0" * 64}
    made = []
    for caller, did in ((worker, agent.did), (payer, payer.did), (owner, owner.did)):
        sent = field.send("POST", SUBMIT, FIELD_RECEIPT, key=caller.key, **names)
        reply = answer(sent)
        made.append(reply["receiptId"])
        assert (reply["success"], reply["id"], reply["verified"]) == (True, made[-1], None)
        assert (reply["agentDid"], reply["submitterDid"]) == (agent.did, did)
        again = field.send("POST", SUBMIT, FIELD_RECEIPT, key=caller.key, **names)
        assert answer(again)["receiptId"] == made[-1]
        another = FIELD_RECEIPT.replace("1000", "1001")
        refused = field.send("POST", SUBMIT, another, key=caller.key, **names)
        refusal(refused, 409, "CONFLICT")
    path = "/v1/receipts/$did"
    (ours,) = answer(field.send("GET", path, key=payer.key, did=agent.did))["receipts"]
    check_signed(payer, ours)
    assert [one["receiptId"] for one in ours["submitted"]] == made
    assert all(one["receipt"]["computeMs"] == 1000 for one in ours["submitted"])
    audit = f"/v1/audit?eventType=receipt.submitted&targetId={made[0]}"
    for party in (payer, owner, worker):
        (found,) = answer(party.http.get(audit))["entries"]
        (event,) = found["payload"]["events"]
        body = ours["submitted"][0]["receipt"]
        assert event["payload"]["receiptHash"] == hash_text(body)
    stranger = make_caller()
    for other in (stranger, admin):
        refused = field.send("POST", SUBMIT, FIELD_RECEIPT, key=other.key, **names)
        refusal(refused, 404, "NOT_FOUND")


def test_the_signature_of_a_submitted_receipt_is_checked_with_the_registered_key(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    """Also of a node that is not paid yet: an agent may send it before its result."""
    key, owner = SigningKey.generate(), make_caller()
    agent, other = make_agent(is_held=True, owner=owner), make_agent()
    keyed(owner, agent, key)
    nodes = {name: {"capabilityId": agent.capability} for name in "abc"}
    workflow_id = answer(payer.publish({"nodes": nodes}))["workflowId"]
    for _ in nodes:
        agent.stub.wait_dispatched()
    for name, by, expected in (("a", key, True), ("b", SigningKey.generate(), False)):
        body: Json = {"workflowId": workflow_id, "nodeId": name, "agentDid": agent.did, "n": 0.5}
        signature = base64.b64encode(by.sign(rfc8785.dumps(body)).signature).decode()
        sent = owner.http.post(SUBMIT, json={**body, "signature": signature})
        assert answer(sent)["verified"] == expected
    wrong = {"workflowId": workflow_id, "nodeId": "c", "agentDid": other.did}
    refused = refusal(owner.http.post(SUBMIT, json=wrong), 400, "INVALID_REQUEST")
    assert refused["errors"][0]["path"] == "agentDid"
    agent.stub.gate.set()
    payer.finished(f"/v1/workflows/{workflow_id}")
    shown = {
        line: [one["verified"] for one in receipt["submitted"]]
        for line, receipt in of_workflow(payer, workflow_id).items()
    }
    assert shown == {"a": [True], "b": [False], "c": []}


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"workflowId": "x"}, "workflowId"),
        ({"nodeId": "a#verify"}, "nodeId"),
        ({"agentDid": "me"}, "agentDid"),
        ({"signature": ""}, "signature"),
        ({"note": "x" * 8_192}, "$"),
        ({"note": "\0"}, "$"),
    ],
)
def test_bad_receipts_are_refused(
    payer: Caller, make_agent: MakeAgent, wrong: Json, path: str
) -> None:
    record = payer.run(one_node(make_agent().capability))
    body = {"workflowId": record["id"], "nodeId": "a", **wrong}
    refused = refusal(payer.http.post(SUBMIT, json=body), 400, "INVALID_REQUEST")
    assert refused["errors"][0]["path"] == path
    assert of_workflow(payer, record["id"])["a"]["submitted"] == []


def test_the_client_reads_verifies_and_submits(
    payer: Caller, make_agent: MakeAgent, deployment: RunningDeployment
) -> None:
    agent = make_agent()
    workflow_id = payer.run(one_node(agent.capability))["id"]
    with Client(deployment.url, payer.key) as client:
        (receipt,) = client.receipts_of_workflow(workflow_id).rows
        assert client.receipts_of(agent.did, limit=1).rows == [receipt]
        assert client.receipt(receipt.receipt_id) == receipt
        assert client.verify_receipt(receipt).valid
        own = client.submit_receipt({"workflowId": workflow_id, "nodeId": "a"})
        assert client.receipt(receipt.receipt_id).submitted[0].receipt_id == own.receipt_id
        assert client.signed_results(workflow_id, all=True).rows[0].signature is None
        assert not client.verify_result("a", workflow_id).valid
