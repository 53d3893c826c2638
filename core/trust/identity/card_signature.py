"""The signature of an agent over its card: its message, and the checks of its `cardProof`.

Client and service call the same functions for the signed bytes, so both sides agree. A signature
over the card alone does not prove the deployment, the time and the owner for which the card was
signed. With a `cardProof` the signature proves them. Pure.
Reference: decision signed-requests-and-claims.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from nacl.signing import SigningKey

from core.errors import ErrorCode, ServiceError
from core.jcs import jcs
from core.timestamps import iso_ms

# The maximum age of a signed card when it arrives, and how far the signer's clock may be ahead.
AGE_MS_MAX: Final = 24 * 3_600_000
AHEAD_MS_MAX: Final = 300_000


def signed_bytes(card: Any, proof: Any | None, form: Callable[[Any], bytes] = jcs) -> bytes:
    """Return the bytes that `acardSignature` covers: JCS of the card, or of card and proof.

    Args:
        card: the card that is sent.
        proof: the `cardProof` that is sent; None without a proof.
        form: an encoder of the JCS form. The service passes a faster encoder.

    Raises:
        ValueError: the card has no canonical form.
    """
    return form(card if proof is None else {"acard": card, "cardProof": proof})


def secret_hash(secret: str) -> str:
    """Return the hash of a signing secret, as a proof contains it."""
    return "sha256:" + hashlib.sha256(secret.encode()).hexdigest()


def signed_registration(
    card: Mapping[str, Any],
    *,
    private_key: bytes,
    audience: str,
    owner_did: str,
    issued_ms: int,
    counter: int,
    signing_secret: str | None = None,
) -> dict[str, Any]:
    """Return the body of a registration that the agent has signed.

    Args:
        card: the agent card.
        private_key: the private key of the agent, 32 bytes.
        audience: the address of the deployment that its clients use.
        owner_did: the DID of the agent's owner.
        issued_ms: the current time, Unix milliseconds.
        counter: a number that is higher than in every card signed before.
        signing_secret: the secret with which the deployment must sign dispatches to the agent.
    """
    proof = {
        "audience": audience,
        "ownerDid": owner_did,
        "issuedAt": iso_ms(issued_ms),
        "counter": counter,
    }
    beside = {}
    if signing_secret is not None:
        proof["signingSecretSha256"] = secret_hash(signing_secret)
        beside["signingSecret"] = signing_secret
    signature = SigningKey(private_key).sign(signed_bytes(dict(card), proof)).signature
    text = "ed25519:" + base64.b64encode(signature).decode()
    return {"acard": dict(card), "cardProof": proof, "acardSignature": text, **beside}


def check_audience(audience: str, own_urls: Collection[str]) -> None:
    """Refuse a card that was signed for another deployment.

    Raises:
        ServiceError: FORBIDDEN.
    """
    if audience.rstrip("/") not in {url.rstrip("/") for url in own_urls}:
        detail = f"the card was signed for the deployment at {audience[:200]}, not for this one"
        raise ServiceError(ErrorCode.FORBIDDEN, detail)


def check_age(issued_ms: int, now_ms: int) -> None:
    """Refuse a card whose time of signing is too far in the past or in the future.

    Raises:
        ServiceError: CONFLICT.
    """
    if not now_ms - AGE_MS_MAX <= issued_ms <= now_ms + AHEAD_MS_MAX:
        raise ServiceError(
            ErrorCode.CONFLICT,
            f"got a card signed at {iso_ms(issued_ms)}, expected one of the last"
            f" {AGE_MS_MAX // 3_600_000} hours",
        )


def check_secret(secret: str | None, named_hash: str | None) -> None:
    """Refuse a request unless its signing secret, or its lack of one, matches the proof.

    Raises:
        ServiceError: FORBIDDEN.
    """
    found = "" if secret is None else secret_hash(secret)
    if not hmac.compare_digest(found, named_hash or ""):
        detail = "signingSecret does not match cardProof.signingSecretSha256"
        raise ServiceError(ErrorCode.FORBIDDEN, detail)
