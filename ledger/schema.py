"""The tables as SQLAlchemy sees them, for reads alone, and how an address of the database is
written.

The truth is the DDL in `migrations/sql`; here stand only the columns that reads name. Writes go
through `commit_batch` (store.py). Spec: Ledger records; money.md section 2.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    SmallInteger,
    Table,
    Text,
    Uuid,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from core.errors import ErrorCode, ServiceError

SCHEMA: Final = "callboard"
# What a pool raises when Postgres is away, restarting or out of connections.
UNREACHABLE: Final = (OperationalError, InterfaceError, PoolTimeoutError)
WRITER_ROLE: Final = "ledger_writer"
READER_ROLE: Final = "ledger_reader"
OPERATIONAL_ROLE: Final = "ops_writer"

metadata = MetaData(schema=SCHEMA)


def unreachable(error: Exception) -> ServiceError:
    """Return what a caller is told when Postgres cannot be read: to come again."""
    return ServiceError(
        ErrorCode.LEDGER_UNAVAILABLE, f"the database cannot be reached ({type(error).__name__})"
    )


def driver_url(url: str) -> str:
    """Return a database address as libpq spells it: `postgresql://…`."""
    return url.replace("postgresql+psycopg://", "postgresql://", 1)


def engine_url(url: str) -> str:
    """Return a database address as SQLAlchemy spells it: `postgresql+psycopg://…`."""
    return driver_url(url).replace("postgresql://", "postgresql+psycopg://", 1)


def session_options(role: str, **settings: str) -> str:
    """Return libpq's `options` for a session that acts as this role with these settings."""
    pairs = {"role": role, "search_path": SCHEMA, "timezone": "UTC", "jit": "off", **settings}
    return " ".join(f"-c {name}={value}" for name, value in pairs.items())


def _id(name: str) -> Column[str]:
    return Column(name, Uuid(as_uuid=False))


