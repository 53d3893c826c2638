"""Compares a tenant's money in the database with the API's replies."""

from __future__ import annotations

import psycopg

from bench.load.clients import Target
from bench.noise.tenant import NODES, Account

_WALLET = """
SELECT a.id, a.balance FROM callboard.account a WHERE a.owner_did = %s AND a.kind = 'wallet'"""
_DEPOSITS = """
SELECT coalesce(sum(amount), 0)::bigint, count(*) FROM callboard.entry
WHERE kind = 'deposit' AND credit_account_id = %s"""
_PAID = """
SELECT coalesce(sum(e.amount), 0)::bigint, count(*) FILTER (WHERE e.kind = 'node_payment')
FROM callboard.entry e JOIN callboard.workflow w ON w.id = e.workflow_id
WHERE w.payer_did = %s AND e.kind IN ('node_payment', 'protocol_fee')"""
_HELD = """
SELECT coalesce(sum(a.balance), 0)::bigint FROM callboard.escrow s
JOIN callboard.account a ON a.id = s.account_id WHERE s.payer_did = %s"""
_SUCCEEDED = """
SELECT count(*) FROM callboard.workflow WHERE payer_did = %s AND status = 'success'"""


def money_defects(target: Target, did: str, account: Account) -> list[str]:
    """Return the defects of a tenant's money in the database, none when it is exact.

    1. Balance = deposits - payments - holds. 2. Each node of a successful workflow is paid once.
    3. The API's figures, if any, equal the stored ones.

    Args:
        target: a deployment with its own database.
        did: the tenant, all of whose workflows have `NODES` nodes.
        account: the figures of the API.
    """
    with psycopg.connect(target.database_url) as connection:
        wallet_id, balance = _row(connection, _WALLET, did)
        deposited, deposits = _row(connection, _DEPOSITS, wallet_id)
        paid, payments = _row(connection, _PAID, did)
        (held,) = _row(connection, _HELD, did)
        (succeeded,) = _row(connection, _SUCCEEDED, did)
    defects = []
    if balance != deposited - paid - held:  # 1
        defects.append(f"stored balance {balance}, {deposited} deposited, {paid} paid, {held} held")
    if payments < NODES * succeeded:  # 2
        defects.append(f"{payments} payments of {succeeded} workflows of {NODES} nodes")
    if account.deposits:  # 3
        told = (account.balance_micro, account.deposited_micro, account.deposits)
        if told != (balance, deposited, deposits):
            stored = (balance, deposited, deposits)
            defects.append(f"balance, deposited, deposits: told {told}, stored {stored}")
        if account.spent_micro != paid:
            defects.append(f"told {account.spent_micro} µcr spent, stored {paid} µcr")
    return defects


def _row(connection: psycopg.Connection, query: str, name: object) -> tuple[int, ...]:
    row = connection.execute(query.encode(), (name,)).fetchone()
    assert row is not None, query
    return row
