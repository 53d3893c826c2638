"""Planning API keys: a key made with another stands on it, and ends with it.

The writer sees every creation and every revocation in one order, so no key is made with one that
has ended. Spec: Authentication; decision permissions-and-keys.
"""

from __future__ import annotations

from dataclasses import replace

from core.errors import ErrorCode
from core.json_text import read_json
from core.records.audit import AuditEventType
from core.trust.access import ADMIN
from ledger.commands import Outcome
from ledger.keys.key_commands import CreateKey, RevokeKey, RotateKey
from ledger.tables.encoding import hex_text
from ledger.tables.market_tables import ENDED_API_KEYS, KEYS, REVOKED_KEYS, ROTATED_KEYS
from ledger.writer.batch import Batch, Refusal
from ledger.writer.command_kind import plans
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import KnownKey


def add_create_key_reads(command: CreateKey, read_set: ReadSet) -> None:
    """Add what is looked at before a key is made."""
    read_set.key_owners.add(command.owner_did)
    if command.parent_id is not None:
        read_set.parent_keys.add(command.parent_id)


def add_ended_key_reads(command: RevokeKey | RotateKey, read_set: ReadSet) -> None:
    """Add what is looked at before a key, or its secret of now, ends."""
    read_set.key_ids.add(command.key_id)


@plans(CreateKey, reads=add_create_key_reads, outlives_credential=True)
def plan_create_key(command: CreateKey, batch: Batch) -> Outcome:
    """Store an API key by its hash; the key itself never comes here."""
    depth = 0 if command.parent_id is None else _depth_below(command, batch)
    count = batch.cache.key_counts.get(command.owner_did, 0)
    if command.owner_keys_max is not None and count >= command.owner_keys_max:
        raise Refusal(
            ErrorCode.CONFLICT,
            f"{command.owner_did} has {count} keys, expected fewer than {command.owner_keys_max}:"
            " revoke one first",
        )
    batch.put(
        KEYS,
        command.key_id,
        {
            "id": command.key_id,
            "hash": hex_text(command.key_hash),
            "owner_did": command.owner_did,
            "name": command.name,
            "scopes": list(command.scopes),
            "rate_class": command.rate_class,
            "rate_limits": _parsed(command.rate_limits_json),
            "expires_ms": command.expires_ms,
            "parent_id": command.parent_id,
            "depth": depth,
        },
    )
    batch.cache.live_keys[command.key_id] = KnownKey(
        command.owner_did,
        command.parent_id,
        depth,
        command.expires_ms,
        command.key_hash,
        is_admin=ADMIN in command.scopes,
    )
    batch.cache.key_counts[command.owner_did] = count + 1
    batch.cache.callers.add(command.owner_did)
    audit_id = batch.record(
        AuditEventType.KEY_CREATED,
        actor_did=command.actor_did,
        target=("key", command.key_id),
        payload={
            "ownerDid": command.owner_did,
            "scopes": list(command.scopes),
            "parentId": command.parent_id,
        },
    )
    return batch.decided(command.key, result={"id": command.key_id}, audit_id=audit_id)


@plans(RevokeKey, reads=add_ended_key_reads, outlives_credential=True)
def plan_revoke_key(command: RevokeKey, batch: Batch) -> Outcome:
    """End an API key that belongs to the one who asks (or an admin), and all that stand on it."""
    live = batch.cache.live_keys
    known = live.get(command.key_id)
    if known is None or command.owner_did not in (None, known.owner_did):
        raise Refusal(
            ErrorCode.NOT_FOUND, f"the key {command.key_id} does not exist or has already ended"
        )
    ended = _with_descendants([command.key_id], live)
    for key_id in ended:
        del live[key_id]
        batch.put(REVOKED_KEYS, key_id, {"id": key_id})
    audit_id = batch.record(
        AuditEventType.KEY_REVOKED,
        actor_did=command.actor_did,
        target=("key", command.key_id),
        payload={"ownerDid": known.owner_did, "descendants": ended[1:]},
    )
    result = {"id": command.key_id, "ended": len(ended)}
    return batch.decided(command.key, result=result, audit_id=audit_id)


