"""Credits from outside: the deposit into a wallet. And what owners collect from their agents.

Plain values, as `ledger/commands.py` says. Reference: money.md (Estimate, Commands and keys).
"""

from __future__ import annotations

from ledger.authority import AuthorizedCommand, OwnersCommand


class Deposit(AuthorizedCommand, frozen=True, kw_only=True):
    """Credit a wallet from outside. Result: the entry and {"balanceMicro"}. Rejections: KEY_REUSED,
    INVALID_REQUEST when the balance would exceed its bound."""

    request_hash: bytes
    owner_did: str
    amount_micro: int
    description: str


class CollectCredits(OwnersCommand, frozen=True, kw_only=True):
    """Move free credits from an agent's wallet to its owner's.

    `amount_micro` None: all that is free; payments under an open dispute are not.
    Result: the entry and {"ownerDid", "balanceMicro", "ownerBalanceMicro"}. Rejections: NOT_FOUND;
    FORBIDDEN for others than the owner, and where the money is not the owner's; CONFLICT when less
    is free.
    """

    agent_did: str
    amount_micro: int | None = None
