"""The signature of a dispatch: HMAC-SHA256 over the exact bytes of the body.

Coordinator and agent kit call the same two functions, so the two sides cannot disagree.
It sees bytes only and must not know where secrets are kept or how a body was encoded.
Reference: features.md (Dispatch signatures).
"""

from __future__ import annotations

import hmac
from functools import lru_cache


def sign_body(body: bytes, secret: str) -> str:
    """Return the value of the `x-<service>-signature` header for a body.

    Args:
        body: the bytes as sent, never a re-encoded form of them.
        secret: the agent's shared signing secret.
    """
    keyed = _keyed(secret).copy()
    keyed.update(body)
    return keyed.hexdigest()


def is_signature_valid(body: bytes, secret: str, signature: str | None) -> bool:
    """Say, in constant time, whether a header value signs these bytes.

    Args:
        body: the bytes as received.
        secret: the agent's shared signing secret.
        signature: the header's value, None when the header is absent.
    """
    if signature is None:
        return False
    # As bytes: compare_digest refuses text with non-ASCII characters.
    return hmac.compare_digest(sign_body(body, secret).encode(), signature.encode())


@lru_cache(maxsize=4_096)
def _keyed(secret: str) -> hmac.HMAC:
    # To be copied: an agent signs, or is sent, many bodies with one secret.
    return hmac.new(secret.encode(), digestmod="sha256")
