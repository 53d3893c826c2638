"""What a DID's signature over a request permits, by what the registry knows of the DID.

Pure. A registered key speaks for its DID unless the DID is in use by another: an agent may have
been registered under a DID whose owner came later. Reference: http.md (Authentication); decision
signed-requests-and-claims.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from core.trust.access import DEFAULT_SCOPES, PEER_SCOPES
from core.trust.did_key import key_of_did

# With it, who registered an agent under another's DID could keep access by an API key.
_MAKES_KEYS: Final = "keys:write"


@dataclass(frozen=True, slots=True)
class DidStanding:
    """What is stored of a DID.

    `registered_key`: base64 of the agent's public key, None without one. `owner_did`: who
    registered the agent, None where there is none. `is_active`: whether it is in service.
    `has_keys`: whether the DID owns API keys. `is_revoked`: whether it is revoked now.
    `peer_key`: base64 of the current key of the peer with this DID, None where it is no peer's.
    """

    registered_key: str | None = None
    owner_did: str | None = None
    is_active: bool = False
    has_keys: bool = False
    is_revoked: bool = False
    peer_key: str | None = None


STRANGER: Final = DidStanding()


def signing_key(did: str, standing: DidStanding) -> str | None:
    """Return the public key whose signature is this DID's, as it is stored; None without one.

    A `did:key` is its own key, whatever the registry holds.
    """
    own = key_of_did(did) or standing.peer_key
    if own is None and _speaks_by_registry(did, standing):
        return standing.registered_key
    return own


def scopes_of_signer(did: str, standing: DidStanding) -> frozenset[str]:
    """Return the rights of a request that this DID signed: a new key's default scopes.

    A peer has those that it needs. An agent that another owner registered makes no API keys: they
    would outlive its registration.
    """
    if standing.peer_key is not None:
        return PEER_SCOPES
    scopes = frozenset(DEFAULT_SCOPES)
    if key_of_did(did) is None and standing.owner_did != did:
        return scopes - {_MAKES_KEYS}
    return scopes


def _speaks_by_registry(did: str, standing: DidStanding) -> bool:
    return standing.owner_did == did or (standing.is_active and not standing.has_keys)
