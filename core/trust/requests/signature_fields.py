"""Parses the headers of a signed request: one signature, and the digests of the body.

The headers may come from an attacker. Their sizes are checked before they are parsed, and unknown
parts are refused, never ignored. Pure; this file verifies no signatures.
Reference: RFC 9421 section 4, RFC 9530, decision signed-requests-and-claims.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import http_sf

from core.trust.requests.request_signature import ALGORITHM, COMPONENTS, METHOD, TARGET

# The maximum sizes of the headers. A DID has at most 256 characters, a nonce 128.
INPUT_BYTES_MAX: Final = 1_024
SIGNATURE_BYTES_MAX: Final = 256
DIGEST_BYTES_MAX: Final = 512
SIGNATURE_BYTES: Final = 64
# Visible characters that need no escape.
_NONCE: Final = re.compile(r"[!#-\[\]-~]{1,128}")
_PARAMETERS: Final = frozenset({"created", "keyid", "alg", "nonce", "expires", "tag"})


class SignatureDefect(ValueError):
    """The headers contain no signature that the service accepts. The text says why."""


@dataclass(frozen=True, slots=True)
class SignatureFields:
    """The fields of one signature. None of them is verified.

    `did`: any text; the caller must check that it is a DID. `expires_s`: when the signature
    expires, Unix seconds; None for no expiry. `covered`: the components, in their order.
    `parameters`: the text of the signed parameters.
    """

    did: str
    created_s: int
    expires_s: int | None
    nonce: str
    covered: tuple[str, ...]
    parameters: str
    signature: bytes


def read_signature(given: bytes, signature: bytes | None) -> SignatureFields:
    """Parse the headers Signature-Input and Signature.

    Args:
        given: the value of Signature-Input.
        signature: the value of Signature; None if the header is absent.

    Raises:
        SignatureDefect: a header is too long or malformed; there is not exactly one signature; the
            signature has no signer, time or nonce; or it does not cover the required components, or
            covers others.
    """
    label, described = _only_member(given, INPUT_BYTES_MAX, "Signature-Input")
    signed, value = _only_member(signature or b"", SIGNATURE_BYTES_MAX, "Signature")
    if signed != label:
        raise SignatureDefect("Signature and Signature-Input have different labels")
    if not isinstance(value[0], bytes) or len(value[0]) != SIGNATURE_BYTES:
        raise SignatureDefect(f"Signature is not {SIGNATURE_BYTES} bytes")
    covered = _covered(described[0])
    named = described[1]
    unknown = sorted(named.keys() - _PARAMETERS)
    if unknown:
        raise SignatureDefect(f"Signature-Input has a parameter {unknown[0][:100]!r}")
    if named.get("alg", ALGORITHM) != ALGORITHM:
        raise SignatureDefect(f"the signature's alg is not {ALGORITHM}")
    did, nonce = named.get("keyid"), named.get("nonce")
    if type(did) is not str:
        raise SignatureDefect("the signature's keyid is not a text")
    if type(nonce) is not str or _NONCE.fullmatch(nonce) is None:
        raise SignatureDefect("the signature's nonce is not 1 to 128 visible characters")
    created_s, expires_s = named.get("created"), named.get("expires")
    if type(created_s) is not int or (expires_s is not None and type(expires_s) is not int):
        raise SignatureDefect("the signature's created, or expires, is not a whole number")
    parameters = http_sf.ser([described])
    return SignatureFields(did, created_s, expires_s, nonce, covered, parameters, value[0])


def read_digests(given: bytes) -> dict[str, bytes]:
    """Parse a Content-Digest header and return the digests by the name of the algorithm.

    Raises:
        SignatureDefect: the header is too long or malformed.
    """
    parsed = _dictionary(given, DIGEST_BYTES_MAX, "Content-Digest")
    digests = {name: member[0] for name, member in parsed.items()}
    if not all(isinstance(digest, bytes) for digest in digests.values()):
        raise SignatureDefect("Content-Digest has a member that is no byte sequence")
    return digests


def _only_member(given: bytes, bytes_max: int, header: str) -> tuple[str, Any]:
    members = _dictionary(given, bytes_max, header)
    if len(members) != 1:
        raise SignatureDefect(f"{header} has {len(members)} members, expected one")
    return next(iter(members.items()))


def _dictionary(given: bytes, bytes_max: int, header: str) -> dict[str, Any]:
    if not 0 < len(given) <= bytes_max:
        raise SignatureDefect(f"{header} has {len(given)} bytes, expected 1 to {bytes_max}")

    def refuse(key: str, _context: str) -> None:
        raise SignatureDefect(f"{header} has {key[:100]!r} twice")

    try:
        parsed: Any = http_sf.parse(given, tltype="dictionary", on_duplicate_key=refuse)
    except SignatureDefect:
        raise
    except ValueError:
        raise SignatureDefect(f"{header} is not a structured field") from None
    return dict(parsed)


def _covered(members: Any) -> tuple[str, ...]:
    if not isinstance(members, list):
        raise SignatureDefect("Signature-Input is not a list of components")
    names = []
    for name, parameters in members:
        if type(name) is not str or name not in COMPONENTS or parameters:
            expected = " ".join(COMPONENTS)
            raise SignatureDefect(f"the signature covers {str(name)[:100]!r}, expected {expected}")
        names.append(name)
    if len(set(names)) != len(names) or not {METHOD, TARGET} <= set(names):
        raise SignatureDefect(f"the signature does not cover {METHOD} and {TARGET}, each once")
    return tuple(names)
