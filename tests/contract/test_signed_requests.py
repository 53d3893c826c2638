"""Requests that a DID has signed, against the whole service: who it is, and every way to forge it.

Spec: Authentication 1.
"""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.contract.conftest import (
    Caller,
    MakeCaller,
    answer,
    client,
    refusal,
    unique,
    wait,
)
from tests.contract.signers import Signer
from tests.platform.deployments import ROOT, RunningDeployment

BALANCE = "/v1/ledger/balance"
KEYS = "/v1/keys"

MakeSigned = Callable[[Signer], httpx.Client]


@pytest.fixture
def signed(deployment: RunningDeployment) -> Iterator[MakeSigned]:
    """Make an HTTP client that signs as this signer."""
    with ExitStack() as stack:

        def make(signer: Signer) -> httpx.Client:
            http = stack.enter_context(client(deployment.url))
            http.auth = signer
            return http

        yield make


@pytest.fixture
def signer() -> Signer:
    """A new `did:key`, of which the service knows nothing."""
    return Signer()


def test_a_did_key_calls_as_itself(signed: MakeSigned, signer: Signer) -> None:
    http = signed(signer)
    assert answer(http.get(BALANCE))["ownerDid"] == signer.did
    assert answer(http.get("/v1/workflows", params={"limit": 3, "status": "running"}))
    made = answer(http.post(KEYS, json={"name": "by signature"}))
    assert (made["ownerDid"], made["parentId"]) == (signer.did, None)
    assert answer(http.delete(f"{KEYS}/{made['keyId']}"))["endedKeys"] == 1
    quoted = signer.did.replace(":", "%3A")
    assert answer(http.get(f"/v1/revoked/{quoted}"))["did"] == signer.did
    refusal(http.post("/v1/ledger/deposit", json={"amount": 1}), 403, "INSUFFICIENT_SCOPE")


def test_a_registered_agent_signs_with_the_key_of_its_card(
    signed: MakeSigned, make_caller: MakeCaller
) -> None:
    owner, signer = make_caller(), Signer(unique("did:net:agent-"))
    key = base64.b64encode(bytes(signer.key.verify_key)).decode()
    card = {
        "did": signer.did,
        "endpoint": "http://127.0.0.1:9",
        "version": 1,
        "capabilities": [{"id": "cap.test.signed.v1", "description": "A test's"}],
        "publicKey": key,
    }
    http = signed(signer)
    refusal(http.get(BALANCE), 401, "UNAUTHORIZED")
    answer(owner.http.post("/v1/agents/register", json={"acard": card}))
    wait(lambda: http.get(BALANCE).status_code == 200, "the key is known")
    assert answer(http.get(BALANCE))["ownerDid"] == signer.did
    assert answer(http.post(f"/v1/agents/{signer.did}/heartbeat", json={"status": "active"}))["ok"]
    refusal(http.post(KEYS, json={}), 403, "INSUFFICIENT_SCOPE")
    refusal(signed(Signer(signer.did)).get(BALANCE), 401, "UNAUTHORIZED")


def test_an_agents_key_does_not_speak_for_who_owns_its_name_later(
    signed: MakeSigned, make_caller: MakeCaller, admin: Caller
) -> None:
    owner, signer = make_caller(), Signer(unique("did:net:later-"))
    card = {
        "did": signer.did,
        "endpoint": "http://127.0.0.1:9",
        "version": 1,
        "capabilities": [{"id": "cap.test.signed.v1", "description": "A test's"}],
        "publicKey": base64.b64encode(bytes(signer.key.verify_key)).decode(),
    }
    answer(owner.http.post("/v1/agents/register", json={"acard": card}))
    http = signed(signer)
    answer(http.get(BALANCE))
    answer(admin.http.post(KEYS, json={"ownerDid": signer.did}))
    wait(lambda: http.get(BALANCE).status_code == 401, "the signature speaks for it no more")


