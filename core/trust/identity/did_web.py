"""`did:web` DIDs: the URL of the DID document, and the Ed25519 keys in the document.

Pure: `federation/documents.py` fetches the document. Reference: W3C did:web method, decision
signed-requests-and-claims.
"""

from __future__ import annotations

import base64
import re
from typing import Any, Final

from core.json_text import duplicate_member, read_foreign_json
from core.trust.did_key import PREFIX, key_of_did

KEYS_MAX: Final = 20
_METHOD: Final = "did:web:"
_HOST: Final = re.compile(
    r"(?=.{1,253}$)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
)
_PATH_PART: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


def is_did_web(did: str) -> bool:
    """Say whether a DID is a `did:web` DID, whose keys are in a document on the web."""
    return did.startswith(_METHOD)


def document_url(did: str) -> str | None:
    """Return the https URL of the document of a `did:web` DID; None if the DID is malformed.

    The DID contains a host name, optionally a port such as `%3A8443`, and parts of a path after
    further colons.
    """
    host, *parts = did.removeprefix(_METHOD).split(":")
    name, colon, port = host.replace("%3A", ":").replace("%3a", ":").partition(":")
    is_port = not colon or (port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 65_536)
    is_place = _HOST.fullmatch(name.lower()) is not None and is_port
    if not is_place or not all(map(_PATH_PART.fullmatch, parts)):
        return None
    path = "/".join(parts) or ".well-known"
    return f"https://{name.lower()}{colon}{port}/{path}/did.json"


def document_keys(text: bytes, did: str) -> tuple[str, ...]:
    """Return the Ed25519 keys of a DID document, base64 of 32 bytes each, at most `KEYS_MAX`.

    A key is read from each verification method that is a JWK (OKP) or a Multikey with Ed25519.

    Raises:
        ValueError: the text is not a document of this DID, or has too many verification methods.
    """
    document = read_foreign_json(text)
    if not isinstance(document, dict) or document.get("id") != did:
        raise ValueError(f"expected a DID document with the id {did}")
    methods = document.get("verificationMethod", [])
    if doubled := duplicate_member(text):
        raise ValueError(f"duplicate member {doubled}")
    if not isinstance(methods, list) or len(methods) > KEYS_MAX:
        raise ValueError(f"expected at most {KEYS_MAX} verification methods")
    keys = (_key(method) for method in methods if isinstance(method, dict))
    return tuple(key for key in keys if key is not None)


def _key(method: dict[str, Any]) -> str | None:
    jwk = method.get("publicKeyJwk")
    if isinstance(jwk, dict):
        return _jwk_key(jwk)
    multibase = method.get("publicKeyMultibase")
    if isinstance(multibase, str) and multibase.startswith("z"):
        return key_of_did(PREFIX + multibase[1:])
    return None


def _jwk_key(jwk: dict[str, Any]) -> str | None:
    x = jwk.get("x")
    if jwk.get("kty") != "OKP" or jwk.get("crv") != "Ed25519" or not isinstance(x, str):
        return None
    try:
        raw = base64.b64decode(x + "=" * (-len(x) % 4), altchars=b"-_", validate=True)
    except ValueError:
        return None
    return base64.b64encode(raw).decode() if len(raw) == 32 else None
