"""API keys: create, rotate and revoke them; and reads about DIDs that sign requests.

A key that is created with another key is derived from it: the other key is its parent. When a key
ends, all keys derived from it end too. Reference: http.md (Authentication); decisions
permissions-and-keys and signed-requests-and-claims.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import sqlalchemy as sql
from sqlalchemy import Text
from sqlalchemy.dialects.postgresql import ARRAY

from core.errors import ErrorCode
from core.json_text import read_json
from core.records.audit import AuditEventType
from core.records.bounds import TIME_MS_MAX
from core.trust.access import ADMIN
from ledger.authority import AuthorizedCommand
from ledger.connections.connect import fetch
from ledger.reads.agent_pages import IS_REVOKED
from ledger.reads.reader import LedgerReader, RowDict
from ledger.tables.market_tables import ENDED_API_KEYS, KEYS, REVOKED_KEYS, ROTATED_KEYS
from ledger.writer.batch import Batch, Refusal, Result, conflict, forbidden, not_found
from ledger.writer.command_kind import Connection, plans
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import KnownKey


class CreateKey(AuthorizedCommand, frozen=True, kw_only=True):
    """Store an API key by the hash of its secret (SHA-256, 32 bytes).

    `parent_id`: the key that authorizes the creation. When it ends, the new key ends too. None: the
    new key has no parent.
    `owner_keys_max`: maximum live keys of one owner. `depth_max`: maximum ancestors of a key. None:
    no maximum.
    Rejections: UNAUTHORIZED (the parent has ended), FORBIDDEN (the parent expires earlier),
    CONFLICT (too many keys). Result: {"id"}.
    """

    key_id: str
    key_hash: bytes
    owner_did: str
    name: str
    scopes: tuple[str, ...]
    rate_class: str
    rate_limits_json: str | None
    expires_ms: int | None
    parent_id: str | None = None
    owner_keys_max: int | None = None
    depth_max: int | None = None


class RevokeKey(AuthorizedCommand, frozen=True, kw_only=True):
    """Revoke an API key and all keys derived from it. `owner_did` None: an administrator may revoke
    any key.

    Rejection: NOT_FOUND. Result: {"id", "ended": number of keys}.
    """

    key_id: str
    owner_did: str | None


class RotateKey(AuthorizedCommand, frozen=True, kw_only=True):
    """Replace the secret of an API key. Its id, its rights and its derived keys stay.

    `key_hash`: hash of the new secret. `overlap_ms`: how long the current secret remains valid.
    `owner_did` None: an administrator may rotate any key.
    Rejections: NOT_FOUND, CONFLICT (it has expired). Result: {"id", "previous_ends_ms"}.
    """

    key_id: str
    key_hash: bytes
    overlap_ms: int
    owner_did: str | None


# Reads of API keys by the writer.

# Only live keys are read, by the indexes `api_key_live` and `api_key_live_child`, because an owner
# may have any number of ended keys.
_IS_LIVE: Final = f"""revoked_ms IS NULL AND coalesce(expires_ms, {TIME_MS_MAX})
            > (extract(epoch FROM statement_timestamp()) * 1000)::bigint"""
_KEYS: Final = f"""
    SELECT id, owner_did, parent_id, depth, expires_ms, hash, previous_hash, previous_ends_ms,
        '{ADMIN}' = ANY (scopes)
    FROM callboard.api_key WHERE id = ANY(%(ids)s) AND revoked_ms IS NULL
"""
_LIVE: Final = f"""
    WITH RECURSIVE ended AS (
        (SELECT id, owner_did, depth FROM callboard.api_key
        WHERE id = %(id)s AND revoked_ms IS NULL
        UNION
        SELECT id, owner_did, depth FROM callboard.api_key
        WHERE owner_did = %(owner)s AND {_IS_LIVE})
        UNION
        SELECT k.* FROM ended JOIN LATERAL (
            SELECT id, owner_did, depth FROM callboard.api_key
            WHERE parent_id = ended.id AND {_IS_LIVE}
        ) AS k ON true
    )
    SELECT id, owner_did FROM ended ORDER BY depth, id
"""
_COUNT: Final = f"""
    SELECT count(*) FROM callboard.api_key WHERE owner_did = %(owner)s AND {_IS_LIVE}
