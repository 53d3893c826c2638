"""The tables of auctions as SQLAlchemy sees them, for reads alone.

As in ledger/schema.py, the truth is the DDL in `migrations/sql`. Spec: Bid.
"""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Boolean, Column, Integer, Table, Text, Uuid

from ledger.schema import metadata

auction = Table(
    "auction",
    metadata,
    Column("workflow_id", Uuid(as_uuid=False), primary_key=True),
    Column("node", Text, primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("capability_id", Text),
    Column("reserve_micro", BigInteger),
    Column("stake_bps", Integer),
    Column("opened_ms", BigInteger),
    Column("closes_ms", BigInteger),
    Column("status", Text),
    Column("winner_did", Text),
    Column("price_micro", BigInteger),
    Column("excluded", JSON),
    Column("closed_ms", BigInteger),
)
bid = Table(
    "bid",
    metadata,
    Column("workflow_id", Uuid(as_uuid=False), primary_key=True),
    Column("node", Text, primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("agent_did", Text, primary_key=True),
    Column("amount_micro", BigInteger),
    Column("eta_ms", BigInteger),
    Column("stake_offered_micro", BigInteger),
    Column("is_standing", Boolean),
    Column("received_ms", BigInteger),
)
