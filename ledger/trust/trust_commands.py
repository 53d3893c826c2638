"""Commands about whom to trust: agents are revoked, and taken back; what operators read is noted.

Plain values, as in ledger/commands.py. Reference: features.md (Revocation).
"""

from __future__ import annotations

from ledger.authority import AuthorizedCommand, OwnersCommand


class RevokeAgent(OwnersCommand, frozen=True, kw_only=True):
    """Let an agent do no more work: from this commit on it gets none and is paid for none.

    `expires_ms` None: for good. `is_admin` lets anybody act; else it is the agent or its owner.
    Rejections: FORBIDDEN, ALREADY_REVOKED, INVALID_REQUEST (expires in the past), KEY_REUSED.
    Result: {"revokedMs": int}.
    """

    request_hash: bytes
    did: str
    reason: str
    evidence_json: str
    expires_ms: int | None


class UnrevokeAgent(OwnersCommand, frozen=True, kw_only=True):
    """Let a revoked agent work again; who did not revoke it needs to be an administrator.

    Rejections: NOT_FOUND (it is not revoked), FORBIDDEN. Result: {"unrevokedMs": int}.
    """

    did: str


class NoteReading(AuthorizedCommand, frozen=True, kw_only=True):
    """Say on the chain that a single right was used, by which operation: to read, or to change what
    is not audited.

    `operation`: its method and path, as declared for a read. `authority` says the right and the
    reason. No rejection, no result.
    """

    operation: str
