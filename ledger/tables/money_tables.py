"""The tables that hold money: accounts, the entries that move it, escrows, stakes, invoices.

Reference: money.md (Rules that the database enforces, Settlement).
"""

from __future__ import annotations

from typing import Final

from ledger.tables.table import Table
from ledger.tables.writes import CHANGED, NOW, Guard, change, insert, upsert

# All money is in accounts. Only the trigger on `entry` changes balances. The writer has no right to
# update accounts.
# At most 9 * 10^18 micro-credits are issued in total, so no account can overflow.
ACCOUNT: Final = Table.of(
    "account",
    "id bigint PRIMARY KEY",
    "address text NOT NULL UNIQUE",
    "owner_did text",
    "kind text NOT NULL CHECK (kind IN ('external', 'wallet', 'escrow', 'stake', "
    "'stake_locked', 'fee'))",
    "balance bigint NOT NULL DEFAULT 0",
    "currency text NOT NULL DEFAULT 'CREDITS' CHECK (currency = 'CREDITS')",
    "created_ms bigint NOT NULL",
    "CONSTRAINT account_balance_bounds CHECK (balance <= 9000000000000000000"
    " AND balance >= CASE WHEN kind = 'external' THEN -9000000000000000000 ELSE 0 END)",
    storage="fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02",
)
# audit_id: the audit entry of the command that moved the money.
ENTRY: Final = Table.of(
    "entry",
    "id bigint PRIMARY KEY",
    "debit_account_id bigint NOT NULL",
    "credit_account_id bigint NOT NULL",
    "amount bigint NOT NULL CHECK (amount BETWEEN 1 AND 1000000000000000)",
    "kind text NOT NULL CHECK (kind IN ('deposit', 'escrow_hold', 'node_payment', "
    "'protocol_fee', 'escrow_release', 'stake_deposit', 'stake_withdrawal', 'stake_lock', "
    "'stake_unlock', 'stake_slash', 'refund', 'fee_refund', 'stake_refund', 'inheritance', "
    "'collection'))",
    "description text NOT NULL",
    "workflow_id uuid",
    "node_id text",
    "audit_id bigint NOT NULL",
    "created_ms bigint NOT NULL",
    "CHECK (debit_account_id <> credit_account_id)",
)
ESCROW: Final = Table.of(
    "escrow",
    "workflow_id uuid PRIMARY KEY",
    "payer_did text NOT NULL",
    "account_id bigint NOT NULL UNIQUE",
    "amount bigint NOT NULL CHECK (amount BETWEEN 0 AND 1000000000000000)",
    "fee_bps integer NOT NULL CHECK (fee_bps BETWEEN 0 AND 10000)",
    "status text NOT NULL CHECK (status IN ('held', 'released'))",
    "created_ms bigint NOT NULL",
    "released_ms bigint",
    storage="fillfactor = 80",
)
# A stake is two accounts, and a row of this table names them.
STAKE: Final = Table.of(
    "stake",
    "agent_did text PRIMARY KEY",
    "free_account_id bigint NOT NULL UNIQUE REFERENCES callboard.account (id)",
    "locked_account_id bigint NOT NULL UNIQUE REFERENCES callboard.account (id)",
    "updated_ms bigint NOT NULL",
    "changed_id bigint NOT NULL DEFAULT 0",
)
# The depositors' shares of a stake: deposits minus withdrawals, minus the losses until a share of
# this stake last changed. Later losses are divided in proportion to the shares.
STAKE_SHARE: Final = Table.of(
    "stake_share",
    "agent_did text NOT NULL",
    "depositor_did text NOT NULL",
    "micro bigint NOT NULL CHECK (micro BETWEEN 0 AND 1000000000000000)",
    "PRIMARY KEY (agent_did, depositor_did)",
)
INVOICE: Final = Table.of(
    "invoice",
    "id uuid PRIMARY KEY",
    "payer_did text NOT NULL",
    "period_start_ms bigint NOT NULL",
    "period_end_ms bigint NOT NULL CHECK (period_end_ms > period_start_ms)",
    "workflow_id uuid",
    "subtotal_cents bigint NOT NULL CHECK (subtotal_cents >= 0)",
    "protocol_fee_cents bigint NOT NULL CHECK (protocol_fee_cents >= 0)",
    "total_cents bigint NOT NULL",
    "subtotal_micro bigint NOT NULL CHECK (subtotal_micro >= 0)",
    "status text NOT NULL CHECK (status IN ('pending', 'paid', 'void'))",
    "created_ms bigint NOT NULL",
    "settled_ms bigint",
    "settled_by_did text",
    "CHECK (total_cents = subtotal_cents + protocol_fee_cents)",
)
# A payment is on at most one invoice that is not void. A trigger checks that the invoice exists: a
# foreign key would look up the same invoice for each line, which is half of a line's cost.
INVOICE_LINE: Final = Table.of(
    "invoice_line",
    "invoice_id uuid NOT NULL",
    "entry_id bigint NOT NULL",
    "amount_micro bigint NOT NULL CHECK (amount_micro > 0)",
    "is_void boolean NOT NULL DEFAULT false",
    "PRIMARY KEY (invoice_id, entry_id)",
)

# An account starts empty; the trigger on `entry` changes its balance.
ACCOUNTS: Final = insert(
    ACCOUNT, fixed={"created_ms": NOW}, without=("balance", "currency"), is_frequent=True
)
# Written before the entries that pay from escrows.
ESCROWS: Final = insert(
    ESCROW,
    fixed={"status": "'held'", "created_ms": NOW},
    without=("released_ms",),
    is_frequent=True,
)
ENTRIES: Final = insert(ENTRY, fixed={"created_ms": NOW}, is_frequent=True)
RELEASES: Final = change(
    ESCROW,
    where="o.status = 'held'",
    computed={"status": "'released'", "released_ms": NOW},
    guard=Guard("CB003", "an escrow would be released twice"),
    is_frequent=True,
)
STAKES: Final = upsert(
    STAKE,
    fixed={"updated_ms": NOW, "changed_id": CHANGED},
    kept=("free_account_id", "locked_account_id"),
)
STAKE_SHARES: Final = upsert(STAKE_SHARE)
INVOICES: Final = insert(
    INVOICE,
    fixed={"status": "'pending'", "created_ms": NOW},
    without=("settled_ms", "settled_by_did"),
)
INVOICE_LINES: Final = insert(INVOICE_LINE, without=("is_void",))
SETTLED_INVOICES: Final = change(
    INVOICE,
    ["status", "settled_by_did"],
    where="o.status = 'pending'",
    computed={"settled_ms": NOW},
    guard=Guard("CB003", "an invoice would be settled twice"),
)
# A row names an invoice. All lines of the invoice become void, so its payments can be invoiced
# again.
VOIDED_LINES: Final = change(
    INVOICE_LINE, key=("invoice_id",), where="NOT o.is_void", computed={"is_void": "true"}
)
