"""Committed money as its owners see it: accounts, what moved, stakes, quotas and their usage.

Reads like those of `reader.py`, over the same pool: plain dicts keyed by column, micro-credits.
Reference: money.md (Accounts, Entries, Stakes, Reputation, Quotas).
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sql

from core.market.reputation import Tally
from core.market.sharing.quota import DAY_MS, QuotaUsage
from ledger.agents.reputation import tally_of
from ledger.reads.reader import LedgerReader, RowDict, is_credited
from ledger.schema import account, entry, escrow, quota, reputation, stake, workflow
from ledger.writer.state_cache import stake_address, stake_locked_address, wallet_address

_FREE, _LOCKED = account.alias("free"), account.alias("locked")
STAKE_PARTS: Final = (
    sql.select(stake, _FREE.c.balance.label("free_micro"), _LOCKED.c.balance.label("locked_micro"))
    .join(_FREE, _FREE.c.id == stake.c.free_account_id)
    .join(_LOCKED, _LOCKED.c.id == stake.c.locked_account_id)
)


async def account_row(reader: LedgerReader, did: str) -> RowDict | None:
    """Return the wallet of a DID, None until something came in."""
    return await reader.row(sql.select(account).where(account.c.address == wallet_address(did)))


async def history(
    reader: LedgerReader, did: str, *, limit: int, offset: int = 0, before_id: int | None = None
) -> list[RowDict]:
    """Return the entries of a DID's wallet and stake, newest first.

    `change`: what an entry did to the wallet, micro-credits; 0 for those within the stake.
    """
    addresses = [wallet_address(did), stake_address(did), stake_locked_address(did)]
    # One index scan a side and account, each stopped at the page's end; what moved between two of
    # them is found twice and shown once.
    sides = []
    for address in addresses:
        own = sql.select(account.c.id).where(account.c.address == address).scalar_subquery()
        for is_of_side in (entry.c.debit_account_id == own, is_credited(own)):
            side = sql.select(entry).where(is_of_side)
            if before_id is not None:
                side = side.where(entry.c.id < before_id)
            page = side.order_by(entry.c.id.desc()).limit(limit + offset).subquery()
            sides.append(sql.select(page))
    found = sql.union(*sides).subquery()
    wallet = sql.select(account.c.id).where(account.c.address == addresses[0]).scalar_subquery()
    change = sql.case(
        (found.c.debit_account_id == wallet, -found.c.amount),
        (found.c.credit_account_id == wallet, found.c.amount),
        else_=0,
    )
    query = sql.select(found, change.label("change")).order_by(found.c.id.desc())
    return await reader.rows(query.limit(limit).offset(offset))


async def stake_row(reader: LedgerReader, agent_did: str) -> RowDict | None:
    """Return an agent's stake with both its parts (`free_micro`, `locked_micro`)."""
    return await reader.row(STAKE_PARTS.where(stake.c.agent_did == agent_did))


async def quota_row(reader: LedgerReader, did: str) -> RowDict | None:
    """Return a payer's limits; a column is None where there is none of its kind."""
    return await reader.row(sql.select(quota).where(quota.c.did == did))


async def quota_usage(reader: LedgerReader, did: str, day_ms: int) -> QuotaUsage:
    """Return what a payer uses, as `ledger/quotas/quota_loading.py` counts it for the writer.

    Args:
        day_ms: the UTC midnight with which the day began, Unix milliseconds.
    """
    running = (
        sql.select(sql.func.count())
        .select_from(escrow)
        .where(escrow.c.payer_did == did, escrow.c.status == "held")
        .scalar_subquery()
    )
    cost = sql.func.coalesce(workflow.c.spent_micro, workflow.c.hold_micro)
    query = sql.select(
        sql.func.count(workflow.c.id).label("workflows"),
        sql.func.coalesce(sql.func.sum(cost), 0).label("micro"),
        running.label("running"),
    ).where(
        workflow.c.payer_did == did,
        workflow.c.created_ms >= day_ms,
        workflow.c.created_ms < day_ms + DAY_MS,
    )
    row = (await reader.rows(query))[0]
    return QuotaUsage(row["workflows"], int(row["micro"]), row["running"])


async def reputation_row(reader: LedgerReader, agent_did: str) -> tuple[Tally, int | None]:
    """Return an agent's counts and when they last changed, Unix milliseconds; none are zeros."""
    row = await reader.row(sql.select(reputation).where(reputation.c.agent_did == agent_did))
    return (Tally(), None) if row is None else (tally_of(row), row["updated_ms"])
