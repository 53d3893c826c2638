"""Decides which key may sign requests for a DID, and which rights such a request has.

Pure. The key of a registered agent may sign for the agent's DID. If another owner has registered
the agent, this ends when the agent is deregistered or the DID owns API keys.
Reference: http.md (Authentication); decision signed-requests-and-claims.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from core.trust.access import DEFAULT_SCOPES, PEER_SCOPES
from core.trust.did_key import key_of_did

# With this right, an owner that registered an agent under a DID of another owner could create an
# API key and keep access.
_MAKES_KEYS: Final = "keys:write"


@dataclass(frozen=True, slots=True)
class DidStanding:
    """The stored facts about a DID.

    `registered_key`: the public key of the agent with this DID, base64; None without a key.
    `owner_did`: the owner that registered the agent; None if there is no agent. `is_active`:
    whether the agent is registered now. `has_keys`: whether the DID owns API keys. `is_revoked`:
    whether the DID is revoked. `peer_key`: the current key of the peer with this DID, base64; None
    if the DID is not that of a peer.
    """

    registered_key: str | None = None
    owner_did: str | None = None
    is_active: bool = False
    has_keys: bool = False
    is_revoked: bool = False
    peer_key: str | None = None


STRANGER: Final = DidStanding()


def signing_key(did: str, standing: DidStanding) -> str | None:
    """Return the public key that signs for this DID, according to the registry; None without one.

    The key of a `did:key` DID is always the key in the DID.
    """
    own = key_of_did(did) or standing.peer_key
    if own is None and _may_use_registered_key(did, standing):
        return standing.registered_key
    return own


def scopes_of_signer(did: str, standing: DidStanding) -> frozenset[str]:
    """Return the rights of a request that this DID signed.

    They are the default scopes of a new API key, or `PEER_SCOPES` for a peer. An agent that another
    owner registered cannot create API keys, because they would outlive its registration.
    """
    if standing.peer_key is not None:
        return PEER_SCOPES
    scopes = frozenset(DEFAULT_SCOPES)
    if key_of_did(did) is None and standing.owner_did != did:
        return scopes - {_MAKES_KEYS}
    return scopes


def _may_use_registered_key(did: str, standing: DidStanding) -> bool:
    return standing.owner_did == did or (standing.is_active and not standing.has_keys)
