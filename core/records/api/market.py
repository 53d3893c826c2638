"""The market: prices, stakes, reputation, quotas, auctions and bids.

Spec: Ledger records, Quota check result, Bid; contract.md section 6.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from core.records.api.kinds import (
    CENTS_MAX,
    Cents,
    Count,
    Credits,
    CreditsSent,
    Did,
    DurationMs,
    NodeName,
    PositiveCredits,
    Ratio,
    Timestamp,
    Uuid,
    Yes,
    text,
    whole,
    words,
)
from core.records.api.record import Record
from core.records.api.shape import ABSENT, Absent, Also, Body, Kind, Maybe, MaybeNull, Named

REASON_CHARS_MAX: Final = 1_000
LIMIT_MAX: Final = 10**12

_CENTS_SENT: Final = Kind({"type": "integer", "minimum": 0, "maximum": CENTS_MAX})
_RATE_SENT: Final = {
    "type": ["number", "string"],
    "description": "credits per token, ≤ 12 decimals",
}
_PRICING_SENT: Final = Kind(
    {
        "type": "object",
        "properties": {
            "model": {"const": "per-token"},
            "inputRate": _RATE_SENT,
            "outputRate": _RATE_SENT,
        },
        "required": ["model", "inputRate", "outputRate"],
    }
)

# -- prices ----------------------------------------------------------------------------------------


class PriceRequest(Body, is_closed=True):
    """A capability's price: cents a node, or rates per token. Read by `core/market/pricing.py`."""

    capability_id: Annotated[Maybe[Any], "the capability of the path, or nothing"] = None
    price_cents: Annotated[MaybeNull[Any], Named("price_cents"), _CENTS_SENT] = None
    pricing: Annotated[MaybeNull[Any], _PRICING_SENT] = None


class Pricing(Record):
    """A price per token, in credits."""

    model: Annotated[str, Kind({"const": "per-token"})]
    input_rate: Annotated[float, "credits per token"]
    output_rate: Annotated[float, "credits per token"]


class Price(Record):
    """A capability's registered price: cents a node, or `pricing` per token."""

    capability_id: str
    price_cents: Annotated[Maybe[Cents], Named("price_cents")]
    pricing: Maybe[Pricing]
    set_by_did: Did
    updated_at: Timestamp


class PriceSet(Price):
    """A price that was registered."""

    success: Yes
    id: str


# -- stakes and reputation -------------------------------------------------------------------------


class StakeChange(Body, is_closed=True):
    """Credits to put into an agent's stake, or to take out of it."""

    amount: PositiveCredits
    agent_did: Annotated[Maybe[Did], "the caller, unless another is named"] = None


class Stake(Record):
    """An agent's stake."""

    agent_did: Annotated[str, "as it was asked for"]
    staked_amount: Credits
    locked_amount: Annotated[Credits, "the part that running work may cost the agent"]
    currency: str
    updated_at: Timestamp | None


class StakeMoved(Stake):
    """A stake that was changed, and the wallet that it came from or went to."""

    success: Yes
    id: Did
    wallet_did: Did
    balance: Credits


class Slash(Body, is_closed=True):
    """What an agent has locked for a node shall go to the workflow's payer."""

    agent_did: Did
    workflow_id: Uuid
    node_id: NodeName
    reason: Annotated[str, text(1, REASON_CHARS_MAX)]


class StakeSlashed(Record):
    """What was taken of an agent's stake for a node."""

    success: Yes
    id: Did
    agent_did: Did
    staked_amount: Credits
    locked_amount: Credits
    currency: str
    workflow_id: Uuid
    node_id: str
    payer_did: Annotated[Did, "whose wallet it went to"]
    credits_slashed: Credits


class Reputation(Record):
    """An agent's reputation; of one without history, neutral.

    Of an agent that asks a price, by nodes with a price above 0 alone.
    """

    agent_did: str
    overall_score: Ratio
    success_rate: Ratio
    completion_rate: Ratio
    avg_latency_ms: int | None
    total_tasks: Count
    successful_tasks: Count
    failed_tasks: Count
    cancelled_tasks: Count
    updated_at: Timestamp | None


class Rebuild(Body):
    """Whether reputation is only compared with history."""

    check: bool = False


class Counts(Record):
    """An agent's outcomes as they are counted; `paid…`: those of nodes with a price above 0."""

    successful: Count
    failed: Count
    cancelled: Count
    latency_ms: Count
    paid_successful: Count
    paid_failed: Count
    paid_cancelled: Count
    paid_latency_ms: Count


class CountsCompared(Record):
    """An agent whose stored counts are not those of history."""

    agent_did: Did
    stored: Counts
    found: Counts


