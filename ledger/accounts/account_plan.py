"""Planning deposits: credits come into wallets from outside.

Spec: Settlement rules 1; money.md section 4.
"""

from __future__ import annotations

from core.errors import ErrorCode
from core.money import ISSUED_MICRO_MAX, MICRO_MAX, credits_text
from core.records.audit import AuditEventType
from ledger.accounts.account_commands import Deposit
from ledger.commands import Outcome
from ledger.writer.batch import Batch, Refusal
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import WORLD_ADDRESS, wallet_address


def add_deposit_reads(command: Deposit, read_set: ReadSet) -> None:
    """Add what is looked at before a wallet is credited."""
    read_set.addresses.add(wallet_address(command.owner_did))
    read_set.owned_dids.add(command.owner_did)
    read_set.deposited_micro += command.amount_micro


def plan_deposit(command: Deposit, batch: Batch) -> Outcome:
    """Credit a wallet: an owner's wallet, holds and stakes together stay within the bound."""
    cache, address = batch.cache, wallet_address(command.owner_did)
    world = cache.accounts[WORLD_ADDRESS]
    assert world is not None
    # Not read: all that was issued together is within the bound of one owner.
    owned = cache.owned.get(command.owner_did, 0)
    room = min(MICRO_MAX - owned, ISSUED_MICRO_MAX + world.balance)
    if not 0 < command.amount_micro <= room:
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            f"got a deposit of {credits_text(command.amount_micro)} credits, expected more than 0"
            f" and at most {credits_text(max(0, room))}",
        )
    if command.owner_did in cache.owned:
        cache.owned[command.owner_did] += command.amount_micro
    wallet = batch.account(address, "wallet", command.owner_did)
    entry_id = batch.transfer(
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
