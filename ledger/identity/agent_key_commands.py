"""The command about the keys of agents: one is replaced.

Plain values, as `ledger/commands.py` says. Signatures are verified before a command is made; a
command names the key that they were verified with, and the writer refuses it where that is not the
agent's current one any more. Reference: features.md (Key rotation).
"""

from __future__ import annotations

from ledger.authority import AuthorizedCommand


class RotateAgentKey(AuthorizedCommand, frozen=True, kw_only=True):
    """Replace an agent's key, as its current key has signed.

    `proven_key`: the key by which the proof is. `overlap_ms`: how long it stays valid for results
    beside the new one. Rejections: NOT_FOUND, FORBIDDEN (the agent is revoked), CONFLICT (the key
    was replaced meanwhile, or the new one is or was a key of this DID, or the history is full).
    Result: {"keyNumber", "validFromMs", "formerValidUntilMs"}.
    """

    did: str
    new_key: str
    proven_key: str
    overlap_ms: int
