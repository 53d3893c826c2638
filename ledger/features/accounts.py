"""Accounts: deposits, collections of credits by the owners of agents, and reads of accounts.

Reference: money.md (Estimate, Commands and keys, Accounts, Entries).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import sqlalchemy as sql

from core.market.reputation import Tally
from core.market.sharing.quota import DAY_MS, QuotaUsage
from core.money import ISSUED_MICRO_MAX, MICRO_MAX, credits_text
from core.records.audit import AuditEventType
from ledger.authority import AuthorizedCommand, OwnersCommand
from ledger.connections.connect import fetch
from ledger.features.reputation import tally_of
from ledger.reads.reader import LedgerReader, RowDict
from ledger.schema import account, entry, escrow, quota, reputation, typed
from ledger.writer.batch import Batch, Result, conflict, forbidden, invalid, not_found
from ledger.writer.command_kind import Connection, plans
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import (
    WORLD_ADDRESS,
    Account,
    stake_address,
    stake_locked_address,
    wallet_address,
)

# Commands that move credits into wallets: deposits from outside, and collections by owners.


class Deposit(AuthorizedCommand, frozen=True, kw_only=True):
    """Credit a wallet from outside. Result: the entry and {"balanceMicro"}. Rejections: KEY_REUSED,
    INVALID_REQUEST when the balance would exceed its maximum."""

    request_hash: bytes
    owner_did: str
    amount_micro: int
    description: str


class CollectCredits(OwnersCommand, frozen=True, kw_only=True):
    """Move collectable credits from an agent's wallet to its owner's wallet.

    Payments under an open dispute are not collectable. If the agent's claim is unproven, deposits
    and inheritances are not collectable either. `amount_micro` None: all collectable credits.
    Result: the entry and {"ownerDid", "balanceMicro", "ownerBalanceMicro"}.
    Rejections: NOT_FOUND; FORBIDDEN if the caller is not the owner, or the owner has no right to
    the agent's money (`IS_OWNERS`); CONFLICT if fewer credits are collectable.
    """

    agent_did: str
    amount_micro: int | None = None


# Whether an agent's owner may see and collect the agent's money. With a proven claim the owner may.
# With an unproven claim the DID may have another holder. Then the owner may only if the DID had no
# account when it was claimed, and owns no API keys, agents or workflows. Even then the owner does
# not get deposits and inheritances, because they were meant for the holder of the DID.

IS_OWNERS: Final = """(a.proven_by IS NOT NULL OR NOT (
    EXISTS (SELECT FROM callboard.api_key k WHERE k.owner_did = a.did)
    OR EXISTS (SELECT FROM callboard.agent o WHERE o.owner_did = a.did)
    OR EXISTS (SELECT FROM callboard.workflow w WHERE w.payer_did = a.did)
    OR EXISTS (
        SELECT FROM callboard.account c
        WHERE c.address IN ('wallet:' || a.did, 'stake:' || a.did)
            AND c.created_ms <= a.registered_ms)))"""
_MONEY_OWNER: Final = sql.text(
    f"SELECT a.owner_did, {IS_OWNERS} AS is_owners FROM callboard.agent a WHERE a.did = :did"
)
_AGENTS: Final = (
    f"SELECT a.did FROM callboard.agent a WHERE a.owner_did = :owner_did AND {IS_OWNERS}"
)


class MoneyOwner(NamedTuple):
    """The owner of an agent. `is_owners`: the owner may see and collect the agent's money."""

    owner_did: str
    is_owners: bool


async def money_owner(reader: LedgerReader, did: str) -> MoneyOwner | None:
    """Return the owner of an agent, None if there is no such agent."""
    rows = await reader.rows(_MONEY_OWNER, {"did": did})
    return MoneyOwner(**rows[0]) if rows else None


def money_agents(owner_did: str) -> sql.Select[Any]:
    """Return the query for the agents whose money an owner may see."""
    found = sql.text(_AGENTS).bindparams(owner_did=owner_did).columns(sql.column("did"))
    return sql.select(found.subquery().c.did)


# The kinds of the entries that give a payment back after a dispute.
REFUND_KINDS: Final = ("refund", "fee_refund", "stake_refund")
_OWNER: Final = f"""
SELECT a.owner_did, {IS_OWNERS}, (
    SELECT coalesce(sum(e.amount), 0)::bigint
    FROM callboard.entry e JOIN callboard.account c ON c.id = e.credit_account_id
    WHERE a.proven_by IS NULL AND c.address = 'wallet:' || a.did
        AND e.kind IN ('deposit', 'inheritance'))
FROM callboard.agent a WHERE a.did = %(did)s
"""
# The sum of the payments to an agent that are under an open dispute, less their refunds.
_DISPUTED: Final = f"""
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
    WHERE r.kind IN {REFUND_KINDS}
        AND r.workflow_id = p.workflow_id AND r.node_id = p.node_id), 0)), 0)::bigint AS micro
FROM paid p
"""


