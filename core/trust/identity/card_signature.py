"""What an agent signs when it signs its card, and what that is for.

Pure; client and service build the signed bytes here, so the two sides cannot disagree. A signature
over the card alone says nothing of where, when and for whom; with a `cardProof` it does.
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

# How old a signed card may be when it arrives, and how far ahead the signer's clock.
AGE_MS_MAX: Final = 24 * 3_600_000
AHEAD_MS_MAX: Final = 300_000


def signed_bytes(card: Any, proof: Any | None, form: Callable[[Any], bytes] = jcs) -> bytes:
    """Return what `acardSignature` covers: the JCS form of the card, or of both.

    Args:
        card: as it is sent.
        proof: `cardProof` as it is sent, None without one.
        form: an encoder of the JCS form; the service has a faster one.

    Raises:
        ValueError: the card has no canonical form.
    """
    return form(card if proof is None else {"acard": card, "cardProof": proof})


def secret_hash(secret: str) -> str:
    """Return how a proof names the signing secret that comes with it."""
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
        private_key: of the agent, 32 bytes.
        audience: the deployment's address, as its clients use it.
        owner_did: who the agent's owner is.
        issued_ms: the time, Unix milliseconds.
        counter: more than that of any card signed before.
        signing_secret: what the deployment shall sign its dispatches with.
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
    """Refuse a card that was signed too long ago, or in the time to come.

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
    """Refuse a signing secret that the proof does not name, and one that was left out.

    Raises:
        ServiceError: FORBIDDEN.
    """
    found = "" if secret is None else secret_hash(secret)
    if not hmac.compare_digest(found, named_hash or ""):
        detail = "signingSecret does not match cardProof.signingSecretSha256"
        raise ServiceError(ErrorCode.FORBIDDEN, detail)
