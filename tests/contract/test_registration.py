"""Whose an agent's DID is: claims, proofs that they yield to, signed cards, and attacks on each.

Spec: decision signed-requests-and-claims.
"""

from __future__ import annotations

import base64
import time
from urllib.parse import quote

import httpx
import pytest
from nacl.signing import SigningKey

from callboard.client import Client
from core.trust.did_key import did_of_key
from core.trust.identity.card_signature import signed_registration
from serve_app.operations.agents.did_documents import FETCHES_PER_OWNER
from tests.contract.conftest import Caller, Json, MakeCaller, answer, refusal, unique
from tests.contract.signers import Signer
from tests.contract.test_agents import REGISTER, card, self_signed

DAY_MS = 24 * 3_600_000


def key_text(key: SigningKey) -> str:
    return base64.b64encode(bytes(key.verify_key)).decode()


def signed(key: SigningKey, acard: Json, http: httpx.Client, owner: str, **changes: object) -> Json:
    """Return a registration that an agent's key has signed for this deployment."""
    values: Json = {
        "private_key": bytes(key),
        "audience": str(http.base_url).rstrip("/"),
        "owner_did": owner,
        "issued_ms": time.time_ns() // 1_000_000,
        "counter": 1,
    }
    return signed_registration(acard, **{**values, **changes})


def shown(http: httpx.Client, did: str) -> Json:
    return answer(http.get(f"/v1/agents/{quote(did, safe='')}"))


def test_a_claim_says_whether_it_is_proven(
    payer: Caller, admin: Caller, anonymous: httpx.Client
) -> None:
    """Nothing shows it; an administrator names the owner; the DID's own key; its own API key."""
    key = SigningKey.generate()
    own, plain, granted = did_of_key(bytes(key.verify_key)), card(), card()
    itself = card(payer.did)
    answer(payer.http.post(REGISTER, json={"acard": plain}))
    answer(admin.http.post(REGISTER, json={"acard": granted, "ownerDid": payer.did}))
    answer(payer.http.post(REGISTER, json=signed(key, card(own), payer.http, payer.did)))
    answer(payer.http.post(REGISTER, json={"acard": itself}))
    expected = {
        plain["did"]: None,
        granted["did"]: "operator",
        own: "signature",
        payer.did: "own_credential",
    }
    for did, proof in expected.items():
        ownership = shown(anonymous, did)["ownership"]
        assert (ownership["ownerDid"], ownership["provenBy"]) == (payer.did, proof)
        assert ownership["proven"] is (proof is not None)


def test_a_key_in_the_card_proves_nothing_of_a_did_of_a_network(
    make_caller: MakeCaller, admin: Caller, anonymous: httpx.Client
) -> None:
    thief, owner, key = make_caller(), make_caller(), SigningKey.generate()
    acard = card(publicKey=key_text(key))
    answer(thief.http.post(REGISTER, json=signed(key, acard, thief.http, thief.did)))
    assert shown(anonymous, acard["did"])["ownership"]["proven"] is False
    answer(admin.http.post(REGISTER, json={"acard": card(acard["did"]), "ownerDid": owner.did}))
    ownership = shown(anonymous, acard["did"])["ownership"]
    assert (ownership["ownerDid"], ownership["provenBy"]) == (owner.did, "operator")
    # The key of the earlier claim signs for the DID no more.
    later = signed(key, {**acard, "version": 2}, thief.http, owner.did, counter=2)
    refusal(thief.http.post(REGISTER, json=later), 401, "INVALID_SIGNATURE")


def test_an_unproven_claim_yields_to_the_true_owner(
    make_caller: MakeCaller, admin: Caller, anonymous: httpx.Client
) -> None:
    """Its stake stays its depositor's; its heartbeat token, secret and revocation end."""
    thief, owner, key = make_caller(10), make_caller(), SigningKey.generate()
    did = did_of_key(bytes(key.verify_key))
    path = f"/v1/agents/{quote(did, safe='')}"
    claimed = answer(
        thief.http.post(REGISTER, json={"acard": card(did), "signingSecret": "the thief's"})
    )
    answer(thief.http.post("/v1/stakes", json={"agentDid": did, "amount": 5}))
    answer(thief.http.post("/v1/trust/revoke", json={"did": did, "reason": "mine", "evidence": {}}))
    registered = answer(
        owner.http.post(REGISTER, json=signed(key, card(did), owner.http, owner.did))
    )
    assert (registered["ownerDid"], registered["isNew"]) == (owner.did, False)
    assert shown(anonymous, did)["isRevoked"] is False
    token = {"authorization": f"Bearer {claimed['heartbeatToken']}"}
    refusal(anonymous.post(f"{path}/heartbeat", json={}, headers=token), 401, "UNAUTHORIZED")
    refusal(thief.http.post(REGISTER, json={"acard": card(did)}), 403, "FORBIDDEN")
    refusal(thief.http.delete(path), 403, "FORBIDDEN")
    body = {"agentDid": did, "amount": 5}
    refusal(owner.http.post("/v1/stakes/unstake", json=body), 403, "FORBIDDEN")
    assert answer(thief.http.post("/v1/stakes/unstake", json=body))["walletDid"] == thief.did


