"""The signature of a request with the key of a DID.

RFC 9421 HTTP Message Signatures with Ed25519, RFC 9530 Content-Digest. Client and service call the
same function for the signed text, so both sides agree. Pure: time and nonce are arguments.
`signature_fields.py` parses the headers of a received request.
Reference: http.md (Authentication); decision signed-requests-and-claims.
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
# The components that a signature may cover. The first two are required, the third if there is a
# body.
COMPONENTS: Final = (METHOD, TARGET, DIGEST)
ALGORITHM: Final = "ed25519"
# How far `created` may be from the current time, in the past or in the future.
AGE_S_MAX: Final = 300
LABEL: Final = "callboard"

_HASHES: Final = {"sha-256": hashlib.sha256, "sha-512": hashlib.sha512}


def content_digest(body: bytes) -> str:
    """Return the Content-Digest header of a body."""
    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    return f"sha-256=:{digest}:"


def is_digest_of(digests: Mapping[str, bytes], body: bytes) -> bool:
    """Say whether there is a digest with a known algorithm, and all such digests match a body.

    Args:
        digests: the digests by the name of the algorithm.
    """
    known = [name for name in digests if name in _HASHES]
    return bool(known) and all(
        hmac.compare_digest(_HASHES[name](body).digest(), digests[name]) for name in known
    )


def signed_text(covered: Sequence[str], parameters: str, values: Mapping[str, str]) -> bytes:
    """Return the bytes that a signature covers (RFC 9421 section 2.5).

    Args:
        covered: the components, in their order.
        parameters: the value of `@signature-params`, which lists the same components.
        values: the value of each component.
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
        target: the complete URL of the request, without a fragment.
        body: the bytes that are sent; empty without a body.
        did: the DID of the signer.
        private_key: the signer's Ed25519 seed, 32 bytes.
        created_s: the current time, Unix seconds.
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
