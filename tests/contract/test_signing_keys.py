"""The deployment's signing keys: described to everyone, rotated by administrators, on the chain.

Reference: money.md (Signing keys).
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import httpx
from nacl.signing import VerifyKey

from tests.contract.conftest import Caller, answer

Json = dict[str, Any]
DESCRIPTION = "/.well-known/callboard.json"
ROTATE = "/v1/trust/signing-key/rotate"


def described(http: httpx.Client) -> list[Json]:
    """Return the signing keys."""
    keys: list[Json] = answer(http.get(DESCRIPTION))["signingKeys"]
    return keys


def entry(admin: Caller, audit_id: int) -> Json:
    """Return an audit entry."""
    return answer(admin.http.get(f"/v1/audit/{audit_id}"))


def test_the_first_entry_names_the_first_key(admin: Caller, anonymous: httpx.Client) -> None:
    first = described(anonymous)[-1]
    terms = entry(admin, 1)["payload"]
    assert (first["auditId"], first["publicKey"]) == (1, terms["publicKey"])
    raw = base64.b64decode(first["publicKey"])
    assert first["keyId"] == hashlib.sha256(raw).hexdigest()[:16]
    origin = answer(anonymous.get(DESCRIPTION))["origin"]
    assert origin == f"{terms['origin']}/{first['keyId']}"


def test_a_rotation_is_signed_by_the_previous_key_and_recorded(
    admin: Caller, anonymous: httpx.Client
) -> None:
    before = described(anonymous)[0]
    reply = answer(admin.http.post(ROTATE, headers={"Idempotency-Key": "rotate-once"}))
    again = answer(admin.http.post(ROTATE, headers={"Idempotency-Key": "rotate-once"}))
    assert again == reply
    now, former = described(anonymous)[:2]
    assert (now["keyId"], now["publicKey"], now["validUntil"]) == (
        reply["keyId"],
        reply["publicKey"],
        None,
    )
    assert former == {**before, "validUntil": now["validFrom"]}
    (event,) = entry(admin, now["auditId"])["payload"]["events"]
    assert event["type"] == "signing_key.rotated"
    payload = event["payload"]
    assert (payload["formerKeyId"], payload["publicKey"]) == (before["keyId"], now["publicKey"])
    signature = base64.b64decode(payload["proof"].removeprefix("ed25519:"))
    message = f"rotate-signing-key:{now['publicKey']}".encode()
    VerifyKey(base64.b64decode(before["publicKey"])).verify(message, signature)