@plans(RotateKey, reads=add_ended_key_reads, outlives_credential=True)
def plan_rotate_key(command: RotateKey, batch: Batch) -> Outcome:
    """Put another hash in the place of a live key's, and keep the one of now for the overlap.

    The one of an earlier rotation ends with it: a key is known by two hashes at most.
    """
    known = batch.cache.live_keys.get(command.key_id)
    if known is None or command.owner_did not in (None, known.owner_did):
        raise Refusal(ErrorCode.NOT_FOUND, f"the key {command.key_id} does not exist or has ended")
    if known.expires_ms is not None and known.expires_ms <= batch.clock_ms:
        raise Refusal(ErrorCode.CONFLICT, f"the key {command.key_id} has expired")
    ends_ms = batch.clock_ms + command.overlap_ms if command.overlap_ms else None
    batch.put(
        ROTATED_KEYS,
        command.key_id,
        {
            "id": command.key_id,
            "hash": hex_text(command.key_hash),
            "previous_hash": None if ends_ms is None else hex_text(known.hash),
            "previous_ends_ms": ends_ms,
        },
    )
    batch.cache.live_keys[command.key_id] = replace(
        known,
        hash=command.key_hash,
        previous_hash=None if ends_ms is None else known.hash,
        previous_ends_ms=ends_ms,
    )
    audit_id = batch.record(
        AuditEventType.KEY_ROTATED,
        actor_did=command.actor_did,
        target=("key", command.key_id),
        payload={"ownerDid": known.owner_did, "overlapMs": command.overlap_ms},
    )
    result = {"id": command.key_id, "previous_ends_ms": ends_ms}
    return batch.decided(command.key, result=result, audit_id=audit_id)


def _depth_below(command: CreateKey, batch: Batch) -> int:
    """Return how many keys the new one stands on.

    Raises: Refusal; the parent has ended, outlives the new key, or stands on too many itself.
    """
    parent = batch.cache.live_keys.get(command.parent_id or "")
    if parent is None or (parent.expires_ms is not None and parent.expires_ms <= batch.clock_ms):
        raise Refusal(ErrorCode.UNAUTHORIZED, f"the creating key {command.parent_id} has ended")
    if parent.expires_ms is not None and (
        command.expires_ms is None or command.expires_ms > parent.expires_ms
    ):
        raise Refusal(
            ErrorCode.FORBIDDEN,
            f"the creating key {command.parent_id} expires before the new key: choose an"
            " earlier expiresAt",
        )
    depth = parent.depth + 1
    if command.depth_max is not None and depth > command.depth_max:
        raise Refusal(
            ErrorCode.CONFLICT,
            f"API key {command.parent_id} is derived {parent.depth} levels deep, and"
            f" {command.depth_max} is the maximum: create the new key from one of its parents",
        )
    return depth


def end_api_keys(owner_did: str, batch: Batch) -> None:
    """End every API key of a DID, whose credentials were another's, and all that stand on them.

    A key that one of them has made for another owner, and that does not stand on it, stays.
    """
    live = batch.cache.live_keys
    owned = [key_id for key_id, key in live.items() if key.owner_did == owner_did]
    for key_id in _with_descendants(owned, live):
        if live[key_id].owner_did != owner_did:
            batch.put(REVOKED_KEYS, key_id, {"id": key_id})
        del live[key_id]
    batch.put(ENDED_API_KEYS, owner_did, {"owner_did": owner_did})


def _with_descendants(key_ids: list[str], live: dict[str, KnownKey]) -> list[str]:
    """Return these keys and every key that stands on one of them, each once, after its parent."""
    children: dict[str, list[str]] = {}
    for child_id, known in live.items():
        if known.parent_id is not None:
            children.setdefault(known.parent_id, []).append(child_id)
    found, given = list(key_ids), set(key_ids)
    for parent_id in found:  # grows while it is walked
        found.extend(child for child in sorted(children.get(parent_id, ())) if child not in given)
    return found


def _parsed(json_text: str | None) -> object:
    return read_json(json_text) if json_text is not None else None
