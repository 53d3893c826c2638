"""Commands about the names of agents.

Plain values, as `ledger/commands.py` says. Reference: features.md (Names).
"""

from __future__ import annotations

from ledger.authority import OwnersCommand


class RegisterName(OwnersCommand, frozen=True, kw_only=True):
    """Register a name for an agent, for so many calendar months from now; its owner's act.

    `owner_names_max`, `agent_names_max`: names of one owner and of one agent, at most.
    `needs_proof`: an unproven claim is not enough (the setting `claims`).
    Rejections: NOT_FOUND (no such agent), FORBIDDEN, NAME_TAKEN, CONFLICT (too many names).
    Result: {"agentDid", "ownerDid", "registeredMs", "expiresMs"}.
    """

    name: str
    agent_did: str
    months: int
    owner_names_max: int
    agent_names_max: int
    needs_proof: bool = False


class RenewName(OwnersCommand, frozen=True, kw_only=True):
    """Let a name expire so many calendar months later; its owner's act.

    Rejections: NOT_FOUND (also: expired), FORBIDDEN, INVALID_REQUEST (too far ahead).
    Result: as of `RegisterName`.
    """

    name: str
    months: int


class TransferName(OwnersCommand, frozen=True, kw_only=True):
    """Give a name to another agent, and to that one's owner.

    To an agent of another owner the name's owner can only offer it; that owner's same command takes
    it. Rejections: NOT_FOUND (the name or the agent), FORBIDDEN, CONFLICT (too many names).
    Result: as of `RegisterName`, and {"isTransferred": bool}.
    """

    name: str
    agent_did: str
    owner_names_max: int
    agent_names_max: int
    needs_proof: bool = False


class ReleaseName(OwnersCommand, frozen=True, kw_only=True):
    """End a name before its time, its owner's act; or one that has expired, the service's.

    `expired_ms`: when it expired, None for its owner's act. Rejections: NOT_FOUND, FORBIDDEN;
    CONFLICT, not stored, where it does not expire then. Result: {"releasedMs"}.
    """

    name: str
    expired_ms: int | None = None
