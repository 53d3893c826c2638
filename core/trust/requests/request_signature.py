"""The signature of a request by the key of a DID: what is signed, and how.

RFC 9421 HTTP Message Signatures with Ed25519, RFC 9530 Content-Digest. Client and service build the
signed text here, so the two sides cannot disagree. Pure: time and nonce are arguments. How a
received header is parsed is `signature_fields.py`'s. Reference: http.md (Authentication); decision
signed-requests-and-claims.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Final

from nacl.signing import SigningKey

METHOD: Final = "@method"
TARGET: Final = "@target-uri"
DIGEST: Final = "content-digest"
# What a signature may cover; the first two it must, the third where there is a body.
COMPONENTS: Final = (METHOD, TARGET, DIGEST)
ALGORITHM: Final = "ed25519"
# How far `created` may lie from now, either way.
AGE_S_MAX: Final = 300
LABEL: Final = "callboard"

_HASHES: Final = {"sha-256": hashlib.sha256, "sha-512": hashlib.sha512}


def content_digest(body: bytes) -> str:
    """Return the Content-Digest header of a body."""
    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    return f"sha-256=:{digest}:"


def is_digest_of(digests: Mapping[str, bytes], body: bytes) -> bool:
    """Say whether a body has these digests: one of a known algorithm at least, and all of those.

    Args:
        digests: by the algorithm's name.
    """
    known = [name for name in digests if name in _HASHES]
    return bool(known) and all(
        hmac.compare_digest(_HASHES[name](body).digest(), digests[name]) for name in known
    )


def signed_text(covered: Sequence[str], parameters: str, values: Mapping[str, str]) -> bytes:
    """Return the bytes that a signature covers (RFC 9421 section 2.5).

    Args:
        covered: the components, in their order.
        parameters: the value of `@signature-params`, which names the same ones.
        values: of each component.
    """
    lines = [f'"{name}": {values[name]}' for name in covered]
    return "\n".join([*lines, f'"@signature-params": {parameters}']).encode()


def signature_headers(
    method: str,
    target: str,
    body: bytes,
    *,
    did: str,
    private_key: bytes,
    created_s: int,
    nonce: str,
) -> dict[str, str]:
    """Return the headers that sign a request.

    Args:
        method: in upper case.
        target: the whole URL as it is sent, without a fragment.
        body: the bytes as sent; empty for none.
        did: the signer.
        private_key: the 32 bytes of its Ed25519 seed.
        created_s: now, Unix seconds.
        nonce: a text that this signer has not used before, 1 to 128 visible characters
            without quotes.
    """
    values = {METHOD: method, TARGET: target}
    headers = {}
    if body:
        headers["Content-Digest"] = values[DIGEST] = content_digest(body)
    names = " ".join(f'"{name}"' for name in values)
    parameters = f'({names});created={created_s};keyid="{did}";alg="{ALGORITHM}";nonce="{nonce}"'
    message = signed_text(tuple(values), parameters, values)
    signature = base64.b64encode(SigningKey(private_key).sign(message).signature).decode()
    headers["Signature-Input"] = f"{LABEL}={parameters}"
    headers["Signature"] = f"{LABEL}=:{signature}:"
    return headers
