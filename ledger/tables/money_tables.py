"""The tables that hold money: accounts, the entries that move it, escrows, stakes, invoices.

money.md (Rules that the database enforces, Settlement).
"""

from __future__ import annotations

from typing import Final

from ledger.tables.table import Table
from ledger.tables.writes import NOW, Guard, change, insert, upsert

ACCOUNT: Final = Table.of(
    "account",
    "id bigint",
    "address text",
    "owner_did text",
    "kind text",
    "balance bigint",
    "currency text",
    "created_ms bigint",
)
ENTRY: Final = Table.of(
    "entry",
    "id bigint",
    "debit_account_id bigint",
    "credit_account_id bigint",
    "amount bigint",
    "kind text",
    "description text",
    "workflow_id uuid",
    "node_id text",
    "audit_id bigint",
    "created_ms bigint",
)
ESCROW: Final = Table.of(
    "escrow",
    "workflow_id uuid",
    "payer_did text",
    "account_id bigint",
    "amount bigint",
    "fee_bps integer",
    "status text",
    "created_ms bigint",
    "released_ms bigint",
)
STAKE: Final = Table.of(
    "stake",
    "agent_did text",
    "free_account_id bigint",
    "locked_account_id bigint",
    "updated_ms bigint",
)
STAKE_SHARE: Final = Table.of(
    "stake_share",
    "agent_did text",
    "depositor_did text",
    "micro bigint",
)
INVOICE: Final = Table.of(
    "invoice",
    "id uuid",
    "payer_did text",
    "period_start_ms bigint",
    "period_end_ms bigint",
    "workflow_id uuid",
    "subtotal_cents bigint",
    "protocol_fee_cents bigint",
    "total_cents bigint",
    "subtotal_micro bigint",
    "status text",
    "created_ms bigint",
    "settled_ms bigint",
    "settled_by_did text",
)
INVOICE_LINE: Final = Table.of(
    "invoice_line",
    "invoice_id uuid",
    "entry_id bigint",
    "amount_micro bigint",
    "is_void boolean",
)

# An account starts empty; the trigger on `entry` moves its balance.
ACCOUNTS: Final = insert(
    "accounts",
    ACCOUNT,
    fixed={"created_ms": NOW},
    without=("balance", "currency"),
    is_frequent=True,
)
ENTRIES: Final = insert("entries", ENTRY, fixed={"created_ms": NOW}, is_frequent=True)
ESCROWS: Final = insert(
    "escrows",
    ESCROW,
    fixed={"status": "'held'", "created_ms": NOW},
    without=("released_ms",),
    is_frequent=True,
)
RELEASES: Final = change(
    "releases",
    ESCROW,
    ["workflow_id"],
    key=("workflow_id",),
    where="o.status = 'held'",
    computed={"status": "'released'", "released_ms": NOW},
    guard=Guard("CB003", "an escrow would be released twice"),
    is_frequent=True,
)
STAKES: Final = upsert(
    "stakes",
    STAKE,
    ("agent_did",),
    fixed={"updated_ms": NOW},
    kept=("free_account_id", "locked_account_id"),
)
STAKE_SHARES: Final = upsert("stake_shares", STAKE_SHARE, ("agent_did", "depositor_did"))
INVOICES: Final = insert(
    "invoices",
    INVOICE,
    fixed={"status": "'pending'", "created_ms": NOW},
    without=("settled_ms", "settled_by_did"),
)
INVOICE_LINES: Final = insert("invoice_lines", INVOICE_LINE, without=("is_void",))
SETTLED_INVOICES: Final = change(
    "settled_invoices",
    INVOICE,
    ["id", "status", "settled_by_did"],
    key=("id",),
    where="o.status = 'pending'",
    computed={"settled_ms": NOW},
    guard=Guard("CB003", "an invoice would be settled twice"),
)
# By invoice: its payments can be on another one.
VOIDED_LINES: Final = change(
    "voided_lines",
    INVOICE_LINE,
    ["invoice_id"],
    key=("invoice_id",),
    where="NOT o.is_void",
    computed={"is_void": "true"},
)
