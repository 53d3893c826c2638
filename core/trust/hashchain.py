"""The audit chain: encodes, hashes and links records. `callboard.verify` checks a chain.

A record's body is the canonical JSON of its fields without `hash`; its hash is SHA-256 over exactly
these bytes, and the next body carries it as `prevHash`. Anyone with a JSON library can check it.
This file knows nothing of storage. Reference: money.md (Audit chain).
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from core.json_text import write_sorted_json

GENESIS_HASH: Final = bytes(32)


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
