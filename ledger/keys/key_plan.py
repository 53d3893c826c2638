"""Planning API keys: a key made with another stands on it, and ends with it.

The writer sees every creation and every revocation in one order, so no key is made with one that
has ended. Reference: http.md (Authentication); decision permissions-and-keys.
"""

from __future__ import annotations

from collections.abc import Iterable

from core.errors import ErrorCode
from core.json_text import read_json
from core.records.audit import AuditEventType
from ledger.keys.key_commands import CreateKey, RevokeKey, RotateKey
from ledger.keys.key_loading import count_keys, keys_below, read_keys
from ledger.tables.market_tables import ENDED_API_KEYS, KEYS, REVOKED_KEYS, ROTATED_KEYS
from ledger.writer.batch import Batch, Refusal, Result, conflict, forbidden, not_found
from ledger.writer.command_kind import Connection, plans
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import KnownKey


async def load_parent(
    connection: Connection, command: CreateKey, read_set: ReadSet
) -> tuple[KnownKey | None, int]:
    """Return the key that a new one is made with, and how many keys its owner has."""
    parent_id = command.parent_id or ""
    known = await read_keys(connection, [parent_id])
    return known.get(parent_id), await count_keys(connection, command.owner_did)


async def load_ended(
    connection: Connection, command: RevokeKey, read_set: ReadSet
) -> tuple[KnownKey | None, list[str]]:
    """Return a key, and the ids of all that end with it, its own first."""
    known = await read_keys(connection, [command.key_id])
    return known.get(command.key_id), await keys_below(connection, command.key_id)


async def load_rotated(
    connection: Connection, command: RotateKey, read_set: ReadSet
) -> KnownKey | None:
    """Return the key that gets another secret."""
    return (await read_keys(connection, [command.key_id])).get(command.key_id)


@plans(CreateKey, load=load_parent, outlives_credential=True)
def plan_create_key(command: CreateKey, batch: Batch) -> Result:
    """Store an API key by its hash; the key itself never comes here."""
    parent, count = batch.loaded
    depth = 0 if command.parent_id is None else _depth_below(command, parent, batch)
    if command.owner_keys_max is not None and count >= command.owner_keys_max:
        raise conflict(
            f"{command.owner_did} has {count} keys, expected fewer than {command.owner_keys_max}:"
            " revoke one first"
        )
    limits = command.rate_limits_json
    batch.store(
        KEYS,
        command.key_id,
        command,
        id=command.key_id,
        hash=command.key_hash,
        rate_limits=None if limits is None else read_json(limits),
        depth=depth,
    )
    batch.record(
        AuditEventType.KEY_CREATED,
        ("key", command.key_id),
        ownerDid=command.owner_did,
        scopes=list(command.scopes),
        parentId=command.parent_id,
    )
    return {"id": command.key_id}


@plans(RevokeKey, load=load_ended, outlives_credential=True)
def plan_revoke_key(command: RevokeKey, batch: Batch) -> Result:
    """End an API key that belongs to the one who asks (or an admin), and all that stand on it."""
    known: KnownKey | None
    ended: list[str]
    known, ended = batch.loaded
    if known is None or command.owner_did not in (None, known.owner_did):
        raise not_found(f"the key {command.key_id} does not exist or has already ended")
    for key_id in ended:
        batch.put(REVOKED_KEYS, key_id, {"id": key_id})
    batch.record(
        AuditEventType.KEY_REVOKED,
        ("key", command.key_id),
        ownerDid=known.owner_did,
        descendants=ended[1:],
    )
    return {"id": command.key_id, "ended": len(ended)}


@plans(RotateKey, load=load_rotated, outlives_credential=True)
def plan_rotate_key(command: RotateKey, batch: Batch) -> Result:
    """Put another hash in the place of a live key's, and keep the one of now for the overlap.

    The one of an earlier rotation ends with it: a key is known by two hashes at most.
    """
    known: KnownKey | None = batch.loaded
    if known is None or command.owner_did not in (None, known.owner_did):
        raise not_found(f"the key {command.key_id} does not exist or has ended")
    if known.expires_ms is not None and known.expires_ms <= batch.clock_ms:
        raise conflict(f"the key {command.key_id} has expired")
    ends_ms = batch.clock_ms + command.overlap_ms if command.overlap_ms else None
    batch.store(
        ROTATED_KEYS,
        command.key_id,
        id=command.key_id,
        hash=command.key_hash,
        previous_hash=None if ends_ms is None else known.hash,
        previous_ends_ms=ends_ms,
    )
    batch.record(
        AuditEventType.KEY_ROTATED,
        ("key", command.key_id),
        ownerDid=known.owner_did,
        overlapMs=command.overlap_ms,
    )
    return {"id": command.key_id, "previous_ends_ms": ends_ms}


def _depth_below(command: CreateKey, parent: KnownKey | None, batch: Batch) -> int:
    """Return how many keys the new one stands on.

    Raises: Refusal; the parent has ended, outlives the new key, or stands on too many itself.
    """
    if parent is None or (parent.expires_ms is not None and parent.expires_ms <= batch.clock_ms):
        raise Refusal(ErrorCode.UNAUTHORIZED, f"the creating key {command.parent_id} has ended")
    if parent.expires_ms is not None and (
        command.expires_ms is None or command.expires_ms > parent.expires_ms
    ):
        raise forbidden(
            f"the creating key {command.parent_id} expires before the new key: choose an"
            " earlier expiresAt"
        )
    depth = parent.depth + 1
    if command.depth_max is not None and depth > command.depth_max:
        raise conflict(
            f"API key {command.parent_id} is derived {parent.depth} levels deep, and"
            f" {command.depth_max} is the maximum: create the new key from one of its parents"
        )
    return depth


def end_api_keys(owner_did: str, others: Iterable[str], batch: Batch) -> None:
    """End every API key of a DID, whose credentials were another's, and all that stand on them.

    A key that one of them has made for another owner, and that does not stand on it, stays.

    Args:
        others: the keys of other owners that stand on one of the DID's.
    """
    for key_id in others:
        batch.put(REVOKED_KEYS, key_id, {"id": key_id})
    batch.put(ENDED_API_KEYS, owner_did, {"owner_did": owner_did})
