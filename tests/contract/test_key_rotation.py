"""Key rotation, row by row: by the current key alone, once, with the history that relying parties
read.

Spec: Key rotation, /v1/trust/rotate-key; decision agent-identity.
"""

from __future__ import annotations

import base64
import os
from typing import Any
from urllib.parse import quote

import pytest
from nacl.signing import SigningKey

from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    RegisteredAgent,
    answer,
    refusal,
)
from tests.contract.test_agents import did_of_key
from tests.contract.test_stakes import signing

Json = dict[str, Any]
ROTATE = "/v1/trust/rotate-key"


def public(key: SigningKey) -> str:
    """Return a key as the registry has it."""
    return base64.b64encode(bytes(key.verify_key)).decode()


def proof(key: SigningKey, did: str, new: str) -> str:
    """Return what a key signs to be replaced."""
    return base64.b64encode(key.sign(f"rotate:{did}:{new}".encode()).signature).decode()


def request(did: str, old: SigningKey, new: SigningKey) -> Json:
    """Return the body of a rotation."""
    text = public(new)
    return {"agentDid": did, "newPublicKey": text, "rotationProof": proof(old, did, text)}


def keyed(caller: Caller, agent: RegisteredAgent, key: SigningKey) -> None:
    """Give an agent its first key."""
    answer(caller.http.patch(f"/v1/agents/{agent.did}", json={"publicKey": public(key)}))


def keys_of(caller: Caller, did: str) -> list[str]:
    """Return an agent's keys, the current one first."""
    path = f"/v1/trust/key-history/{quote(did, safe='')}"
    return [key["publicKey"] for key in answer(caller.http.get(path))["keyHistory"]]


