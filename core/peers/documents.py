"""Signed documents that peers exchange: heartbeats and pages of trust events.

The signature of a document covers the canonical form of all its other members. Pure.
Reference: features.md (Peers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from core.canonical import canonical
from core.errors import ErrorCode, ServiceError
from core.json_text import write_json
from core.records.api.peers import (
    OFFERS_MAX,
    PeerHeartbeat,
    TrustPageRead,
)
from core.records.api.shape import invalid, parsed
from core.timestamps import iso_ms
from core.trust.signatures import is_signed_by
from core.trust.signing_keys import SigningKey, key_id_of, signing_key_rotation_message

HEARTBEAT_BYTES_MAX: Final = 64 * 1024
TRUST_PAGE_EVENTS: Final = 500
# The largest accepted difference between a heartbeat's time and the receiver's clock.
AT_MS_MAX: Final = 60_000
ROTATIONS_MAX: Final = 20

DEPLOYMENT_DID: Final = "did:callboard:"
CLEARING_DID: Final = f"{DEPLOYMENT_DID}clearing-"
_OFFERS_BYTES_MAX: Final = 48 * 1024


def deployment_did(first_public_key: str) -> str:
    """Return the DID of a deployment, which stays the same when the deployment rotates its key.

    Args:
        first_public_key: the deployment's first public key, base64.
    """
    return DEPLOYMENT_DID + key_id_of(first_public_key)


def clearing_did(did: str) -> str:
    """Return the DID of the clearing account, which gets the payments for a peer's work.

    This DID has no key, so no signature is valid for it.

    Args:
        did: the DID of the peer.
    """
    return CLEARING_DID + did.removeprefix(DEPLOYMENT_DID)


def signed(document: Mapping[str, Any], key: SigningKey) -> dict[str, Any]:
    """Return a document with the member `signature`, made with a key."""
    return {**document, "signature": key.sign(canonical(dict(document)))}


def heartbeat_of(
    state: Mapping[str, Any],
    *,
    did: str,
    key: SigningKey,
    rotations: Sequence[Mapping[str, str]],
    now_ms: int,
) -> dict[str, Any]:
    """Return a signed heartbeat.

    Args:
        state: region, counts, load and capabilities of this deployment. The most important
            capabilities come first. The heartbeat contains the first ones that fit.
        did: the DID of this deployment.
        key: the current signing key.
        rotations: the keys after the first one, each with the proof by its predecessor; the current
            key is last.
        now_ms: the current time, Unix milliseconds.
    """
    offers, size = [], 0
    for offer in state["capabilities"][:OFFERS_MAX]:
        size += len(write_json(offer)) + 1
        if size > _OFFERS_BYTES_MAX:
            break
        offers.append(offer)
    document = {
        **state,
        "capabilities": offers,
        "did": did,
        "at": iso_ms(now_ms),
        "publicKey": key.public_key,
        "rotations": list(rotations[-ROTATIONS_MAX:]),
    }
    return signed(document, key)


def check_signed_heartbeat(
    document: Mapping[str, Any], heartbeat: PeerHeartbeat, *, now_ms: int
) -> None:
    """Refuse a heartbeat whose time is more than 60 s off or whose signature is wrong.

    The signature is verified with the heartbeat's own `publicKey`. This proves only that the sender
    has that key. `current_key` checks that the key belongs to the peer.

    Args:
        document: the received JSON object.
        heartbeat: the heartbeat that was read from the document.
        now_ms: the current time, Unix milliseconds.

    Raises:
        ServiceError: INVALID_REQUEST, INVALID_SIGNATURE.
    """
    for name, value in (("did", heartbeat.did), ("publicKey", heartbeat.public_key)):
        if value is None:
            raise invalid(name, "nothing", "a value, because the heartbeat is signed")
    if heartbeat.at is None or abs(heartbeat.at - now_ms) > AT_MS_MAX:
        got = "nothing" if heartbeat.at is None else iso_ms(heartbeat.at)
        raise invalid("at", got, f"a time within {AT_MS_MAX // 1_000} s of {iso_ms(now_ms)}")
    check_signature(document, heartbeat.public_key or "")


def check_heartbeat_bounds(heartbeat: PeerHeartbeat) -> None:
    """Refuse a heartbeat with too many capabilities or keys.

    Raises:
        ServiceError: a list is too long (INVALID_REQUEST).
    """
    for name, given, most in (
        ("capabilities", heartbeat.capabilities, OFFERS_MAX),
        ("rotations", heartbeat.rotations, ROTATIONS_MAX),
    ):
        if given is not None and len(given) > most:
            raise invalid(name, f"{len(given)} items", f"at most {most} items")


def current_key(heartbeat: PeerHeartbeat, known_key: str) -> str:
    """Return the `publicKey` of a heartbeat if it is proven to be the sender's current key.

    The key is proven if it is the known key, or if a chain of `rotations` leads from the known key
    to it. In this chain, each key has signed the next key.

    Args:
        heartbeat: the received heartbeat.
        known_key: the newest key of the sender that the receiver knows, base64.

    Raises:
        ServiceError: the key is not proven (INVALID_SIGNATURE).
    """
    if heartbeat.public_key == known_key:
        return known_key
    key, later = known_key, list(heartbeat.rotations or ())
    keys = [one.public_key for one in later]
    if known_key in keys:
        later = later[keys.index(known_key) + 1 :]
    for rotation in later:
        if not is_signed_by(key, signing_key_rotation_message(rotation.public_key), rotation.proof):
            break
        key = rotation.public_key
        if key == heartbeat.public_key:
            return key
    raise ServiceError(
        ErrorCode.INVALID_SIGNATURE,
        f"publicKey: the known key of {heartbeat.did} did not sign this key, nor a key in"
        " `rotations` that did. An operator must add the peer again with its new key",
    )


def check_signature(document: Mapping[str, Any], public_key: str) -> None:
    """Refuse a document whose signature does not verify with a key.

    Args:
        document: the received JSON object, with the member `signature`.
        public_key: the key, base64.

    Raises:
        ServiceError: the signature does not verify (INVALID_SIGNATURE).
    """
    unsigned = {name: value for name, value in document.items() if name != "signature"}
    try:
        is_good = is_signed_by(public_key, canonical(unsigned), document.get("signature"))
    except ValueError:  # the document has no canonical form
        is_good = False
    if not is_good:
        detail = "does not verify with publicKey over the canonical form of the other members"
        raise ServiceError(ErrorCode.INVALID_SIGNATURE, f"signature: {detail}")


def read_trust_page(document: Any, *, did: str, public_key: str, after: int) -> TrustPageRead:
    """Check a page of trust events that a peer has sent, and return it.

    Args:
        document: the received JSON value.
        did, public_key: the DID and the known key of the peer.
        after: the id of the audit entry after which the page was requested.

    Raises:
        ServiceError: the document is not the requested page (INVALID_REQUEST), or its signature
            does not verify (INVALID_SIGNATURE).
    """
    page = parsed(TrustPageRead, document)
    check_signature(document, public_key)
    if (page.did, page.after) != (did, after) or page.to < after:
        got = f"{page.did}, after {page.after}, to {page.to}"
        raise invalid("did", got, f"{did}, after {after}, to {after} or more")
    return page
