"""Money: accounts, entries, prices, stakes, reputation, quotas and auctions.

Reference: money.md (Accounts, Entries, Prices, Stakes, Reputation, Quotas, Auctions).
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from core.records.api.kinds import (
    CENTS_MAX,
    Cents,
    Count,
    Credits,
    CreditsIn,
    Did,
    DurationMs,
    NodeName,
    PositiveCredits,
    Ratio,
    ShortText,
    Timestamp,
    Uuid,
    Yes,
    text,
    whole,
    words,
)
from core.records.api.record import Done, Page, PageQuery, Record
from core.records.api.shape import ABSENT, Absent, Also, Body, Kind, Maybe, MaybeNull, Named

REASON_CHARS_MAX: Final = 1_000
LIMIT_MAX: Final = 10**12

_CENTS_SENT: Final = Kind({"type": "integer", "minimum": 0, "maximum": CENTS_MAX})
_RATE_SENT: Final = {"type": ["number", "string"]}
_DECIMALS: Final = "at most 12 decimals"
_PRICING_SENT: Final = Kind(
    {
        "type": "object",
        "properties": {
            "model": {"const": "per-token", "description": "The only pricing model."},
            "inputRate": {**_RATE_SENT, "description": f"Credits per input token, {_DECIMALS}."},
            "outputRate": {**_RATE_SENT, "description": f"Credits per output token, {_DECIMALS}."},
        },
        "required": ["model", "inputRate", "outputRate"],
    }
)

# -- prices ----------------------------------------------------------------------------------------


class PriceRequest(Body, is_closed=True):
    """Price of a capability: cents per node, or rates per token."""

    capability_id: Annotated[Maybe[Any], "Id of the capability in the path, or absent."] = None
    price_cents: Annotated[
        MaybeNull[Any], Named("price_cents"), _CENTS_SENT, "Price of one node, in cents."
    ] = None
    pricing: Annotated[
        MaybeNull[Any], _PRICING_SENT, "Price per token, instead of `price_cents`."
    ] = None


class Pricing(Record):
    """Price per token, in credits."""

    model: Annotated[
        str, Kind({"const": "per-token"}), "Pricing model; `per-token` is the only one."
    ]
    input_rate: Annotated[float, "Credits per input token."]
    output_rate: Annotated[float, "Credits per output token."]


class Price(Record):
    """Registered price of a capability: `price_cents` or `pricing`."""

    capability_id: str
    price_cents: Annotated[Maybe[Cents], Named("price_cents"), "Price of one node, in cents."]
    pricing: Annotated[Maybe[Pricing], "Price per token, instead of `price_cents`."]
    set_by_did: Annotated[Did, "DID of the caller who set it."]
    updated_at: Annotated[Timestamp, "Time of the last change."]


class PriceSet(Price, Done):
    """A price that was set."""

    id: Annotated[str, "Id of the capability."]


# -- stakes and reputation -------------------------------------------------------------------------


class StakeChange(Body, is_closed=True):
    """Credits to add to an agent's stake, or to withdraw from it."""

    amount: Annotated[PositiveCredits, "Amount to add or withdraw."]
    agent_did: Annotated[Maybe[Did], "DID of the agent; the caller when absent."] = None


class Stake(Record):
    """Stake of an agent."""

    agent_did: Annotated[str, "DID of the agent, as asked for."]
    staked_amount: Credits
    locked_amount: Annotated[
        Credits, "Part of the stake that is locked for running work and for bids."
    ]
    currency: str
    updated_at: Timestamp | None


class StakeMoved(Stake, Done):
    """A changed stake, and the wallet that paid for it or received it."""

    id: Annotated[Did, "DID of the agent."]
    wallet_did: Annotated[Did, "DID of that wallet's owner."]
    balance: Credits


class Slash(Body, is_closed=True):
    """A request to slash an agent's stake that a node locked, in favour of the payer."""

    agent_did: Did
    workflow_id: Uuid
    node_id: NodeName
    reason: Annotated[
        str, text(1, REASON_CHARS_MAX), "Reason in words; it is written into the audit entry."
    ]