def test_a_proven_did_is_registered_by_no_other(
    make_caller: MakeCaller, admin: Caller, anonymous: httpx.Client
) -> None:
    owner, thief, key = make_caller(), make_caller(), SigningKey.generate()
    did = did_of_key(bytes(key.verify_key))
    answer(owner.http.post(REGISTER, json=signed(key, card(did), owner.http, owner.did)))
    before = shown(anonymous, did)
    changed = card(did, version=2)
    refusal(thief.http.post(REGISTER, json={"acard": changed}), 403, "FORBIDDEN")
    refusal(thief.http.post(REGISTER, json=self_signed(key, changed)), 403, "FORBIDDEN")
    named = signed(key, changed, thief.http, thief.did, counter=2)
    refusal(thief.http.post(REGISTER, json=named), 403, "FORBIDDEN")
    assert shown(anonymous, did) == before
    # A stake of the owner's is no registrant's.
    refusal(
        thief.http.post("/v1/stakes/unstake", json={"agentDid": did, "amount": 1}), 403, "FORBIDDEN"
    )


def test_a_card_that_was_signed_before_or_elsewhere_changes_nothing(
    make_caller: MakeCaller, anonymous: httpx.Client
) -> None:
    owner, other, key = make_caller(), make_caller(), SigningKey.generate()
    did = did_of_key(bytes(key.verify_key))
    first = signed(key, card(did), owner.http, owner.did, counter=3)
    answer(owner.http.post(REGISTER, json=first))
    before = shown(anonymous, did)
    now_ms = time.time_ns() // 1_000_000

    def again(**changes: object) -> Json:
        values = {"counter": 4, **changes}
        return signed(key, card(did, version=2), other.http, owner.did, **values)

    replayed = [first, again(counter=3), again(counter=2)]
    replayed += [again(issued_ms=now_ms - 2 * DAY_MS), again(issued_ms=now_ms + 3_600_000)]
    for body in replayed:
        refusal(other.http.post(REGISTER, json=body), 409, "CONFLICT")
    elsewhere = again(audience="https://callboard.example.org")
    refusal(other.http.post(REGISTER, json=elsewhere), 403, "FORBIDDEN")
    with_secret = {**again(), "signingSecret": "another's"}
    refusal(other.http.post(REGISTER, json=with_secret), 403, "FORBIDDEN")
    without = {name: value for name, value in again().items() if name != "acardSignature"}
    refusal(other.http.post(REGISTER, json=without), 400, "INVALID_REQUEST")
    moved = again()
    moved["cardProof"] = {**moved["cardProof"], "counter": 9}
    refusal(other.http.post(REGISTER, json=moved), 401, "INVALID_SIGNATURE")
    assert shown(anonymous, did) == before
    answer(other.http.post(REGISTER, json=again(signing_secret="its own")))
    after = shown(anonymous, did)
    assert (after["version"], after["ownership"]["cardCounter"]) == (2, 4)


def test_an_old_card_of_a_deregistered_agent_does_not_bring_it_back(
    make_caller: MakeCaller, anonymous: httpx.Client
) -> None:
    owner, key = make_caller(), SigningKey.generate()
    did = did_of_key(bytes(key.verify_key))
    body = signed(key, card(did), owner.http, owner.did)
    answer(owner.http.post(REGISTER, json=body))
    answer(owner.http.delete(f"/v1/agents/{quote(did, safe='')}"))
    refusal(make_caller().http.post(REGISTER, json=body), 409, "CONFLICT")
    refusal(anonymous.get(f"/v1/agents/{quote(did, safe='')}"), 404, "NOT_FOUND")


@pytest.mark.parametrize("did", ["did:web:10.0.0.1", "did:web:localhost%3A1", "did:web:-"])
def test_a_did_web_without_a_document_is_not_proven(
    make_caller: MakeCaller, anonymous: httpx.Client, did: str
) -> None:
    """The key of its card is nothing: neither now nor in the registry."""
    caller, key = make_caller(), SigningKey.generate()
    did = f"{did}:{unique('a')}"
    body = signed(key, card(did, publicKey=key_text(key)), caller.http, caller.did)
    problem = refusal(caller.http.post(REGISTER, json=body), 401, "INVALID_SIGNATURE")
    assert "refused" not in str(problem)
    refusal(anonymous.get(f"/v1/agents/{quote(did, safe='')}"), 404, "NOT_FOUND")


def test_strangers_of_one_address_have_so_many_documents_fetched(anonymous: httpx.Client) -> None:
    """A DID costs nothing to make: with one for each request, the places for fetches are taken."""
    reply = None
    for _ in range(FETCHES_PER_OWNER * 4):  # each replica counts for itself
        signer = Signer()
        did, key = f"did:web:localhost%3A1:{unique('a')}", SigningKey.generate()
        body = signed(key, card(did, publicKey=key_text(key)), anonymous, signer.did)
        reply = anonymous.post(REGISTER, json=body, auth=signer)
        if reply.status_code != 401:
            break
    assert reply is not None
    assert "DID documents" in str(refusal(reply, 429, "RATE_LIMITED"))


def test_the_client_signs_cards_that_prove_whose_the_did_is(
    payer: Caller, anonymous: httpx.Client
) -> None:
    """By the DID's own credential, then by another's API key with the agent's private key."""
    url = str(anonymous.base_url).rstrip("/")
    keys = [SigningKey.generate() for _ in range(2)]
    seeds = [base64.b64encode(bytes(key)).decode() for key in keys]
    own, hired = (did_of_key(bytes(key.verify_key)) for key in keys)
    with Client(url, private_key=seeds[0]) as client:
        client.register_agent(card(own))
        again = client.register_agent({**card(own), "name": "another"})
    assert again["did"] == own
    with Client(url, payer.key) as client:
        client.register_agent(card(hired), private_key=seeds[1], owner_did=payer.did)
    found = [shown(anonymous, did) for did in (own, hired)]
    proofs = [agent["ownership"]["provenBy"] for agent in found]
    assert proofs == ["own_credential", "signature"], "the credential of the DID itself is enough"
    assert [agent["ownerDid"] for agent in found] == [own, payer.did]
