"""The market's commands: prices, quotas, stakes.

They come and go like those of `commands.py`, which joins them into one union. Spec: Capability
price, Per-token pricing, Stake, Quota check result; contract.md section 6.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.market.pricing import Price
from core.market.quota import QuotaLimits
from ledger.review_commands import ReviewCommand


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPrice:
    """Register what a capability costs where an agent's card names no price of its own.

    Result: {"updatedMs": int}.
    """

    key: str
    actor_did: str
    capability_id: str
    price: Price


@dataclass(frozen=True, slots=True, kw_only=True)
class DepositStake:
    """Move credits into an agent's stake, from the wallet of the agent or of its owner.

    `is_admin` lets anybody act in the agent's own name (decision 0071).
    Rejections: FORBIDDEN, INSUFFICIENT_CREDITS, INVALID_REQUEST above the bound of a balance,
    KEY_REUSED. Result: {"walletDid", "balanceMicro", "freeMicro", "lockedMicro", "updatedMs"}.
    """

    key: str
    request_hash: bytes
    actor_did: str
    is_admin: bool
    agent_did: str
    amount_micro: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawStake:
    """Move credits out of an agent's stake: what no work has locked.

    Rejections: FORBIDDEN, STAKE_LOCKED, KEY_REUSED. Result: as of `DepositStake`.
    """

    key: str
    request_hash: bytes
    actor_did: str
    is_admin: bool
    agent_did: str
    amount_micro: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetQuota:
    """Limit what a payer may publish from now on; the limits replace all of the earlier ones.

    Result: {"updatedMs": int}.
    """

    key: str
    actor_did: str
    did: str
    limits: QuotaLimits


MarketCommand = SetPrice | ReviewCommand | SetQuota | DepositStake | WithdrawStake
