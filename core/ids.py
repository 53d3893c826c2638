"""Makes new identifiers, and derives identifiers from other values without a secret.

Derived identifiers need not be stored. Pure: `uuid7` takes the time and the randomness as
arguments.
Reference: features.md (Inputs, Dispatch).
"""

from __future__ import annotations

import hashlib
import uuid
from typing import Final

# The kind of command keys that are made from a caller's `Idempotency-Key`.
CALLERS_KEY: Final = "http"
_EVENT_NAMESPACE = uuid.UUID("6f2d7e0a-3f0e-5c7b-9a51-6d1c0a9f4b11").bytes


def composed_key(kind: str, *parts: str) -> str:
    """Return a key composed of parts that callers choose. Different parts give different keys.

    Each part is preceded by its length (`http:13:did:web:x.com5:alice`), so that two different
    lists of parts never give the same text (decision idempotent-requests).

    Args:
        kind: the key's prefix, without a digit or a colon.
    """
    return f"{kind}:" + "".join(f"{len(part)}:{part}" for part in parts)


def uuid7(*, at_ms: int, entropy: bytes) -> str:
    """Make a time-ordered UUID (RFC 9562 version 7) in its text form.

    Args:
        at_ms: Unix time in milliseconds, 0 ≤ at_ms < 2**48.
        entropy: 10 random bytes.
    """
    assert len(entropy) == 10 and 0 <= at_ms < 1 << 48
    rand_a = int.from_bytes(entropy[:2], "big") & 0x0FFF
    rand_b = int.from_bytes(entropy[2:], "big") & ((1 << 62) - 1)
    value = (at_ms << 80) | (0x7 << 76) | (rand_a << 64) | (0b10 << 62) | rand_b
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def canonical_uuid(text: str) -> str | None:
    """Return a UUID in lower case with hyphens; None if the text is no UUID."""
    try:
        return str(uuid.UUID(text))
    except ValueError:
        return None


def event_id(workflow_id: str, node: str, attempt: int) -> str:
    """Return the `eventId` of a dispatch, by which an agent can recognise a repeated dispatch.

    The id depends only on the workflow, the node and the attempt.
    """
    # A version 5 UUID. This function is called once per dispatch, and `uuid.uuid5` takes four times
    # as long.
    name = f"{workflow_id}|{node}|{attempt}".encode()
    text = hashlib.sha1(_EVENT_NAMESPACE + name, usedforsecurity=False).hexdigest()
    variant = "89ab"[int(text[16], 16) & 3]
    return f"{text[:8]}-{text[8:12]}-5{text[13:16]}-{variant}{text[17:20]}-{text[20:32]}"


def work_key(workflow_id: str, node: str, agent_did: str, work: str) -> str:
    """Return the `Idempotency-Key` of a dispatch, by which an agent recognises repeated work.

    The key is the same for all attempts of a node with the same agent and the same `work`.

    Args:
        work: distinguishes other work of the agent for the same node: verifications, and new work
            after a rejected result.
    """
    key = composed_key("work", workflow_id, node, agent_did, work)
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def trace_id(workflow_id: str) -> str:
    """Return the workflow's OpenTelemetry trace id, 32 hex digits: its UUID without hyphens."""
    return workflow_id.replace("-", "")


def span_id(workflow_id: str, node: str, attempt: int, kind: str = "primary") -> str:
    """Return the OpenTelemetry id of a span: an attempt, or another part of a workflow's trace.

    Args:
        attempt: the attempt's number; 0 if the span is no attempt.
        kind: the kind of the span: `primary`, `verify`, `workflow`, `node`, `settlement`, …
    """
    name = f"{kind}:{workflow_id}|{node}|{attempt}"
    return hashlib.sha256(name.encode()).hexdigest()[:16]