def test_a_replayed_request_is_refused(
    deployment: RunningDeployment, anonymous: httpx.Client, signer: Signer
) -> None:
    headers = signer.headers("POST", f"{deployment.url}{KEYS}", b"{}")
    sent = {**headers, "content-type": "application/json"}
    made = answer(anonymous.post(KEYS, content=b"{}", headers=sent))
    for _ in range(5):
        refusal(anonymous.post(KEYS, content=b"{}", headers=sent), 401, "UNAUTHORIZED")
    own = {"x-api-key": made["key"]}
    assert len(answer(anonymous.get(KEYS, headers=own))["keys"]) == 1, "one key was made"
    other = signer.headers("GET", f"{deployment.url}{BALANCE}", nonce="n")
    answer(anonymous.get(BALANCE, headers=other))
    again = signer.headers("GET", f"{deployment.url}{KEYS}", nonce="n")
    refusal(anonymous.get(KEYS, headers=again), 401, "UNAUTHORIZED")


def test_a_signature_is_good_for_its_request_alone(
    deployment: RunningDeployment, anonymous: httpx.Client, signer: Signer
) -> None:
    url = deployment.url
    body = b'{"name":"mine"}'

    def sign(
        method: str = "POST", path: str = KEYS, body: bytes = body, **more: int
    ) -> dict[str, str]:
        return {
            **signer.headers(method, url + path, body, **more),
            "content-type": "application/json",
        }

    good = sign()
    unsigned_body = sign(body=b"")
    other_body = {**sign(), "Content-Digest": sign(body=b"{}")["Content-Digest"]}
    elsewhere = signer.headers("POST", f"http://evil.example{KEYS}", body)
    forged = Signer(signer.did).headers("POST", url + KEYS, body)
    cases = [
        sign(method="PUT"),
        sign(path=f"{KEYS}?x=1"),
        sign(path=f"{KEYS}/"),
        unsigned_body,
        other_body,
        sign(body=b"{}"),
        sign(age_s=310),
        sign(age_s=-310),
        elsewhere,
        {**elsewhere, "host": "evil.example"},
        forged,
        {name: text for name, text in sign().items() if name != "Signature"},
        {**sign(), "Signature-Input": "callboard=("},
    ]
    for headers in cases:
        refusal(anonymous.post(KEYS, content=body, headers=headers), 401, "UNAUTHORIZED")
    answer(anonymous.post(KEYS, content=body, headers=good))


def test_a_revoked_did_is_closed_with_its_keys_and_signatures(
    signed: MakeSigned, signer: Signer, admin: Caller, anonymous: httpx.Client
) -> None:
    http = signed(signer)
    own = {"x-api-key": answer(http.post(KEYS, json={}))["key"]}
    answer(anonymous.get(BALANCE, headers=own))
    body = {"did": signer.did, "reason": "It lies.", "evidence": {}}
    answer(admin.http.post("/v1/trust/revoke", json=body))
    wait(lambda: http.get(BALANCE).status_code == 401, "its signature is refused")
    wait(lambda: anonymous.get(BALANCE, headers=own).status_code == 401, "its key is refused")
    answer(admin.http.delete(f"/v1/revoked/{signer.did}"))
    wait(lambda: http.get(BALANCE).status_code == 200, "its signature is taken again")
    wait(lambda: anonymous.get(BALANCE, headers=own).status_code == 200, "its key opens again")


def test_a_large_body_is_signed_too(signed: MakeSigned, signer: Signer, admin: Caller) -> None:
    """Its digest is made in a thread; the body is refused for what it says."""
    answer(admin.http.post(KEYS, json={"ownerDid": signer.did}))  # else it counts for its address
    card = {"did": "did:net:x", "capabilities": ["x" * 1_000] * 600}
    body = {"agents": [{"acard": card}]}
    response = signed(signer).post("/v1/agents/register/bulk", json=body)
    assert response.status_code in (200, 400), response.text[:500]


def test_the_example_with_curl_and_openssl(deployment: RunningDeployment, tmp_path: Path) -> None:
    """As it stands in docs/signed-requests.md."""
    text = (ROOT / "docs" / "signed-requests.md").read_text(encoding="utf-8")
    script = text.partition("```sh\n")[2].partition("```")[0]
    run = subprocess.run(
        ["sh", "-eu", "-c", script],
        cwd=tmp_path,
        env={"URL": deployment.url, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    assert '"ownerDid":"did:key:z6Mk' in run.stdout, run.stdout
