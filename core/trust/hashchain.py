"""The audit chain: encodes and hashes audit entries. `callboard.verify` checks a chain.

The body of an entry is the canonical JSON of its members without `hash`. The hash of the entry is
SHA-256 over this body. The next entry contains this hash as `prevHash`. So anyone with a JSON
library can check a chain. This file does not know how entries are stored.
Reference: money.md (Audit chain).
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
    """Return the canonical body of an audit entry.

    Args:
        audit_id: the id of the entry.
        event_type: the type of the command's first event.
        payload: texts, integers, lists and objects with ASCII keys, without floats. The service
            itself makes the payload, so the fast encoder is used without further checks.
        created_at: the time in the form `YYYY-MM-DDTHH:MM:SS.sssZ`.
        prev_hash: the hash of the previous entry, 32 bytes; `GENESIS_HASH` for the first entry.

    Raises: UnicodeEncodeError if a text has a lone surrogate.
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
    """Return the hash of an entry's body, 32 bytes."""
    return hashlib.sha256(body).digest()
