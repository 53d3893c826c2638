"""Access tokens against the whole service: an issuer's, the secret's, and every way to forge one.

Spec: Authentication 1.
"""

from __future__ import annotations

import base64
import hmac
import json
import time
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.contract.conftest import Caller, answer, refusal, unique, wait
from tests.contract.credentials import AUDIENCE, ISSUER, JWT_SECRET, KID, public_pem, token

BALANCE = "/v1/ledger/balance"
NOW_S = int(time.time())


def bearer(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


@pytest.fixture
def did() -> str:
    return unique("did:net:token-")


def by_hand(header: dict[str, Any], claims: dict[str, Any], secret: bytes | None) -> str:
    """Make a token that PyJWT refuses to make."""
    parts = [
        base64.urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=") for one in (header, claims)
    ]
    text = b".".join(parts)
    mac = b"" if secret is None else hmac.digest(secret, text, "sha256")
    return (text + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")).decode()


def test_tokens_of_the_issuer_and_of_the_secret_are_taken(
    anonymous: httpx.Client, did: str
) -> None:
    for text in (token(did), token(did, key=JWT_SECRET, alg="HS256")):
        assert answer(anonymous.get(BALANCE, headers=bearer(text)))["ownerDid"] == did


def test_a_token_has_the_rights_that_it_lists(anonymous: httpx.Client, did: str) -> None:
    narrow = bearer(token(did, scope="agents:read"))
    refusal(anonymous.get(BALANCE, headers=narrow), 403, "INSUFFICIENT_SCOPE")
    depositing = bearer(token(did, scope="ledger:deposit"))
    body = {"amount": 1, "ownerDid": did}
    answer(anonymous.post("/v1/ledger/deposit", json=body, headers=depositing))
    usual = bearer(token(did))
    refusal(
        anonymous.post("/v1/ledger/deposit", json=body, headers=usual), 403, "INSUFFICIENT_SCOPE"
    )
    administrator = bearer(token(did, scope="admin"))
    answer(anonymous.get("/v1/cluster", headers=administrator))


def test_a_key_made_with_a_token_does_no_more_and_lives_no_longer(
    anonymous: httpx.Client, did: str
) -> None:
    headers = bearer(token(did, scope="keys:write ledger:read"))
    made = answer(anonymous.post("/v1/keys", json={}, headers=headers))
    assert set(made["scopes"]) == {"keys:write", "ledger:read"}
    assert made["expiresAt"] is not None
    response = anonymous.post("/v1/keys", json={"scopes": ["ledger:deposit"]}, headers=headers)
    refusal(response, 403, "INSUFFICIENT_SCOPE")


FORGED: dict[str, Any] = {
    "alg none": lambda did: by_hand({"alg": "none"}, claims(did), None),
    "alg None with a kid": lambda did: by_hand({"alg": "None", "kid": KID}, claims(did), None),
    "HS256 by the public key": lambda did: by_hand(
        {"alg": "HS256", "kid": KID}, claims(did), public_pem()
    ),
    "another key": lambda did: token(did, key=Ed25519PrivateKey.generate()),
    "another secret": lambda did: token(did, key="x" * 32, alg="HS256"),
    "expired": lambda did: token(did, exp=NOW_S - 60),
    "without an end": lambda did: token(did, exp=None),
    "not yet valid": lambda did: token(did, nbf=NOW_S + 3_600),
    "issued in the future": lambda did: token(did, iat=NOW_S + 3_600),
    "another issuer": lambda did: token(did, iss="https://evil.example"),
    "another audience": lambda did: token(did, aud="elsewhere"),
    "no DID": lambda did: token("bob"),
    "no subject": lambda did: token(did, sub=None),
    "cut": lambda did: token(did)[:-4],
    "too long": lambda did: token(did, more="x" * 9_000),
}


def claims(did: str) -> dict[str, Any]:
    return {"iss": ISSUER, "aud": AUDIENCE, "sub": did, "exp": NOW_S + 3_600, "scope": "admin"}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_a_forged_token_is_refused(anonymous: httpx.Client, did: str, forged: Any) -> None:
    for path in (BALANCE, "/v1/cluster"):
        refused = refusal(anonymous.get(path, headers=bearer(forged(did))), 401, "UNAUTHORIZED")
        assert JWT_SECRET not in str(refused)


def test_the_control_of_what_is_made_by_hand(anonymous: httpx.Client, did: str) -> None:
    text = by_hand({"alg": "HS256"}, claims(did), JWT_SECRET.encode())
    assert jwt.get_unverified_header(text) == {"alg": "HS256"}
    answer(anonymous.get("/v1/cluster", headers=bearer(text)))


def test_a_token_of_a_revoked_did_is_refused(
    anonymous: httpx.Client, did: str, admin: Caller
) -> None:
    headers = bearer(token(did))
    answer(anonymous.get(BALANCE, headers=headers))
    body = {"did": did, "reason": "It lies.", "evidence": {}}
    answer(admin.http.post("/v1/trust/revoke", json=body))
    wait(lambda: anonymous.get(BALANCE, headers=headers).status_code == 401, "its end")