class StakeSlashed(Done):
    """A slashed stake."""

    id: Annotated[Did, "DID of the agent."]
    agent_did: Did
    staked_amount: Credits
    locked_amount: Credits
    currency: str
    workflow_id: Uuid
    node_id: str
    payer_did: Annotated[Did, "DID of the payer who received the credits."]
    credits_slashed: Annotated[Credits, "Amount that was slashed."]


class Reputation(Record):
    """Reputation of an agent. Without history the rates and the score are 0.5.

    If the agent asks a price, only nodes with a price above 0 count.
    """

    agent_did: Annotated[str, "DID of the agent, as asked for."]
    overall_score: Annotated[Ratio, "Score from 0 to 1."]
    success_rate: Annotated[Ratio, "Successes divided by successes and failures."]
    completion_rate: Annotated[Ratio, "Share of the tasks that were not cancelled."]
    avg_latency_ms: Annotated[
        int | None, "Average latency of successes in milliseconds; null without one."
    ]
    total_tasks: Annotated[Count, "Number of counted outcomes."]
    successful_tasks: Annotated[Count, "Number of successes."]
    failed_tasks: Annotated[Count, "Number of failures."]
    cancelled_tasks: Annotated[Count, "Number of accepted tasks that the agent gave up."]
    updated_at: Timestamp | None


class Rebuild(Body):
    """Options of rebuilding reputations."""

    check: Annotated[bool, "true: only compare, change nothing."] = False


class Counts(Record):
    """Counted outcomes of an agent. `paid…` counts nodes with a price above 0 only."""

    successful: Annotated[Count, "Successes."]
    failed: Annotated[Count, "Failures."]
    cancelled: Annotated[Count, "Tasks that the agent gave up."]
    latency_ms: Annotated[Count, "Sum of the latencies of successes, in milliseconds."]
    paid_successful: Annotated[Count, "Successes with a price."]
    paid_failed: Annotated[Count, "Failures with a price."]
    paid_cancelled: Annotated[Count, "Given-up tasks with a price."]
    paid_latency_ms: Annotated[
        Count, "Sum of the latencies of successes with a price, in milliseconds."
    ]


class CountsCompared(Record):
    """An agent whose stored counts differ from its history."""

    agent_did: Did
    stored: Annotated[Counts, "Counts as stored."]
    found: Annotated[Counts, "Counts according to the history."]


class ReputationCompared(Done):
    """Comparison of all reputations with the history."""

    is_same: Annotated[bool, "Whether all stored counts agree with the history."]
    agents: Annotated[Count, "Number of compared agents."]
    differences: Annotated[list[CountsCompared], "Agents whose counts differ."]
    rebuilt: Annotated[Count, "Number of agents whose counts were replaced."]


# -- quotas ----------------------------------------------------------------------------------------

_Limit = Annotated[int, whole(0, LIMIT_MAX)]
_SpendLimit = Annotated[int, whole(0, CENTS_MAX)]


class QuotaChange(Body, is_closed=True):
    """Limits of a payer. An absent member keeps its value; null removes the limit."""

    max_workflows_per_day: _Limit | Absent | None = ABSENT
    max_concurrent_workflows: _Limit | Absent | None = ABSENT
    max_spend_per_day_cents: _SpendLimit | Absent | None = ABSENT


class Limits(Record):
    """Limits of a payer; null means no limit."""

    max_workflows_per_day: int | None
    max_concurrent_workflows: int | None
    max_spend_per_day_cents: int | None


class Usage(Record):
    """What a payer has published today, and what is running."""

    daily_workflows: Annotated[Count, "Workflows published today (UTC)."]
    daily_spend_cents: Annotated[Count, "Cents held and paid for workflows published today."]
    concurrent_workflows: Annotated[Count, "Unfinished workflows."]


class Quota(Record):
    """Quota of a payer and its usage. Without a quota `limits` is null."""

    id: Annotated[str, "DID of the payer."]
    did: Annotated[str, "DID of the payer."]
    max_workflows_per_day: MaybeNull[int]
    max_concurrent_workflows: MaybeNull[int]
    max_spend_per_day_cents: MaybeNull[int]
    limits: Limits | None
    current_usage: Usage
    resets_at: Timestamp
    set_by_did: Did | None
    updated_at: Annotated[Timestamp | None, "Time of the last change; null without a quota."]