"""


async def read_keys(connection: Connection, ids: Collection[str]) -> dict[str, KnownKey]:
    """Return the API keys with these ids that were not revoked, by id."""
    rows = await fetch(connection, _KEYS, {"ids": list(ids)})
    return {key_id: KnownKey(*fields) for key_id, *fields in rows}


async def count_keys(connection: Connection, owner_did: str) -> int:
    """Return the number of an owner's live API keys."""
    ((count,),) = await fetch(connection, _COUNT, {"owner": owner_did})
    return int(count)


async def keys_below(connection: Connection, key_id: str) -> list[str]:
    """Return the id of a key and of every live key derived from it, parents first."""
    return [found for found, _ in await fetch(connection, _LIVE, {"id": key_id, "owner": None})]


async def others_keys_below(connection: Connection, owner_did: str) -> list[str]:
    """Return the ids of other owners' live keys that are derived from keys of this owner."""
    rows = await fetch(connection, _LIVE, {"id": None, "owner": owner_did})
    return [key_id for key_id, did in rows if did != owner_did]


# Plans. The writer sees all creations and revocations in one order, so no key can be created with a
# key that has ended.


async def load_parent(
    connection: Connection, command: CreateKey, read_set: ReadSet
) -> tuple[KnownKey | None, int]:
    """Return the parent of a new key, and the number of live keys of the new key's owner."""
    parent_id = command.parent_id or ""
    known = await read_keys(connection, [parent_id])
    return known.get(parent_id), await count_keys(connection, command.owner_did)


async def load_ended(
    connection: Connection, command: RevokeKey, read_set: ReadSet
) -> tuple[KnownKey | None, list[str]]:
    """Return a key, and the ids of all keys that end with it. The key's own id is first."""
    known = await read_keys(connection, [command.key_id])
    return known.get(command.key_id), await keys_below(connection, command.key_id)


async def load_rotated(
    connection: Connection, command: RotateKey, read_set: ReadSet
) -> KnownKey | None:
    """Return the key whose secret is replaced."""
    return (await read_keys(connection, [command.key_id])).get(command.key_id)


@plans(CreateKey, load=load_parent, outlives_credential=True)
def plan_create_key(command: CreateKey, batch: Batch) -> Result:
    """Store an API key by the hash of its secret; the secret itself never reaches the ledger."""
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
    """Revoke an API key and its derived keys: a key of the caller, or any key if an administrator
    calls."""
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
    """Replace the hash of a live key. The current hash stays valid for the overlap.

    The overlap of an earlier rotation ends, because at most two hashes are valid.
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
    """Return the number of ancestors of a new key.

    Raises: Refusal; the parent has ended, expires before the new key, or has too many ancestors.
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
    """End all API keys of a DID, which other people may know, and all keys derived from them.

    A key of another owner stays if it is not derived from a key of the DID.

    Args:
        others: the ids of other owners' keys that are derived from the DID's keys.
    """
    for key_id in others:
        batch.put(REVOKED_KEYS, key_id, {"id": key_id})
    batch.put(ENDED_API_KEYS, owner_did, {"owner_did": owner_did})


_STANDINGS: Final = sql.text(
    f"""
    SELECT * FROM (
        SELECT given.did, agent.public_key, agent.owner_did, peer.public_key AS peer_key,
            coalesce(agent.status = 'active', false) AS is_active,
            EXISTS (SELECT FROM callboard.api_key AS own WHERE own.owner_did = given.did)
                AS has_keys,
            {IS_REVOKED.format(did="given.did")} AS is_revoked
        FROM unnest(:dids) AS given (did)
        LEFT JOIN callboard.agent AS agent ON agent.did = given.did
        LEFT JOIN callboard.peer AS peer ON peer.did = given.did AND peer.removed_ms IS NULL
    ) AS standing
    WHERE owner_did IS NOT NULL OR has_keys OR is_revoked OR peer_key IS NOT NULL
    """
).bindparams(sql.bindparam("dids", type_=ARRAY(Text)))


async def standing_rows(reader: LedgerReader, dids: Sequence[str]) -> dict[str, RowDict]:
    """Return the stored state of DIDs by DID; a DID that the ledger does not know is left out."""
    rows = await reader.rows(_STANDINGS, {"dids": list(dids)})
    return {row["did"]: row for row in rows}