def test_a_key_is_replaced_by_its_own_word_and_stands_in_the_history(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    """Brought by another caller: the proof is the credential. The registry shows the new key."""
    old, new, bearer = SigningKey.generate(), SigningKey.generate(), make_caller()
    agent = make_agent(owner=payer)
    keyed(payer, agent, old)
    rotated = answer(bearer.http.post(ROTATE, json=request(agent.did, old, new)))
    assert (rotated["success"], rotated["id"], rotated["agentDid"]) == (True, agent.did, agent.did)
    assert (rotated["keyId"], rotated["publicKey"]) == (f"{agent.did}#key-2", public(new))
    page = answer(bearer.http.get(f"/v1/trust/key-history/{agent.did}"))
    current, former = page["keyHistory"]
    assert current == {
        "keyId": f"{agent.did}#key-2", "publicKey": public(new),
        "validFrom": rotated["validFrom"], "validUntil": None,
    }  # fmt: skip
    assert (former["keyId"], former["publicKey"]) == (f"{agent.did}#key-1", public(old))
    assert former["validUntil"] == rotated["formerValidUntil"] == rotated["validFrom"]
    (first,) = answer(
        bearer.http.get(f"/v1/trust/key-history/{agent.did}", params={"cursor": "Mg"})
    )["keyHistory"]
    assert first == former
    shown = answer(payer.http.get(f"/v1/agents/{agent.did}"))
    assert shown["publicKey"] == shown["acard"]["publicKey"] == public(new)
    changed = {"metadata": {"name": "renamed"}}
    answer(payer.http.patch(f"/v1/agents/{agent.did}", json=changed))
    assert keys_of(payer, agent.did) == [public(new), public(old)]


def test_results_are_judged_by_the_key_that_is_valid_as_they_arrive(
    payer: Caller, make_agent: MakeAgent
) -> None:
    """From the reply to the rotation on; the old key's signature costs an attempt."""
    old, new = SigningKey.generate(), SigningKey.generate()
    held = [old]
    agent = make_agent(lambda dispatch: signing(held[-1])(dispatch), owner=payer)
    keyed(payer, agent, old)
    node = {"capabilityId": agent.capability, "maxRetries": 0}
    assert payer.run({"nodes": {"a": node}})["status"] == "success"
    answer(payer.http.post(ROTATE, json=request(agent.did, old, new)))
    record = payer.run({"nodes": {"a": node}})
    assert record["nodes"]["a"]["error"]["code"] == "INVALID_REPLY"
    held.append(new)
    assert payer.run({"nodes": {"a": node}})["status"] == "success"


def test_forged_rotations_change_nothing(
    payer: Caller, admin: Caller, make_agent: MakeAgent
) -> None:
    """Empty, random, of another DID, of another key, by another key, replayed, by a key of before;
    no right replaces the proof."""
    old, new, thief = (SigningKey.generate() for _ in range(3))
    agent, other = make_agent(owner=payer), make_agent(owner=payer)
    keyed(payer, agent, old)
    keyed(payer, other, thief)
    good = request(agent.did, old, new)
    forged = (
        "",
        "ed25519:",
        base64.b64encode(os.urandom(64)).decode(),
        proof(old, other.did, public(new)),
        proof(old, agent.did, public(thief)),
        proof(thief, agent.did, public(new)),
        base64.b64encode(old.sign(public(new).encode()).signature).decode(),
    )
    for one in forged:
        for caller in (payer, admin):
            refused = caller.http.post(ROTATE, json={**good, "rotationProof": one})
            refusal(refused, 401, "INVALID_SIGNATURE")
    assert keys_of(payer, agent.did) == [public(old)]
    answer(payer.http.post(ROTATE, json=good))
    refusal(payer.http.post(ROTATE, json=good), 401, "INVALID_SIGNATURE")
    back = request(agent.did, new, old)
    refusal(payer.http.post(ROTATE, json=back), 409, "CONFLICT")
    older = {"publicKey": public(old)}
    refusal(payer.http.patch(f"/v1/agents/{agent.did}", json=older), 409, "CONFLICT")
    assert keys_of(payer, agent.did) == [public(new), public(old)]


def test_what_has_no_key_to_replace_is_refused(
    payer: Caller, admin: Caller, make_agent: MakeAgent
) -> None:
    old, new = SigningKey.generate(), SigningKey.generate()
    keyless = make_agent(owner=payer)
    refused = payer.http.post(ROTATE, json=request(keyless.did, old, new))
    refusal(refused, 401, "INVALID_SIGNATURE")
    refusal(payer.http.post(ROTATE, json=request("did:net:ghost", old, new)), 404, "NOT_FOUND")
    named = request(did_of_key(old), old, new)
    assert "its own key" in refusal(payer.http.post(ROTATE, json=named), 409, "CONFLICT")["detail"]
    keyed(payer, keyless, old)
    revoked = {"did": keyless.did, "reason": "It lies.", "evidence": {}}
    answer(admin.http.post("/v1/trust/revoke", json=revoked))
    refusal(payer.http.post(ROTATE, json=request(keyless.did, old, new)), 403, "FORBIDDEN")
    assert keys_of(payer, "did:net:ghost") == []


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"newPublicKey": base64.b64encode(bytes(32)).decode()}, "newPublicKey"),
        ({"newPublicKey": base64.b64encode(b"\xff" * 32).decode()}, "newPublicKey"),
        ({"newPublicKey": "short"}, "newPublicKey"),
        ({"newPublicKey": ""}, "newPublicKey"),
        ({"newPublicKey": 5}, "newPublicKey"),
        ({"agentDid": "me"}, "agentDid"),
        ({"rotationProof": "x" * 129}, "rotationProof"),
        ({"proof": "x"}, "proof"),
    ],
)
def test_bad_input_is_refused(payer: Caller, wrong: Json, path: str) -> None:
    old, new = SigningKey.generate(), SigningKey.generate()
    body = {**request("did:net:ghost", old, new), **wrong}
    refused = refusal(payer.http.post(ROTATE, json=body), 400, "INVALID_REQUEST")
    assert refused["errors"][0]["path"] == path
