"""Stakes are put up, taken back, and slashed by an administrator.

Plain values, as `ledger/commands.py` says. Reference: money.md (Stakes, Slashing, Accounts).
"""

from __future__ import annotations

from ledger.authority import AuthorizedCommand, OwnersCommand


class DepositStake(OwnersCommand, frozen=True, kw_only=True):
    """Move credits into an agent's stake, from the wallet of the agent or of its owner.

    `is_admin` lets anybody act in the agent's own name (decision stakes-and-slashing).
    Rejections: FORBIDDEN, INSUFFICIENT_CREDITS, INVALID_REQUEST above the bound of a balance,
    KEY_REUSED. Result: {"walletDid", "balanceMicro", "freeMicro", "lockedMicro", "updatedMs"}.
    """

    request_hash: bytes
    agent_did: str
    amount_micro: int


class WithdrawStake(OwnersCommand, frozen=True, kw_only=True):
    """Move credits out of an agent's stake, back to their depositor: what no work has locked.

    Rejections: FORBIDDEN (also above the depositor's share), STAKE_LOCKED, KEY_REUSED.
    Result: as of `DepositStake`.
    """

    request_hash: bytes
    agent_did: str
    amount_micro: int


class SlashStake(AuthorizedCommand, frozen=True, kw_only=True):
    """Take what an agent has locked for a node, by an administrator's word.

    `slash_bps`: of that lock, which ends; the rest is free. Rejections: NOT_FOUND (no such node was
    dispatched), CONFLICT (it is another agent's), KEY_REUSED. Result: {"payerDid", "slashedMicro",
    "freeMicro", "lockedMicro"}.
    """

    request_hash: bytes
    agent_did: str
    workflow_id: str
    node: str
    reason: str
    slash_bps: int
