"""What an unproven claim of a DID may have, and what becomes of it when the DID is proven.

Spec: decision signed-requests-and-claims.
"""

from __future__ import annotations

from urllib.parse import quote

import pytest
from nacl.signing import SigningKey

from core.trust.did_key import did_of_key
from tests.contract.conftest import Caller, Json, MakeCaller, answer, refusal, unique
from tests.contract.test_agents import REGISTER, card
from tests.contract.test_registration import signed

NAMES, VERSIONS = "/v1/identity/names", "/v1/capabilities/versions"
HEIRS = "/v1/identity/inheritance"
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}


def version(capability: str, number: str) -> Json:
    schemas = {"inputSchema": TEXT, "outputSchema": TEXT}
    return {"capabilityId": capability, "version": number, **schemas}


def heir(did: str) -> Json:
    heir_did = unique("did:net:heir-")
    return {"agentDid": did, "inheritsToDid": heir_did, "deadManSwitchDays": 1, "conditions": {}}


def squat(thief: Caller, did: str) -> tuple[str, str]:
    """Claim a DID without a proof; return a name and a capability with a version by that claim."""
    acard = card(did)
    capability, name = acard["capabilities"][0]["id"], unique("n-")
    answer(thief.http.post(REGISTER, json={"acard": acard}))
    answer(thief.http.post(NAMES, json={"name": name, "agentDid": did}))
    answer(thief.http.post(HEIRS, json=heir(did)))
    answer(thief.http.post(VERSIONS, json=version(capability, "1.0.0")))
    return name, capability


def test_the_first_authenticated_claim_gets_names_heirs_and_versions(
    payer: Caller, make_caller: MakeCaller
) -> None:
    did, stranger = unique("did:acc:x"), make_caller()
    name, capability = squat(payer, did)
    shown = answer(stranger.http.get(f"{NAMES}/{name}"))
    assert (shown["agentDid"], shown["ownerDid"]) == (did, payer.did)
    answer(payer.http.post(f"{NAMES}/{name}/renew"))
    assert answer(payer.http.get(f"{HEIRS}/{did}"))["ownerDid"] == payer.did
    answer(payer.http.post(VERSIONS, json=version(capability, "1.1.0")))
    # Nobody else gets anything by this claim.
    refusal(
        stranger.http.post(NAMES, json={"name": unique("n-"), "agentDid": did}), 403, "FORBIDDEN"
    )
    refusal(stranger.http.post(HEIRS, json=heir(did)), 403, "FORBIDDEN")
    refusal(stranger.http.post(VERSIONS, json=version(capability, "1.2.0")), 403, "FORBIDDEN")


def test_an_unproven_agent_begins_no_versions_of_what_a_proven_one_offers(
    make_caller: MakeCaller, admin: Caller
) -> None:
    """Nor of what another unproven one has offered before; a proven one goes before both."""
    first, second, author = make_caller(), make_caller(), make_caller()
    acard = card()
    capability = acard["capabilities"][0]["id"]
    offered = [{"id": capability, "description": "d"}]
    answer(first.http.post(REGISTER, json={"acard": acard}))
    answer(second.http.post(REGISTER, json={"acard": card(capabilities=offered)}))
    refusal(second.http.post(VERSIONS, json=version(capability, "1.0.0")), 403, "FORBIDDEN")
    granted = {"acard": card(capabilities=offered), "ownerDid": author.did}
    answer(admin.http.post(REGISTER, json=granted))
    refusal(first.http.post(VERSIONS, json=version(capability, "1.0.0")), 403, "FORBIDDEN")
    answer(author.http.post(VERSIONS, json=version(capability, "1.0.0")))


def test_what_hangs_on_an_unproven_claim_passes_to_who_proves_it(make_caller: MakeCaller) -> None:
    thief, owner, key = make_caller(), make_caller(), SigningKey.generate()
    did = did_of_key(bytes(key.verify_key))
    name, capability = squat(thief, did)
    offered = [{"id": capability, "description": "d"}]
    proof = signed(key, card(did, capabilities=offered), owner.http, owner.did)
    answer(owner.http.post(REGISTER, json=proof))
    shown = answer(thief.http.get(f"{NAMES}/{name}"))
    assert (shown["agentDid"], shown["ownerDid"]) == (did, owner.did)
    refusal(thief.http.post(f"{NAMES}/{name}/renew"), 403, "FORBIDDEN")
    refusal(thief.http.delete(f"{NAMES}/{name}"), 403, "FORBIDDEN")
    refusal(owner.http.get(f"{HEIRS}/{quote(did, safe='')}"), 404, "NOT_FOUND")
    refusal(thief.http.delete(f"{HEIRS}/{quote(did, safe='')}"), 403, "FORBIDDEN")
    later = version(capability, "1.1.0")
    refusal(thief.http.post(VERSIONS, json=later), 403, "FORBIDDEN")
    deprecate = f"/v1/capabilities/{capability}/versions/1.0.0/deprecate"
    refusal(thief.http.post(deprecate), 403, "FORBIDDEN")
    assert answer(owner.http.post(VERSIONS, json=later))["ownerDid"] == owner.did
    answer(owner.http.post(deprecate, json={"successor": "1.1.0"}))
    answer(owner.http.post(f"{NAMES}/{name}/renew"))
    answer(owner.http.post(HEIRS, json=heir(did)))


@pytest.mark.parametrize("other", ["granted", "given"])
def test_versions_that_hang_on_something_else_stay(
    make_caller: MakeCaller, admin: Caller, other: str
) -> None:
    """On an agent that is proven to be the publisher's, or on an administrator's word."""
    author, prover, key = make_caller(), make_caller(), SigningKey.generate()
    did = did_of_key(bytes(key.verify_key))
    acard = card(did)
    capability = acard["capabilities"][0]["id"]
    answer(author.http.post(REGISTER, json={"acard": acard}))
    if other == "granted":
        mine = card(capabilities=acard["capabilities"])
        answer(admin.http.post(REGISTER, json={"acard": mine, "ownerDid": author.did}))
        answer(author.http.post(VERSIONS, json=version(capability, "1.0.0")))
    else:
        body = {**version(capability, "1.0.0"), "ownerDid": author.did}
        answer(admin.http.post(VERSIONS, json=body))
    answer(prover.http.post(REGISTER, json=signed(key, acard, prover.http, prover.did)))
    refusal(prover.http.post(VERSIONS, json=version(capability, "1.1.0")), 403, "FORBIDDEN")
    answer(author.http.post(VERSIONS, json=version(capability, "1.1.0")))


@pytest.mark.parametrize("in_use", ["wallet", "key"])
def test_a_did_in_use_is_claimed_with_a_proof_only(
    make_caller: MakeCaller, admin: Caller, in_use: str
) -> None:
    thief, did = make_caller(), unique("did:acc:x")
    if in_use == "wallet":
        answer(admin.http.post("/v1/ledger/deposit", json={"amount": 5, "ownerDid": did}))
    else:
        made = answer(admin.http.post("/v1/keys", json={"ownerDid": did}))
        answer(admin.http.delete(f"/v1/keys/{made['id']}"))
    refused = thief.http.post(REGISTER, json={"acard": card(did)})
    detail = refusal(refused, 403, "FORBIDDEN")["detail"]
    assert did in detail and "in use" in detail
    answer(admin.http.post(REGISTER, json={"acard": card(did), "ownerDid": thief.did}))
