"""Signs receipts: over their canonical form, and as a JSON Web Signature (RFC 7515).

Pure. Reference: features.md (Receipts).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from core.jcs import jcs

if TYPE_CHECKING:
    from core.trust.signing_keys import SigningKey

# Members that the signature does not cover.
UNSIGNED: Final = ("signature", "checkpoint", "submitted")


def signed_members(receipt: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that the signature covers: all except those in `UNSIGNED`."""
    return {name: value for name, value in receipt.items() if name not in UNSIGNED}


def signed_receipt(members: Mapping[str, Any], key: SigningKey) -> dict[str, str]:
    """Return the signed `body` of a receipt, its `signature`, and the receipt as a `jws`.

    Args:
        members: the members of the receipt; `keyId` is the id of `key`.
    """
    body = jcs(signed_members(members))
    header = jcs({"alg": "EdDSA", "kid": key.key_id, "typ": "JOSE"})
    signed = _base64url(header) + b"." + _base64url(body)
    jws = signed + b"." + _base64url(key.sign_raw(signed))
    return {"body": body.decode(), "signature": key.sign(body), "jws": jws.decode()}


def _base64url(value: bytes) -> bytes:
    return base64.urlsafe_b64encode(value).rstrip(b"=")