def add_deposit_reads(command: Deposit, read_set: ReadSet) -> None:
    """Add the keys of the rows that planning a deposit reads."""
    read_set.wallets.add(command.owner_did)
    read_set.owned_dids.add(command.owner_did)
    read_set.deposited_micro += command.amount_micro


@plans(Deposit, reads=add_deposit_reads)
def plan_deposit(command: Deposit, batch: Batch) -> Result:
    """Credit a wallet. The owner's wallet, held escrows and stakes together stay below a
    maximum."""
    cache, address = batch.cache, wallet_address(command.owner_did)
    world = cache.accounts[WORLD_ADDRESS]
    assert world is not None
    # 0 if the total was not loaded. Then all issued credits, with this batch, are within the
    # maximum of one owner.
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

    `is_owners`: the owner may collect the agent's money. `disputed_micro`: payments to the agent
    under an open dispute, micro-credits. `given_micro`: for an unproven claim, the deposits into
    the wallet and the inheritances, micro-credits; for a proven claim 0.
    """

    owner_did: str
    is_owners: bool
    disputed_micro: int
    given_micro: int


async def load_collect(
    connection: Connection, command: CollectCredits, read_set: ReadSet
) -> CollectReads | None:
    """Return an agent's owner and the amounts that the owner may not collect; None: there is no
    such agent."""
    values = {"did": command.agent_did}
    for owner_did, is_owners, given_micro in await fetch(connection, _OWNER, values):
        ((disputed_micro,),) = await fetch(connection, _DISPUTED, values)
        read_set.wallets |= {command.agent_did, owner_did}
        return CollectReads(owner_did, is_owners, disputed_micro, given_micro)
    return None


@plans(CollectCredits, load=load_collect)
def plan_collect(command: CollectCredits, batch: Batch) -> Result:
    """Move collectable credits from an agent's wallet to its owner's wallet."""
    did = command.agent_did
    stored: CollectReads | None = batch.loaded
    if stored is None:
        raise not_found(f"the agent {did} is not known")
    owner_did = stored.owner_did
    if not command.may_act_for(owner_did):
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
    kept_micro = stored.disputed_micro + stored.given_micro
    free_micro = max(0, batch.cache.balance(wallet_address(did)) - kept_micro)
    amount_micro = min(free_micro, MICRO_MAX)
    if command.amount_micro is not None:
        amount_micro = command.amount_micro
    if not 0 < amount_micro <= free_micro:
        got = "nothing to collect"
        if command.amount_micro is not None:
            got = f"cannot collect {credits_text(amount_micro)} credits"
        free, disputed = credits_text(free_micro), credits_text(stored.disputed_micro)
        raise conflict(
            f"{got}: {free} are free in the wallet of {did}, {disputed} are under open disputes,"
            f" {credits_text(stored.given_micro)} were deposited for a DID without a proof"
        )
    return collect(did, owner_did, amount_micro, "collected by the owner of the agent", batch)


def collect(agent_did: str, owner_did: str, micro: int, description: str, batch: Batch) -> Result:
    """Move credits from one wallet to another, and record it; return the result of the command."""
    wallet = batch.cache.accounts[wallet_address(agent_did)]
    assert wallet is not None, agent_did
    owners = batch.account(wallet_address(owner_did), "wallet", owner_did)
    entry = _transfer(wallet, owners, micro, "collection", description, batch)
    batch.record(
        AuditEventType.LEDGER_COLLECTED,
        ("account", agent_did),
        agentDid=agent_did,
        ownerDid=owner_did,
        amountCredits=credits_text(micro),
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
    """Add an entry that belongs to no workflow; return it with the columns of its row."""
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


# Reads of committed money: accounts, entries, stakes, quotas and their usage.

# Lateral joins: a plan made when the table was small never reads all accounts.
STAKE_PARTS: Final = """
    SELECT s.*, f.balance AS free_micro, l.balance AS locked_micro
    FROM callboard.stake s CROSS JOIN LATERAL (
            SELECT balance FROM callboard.account WHERE id = s.free_account_id OFFSET 0) f
        CROSS JOIN LATERAL (
            SELECT balance FROM callboard.account WHERE id = s.locked_account_id OFFSET 0) l
