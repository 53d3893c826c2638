"""Requests about trust, as data like those of `calls.py`: who is revoked.

Reference: features.md (Revocation).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callboard.calls import Call, Steps, _one, _segment, sending


@sending("POST", "/v1/trust/revoke")
def revoke_agent(
    did: str, reason: str, *, evidence: Mapping[str, Any], expires_at: str | None = None
) -> None:
    """Revoke an agent: it gets no work and is paid for none; for itself, its owner, administrators.

    Args:
        evidence: what shows it; kept, its hash goes into the audit chain.
        expires_at: an ISO 8601 time; None: for good.
    """


def unrevoke_agent(did: str) -> Steps:
    """Take a revoked agent back; for who has revoked it, and administrators."""
    done = {"success": True, "id": did, "did": did, "revoked": False}
    return _one(Call("DELETE", f"/v1/revoked/{_segment(did)}", done=done))
