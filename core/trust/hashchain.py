"""The audit chain: encodes, hashes and links records, and checks a chain.

A record's body is the canonical JSON of its fields without `hash`; its hash is SHA-256 over exactly
these bytes, and the next body carries it as `prevHash`. Anyone with a JSON library can check it.
This file knows nothing of storage. Spec: Audit entry; money.md (Audit chain).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from core.canonical import canonical
from core.json_text import read_json, write_sorted_json

GENESIS_HASH: Final = bytes(32)


@dataclass(frozen=True, slots=True)
class ChainBreak:
    """The first defect of a chain: the record's id and the reason."""

    audit_id: int
    reason: str


def record_body(
    audit_id: int,
    event_type: str,
    *,
    actor_did: str,
    target_type: str,
    target_id: str,
    action: str,
    payload: dict[str, Any],
    created_at: str,
    prev_hash: bytes,
) -> bytes:
    """Return a record's canonical body.

    Args:
        payload: texts, integers, lists and objects with ASCII keys: no floats. Typed
            by us, so it takes the fast encoder without a walk.
        created_at: `YYYY-MM-DDTHH:MM:SS.sssZ`.
        prev_hash: 32 bytes; `GENESIS_HASH` for the first record.
    Raises: UnicodeEncodeError when a text holds a lone surrogate.
    """
    return write_sorted_json(
        {
            "action": action,
            "actorDid": actor_did,
            "createdAt": created_at,
            "eventType": event_type,
            "id": audit_id,
            "payload": payload,
            "prevHash": "sha256:" + prev_hash.hex(),
            "targetId": target_id,
            "targetType": target_type,
        }
    )


def record_hash(body: bytes) -> bytes:
    """Return a body's hash, 32 bytes."""
    return hashlib.sha256(body).digest()


def find_break(
    records: Iterable[tuple[bytes, bytes]], *, first_id: int = 1, prev_hash: bytes = GENESIS_HASH
) -> ChainBreak | None:
    """Check a run of (body, hash) pairs and return the first defect, None when there is none.

    For each record: (1) the hash is that of the body, (2) the body is canonical, (3) ids count up
    by one from `first_id`, (4) `prevHash` is the hash of the record before.
    """
    expected_id = first_id
    for body, stored_hash in records:
        if record_hash(body) != stored_hash:  # (1)
            return ChainBreak(expected_id, "the hash does not match the body")
        try:
            record = read_json(body)
            is_canonical = canonical(record) == body  # (2)
        except ValueError:
            return ChainBreak(expected_id, "the body is not JSON")
        if not is_canonical or not isinstance(record, dict):
            return ChainBreak(expected_id, "the body is not in canonical form")
        if record.get("id") != expected_id:  # (3)
            return ChainBreak(expected_id, f"got id {record.get('id')!r}, expected {expected_id}")
        if record.get("prevHash") != "sha256:" + prev_hash.hex():  # (4)
            return ChainBreak(expected_id, "prevHash is not the hash of the record before")
        prev_hash = stored_hash
        expected_id += 1
    return None