class QuotaSet(Done):
    """A quota that was set."""

    id: Annotated[Did, "DID of the payer."]
    did: Annotated[Did, "DID of the payer."]
    max_workflows_per_day: int | None
    max_concurrent_workflows: int | None
    max_spend_per_day_cents: int | None
    limits: Limits
    set_by_did: Did
    updated_at: Timestamp


class QuotaQuestion(Body, is_closed=True):
    """The workflow that the quota check is about."""

    estimated_spend_cents: Annotated[
        MaybeNull[_SpendLimit], "Amount that the workflow would hold, in cents. Absent or null: 0."
    ] = None


class QuotaCheck(Record):
    """Whether the payer's quota allows one more workflow."""

    allowed: Annotated[bool, "Whether it is allowed."]
    reason: Annotated[str, "Which limit would be exceeded, or why it is allowed."]
    current_usage: Usage
    limits: Limits | None
    resets_at: Timestamp


# -- auctions --------------------------------------------------------------------------------------


class _Bidding(Body, is_closed=True):
    eta_ms: Annotated[
        MaybeNull[DurationMs],
        "Promised duration in milliseconds. Default: the promise of the agent's card.",
    ] = None
    stake_offered: Annotated[
        MaybeNull[CreditsIn], "Stake that the agent offers. Default: the required stake."
    ] = None
    agent_did: Annotated[Maybe[Did], "DID of the bidding agent. Default: the caller."] = None


class BidRequest(_Bidding, is_closed=True):
    """A sealed bid for a node. The first bid of an agent is final."""

    bid_amount: Annotated[CreditsIn, "Price that the agent asks."]


class TaskBidRequest(_Bidding, is_closed=True):
    """A sealed bid for a task. The first bid of an agent is final."""

    bid_amount: Annotated[
        MaybeNull[CreditsIn],
        Also("amount"),
        "Price that the agent asks. Default: the price on its card.",
    ] = None
    node_id: Annotated[MaybeNull[NodeName], "Name of the node, when the task has several."] = None


class Bid(Done):
    """An accepted bid. A bid after the selection is stored but does not count."""

    ok: Yes
    counted: Annotated[bool, "false: the node had its agent already."]
    workflow_id: Uuid
    node_id: str
    round: Annotated[Count, "Number of the round; 0 when not counted."]
    task_id: Annotated[Maybe[Uuid], "Id of the task, in a bid for a task."]
    agent_did: Did
    bid_amount: Annotated[Credits, "Price that the agent asks."]
    eta_ms: int | None
    stake_offered: Annotated[Credits | None, "Offered stake; null: the required stake."]
    received_at: Timestamp
    closes_at: Annotated[Timestamp | None, "Time at which the round closes; null when not counted."]


class BidShown(Record):
    """A bid of a closed round. Standing bids are shown to their owner and administrators only."""

    agent_did: Did
    bid_amount: Annotated[Credits, "Price that the agent asked."]
    eta_ms: int | None
    stake_offered: Annotated[Credits | None, "Offered stake; null: the required stake."]
    received_at: Timestamp
    is_standing: Annotated[bool, "Whether the bid is a standing bid of the agent's card."]
    excluded: Annotated[str | None, "Why the bid could not win; null for a valid bid."]


class Round(Record):
    """Terms and outcome of one round of an auction."""

    round: Annotated[Count, "Number of the round, from 1."]
    status: Annotated[
        str, words(("open", "awarded", "no_bids", "cancelled")), "State of the round."
    ]
    reserve_credits: Annotated[Credits, "Highest price that is paid; higher bids are refused."]
    stake_bps: Annotated[Count, "Required stake in basis points of the bid."]
    opened_at: Annotated[Timestamp, "Time at which the round opened."]
    closes_at: Annotated[Timestamp, "Time at which the round closes."]
    closed_at: Annotated[Timestamp | None, "Time at which it closed; null while open."]
    winner_did: Annotated[Did | None, "DID of the winner; null without one."]
    price_credits: Annotated[
        Credits | None, "Price that the winner is paid; null without a winner."
    ]


