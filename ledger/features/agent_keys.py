"""Keys of agents: a new key replaces the current one, which becomes a former key.

All replacements (by rotation, by a card, by recovery) go through this file. So every former key of
a DID stays known, and no former key can become current again. Reference: features.md (Key
rotation). Decision agent-identity.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from core.records.audit import AuditEventType
from core.timestamps import iso_ms
from core.trust.identity.agent_keys import KEY_AGE_MS_MIN, KEYS_MAX, key_name
from ledger.authority import AuthorizedCommand
from ledger.tables.identity_tables import (
    ENDED_FORMER_KEYS,
    FORMER_KEYS,
)
from ledger.tables.market_tables import AGENT_IDENTITIES
from ledger.writer.batch import Batch, Result, conflict, forbidden
from ledger.writer.command_kind import keys_of, plans
from ledger.writer.state_cache import KnownAgent

# Signatures are verified before a command is made. The command names the key that verified them.
# The writer refuses the command if that key is no longer the agent's current key.


class RotateAgentKey(AuthorizedCommand, frozen=True, kw_only=True):
    """Replace an agent's key. A proof that is signed with the current key authorizes this.

    `proven_key`: the key that verified the proof. `overlap_ms`: how long `proven_key` remains valid
    for results beside the new key.
    Rejections: NOT_FOUND; FORBIDDEN (the agent is revoked); CONFLICT (the key was replaced
    meanwhile, the new key is or was a key of this DID, or the history is full).
    Result: {"keyNumber", "validFromMs", "formerValidUntilMs"}.
    """

    did: str
    new_key: str
    proven_key: str
    overlap_ms: int


@plans(
    RotateAgentKey, reads=keys_of(trusted="did", new_keys="did new_key"), outlives_credential=True
)
def plan_rotate_agent_key(command: RotateAgentKey, batch: Batch) -> Result:
    """Replace an agent's key, if the proof was made with its current key."""
    did = command.did
    known = batch.agent(did)
    if batch.cache.is_revoked(did, batch.clock_ms):
        raise forbidden(f"{did} is revoked: its key cannot prove anything")
    if known.public_key != command.proven_key:
        raise conflict(f"the key of {did} was replaced by another request: use the current key")
    check_new_key(did, known, command.new_key, batch)
    until_ms = batch.now_ms + command.overlap_ms
    agent = replace_key(did, known, command.new_key, batch, overlap_ms=command.overlap_ms)
    batch.record(
        AuditEventType.AGENT_KEY_ROTATED, ("agent", did), **key_payload(did, known, agent, until_ms)
    )
    return {
        "keyNumber": agent.key_number,
        "validFromMs": batch.now_ms,
        "formerValidUntilMs": until_ms,
    }


def check_new_key(
    did: str, known: KnownAgent, new_key: str, batch: Batch, *, is_recovery: bool = False
) -> None:
    """Refuse a key that is or was a key of this DID. If the history is full, refuse a new key too
    soon after the current one.

    A thief of a key may fill the history with keys. So a full history still accepts a new key when
    the current key is old enough. Otherwise the owner would need guardians for each new key.

    Args:
        is_recovery: guardians replace the key; they do not have to wait.

    Raises:
        Refusal: CONFLICT.
    """
    if new_key == known.public_key or (did, new_key) in batch.cache.former_keys:
        raise conflict(f"the new key is in the history of {did}: use a key that it never had")
    is_full = known.key_number >= KEYS_MAX and not is_recovery
    if is_full and batch.now_ms - known.key_from_ms < KEY_AGE_MS_MIN:
        raise conflict(
            f"{did} has had {known.key_number} keys, of which a new one is accepted when the"
            f" current one is {KEY_AGE_MS_MIN // 3_600_000} hours old"
        )


def replace_key(
    did: str, known: KnownAgent, new_key: str, batch: Batch, *, overlap_ms: int = 0
) -> KnownAgent:
    """Replace an agent's current key by a key that `check_new_key` has accepted; return the changed
    agent.

    Args:
        known: the agent before; if it has no key, no former key is stored.
        overlap_ms: how long the previous key remains valid beside the new one.
    """
    number = known.key_number
    if known.public_key is not None:
        batch.put(ENDED_FORMER_KEYS, did, {"agent_did": did})
        # A second replacement in one batch: the overlap of the first one ends now.
        before = batch.row(FORMER_KEYS, (did, number - 1))
        if before is not None:
            before["valid_until_ms"] = min(before["valid_until_ms"], batch.now_ms)
        # The key may be in the history already, from a claim that has yielded.
        if (did, known.public_key) not in batch.cache.former_keys:
            times = {
                "valid_from_ms": known.key_from_ms,
                "valid_until_ms": batch.now_ms + overlap_ms,
            }
            batch.store(FORMER_KEYS, (did, number), known, agent_did=did, number=number, **times)
        batch.cache.former_keys.add((did, known.public_key))
        number += 1
    agent = replace(
        known,
        public_key=new_key,
        key_number=number,
        key_from_ms=batch.now_ms,
        revision=known.revision + 1,
    )
    change_identity(did, agent, batch, public_key=new_key, key_from_ms=batch.now_ms)
    return agent


def change_identity(did: str, agent: KnownAgent, batch: Batch, **changed: Any) -> None:
    """Store changed columns of an agent without its card. Directories load the change.

    Args:
        agent: the agent after the change.
        changed: the changed columns.
    """
    batch.cache.agents[did] = agent
    row = {"did": did, "key_number": agent.key_number, "revision": agent.revision, **changed}
    batch.put(AGENT_IDENTITIES, did, {**(batch.row(AGENT_IDENTITIES, did) or {}), **row})
    batch.is_directory_changed = True


def key_payload(did: str, before: KnownAgent, after: KnownAgent, until_ms: int) -> dict[str, Any]:
    """Return the payload of the audit event of a key replacement."""
    return {
        "keyId": key_name(did, after.key_number),
        "publicKey": after.public_key,
        "formerKey": before.public_key,
        "formerValidUntil": iso_ms(until_ms),
    }


def check_proven(did: str, agent: KnownAgent) -> None:
    """Refuse an action that needs a proven claim: another person may hold an unproven DID.

    Raises:
        Refusal: FORBIDDEN.
    """
    if agent.proven_by is None:
        raise forbidden(
            f"the ownership of {did} is unproven: register it with a cardProof, with a key of"
            f" {did} itself, or as an administrator"
        )