class ReputationCompared(Record):
    """Whether every agent's counts are those of history."""

    success: Yes
    is_same: bool
    agents: Count
    differences: list[CountsCompared]
    rebuilt: Count


# -- quotas ----------------------------------------------------------------------------------------

_Limit = Annotated[int, whole(0, LIMIT_MAX)]
_SpendLimit = Annotated[int, whole(0, CENTS_MAX)]


class QuotaChange(Body, is_closed=True):
    """Limits of a payer; absent members keep their value, null lifts one."""

    max_workflows_per_day: _Limit | Absent | None = ABSENT
    max_concurrent_workflows: _Limit | Absent | None = ABSENT
    max_spend_per_day_cents: _SpendLimit | Absent | None = ABSENT


class Limits(Record):
    """What a payer may publish; null has no limit."""

    max_workflows_per_day: int | None
    max_concurrent_workflows: int | None
    max_spend_per_day_cents: int | None


class Usage(Record):
    """What a payer has published today and has running."""

    daily_workflows: Count
    daily_spend_cents: Count
    concurrent_workflows: Count


class Quota(Record):
    """A payer's quota and what it uses of it; without a quota, `limits` is null."""

    id: str
    did: str
    max_workflows_per_day: MaybeNull[int]
    max_concurrent_workflows: MaybeNull[int]
    max_spend_per_day_cents: MaybeNull[int]
    limits: Limits | None
    current_usage: Usage
    resets_at: Timestamp
    set_by_did: Did | None
    updated_at: Timestamp | None


class QuotaSet(Record):
    """A quota that was set."""

    success: Yes
    id: Did
    did: Did
    max_workflows_per_day: int | None
    max_concurrent_workflows: int | None
    max_spend_per_day_cents: int | None
    limits: Limits
    set_by_did: Did
    updated_at: Timestamp


class QuotaQuestion(Body, is_closed=True):
    """A workflow that a payer may want to publish."""

    estimated_spend_cents: MaybeNull[_SpendLimit] = None


class QuotaCheck(Record):
    """Whether a payer may publish now, and why not."""

    allowed: bool
    reason: str
    current_usage: Usage
    limits: Limits | None
    resets_at: Timestamp


# -- auctions --------------------------------------------------------------------------------------


class _Bidding(Body, is_closed=True):
    eta_ms: MaybeNull[DurationMs] = None
    stake_offered: Annotated[MaybeNull[CreditsSent], "absent: as much as is asked"] = None
    agent_did: Annotated[Maybe[Did], "the agent; the caller if absent"] = None


class BidRequest(_Bidding, is_closed=True):
    """A sealed bid for a node; an agent's first bid is final."""

    bid_amount: CreditsSent


class TaskBidRequest(_Bidding, is_closed=True):
    """A sealed bid for a task. Spec: contract.md section 7."""

    bid_amount: Annotated[
        MaybeNull[CreditsSent], Also("amount"), "absent: the price on the agent's card"
    ] = None
    node_id: Annotated[MaybeNull[NodeName], "the node, where there are several"] = None


class Bid(Record):
    """A bid for a node; one that is not counted came when the node had its agent, and is kept."""

    ok: Yes
    success: Yes
    counted: bool
    workflow_id: Uuid
    node_id: str
    round: Annotated[Count, "0 of a bid that is not counted"]
    task_id: Annotated[Maybe[Uuid], "of a bid for a task"]
    agent_did: Did
    bid_amount: Credits
    eta_ms: int | None
    stake_offered: Annotated[Credits | None, "credits; null: as much as is asked"]
    received_at: Timestamp
    closes_at: Timestamp | None


class BidShown(Record):
    """A bid as a closed round shows it; a standing one only to its owner and administrators."""

    agent_did: Did
    bid_amount: Credits
    eta_ms: int | None
    stake_offered: Credits | None
    received_at: Timestamp
    is_standing: bool
    excluded: Annotated[str | None, "why it could not win"]


class Round(Record):
    """The terms of a round of an auction, and its end."""

    round: Count
    status: Annotated[str, words(("open", "awarded", "no_bids", "cancelled"))]
    reserve_credits: Annotated[Credits, "the most that is paid; no bid is above it"]
    stake_bps: Count
    opened_at: Timestamp
    closes_at: Timestamp
    closed_at: Timestamp | None
    winner_did: Did | None
    price_credits: Credits | None


class AuctionRound(Round):
    """One round of an auction; `bids` once it has closed."""

    bids: list[BidShown] | None
    unlisted_bids: Annotated[Count, "standing bids of others' agents that were weighed"]


class Auction(Round):
    """The auction of a node: its newest round, and all rounds."""

    workflow_id: Uuid
    node_id: str
    capability_id: str
    rounds: list[AuctionRound]
