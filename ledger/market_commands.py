"""The market's commands: prices, quotas, stakes.

They come and go like those of `commands.py`, which joins them into one union. Spec: Capability
price, Per-token pricing, Stake, Quota check result; contract.md section 6.
"""

from __future__ import annotations

from collections.abc import Mapping

from core.ids import composed_key
from core.market.pricing import Price
from core.message import Message
from ledger.review_commands import ReviewCommand


class SetPrice(Message, frozen=True, kw_only=True):
    """Register what a capability costs where an agent's card names no price of its own.

    Result: {"updatedMs": int}.
    """

    key: str
    actor_did: str
    capability_id: str
    price: Price


class DepositStake(Message, frozen=True, kw_only=True):
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


class WithdrawStake(Message, frozen=True, kw_only=True):
    """Move credits out of an agent's stake, back to their depositor: what no work has locked.

    Rejections: FORBIDDEN (also above the depositor's share), STAKE_LOCKED, KEY_REUSED.
    Result: as of `DepositStake`.
    """

    key: str
    request_hash: bytes
    actor_did: str
    is_admin: bool
    agent_did: str
    amount_micro: int


class SetQuota(Message, frozen=True, kw_only=True):
    """Limit what a payer may publish from now on.

    `changes`: new values by field of `QuotaLimits`, None lifts a limit; a field that is absent
    keeps its value. Result: {"updatedMs": int, "limits": all fields of `QuotaLimits`}.
    """

    key: str
    actor_did: str
    did: str
    changes: Mapping[str, int | None]


class PlaceBid(Message, frozen=True, kw_only=True):
    """Bid for a node in the open round of its auction; the first bid of an agent is final.

    `stake_offered_micro` None: as much as is asked. `is_admin` lets anybody act for the agent.
    Rejections: NOT_FOUND (the agent), FORBIDDEN, CONFLICT (no open round, late, a second bid),
    INVALID_REQUEST above the reserve, KEY_REUSED. Result: {"receivedMs": int}.
    """

    key: str
    request_hash: bytes
    actor_did: str
    is_admin: bool
    agent_did: str
    workflow_id: str
    node: str
    round: int
    amount_micro: int
    eta_ms: int | None
    stake_offered_micro: int | None


class EndBidding(Message, frozen=True, kw_only=True):
    """Ask for a round's live bids; by the writer's clock none comes after them.

    Before its time it is refused and not stored: OVERLOADED, {"retryAfterS"}. Other rejections:
    CONFLICT (no such open round). Result: {"bids": [{agentDid, amountMicro, etaMs,
    stakeOfferedMicro, receivedMs}]}.
    """

    key: str
    workflow_id: str
    node: str
    round: int


def bid_key(workflow_id: str, node: str, round_: int, agent_did: str) -> str:
    """Return the key under which an agent bids once in a round (money.md case 23)."""
    return composed_key("bid", workflow_id, node, str(round_), agent_did)


def bids_key(workflow_id: str, node: str, round_: int) -> str:
    """Return the key under which a round's bids are told: once it stands, no bid is taken."""
    return composed_key("bids", workflow_id, node, str(round_))


MarketCommand = (
    SetPrice | ReviewCommand | SetQuota | DepositStake | WithdrawStake | PlaceBid | EndBidding
)
