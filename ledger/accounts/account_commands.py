"""Credits from outside: the deposit into a wallet.

Plain values, as `ledger/commands.py` says. Spec: Settlement rules 1; money.md section 4.
"""

from __future__ import annotations

from ledger.authority import AuthorizedCommand


class Deposit(AuthorizedCommand, frozen=True, kw_only=True):
    """Credit a wallet from outside. Result: the entry and {"balanceMicro"}. Rejections: KEY_REUSED,
    INVALID_REQUEST when the balance would exceed its bound."""

    key: str
    request_hash: bytes
    actor_did: str
    owner_did: str
    amount_micro: int
    description: str
