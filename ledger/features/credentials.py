"""Refuses commands whose credential has ended since the replica authenticated the caller.

A replica caches a DID's keys and API keys for a second. A key that was replaced meanwhile must not
authorize lasting changes (a key, guardians, an heir, a name, a card). Therefore such a command
names its credential, and the writer checks the credential again. The writer sees all replacements
in order. Decision permissions-and-keys.
"""

from __future__ import annotations

from core.errors import ErrorCode
from core.trust.did_key import key_of_did
from core.trust.requests.did_standing import DidStanding, signing_key
from ledger.authority import Credential, OpenedBy, SignedBy
from ledger.writer.batch import Batch, Refusal
from ledger.writer.read_set import ReadSet


def add_credential_reads(credential: Credential, read_set: ReadSet) -> None:
    """Add the keys of the rows that checking a command's credential reads."""
    match credential:
        case SignedBy(did=did):
            read_set.agent_dids.add(did)
            if key_of_did(did) is None:
                read_set.signed_dids.add(did)
            read_set.trusted.add(did)
        case OpenedBy(key_id=key_id, owner_did=owner_did):
            read_set.credential_keys.add(key_id)
            read_set.trusted.add(owner_did)


def check_credential(credential: Credential, batch: Batch) -> None:
    """Refuse a command whose credential has ended.

    The refusal is not stored, so the DID may send the same request with its current key.

    Raises:
        Refusal: UNAUTHORIZED.
    """
    match credential:
        case SignedBy(did, public_key):
            if signing_key(did, _standing(did, batch)) != public_key:
                raise _ended(f"the key that signed does not speak for {did} any more")
            if batch.cache.is_revoked(did, batch.clock_ms):
                raise _ended(f"{did} is revoked")
        case OpenedBy(key_id, key_hash, owner_did):
            known = batch.cache.live_keys.get(key_id)
            if known is None:
                raise _ended(f"the key {key_id} has ended")
            if key_hash and not known.opens(key_hash, batch.clock_ms):
                raise _ended(f"the key {key_id} was rotated meanwhile")
            if batch.cache.is_revoked(owner_did, batch.clock_ms) and not known.is_admin:
                raise _ended(f"{owner_did} is revoked")


def is_current_key(did: str, public_key: str, batch: Batch) -> bool:
    """Say whether a key is a DID's current key, in the DID itself or in the registry."""
    own = key_of_did(did)
    if own is not None:
        return own == public_key
    agent = batch.cache.agents.get(did)
    return agent is not None and agent.public_key == public_key


def _standing(did: str, batch: Batch) -> DidStanding:
    agent = batch.cache.agents.get(did)
    if agent is None:
        return DidStanding()
    has_keys = did in batch.cache.key_owners
    return DidStanding(agent.public_key, agent.owner_did, agent.is_active, has_keys)


def _ended(detail: str) -> Refusal:
    return Refusal(ErrorCode.UNAUTHORIZED, detail, is_stored=False)