head = Table(
    "head",
    metadata,
    Column("epoch", BigInteger),
    Column("entry_seq", BigInteger),
    Column("audit_seq", BigInteger),
    Column("hash", LargeBinary),
)
account = Table(
    "account",
    metadata,
    Column("id", BigInteger, primary_key=True),
    Column("address", Text),
    Column("owner_did", Text),
    Column("kind", Text),
    Column("balance", BigInteger),
    Column("currency", Text),
    Column("created_ms", BigInteger),
)
entry = Table(
    "entry",
    metadata,
    Column("id", BigInteger, primary_key=True),
    Column("debit_account_id", BigInteger),
    Column("credit_account_id", BigInteger),
    Column("amount", BigInteger),
    Column("kind", Text),
    Column("description", Text),
    _id("workflow_id"),
    Column("node_id", Text),
    Column("audit_id", BigInteger),
    Column("created_ms", BigInteger),
)
escrow = Table(
    "escrow",
    metadata,
    _id("workflow_id"),
    Column("payer_did", Text),
    Column("account_id", BigInteger),
    Column("amount", BigInteger),
    Column("fee_bps", Integer),
    Column("status", Text),
    Column("created_ms", BigInteger),
    Column("released_ms", BigInteger),
)
audit = Table(
    "audit",
    metadata,
    Column("id", BigInteger, primary_key=True),
    Column("event_types", ARRAY(Text)),
    Column("actor_did", Text),
    _id("workflow_id"),
    Column("created_ms", BigInteger),
    Column("body", Text),
    Column("hash", LargeBinary),
)
audit_event = Table(
    "audit_event",
    metadata,
    Column("audit_id", BigInteger, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("event_type", Text),
    Column("target_type", Text),
    Column("target_id", Text),
)
workflow = Table(
    "workflow",
    metadata,
    _id("id"),
    _id("task_id"),
    Column("payer_did", Text),
    Column("status", Text),
    Column("intent", Text),
    Column("manifest", Text),
    Column("owner", Text),
    Column("created_ms", BigInteger),
    Column("started_ms", BigInteger),
    Column("completed_ms", BigInteger),
    Column("deadline_ms", BigInteger),
    Column("estimate_micro", BigInteger),
    Column("hold_micro", BigInteger),
    Column("reserved", Text),
    Column("fee_bps", Integer),
    Column("spent_micro", BigInteger),
    Column("error", JSON),
    Column("end_reason", Text),
    Column("end_details", Text),
    Column("ended_by_did", Text),
    Column("is_halted", Boolean),
    Column("quarantined_ms", BigInteger),
    Column("quarantine_code", Text),
)
node = Table(
    "node",
    metadata,
    _id("workflow_id"),
    Column("name", Text),
    Column("status", Text),
    Column("attempt", Integer),
    Column("agent_did", Text),
    Column("price_micro", BigInteger),
    Column("dispatched_ms", BigInteger),
    Column("deadline_ms", BigInteger),
    Column("retry_at_ms", BigInteger),
    Column("retries_used", Integer),
    Column("agents_tried", JSON),
    Column("verifier_did", Text),
    Column("verify_attempt", Integer),
    Column("verifier_price_micro", BigInteger),
    Column("verify_retries_used", Integer),
    Column("verifiers_tried", JSON),
    Column("result_json", Text),
    Column("error", JSON),
    Column("started_ms", BigInteger),
    Column("completed_ms", BigInteger),
    Column("cost_micro", BigInteger),
    Column("metrics", JSON),
    Column("result_ref", JSON),
    Column("input_hash", Text),
    Column("selection_json", Text),
    Column("price_json", Text),
    Column("stake_micro", BigInteger),
    Column("auction_round", Integer),
    Column("auction_closes_ms", BigInteger),
    Column("key_version", SmallInteger),
)
attempt = Table(
    "attempt",
    metadata,
    _id("workflow_id"),
    Column("id", BigInteger),
    Column("node", Text),
    Column("attempt", Integer),
    Column("kind", Text),
    Column("agent_did", Text),
    Column("outcome", Text),
    Column("started_ms", BigInteger),
    Column("completed_ms", BigInteger),
    Column("input_hash", Text),
    Column("output_hash", Text),
    Column("error_code", Text),
    Column("error_message", Text),
)
owner = Table(
    "owner",
    metadata,
    Column("name", Text, primary_key=True),
    Column("epoch", BigInteger),
    Column("address", Text),
    Column("registered_ms", BigInteger),
)
agent = Table(
    "agent",
    metadata,
    Column("did", Text, primary_key=True),
    Column("owner_did", Text),
    Column("card", Text),
    Column("endpoint", Text),
    Column("capability_ids", ARRAY(Text)),
    Column("public_key", Text),
    Column("signing_secret", LargeBinary),
    Column("status", Text),
    Column("revision", Integer),
    Column("registered_ms", BigInteger),
    Column("updated_ms", BigInteger),
    Column("token_revision", Integer),
)
revocation = Table(
    "revocation",
    metadata,
    Column("did", Text, primary_key=True),
    Column("reason", Text),
    Column("evidence", JSON),
    Column("revoked_ms", BigInteger),
    Column("expires_ms", BigInteger),
    Column("revoked_by_did", Text),
    Column("ended_ms", BigInteger),
    Column("ended_by_did", Text),
)
agent_live = Table(
    "agent_live",
    metadata,
    Column("did", Text, primary_key=True),
    Column("status", Text),
    Column("load", Double),
    Column("queue_depth", Integer),
    Column("version", Text),
    Column("latency_ms", Double),
    Column("heartbeat_ms", BigInteger),
    Column("probe_ms", BigInteger),
    Column("probe_ok", Boolean),
    Column("probe_failures", Integer),
    Column("updated_ms", BigInteger),
)
api_key = Table(
    "api_key",
    metadata,
    Column("id", Text, primary_key=True),
    Column("hash", LargeBinary),
    Column("owner_did", Text),
    Column("name", Text),
    Column("scopes", ARRAY(Text)),
    Column("rate_class", Text),
    Column("rate_limits", JSON),
    Column("created_ms", BigInteger),
    Column("expires_ms", BigInteger),
    Column("revoked_ms", BigInteger),
    Column("parent_id", Text),
    Column("depth", Integer),
)
capability_price = Table(
    "capability_price",
    metadata,
    Column("capability_id", Text, primary_key=True),
    Column("price_cents", BigInteger),
    Column("input_rate", Text),
    Column("output_rate", Text),
    Column("set_by_did", Text),
    Column("updated_ms", BigInteger),
)
quota = Table(
    "quota",
    metadata,
    Column("did", Text, primary_key=True),
    Column("max_workflows_per_day", BigInteger),
    Column("max_concurrent_workflows", BigInteger),
    Column("max_spend_per_day_cents", BigInteger),
    Column("set_by_did", Text),
    Column("updated_ms", BigInteger),
)
stake = Table(
    "stake",
    metadata,
    Column("agent_did", Text, primary_key=True),
    Column("free_account_id", BigInteger),
    Column("locked_account_id", BigInteger),
    Column("updated_ms", BigInteger),
)
reputation = Table(
    "reputation",
    metadata,
    Column("agent_did", Text, primary_key=True),
    Column("total", BigInteger),
    Column("successful", BigInteger),
    Column("failed", BigInteger),
    Column("cancelled", BigInteger),
    Column("latency_ms_sum", BigInteger),
    Column("updated_ms", BigInteger),
)
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
