"""The signature of a dispatch: HMAC-SHA256 over the exact bytes of the body.

The service and the agent kit call the same two functions, so both sides agree. This file must not
know where secrets are stored or how a body was encoded.
Reference: features.md (Dispatch signatures).
"""

from __future__ import annotations

import hmac
from functools import lru_cache


def sign_body(body: bytes, secret: str) -> str:
    """Return the value of the `x-<service>-signature` header for a body.

    Args:
        body: the bytes that are sent, not a re-encoded form.
        secret: the agent's shared signing secret.
    """
    keyed = _keyed(secret).copy()
    keyed.update(body)
    return keyed.hexdigest()


def is_signature_valid(body: bytes, secret: str, signature: str | None) -> bool:
    """Say, in constant time, whether a header value is the signature of a body.

    Args:
        body: the bytes that were received.
        secret: the agent's shared signing secret.
        signature: the value of the header; None if the header is absent.
    """
    if signature is None:
        return False
    # Compare bytes, because `compare_digest` refuses text with non-ASCII characters.
    return hmac.compare_digest(sign_body(body, secret).encode(), signature.encode())


@lru_cache(maxsize=4_096)
def _keyed(secret: str) -> hmac.HMAC:
    # Cached, because many bodies are signed with one secret. The caller copies the object.
    return hmac.new(secret.encode(), digestmod="sha256")
