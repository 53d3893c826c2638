"""Planning: each command of a batch, in order, becomes rows and an outcome; each sees those before
it.

One closed match over the commands; it goes on in `market.py`. Planning reads the books
only: `add_needs` says beforehand what has to be in them. It never waits and never talks to the
database. Spec: Settlement rules; money.md section 4.
"""

from __future__ import annotations

from typing import Final

from core.errors import ErrorCode, QuarantineCode
from core.market.quota import day_start_ms
from core.money import ISSUED_MICRO_MAX, MICRO_MAX, credits_text
from core.records.audit import AuditEventType
from core.workflow.events import (
    AttemptFinished,
    NodeChanged,
    NodePaid,
    StakeFreed,
    StakeLocked,
    WorkflowChanged,
)
from core.workflow.transitions import is_terminal
from ledger.agents.agent_plan import (
    plan_claim,
    plan_deregister_agent,
    plan_register_agent,
    plan_register_owner,
)
from ledger.commands import (
    PUBLISH_KEY,
    AdvanceWorkflow,
    ClaimWorkflows,
    Command,
    CreateKey,
    Deposit,
    DeregisterAgent,
    Outcome,
    OutcomeStatus,
    PublishWorkflow,
    QuarantineWorkflow,
    RegisterAgent,
    RegisterOwner,
    ResumeWorkflow,
    RevokeKey,
)
from ledger.keys.key_plan import plan_create_key, plan_revoke_key
from ledger.market_commands import DepositStake, PlaceBid, WithdrawStake
from ledger.prices.price_plan import market_needs, plan_trade
from ledger.review_commands import GiveFeedback, GroundedCommand, SettleInvoice, SlashStake
from ledger.stakes.stake_risk import risk_needs
from ledger.trust.trust_commands import RevokeAgent, UnrevokeAgent
from ledger.trust.trust_plan import plan_revoke_agent, plan_unrevoke_agent
from ledger.workflows.quarantine_plan import (
    FORESEEN,
    plan_quarantine,
    plan_resume,
    quarantined,
)
from ledger.workflows.workflow_plan import plan_advance, plan_publish
from ledger.writer.batch import Batch, Refusal, StaleCommand
from ledger.writer.read_set import Needs
from ledger.writer.state_cache import (
    WORLD_ADDRESS,
    Books,
    stake_address,
    wallet_address,
)

_QUARANTINED_BY: Final = {ErrorCode.ALREADY_SETTLED: QuarantineCode.ALREADY_SETTLED}
# Made once: a union of classes written where it is asked for is made at every question.
_ALONE: Final = ClaimWorkflows | GroundedCommand
_AT_RISK: Final = (NodeChanged, StakeLocked, StakeFreed)
_HASHED: Final = (
    PublishWorkflow,
    Deposit,
    DepositStake,
    WithdrawStake,
    SettleInvoice,
    SlashStake,
    GiveFeedback,
    PlaceBid,
    RevokeAgent,
)


def add_needs(command: Command, wanted: Needs) -> None:
    """Add what has to be in the books before this command is planned."""
    match command:
        case PublishWorkflow():
            for record in command.records:
                if type(record) is StakeLocked:
                    risk_needs(command.workflow_id, record, wanted)
                elif type(record) is NodeChanged and record.agent_did is not None:
                    wanted.trusted.add(record.agent_did)
            wanted.addresses.add(wallet_address(command.payer_did))
            wanted.published.add((command.payer_did, day_start_ms(command.created_ms)))
        case AdvanceWorkflow():
            wanted.workflow_ids.add(command.workflow_id)
            for record in command.records:
                if type(record) is NodePaid:
                    wanted.addresses.add(wallet_address(record.agent_did))
                    wanted.trusted.add(record.agent_did)
                elif type(record) is WorkflowChanged and is_terminal(record.status):
                    wanted.ending.add(command.workflow_id)
                elif type(record) is AttemptFinished:
                    wanted.trusted.add(record.agent_did)
                elif isinstance(record, _AT_RISK):
                    risk_needs(command.workflow_id, record, wanted)
                    if type(record) is NodeChanged and record.agent_did is not None:
                        wanted.trusted.add(record.agent_did)
        case QuarantineWorkflow() | ResumeWorkflow():
            wanted.workflow_ids.add(command.workflow_id)
        case Deposit():
            wanted.addresses.add(wallet_address(command.owner_did))
            wanted.owned_dids.add(command.owner_did)
            wanted.deposited_micro += command.amount_micro
        case RegisterAgent() | DeregisterAgent():
            wanted.agent_dids.add(command.did)
            wanted.addresses.add(stake_address(command.did))
        case RevokeAgent():
            wanted.agent_dids.add(command.did)
            wanted.trusted.add(command.did)
        case UnrevokeAgent():
            wanted.trusted.add(command.did)
        case RevokeKey():
            wanted.key_ids.add(command.key_id)
        case ClaimWorkflows():
            wanted.claimed_owners.add(command.from_owner)
        case CreateKey():
            wanted.key_owners.add(command.owner_did)
            if command.parent_id is not None:
                wanted.parent_keys.add(command.parent_id)
        case RegisterOwner():
            pass
        case _:
            market_needs(command, wanted)


