"""Signed results, row by row: checked on arrival, kept with the attempt, listed and verified.

Spec: Signed results, /v1/trust/signed-results, /v1/signed-results/{nodeId}/verify.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from nacl.signing import SigningKey

from core.canonical import hash_text
from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    RegisteredAgent,
    answer,
    chain_of,
    refusal,
)
from tests.contract.test_execution_async import PATH, begin, handed_in, later, one_node, wait_node
from tests.contract.test_execution_ends import APPROVED, REJECTED, scripted, verified
from tests.contract.test_key_rotation import ROTATE, keyed, public, request
from tests.contract.test_stakes import signing

Json = dict[str, Any]
LARGE = "x" * 100_000


def listed(caller: Caller, workflow_id: str, **query: Any) -> list[Json]:
    """Return the signed results of a workflow."""
    path = f"/v1/trust/signed-results/{workflow_id}"
    results: list[Json] = answer(caller.http.get(path, params=query))["results"]
    return results


def verdict(caller: Caller, workflow_id: str, node: str = "a", **claim: Any) -> Json:
    """Return what is said of a result."""
    body = {"workflowId": workflow_id, **claim}
    return answer(caller.http.post(f"/v1/signed-results/{node}/verify", json=body))


def signed(key: SigningKey, text: str) -> str:
    """Return a signature over a text."""
    return "ed25519:" + base64.b64encode(key.sign(text.encode()).signature).decode()


def signing_agent(make_agent: MakeAgent, owner: Caller, key: SigningKey) -> RegisteredAgent:
    """Return an agent, owned by proof, with a key that signs its replies."""
    agent = make_agent(signing(key), ownerDid=owner.did)
    keyed(owner, agent, key)
    return agent


def test_what_was_signed_is_listed_and_the_rest_only_when_asked_for(
    payer: Caller, make_agent: MakeAgent
) -> None:
    key = SigningKey.generate()
    agent, silent = signing_agent(make_agent, payer, key), make_agent()
    manifest = chain_of(agent.capability, "abc")
    manifest["nodes"]["b"] = {"capabilityId": silent.capability, "dependsOn": ["a"]}
    del manifest["nodes"]["c"]["inputMappings"]
    record = payer.run(manifest)
    nodes = record["nodes"]
    results = listed(payer, record["id"])
    assert [one["nodeId"] for one in results] == ["a", "c"]
    for one in results:
        result_hash = hash_text(nodes[one["nodeId"]]["result"])
        text = f"{one['nodeId']}:{record['id']}:{result_hash}"
        assert one == {
            "nodeId": one["nodeId"],
            "agentDid": agent.did,
            "attempt": 1,
            "resultHash": result_hash,
            "signature": signed(key, text),
            "publicKey": public(key),
            "timestamp": one["timestamp"],
        }
        assert record["createdAt"] <= one["timestamp"] <= record["completedAt"]
    every = listed(payer, record["id"], all="true")
    assert [one["nodeId"] for one in every] == ["a", "b", "c"]
    assert (every[1]["agentDid"], every[1]["signature"], every[1]["publicKey"]) == (
        silent.did, None, None
    )  # fmt: skip
    path = f"/v1/trust/signed-results/{record['id']}"
    page = answer(payer.http.get(path, params={"limit": 1}))
    assert page["results"] == results[:1]
    rest = answer(payer.http.get(path, params={"cursor": page["nextCursor"]}))
    assert (rest["results"], rest["nextCursor"]) == (results[1:], None)


@pytest.mark.parametrize("text", ["small", LARGE], ids=["in the row", "stored apart"])
@pytest.mark.parametrize("is_later", [False, True], ids=["reply", "nodeResult"])
def test_a_signature_is_kept_wherever_a_result_is_judged_and_stored(
    payer: Caller, make_agent: MakeAgent, *, text: str, is_later: bool
) -> None:
    """A large result is judged in a process of its own, and stored under its hash."""
    key, result = SigningKey.generate(), {"text": text}

    def members(dispatch: Json) -> Json:
        message = f"a:{dispatch['workflowId']}:{hash_text(result)}"
        # Without its prefix it is as good; it is shown with it.
        return {"result": result, "signature": signed(key, message).removeprefix("ed25519:")}

    agent = make_agent(
        later if is_later else lambda dispatch: (200, {"status": "ok", **members(dispatch)}),
        owner=payer,
    )
    keyed(payer, agent, key)
    path = begin(payer, one_node(agent.capability))
    if is_later:
        wait_node(payer, path, "running")
        dispatch = agent.stub.dispatches[0]
        answer(payer.http.post(PATH, json=handed_in(dispatch, **members(dispatch))))
    record = payer.finished(path)
    assert record["status"] == "success", record["nodes"]
    (one,) = listed(payer, record["id"])
    assert one["signature"] == signed(key, f"a:{record['id']}:{one['resultHash']}")
    assert verdict(payer, record["id"])["valid"]


def test_the_signature_of_a_verified_result_is_that_of_the_attempt_that_was_accepted(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    key = SigningKey.generate()
    agent = signing_agent(make_agent, payer, key)
    judge = make_agent(scripted(REJECTED, APPROVED), price_cents=1, ownerDid=make_caller().did)
    manifest = verified(agent.capability, judge.capability)
    record = payer.run({**manifest, "settings": {"maxBudgetCredits": 5}})
    (one,) = listed(payer, record["id"])
    assert (one["attempt"], one["publicKey"]) == (2, public(key))


def field_text(dispatch: Json, members: str) -> str:
    """Return the text that clients in the field sign, with these members between their ids."""
    head = f'{{"workflowId":"{dispatch["workflowId"]}","nodeId":"{dispatch["nodeId"]}",'
    return f'{head}{members},"resultId":"{dispatch["resultId"]}"}}'


# As a client's JSON.stringify writes them into its request, and into the text that it signs.
SPELLINGS = {
    "as it is": '"result":{"n":1},"metrics":{"latency_ms":3}',
    "without metrics": '"result":{"t":"é\\u0001"}',
    "metrics null": '"result":[],"metrics":null',
    "as JavaScript": '"result":{"2":1,"10":0,"b":1e+21,"é":"\u2028","a":1e-7},"metrics":{}',
    "large": f'"result":"{LARGE}","metrics":{{}}',
}


@pytest.mark.parametrize("spelt", SPELLINGS.values(), ids=SPELLINGS)
def test_a_nodeResult_that_is_signed_as_a_whole_counts_as_unsigned(
    payer: Caller, make_agent: MakeAgent, anonymous: httpx.Client, spelt: str
) -> None:
    key = SigningKey.generate()
    agent = make_agent(later, owner=payer)
    keyed(payer, agent, key)
    path = begin(payer, one_node(agent.capability))
    wait_node(payer, path, "running")
    dispatch = agent.stub.dispatches[0]
    ids = ",".join(f'"{name}":"{dispatch[name]}"' for name in ("workflowId", "nodeId", "resultId"))
    signature = signed(key, field_text(dispatch, spelt))
    body = f'{{{ids},"status":"success",{spelt},"signature":"{signature}","publicKey":"x"}}'
    answer(anonymous.post(PATH, content=body.encode()))
    record = payer.finished(path)
    assert record["status"] == "success", record["nodes"]
    assert listed(payer, record["id"]) == []
    assert listed(payer, record["id"], all="true")[0]["signature"] is None
    told = verdict(payer, record["id"])
    assert (told["valid"], told["hashMatches"], told["signatureValid"]) == (False, True, False)
    assert told["reason"] == "the result is not signed"


Signs = Callable[[SigningKey, Json], str]
WRONG: dict[str, Signs] = {
    "over another text": lambda key, _: signed(key, "anything"),
    "by another key": lambda _, sent: signed(
        SigningKey.generate(), field_text(sent, '"result":{"n":1}')
    ),
    "no signature": lambda *_: "AAAA",
}


@pytest.mark.parametrize("signs", WRONG.values(), ids=WRONG)
def test_a_nodeResult_whose_signature_is_for_neither_message_is_a_wrong_one(
    payer: Caller, make_agent: MakeAgent, signs: Signs
) -> None:
    """Of an agent without a key it is none."""
    key = SigningKey.generate()
    agent = make_agent(later, owner=payer)
    keyed(payer, agent, key)
    for has_key in (True, False):
        worker = agent if has_key else make_agent(later, owner=payer)
        path = begin(payer, one_node(worker.capability, maxRetries=0))
        wait_node(payer, path, "running")
        dispatch = worker.stub.dispatches[0]
        body = handed_in(dispatch, signature=signs(key, dispatch))
        answer(payer.http.post(PATH, json=body))
        record = payer.finished(path)
        assert record["status"] == ("failed" if has_key else "success")
        assert listed(payer, record["id"]) == []
        if has_key:
            assert "is not" in record["nodes"]["a"]["error"]["message"]


def test_a_result_is_compared_with_the_stored_one(payer: Caller, make_agent: MakeAgent) -> None:
    """What is not brought is the stored; keys that were replaced have signed what they signed."""
    old, new = SigningKey.generate(), SigningKey.generate()
    agent = signing_agent(make_agent, payer, old)
    record = payer.run(one_node(agent.capability, payload={"n": 1}))
    workflow_id, result = record["id"], record["nodes"]["a"]["result"]
    answer(payer.http.post(ROTATE, json=request(agent.did, old, new)))
    good = {"valid": True, "hashMatches": True, "signatureValid": True, "signedBy": agent.did}
    (stored,) = listed(payer, workflow_id)
    text = f"a:{workflow_id}:{stored['resultHash']}"
    for claim in (
        {},
        {"result": result},
        {"resultHash": stored["resultHash"], "result": result},
        {"signature": stored["signature"], "publicKey": "ed25519:" + public(old)},
        {"signature": signed(new, text), "publicKey": public(new)},
    ):
        assert verdict(payer, workflow_id, **claim) == {**good, "reason": None}, claim
    other_hash = "sha256:" + "0" * 64
    for claim, is_same, is_signed in (
        ({"result": {"n": 2}}, False, False),
        ({"resultHash": other_hash}, False, False),
        ({"result": result, "resultHash": other_hash}, False, False),
        ({"result": {"n": 2}, "resultHash": stored["resultHash"]}, False, True),
        (
            {"resultHash": other_hash, "signature": signed(old, f"a:{workflow_id}:{other_hash}")},
            False,
            True,
        ),
        ({"signature": signed(new, text)}, True, False),
        ({"publicKey": public(new)}, True, False),
        ({"signature": signed(old, text + "x")}, True, False),
        ({"publicKey": "nonsense"}, True, False),
    ):
        told = verdict(payer, workflow_id, **claim)
        assert (told["valid"], told["hashMatches"]) == (False, is_same), claim
        assert told["signatureValid"] == is_signed, claim
        assert told["signedBy"] == (agent.did if is_signed else None)
        assert told["reason"]
    stranger = SigningKey.generate()
    forged = {"signature": signed(stranger, text), "publicKey": public(stranger)}
    assert not verdict(payer, workflow_id, **forged)["signatureValid"], "not a key of the agent"


def test_only_parties_see_signed_results_and_agents_their_own(
    payer: Caller, admin: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    key, owner = SigningKey.generate(), make_caller()
    mine, others = signing_agent(make_agent, owner, key), signing_agent(make_agent, payer, key)
    manifest = one_node(mine.capability)
    manifest["nodes"]["b"] = {"capabilityId": others.capability}
    workflow_id = payer.run(manifest)["id"]
    worker, path = make_caller(ownerDid=mine.did), f"/v1/trust/signed-results/{workflow_id}"
    for caller, nodes in (
        (payer, {"a", "b"}), (admin, {"a", "b"}), (worker, {"a"}), (owner, {"a"}),
    ):  # fmt: skip
        assert {one["nodeId"] for one in listed(caller, workflow_id, all="true")} == nodes
        for node in ("a", "b"):
            body = {"workflowId": workflow_id}
            told = caller.http.post(f"/v1/signed-results/{node}/verify", json=body)
            assert told.status_code == (200 if node in nodes else 404)
    stranger = make_caller()
    refusal(stranger.http.get(path), 404, "NOT_FOUND")
    body = {"workflowId": workflow_id}
    refusal(stranger.http.post("/v1/signed-results/a/verify", json=body), 404, "NOT_FOUND")
    refusal(payer.http.post("/v1/signed-results/c/verify", json=body), 404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"workflowId": 5}, "workflowId"),
        ({"resultHash": "sha256:ABC"}, "resultHash"),
        ({"signature": "x" * 1_025}, "signature"),
        ({"publicKey": ""}, "publicKey"),
        ({"result": 10**400}, "result"),
    ],
)
def test_bad_claims_are_refused(payer: Caller, wrong: Json, path: str) -> None:
    body = {"workflowId": "00000000-0000-7000-8000-000000000000", **wrong}
    refused = payer.http.post("/v1/signed-results/a/verify", json=body)
    assert refusal(refused, 400, "INVALID_REQUEST")["errors"][0]["path"] == path
