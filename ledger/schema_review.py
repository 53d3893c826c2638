"""The tables of invoices, disputes and feedback as SQLAlchemy sees them, for reads alone.

As in ledger/schema.py, the truth is the DDL in `migrations/sql`. Spec: Invoice, Dispute.
"""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Boolean, Column, Numeric, Table, Text, Uuid

from ledger.schema import metadata

invoice = Table(
    "invoice",
    metadata,
    Column("id", Uuid(as_uuid=False), primary_key=True),
    Column("payer_did", Text),
    Column("period_start_ms", BigInteger),
    Column("period_end_ms", BigInteger),
    Column("workflow_id", Uuid(as_uuid=False)),
    Column("subtotal_cents", BigInteger),
    Column("protocol_fee_cents", BigInteger),
    Column("total_cents", BigInteger),
    Column("subtotal_micro", BigInteger),
    Column("status", Text),
    Column("created_ms", BigInteger),
    Column("settled_ms", BigInteger),
    Column("settled_by_did", Text),
)
invoice_line = Table(
    "invoice_line",
    metadata,
    Column("invoice_id", Uuid(as_uuid=False)),
    Column("entry_id", BigInteger),
    Column("amount_micro", BigInteger),
    Column("is_void", Boolean),
)
dispute = Table(
    "dispute",
    metadata,
    Column("id", Uuid(as_uuid=False), primary_key=True),
    Column("workflow_id", Uuid(as_uuid=False)),
    Column("complainant_did", Text),
    Column("respondent_did", Text),
    Column("node_id", Text),
    Column("dispute_type", Text),
    Column("description", Text),
    Column("evidence", JSON),
    Column("status", Text),
    Column("resolution", Text),
    Column("refund_asked_micro", BigInteger),
    Column("refunded_micro", BigInteger),
    Column("short_micro", BigInteger),
    Column("created_ms", BigInteger),
    Column("resolved_ms", BigInteger),
    Column("resolved_by_did", Text),
)
feedback = Table(
    "feedback",
    metadata,
    Column("workflow_id", Uuid(as_uuid=False)),
    Column("agent_did", Text),
    Column("payer_did", Text),
    Column("rating", Numeric(4, 3)),
    Column("comment", Text),
    Column("created_ms", BigInteger),
)