def may_repeat(command: Command) -> bool:
    """Say whether a command's key may well have been used before, so that it is looked up.

    A client asks again under its key, and some things happen once however often they are asked for.
    The keys of an owner's steps and of publishes without a client's key are new, except after a
    crash: then a conflict tells.
    """
    match command:
        case AdvanceWorkflow():
            return not command.records
        case PublishWorkflow():
            return not command.key.startswith(PUBLISH_KEY)
        case RegisterOwner():
            return False
        case _:
            return True


def plan(command: Command, batch: Batch) -> Outcome:
    """Add a command's rows and its one audit entry to the batch and return its outcome."""
    outcome = _decide(command, batch)
    batch.end_command()
    return outcome


def _decide(command: Command, batch: Batch) -> Outcome:
    try:
        return _plan(command, batch)
    except StaleCommand:
        return Outcome(OutcomeStatus.STALE)
    except Refusal as refusal:
        if isinstance(command, AdvanceWorkflow) and refusal.code not in FORESEEN:
            code = _QUARANTINED_BY.get(refusal.code, QuarantineCode.STEP_REFUSED)
            return quarantined(command, code, refusal.code, refusal.detail, batch)
        if not refusal.is_stored:
            batch.untraced.add(command.key)
            if refusal.is_audited:
                batch.record_refusal(command.key, refusal)
            return Outcome(OutcomeStatus.REJECTED, refusal.result, refusal.code, refusal.detail)
        return batch.refused(command.key, request_hash_of(command), refusal)


def is_stale(command: Command, books: Books) -> bool:
    """Say whether a command comes from an owner that has been replaced."""
    match command:
        case PublishWorkflow() | AdvanceWorkflow() | QuarantineWorkflow() | ResumeWorkflow():
            return books.owners.get(command.owner) != command.owner_epoch
        case ClaimWorkflows():
            return books.owners.get(command.to_owner) != command.to_epoch
        case _:
            return False


def is_alone(command: Command) -> bool:
    """Say whether a command looks at rows that others of its batch may change."""
    return isinstance(command, _ALONE)


def request_hash_of(command: Command) -> bytes | None:
    """Return the hash a repeat of the command must carry too; None when the key alone decides."""
    if isinstance(command, _HASHED):
        return command.request_hash
    return None


def repeated(command: Command, request_hash: bytes | None, first: Outcome) -> Outcome:
    """Return what a repeated key answers: the first outcome, or KEY_REUSED for another request."""
    if request_hash_of(command) != request_hash:
        return Outcome(
            OutcomeStatus.REJECTED,
            {},
            ErrorCode.KEY_REUSED,
            "the key was used before for a different request",
        )
    return Outcome(OutcomeStatus.REPEATED, first.result, first.error, first.detail)


def _plan(command: Command, batch: Batch) -> Outcome:
    match command:
        case AdvanceWorkflow():
            return plan_advance(command, batch)
        case PublishWorkflow():
            return plan_publish(command, batch)
        case QuarantineWorkflow():
            return plan_quarantine(command, batch)
        case ResumeWorkflow():
            return plan_resume(command, batch)
        case Deposit():
            return _plan_deposit(command, batch)
        case RegisterAgent():
            return plan_register_agent(command, batch)
        case DeregisterAgent():
            return plan_deregister_agent(command, batch)
        case CreateKey():
            return plan_create_key(command, batch)
        case RevokeKey():
            return plan_revoke_key(command, batch)
        case RevokeAgent():
            return plan_revoke_agent(command, batch)
        case UnrevokeAgent():
            return plan_unrevoke_agent(command, batch)
        case RegisterOwner():
            return plan_register_owner(command, batch)
        case ClaimWorkflows():
            return plan_claim(command, batch)
        case _:
            return plan_trade(command, batch)


def _plan_deposit(command: Deposit, batch: Batch) -> Outcome:
    """Credit a wallet: an owner's wallet, holds and stakes together stay within the bound."""
    books, address = batch.books, wallet_address(command.owner_did)
    world = books.accounts[WORLD_ADDRESS]
    assert world is not None
    # Not read: all that was issued together is within the bound of one owner.
    owned = books.owned.get(command.owner_did, 0)
    room = min(MICRO_MAX - owned, ISSUED_MICRO_MAX + world.balance)
    if not 0 < command.amount_micro <= room:
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            f"got a deposit of {credits_text(command.amount_micro)} credits, expected more than 0"
            f" and at most {credits_text(max(0, room))}",
        )
    if command.owner_did in books.owned:
        books.owned[command.owner_did] += command.amount_micro
    wallet = batch.account(address, "wallet", command.owner_did)
    entry_id = batch.move(
        world,
        wallet,
        command.amount_micro,
        kind="deposit",
        description=command.description,
    )
    audit_id = batch.record(
        AuditEventType.LEDGER_DEPOSITED,
        actor_did=command.actor_did,
        target=("account", command.owner_did),
        payload={"amountCredits": credits_text(command.amount_micro), "entryIds": [entry_id]},
    )
    return batch.decided(
        command.key,
        result={
            # The entry as a row: what a reader of the table gets.
            "entry": {
                "id": entry_id,
                "debit_account_id": world.id,
                "credit_account_id": wallet.id,
                "amount": command.amount_micro,
                "kind": "deposit",
                "description": command.description,
                "workflow_id": None,
                "node_id": None,
                "created_ms": batch.now_ms,
            },
            "balanceMicro": wallet.balance,
        },
        request_hash=command.request_hash,
        audit_id=audit_id,
    )