"""


async def account_row(reader: LedgerReader, did: str) -> RowDict | None:
    """Return the wallet of a DID, None before its first entry."""
    return await reader.row(sql.select(account).where(account.c.address == wallet_address(did)))


async def history(
    reader: LedgerReader, did: str, *, limit: int, offset: int = 0, before_id: int | None = None
) -> list[RowDict]:
    """Return the entries of a DID's wallet and stake, newest first.

    `change`: the amount by which an entry changed the wallet, micro-credits; 0 for an entry within
    the stake.
    """
    wallet, *stakes = map(
        _account_id, (wallet_address(did), stake_address(did), stake_locked_address(did))
    )
    sides = [side for account_id in (wallet, *stakes) for side in _sides(account_id)]
    found = _newest(sides, limit + offset, before_id)
    change = sql.case(
        (found.c.debit_account_id == wallet, -found.c.amount),
        (found.c.credit_account_id == wallet, found.c.amount),
        else_=0,
    )
    query = sql.select(found, change.label("change")).order_by(found.c.id.desc())
    return await reader.rows(query.limit(limit).offset(offset))


async def wallet_entries(
    reader: LedgerReader,
    did: str,
    *,
    workflow_id: str | None = None,
    limit: int = 50,
    offset: int = 0,
    before_id: int | None = None,
) -> list[RowDict]:
    """Return the entries of an owner's wallet, newest first.

    For a workflow that the owner pays, return the entries of its escrow, and what came back into
    the wallet after a dispute or a slash.
    """
    own = _account_id(wallet_address(did))
    sides = _sides(own)
    if workflow_id is not None:
        is_paid = (escrow.c.workflow_id == workflow_id, escrow.c.payer_did == did)
        paid_from = sql.select(escrow.c.account_id).where(*is_paid).scalar_subquery()
        is_back = sql.and_(_CAME_BACK, entry.c.credit_account_id == own)
        sides = [*_sides(sql.func.coalesce(paid_from, own)), is_back]
        sides = [sql.and_(entry.c.workflow_id == workflow_id, side) for side in sides]
    found = _newest(sides, limit + offset, before_id)
    query = sql.select(found).order_by(found.c.id.desc())
    return await reader.rows(query.limit(limit).offset(offset))


# Conditions of entries, spelled as in partial indexes. Protocol fees are not in the index of
# credits, so entries into the fee account are left out.
_CAME_BACK: Final = sql.literal_column(
    f"callboard.entry.kind IN {(*REFUND_KINDS, 'stake_slash')}", sql.Boolean
)
_IS_NO_FEE: Final = entry.c.kind != sql.literal_column("'protocol_fee'")


def _account_id(address: str) -> sql.ScalarSelect[Any]:
    return sql.select(account.c.id).where(account.c.address == address).scalar_subquery()


def _sides(account_id: sql.ColumnElement[Any]) -> list[sql.ColumnElement[bool]]:
    """Return the conditions of the entries out of an account and into it."""
    is_credited = sql.and_(entry.c.credit_account_id == account_id, _IS_NO_FEE)
    return [entry.c.debit_account_id == account_id, is_credited]


def _newest(
    sides: Sequence[sql.ColumnElement[bool]], most: int, before_id: int | None
) -> sql.Subquery:
    """Select the newest entries that satisfy one of some conditions.

    Each condition is an index scan that ends at the end of the page. The union removes entries that
    satisfy two of them.
    """
    pages = []
    for is_of_side in sides:
        side = sql.select(entry).where(is_of_side)
        if before_id is not None:
            side = side.where(entry.c.id < before_id)
        page = side.order_by(entry.c.id.desc()).limit(most).subquery()
        pages.append(sql.select(page))
    return sql.union(*pages).subquery()


_STAKE: Final = sql.text(f"{STAKE_PARTS} WHERE s.agent_did = :did")


async def stake_row(reader: LedgerReader, agent_did: str) -> RowDict | None:
    """Return an agent's stake with its unlocked and its locked part (`free_micro`,
    `locked_micro`)."""
    return await reader.row(_STAKE, {"did": agent_did})


async def quota_row(reader: LedgerReader, did: str) -> RowDict | None:
    """Return a payer's quota, None if there is none. A limit that is not set is None."""
    return await reader.row(sql.select(quota).where(quota.c.did == did))


_QUOTA_USAGE: Final = sql.text("""
    SELECT count(*) AS workflows, coalesce(sum(coalesce(spent_micro, hold_micro)), 0) AS micro, (
        SELECT count(*) FROM callboard.escrow WHERE payer_did = :did AND status = 'held') AS running
    FROM callboard.workflow
    WHERE payer_did = :did AND created_ms >= :start_ms AND created_ms < :end_ms
""").bindparams(*typed(bigint="start_ms end_ms"))


async def quota_usage(reader: LedgerReader, did: str, day_ms: int) -> QuotaUsage:
    """Return what a payer uses of its quota, as `ledger/features/quotas.py` counts it.

    Args:
        day_ms: the UTC midnight at which the day began, Unix milliseconds.
    """
    values = {"did": did, "start_ms": day_ms, "end_ms": day_ms + DAY_MS}
    (row,) = await reader.rows(_QUOTA_USAGE, values)
    return QuotaUsage(row["workflows"], int(row["micro"]), row["running"])


async def reputation_row(reader: LedgerReader, agent_did: str) -> tuple[Tally, int | None]:
    """Return an agent's tally, and when it last changed (Unix milliseconds, None: never)."""
    row = await reader.row(sql.select(reputation).where(reputation.c.agent_did == agent_did))
    return (Tally(), None) if row is None else (tally_of(row), row["updated_ms"])