class AuctionRound(Round):
    """One round of an auction."""

    bids: Annotated[list[BidShown] | None, "The bids; null while the round is open."]
    unlisted_bids: Annotated[
        Count, "Number of considered standing bids that the caller may not see."
    ]


class Auction(Round):
    """The auction of a node: its latest round and the list of all rounds."""

    workflow_id: Uuid
    node_id: str
    capability_id: str
    rounds: Annotated[list[AuctionRound], "All rounds, the first one first."]


class Balance(Record):
    """Balance of a wallet."""

    owner_did: Annotated[str, "DID of the wallet's owner, as asked for."]
    balance: Annotated[Credits, "Free credits in the wallet."]
    credits: Annotated[Credits, "The same as `balance`."]
    currency: str
    pending: Annotated[Credits, "Credits held in escrows of unfinished workflows."]


class BalanceQuery(Body):
    """The wallet whose balance is read."""

    owner_did: Annotated[
        Maybe[str],
        "DID of the wallet: the caller or one of its agents; administrators: any. Default: the"
        " caller.",
    ] = None


class Account(Record):
    """Account of a wallet."""

    id: Annotated[int, "Number of the account."]
    owner_did: Did
    balance: Annotated[Credits, "Free credits in the wallet."]
    currency: str
    created_at: Timestamp


class Entry(Record):
    """One transfer of credits."""

    id: Annotated[int, "Number of the entry."]
    debit_account_id: Annotated[int, "Number of the account that pays."]
    credit_account_id: Annotated[int, "Number of the account that receives."]
    amount: Credits
    kind: str
    description: Annotated[str, "Description in words."]
    workflow_id: Annotated[Maybe[Uuid], "Id of the workflow that the transfer belongs to."]
    node_id: Annotated[Maybe[str], "Name of the node that the transfer belongs to."]
    created_at: Timestamp


class EntryPage(Page[Entry], plural="transactions"):
    """A page of a wallet's entries, newest first."""


class EntriesQuery(PageQuery):
    """Filters of the list of entries."""

    owner_did: Annotated[
        Maybe[str],
        "DID of the wallet: the caller or one of its agents; administrators: any. Default: the"
        " caller.",
    ] = None
    workflow_id: Annotated[Maybe[Uuid], "Only entries of this workflow."] = None


class HistoryEvent(Entry):
    """A ledger entry, as one owner sees it."""

    owner_did: Annotated[Did, "DID of the wallet's owner."]
    currency: str
    event_type: Annotated[str, "The same as `kind`."]
    workflow_id: Annotated[Uuid | None, "Id of the workflow; null without one."]
    node_name: Annotated[str | None, "The same as `nodeId`; null without one."]
    change: Annotated[Credits, "Change of the wallet; 0 for transfers within the stake."]


class HistoryPage(Page[HistoryEvent], plural="events"):
    """A page of the transfers of a wallet and its stake, newest first."""


class DepositRequest(Body, is_closed=True):
    """Credits that enter the system."""

    amount: Annotated[PositiveCredits, "Amount to deposit."]
    owner_did: Annotated[Maybe[Did], "DID of the wallet. Default: the caller."] = None
    description: Annotated[ShortText, "Description of the entry."] = "deposit"


class Deposited(Done):
    """A deposit's entry and the new balance."""

    id: Annotated[int, "Number of the entry."]
    owner_did: Did
    entry: Entry
    balance: Credits
    currency: str


class CollectRequest(Body, is_closed=True):
    """Credits that an owner moves from its agent's wallet to its own wallet."""

    amount: Annotated[
        Maybe[PositiveCredits], "Amount to move. Default: the whole free balance."
    ] = None


class Collected(Done):
    """The entry of the transfer, and both balances after it."""

    id: Annotated[int, "Number of the entry."]
    agent_did: Did
    owner_did: Did
    amount: Annotated[Credits, "Amount that was moved."]
    entry: Entry
    balance: Annotated[Credits, "Balance of the agent."]
    owner_balance: Annotated[Credits, "Balance of the owner."]
    currency: str
