"""Planning deposits, and what owners collect from their agents' wallets.

Reference: money.md (Estimate, Commands and keys).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from core.money import ISSUED_MICRO_MAX, MICRO_MAX, credits_text
from core.records.audit import AuditEventType
from ledger.accounts.account_commands import CollectCredits, Deposit
from ledger.accounts.agent_money import IS_OWNERS
from ledger.connections.connecting import fetch
from ledger.writer.batch import Batch, Result, conflict, forbidden, invalid, not_found
from ledger.writer.command_kind import Connection, plans
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import WORLD_ADDRESS, Account, wallet_address

_OWNER: Final = f"""
SELECT a.owner_did, {IS_OWNERS}, (
    SELECT coalesce(sum(e.amount), 0)::bigint
    FROM callboard.entry e JOIN callboard.account c ON c.id = e.credit_account_id
    WHERE a.proven_by IS NULL AND c.address = 'wallet:' || a.did
        AND e.kind IN ('deposit', 'inheritance'))
FROM callboard.agent a WHERE a.did = %(did)s
"""
# The payments to an agent that an open dispute is about, less what was refunded of them.
_DISPUTED: Final = """
WITH own AS (SELECT id FROM callboard.account WHERE address = 'wallet:' || %(did)s),
paid AS (
    SELECT DISTINCT e.workflow_id, e.node_id, e.amount
    FROM callboard.dispute d
    JOIN callboard.entry e ON e.workflow_id = d.workflow_id AND e.kind = 'node_payment'
        AND e.node_id = coalesce(d.node_id, e.node_id)
    JOIN own ON own.id = e.credit_account_id
    WHERE d.status = 'open' AND (
        d.complainant_did = %(did)s OR d.respondent_did = %(did)s OR d.respondent_did IS NULL)
)
SELECT coalesce(sum(p.amount - coalesce((
    SELECT sum(r.amount) FROM callboard.entry r JOIN own ON own.id = r.debit_account_id
    WHERE r.kind IN ('refund', 'fee_refund', 'stake_refund')
        AND r.workflow_id = p.workflow_id AND r.node_id = p.node_id), 0)), 0)::bigint AS micro
FROM paid p
"""


def add_deposit_reads(command: Deposit, read_set: ReadSet) -> None:
    """Add what is looked at before a wallet is credited."""
    read_set.addresses.add(wallet_address(command.owner_did))
    read_set.owned_dids.add(command.owner_did)
    read_set.deposited_micro += command.amount_micro


@plans(Deposit, reads=add_deposit_reads)
def plan_deposit(command: Deposit, batch: Batch) -> Result:
    """Credit a wallet: an owner's wallet, holds and stakes together stay within the bound."""
    cache, address = batch.cache, wallet_address(command.owner_did)
    world = cache.accounts[WORLD_ADDRESS]
    assert world is not None
    # Not read: all that was issued together is within the bound of one owner.
    owned = cache.owned.get(command.owner_did, 0)
    room = min(MICRO_MAX - owned, ISSUED_MICRO_MAX + world.balance)
    if not 0 < command.amount_micro <= room:
        raise invalid(
            f"got a deposit of {credits_text(command.amount_micro)} credits, expected more than 0"
            f" and at most {credits_text(max(0, room))}"
        )
    if command.owner_did in cache.owned:
        cache.owned[command.owner_did] += command.amount_micro
    wallet = batch.account(address, "wallet", command.owner_did)
    entry = _transfer(world, wallet, command.amount_micro, "deposit", command.description, batch)
    batch.record(
        AuditEventType.LEDGER_DEPOSITED,
        ("account", command.owner_did),
        amountCredits=credits_text(command.amount_micro),
        entryIds=[entry["id"]],
    )
    return {"entry": entry, "balanceMicro": wallet.balance}


@dataclass(frozen=True, slots=True)
class CollectReads:
    """The owner of an agent, and how much of the agent's money the owner may not collect.

    `is_owners`: the agent's money is the owner's. `disputed_micro`: payments to the agent under an
    open dispute, micro-credits. `given_micro`: what was deposited for an unproven claim's DID, or
    inherited by it, micro-credits.
    """

    owner_did: str
    is_owners: bool
    disputed_micro: int
    given_micro: int


async def load_collect(
    connection: Connection, command: CollectCredits, read_set: ReadSet
) -> CollectReads | None:
    """Return whose an agent's money is and what of it stays; None when the agent is not known."""
    values = {"did": command.agent_did}
    for owner_did, is_owners, given_micro in await fetch(connection, _OWNER, values):
        ((disputed_micro,),) = await fetch(connection, _DISPUTED, values)
        read_set.addresses |= {wallet_address(command.agent_did), wallet_address(owner_did)}
        return CollectReads(owner_did, is_owners, disputed_micro, given_micro)
    return None


@plans(CollectCredits, load=load_collect)
def plan_collect(command: CollectCredits, batch: Batch) -> Result:
    """Move free credits from an agent's wallet to its owner's, and nowhere else."""
    did = command.agent_did
    stored: CollectReads | None = batch.loaded
    if stored is None:
        raise not_found(f"the agent {did} is not known")
    owner_did = stored.owner_did
    if command.actor_did != owner_did and not command.is_admin:
        raise forbidden(f"only the owner of {did} may collect its credits")
    if not stored.is_owners:
        raise forbidden(
            f"{did} was registered without a proof and has keys, agents, workflows or an"
            " account of its own:"
            " register it with a cardProof, with its own credential, or by an administrator, then"
            " collect"
        )
    if owner_did == did:
        raise conflict(f"{did} is its own owner: there is nothing to collect")
    wallet = batch.cache.accounts.get(wallet_address(did))
    kept_micro = stored.disputed_micro + stored.given_micro
    free_micro = max(0, batch.cache.balance(wallet_address(did)) - kept_micro)
    amount_micro = min(free_micro, MICRO_MAX)
    if command.amount_micro is not None:
        amount_micro = command.amount_micro
    if wallet is None or not 0 < amount_micro <= free_micro:
        got = "nothing to collect"
        if command.amount_micro is not None:
            got = f"cannot collect {credits_text(amount_micro)} credits"
        free, disputed = credits_text(free_micro), credits_text(stored.disputed_micro)
        raise conflict(
            f"{got}: {free} are free in the wallet of {did}, {disputed} are under open disputes,"
            f" {credits_text(stored.given_micro)} were deposited for a DID without a proof"
        )
    owners = batch.account(wallet_address(owner_did), "wallet", owner_did)
    description = "collected by the owner of the agent"
    entry = _transfer(wallet, owners, amount_micro, "collection", description, batch)
    batch.record(
        AuditEventType.LEDGER_COLLECTED,
        ("account", did),
        agentDid=did,
        ownerDid=owner_did,
        amountCredits=credits_text(amount_micro),
        entryIds=[entry["id"]],
    )
    return {
        "entry": entry,
        "ownerDid": owner_did,
        "balanceMicro": wallet.balance,
        "ownerBalanceMicro": owners.balance,
    }


def _transfer(
    debit: Account, credit: Account, micro: int, kind: str, description: str, batch: Batch
) -> dict[str, object]:
    """Add an entry of no workflow; return it as a reader of the table gets it."""
    (entry_id,) = batch.transfer(debit, credit, micro, kind, description)
    return {
        "id": entry_id,
        "debit_account_id": debit.id,
        "credit_account_id": credit.id,
        "amount": micro,
        "kind": kind,
        "description": description,
        "workflow_id": None,
        "node_id": None,
        "created_ms": batch.now_ms,
    }
