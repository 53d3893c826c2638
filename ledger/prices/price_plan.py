"""Planning the market's commands: prices here, each other topic in a file of its own.

One closed match over them, called for whatever `plan.py` does not plan itself. Every check
comes before the first row, so that a refused command leaves nothing behind. Spec: Capability price,
Per-token pricing; contract.md section 6 (Capability prices).
"""

from __future__ import annotations

from typing import Any, assert_never

from core.market.pricing import FixedPrice, TokenPrice
from core.money import MICRO_PER_CENT
from core.records.audit import AuditEventType
from ledger.agents.reputation import plan_rebuild
from ledger.auctions.auction_plan import plan_end_bidding, plan_place_bid
from ledger.commands import Outcome
from ledger.disputes.dispute_plan import plan_give_feedback, plan_open_dispute, plan_resolve_dispute
from ledger.invoices.invoice_plan import plan_create_invoice, plan_settle_invoice
from ledger.market_commands import (
    DepositStake,
    EndBidding,
    MarketCommand,
    PlaceBid,
    SetPrice,
    SetQuota,
    WithdrawStake,
)
from ledger.quotas.quota_plan import plan_set_quota
from ledger.review_commands import (
    CreateInvoice,
    GiveFeedback,
    OpenDispute,
    RebuildReputation,
    ResolveDispute,
    SettleInvoice,
    SlashStake,
)
from ledger.stakes.stake_plan import plan_deposit_stake, plan_withdraw_stake, stake_needs
from ledger.stakes.stake_risk import plan_slash_stake
from ledger.writer.batch import Batch
from ledger.writer.read_set import Needs


def market_needs(command: MarketCommand, wanted: Needs) -> None:
    """Add what has to be in the books before a command of the market is planned."""
    match command:
        case SetPrice() | RebuildReputation():
            pass
        case CreateInvoice() | ResolveDispute() | SlashStake():
            wanted.grounded = command
        case SettleInvoice() | OpenDispute() | GiveFeedback():
            pass
        case SetQuota():
            wanted.quota_dids.add(command.did)
        case DepositStake() | WithdrawStake():
            stake_needs(command, wanted)
        case PlaceBid() | EndBidding():
            wanted.rounds.add((command.workflow_id, command.node))
            if isinstance(command, PlaceBid):
                wanted.agent_dids.add(command.agent_did)
                wanted.trusted.add(command.agent_did)
        case _:
            assert_never(command)


def plan_trade(command: MarketCommand, batch: Batch) -> Outcome:
    """Add the rows of a command of the market to the batch and return its outcome."""
    match command:
        case SetPrice():
            return _plan_price(command, batch)
        case CreateInvoice():
            return plan_create_invoice(command, batch)
        case SettleInvoice():
            return plan_settle_invoice(command, batch)
        case OpenDispute():
            return plan_open_dispute(command, batch)
        case ResolveDispute():
            return plan_resolve_dispute(command, batch)
        case SlashStake():
            return plan_slash_stake(command, batch)
        case GiveFeedback():
            return plan_give_feedback(command, batch)
        case RebuildReputation():
            return plan_rebuild(command, batch)
        case SetQuota():
            return plan_set_quota(command, batch)
        case DepositStake():
            return plan_deposit_stake(command, batch)
        case WithdrawStake():
            return plan_withdraw_stake(command, batch)
        case PlaceBid():
            return plan_place_bid(command, batch)
        case EndBidding():
            return plan_end_bidding(command, batch)
        case _:
            assert_never(command)


def _plan_price(command: SetPrice, batch: Batch) -> Outcome:
    row: dict[str, Any] = {
        "capability_id": command.capability_id,
        "set_by_did": command.actor_did,
    }
    match command.price:
        case FixedPrice(micro):
            row["price_cents"] = micro // MICRO_PER_CENT
            payload: dict[str, Any] = {"priceCents": row["price_cents"]}
        case TokenPrice(input_rate, output_rate):
            row["input_rate"] = format(input_rate, "f")
            row["output_rate"] = format(output_rate, "f")
            payload = {"inputRate": row["input_rate"], "outputRate": row["output_rate"]}
        case _:
            assert_never(command.price)
    batch.trade("prices", command.capability_id, row)
    # Owners reserve by it: they hear of it as of a card.
    batch.is_directory_changed = True
    audit_id = batch.record(
        AuditEventType.CAPABILITY_PRICED,
        actor_did=command.actor_did,
        target=("capability", command.capability_id),
        payload=payload,
    )
    return batch.decided(command.key, result={"updatedMs": batch.now_ms}, audit_id=audit_id)
