"""The tables of work: workflows, their nodes and attempts, auctions with their bids.

Spec: Workflow record, Auctions.
"""

from __future__ import annotations

from typing import Final

from ledger.tables.table import Table
from ledger.tables.writes import NOW, Guard, change, insert, upsert

WORKFLOW: Final = Table.of(
    "workflow",
    "id uuid",
    "task_id uuid",
    "payer_did text",
    "status text",
    "intent text",
    "manifest text",
    "created_ms bigint",
    "started_ms bigint",
    "completed_ms bigint",
    "deadline_ms bigint",
    "estimate_micro bigint",
    "hold_micro bigint",
    "reserved text",
    "fee_bps integer",
    "spent_micro bigint",
    "error json",
    "end_reason text",
    "end_details text",
    "ended_by_did text",
    "is_halted boolean",
    "quarantined_ms bigint",
    "quarantine_code text",
)
# Besides its key a column has the name of a field of `NodeChanged` (core/workflow/events.py).
NODE: Final = Table.of(
    "node",
    "workflow_id uuid",
    "name text",
    "status text",
    "attempt integer = 0",
    "agent_did text",
    "price_micro bigint = 0",
    "dispatched_ms bigint",
    "deadline_ms bigint",
    "retry_at_ms bigint",
    "retries_used integer = 0",
    "agents_tried json",
    "verifier_did text",
    "verify_attempt integer = 0",
    "verifier_price_micro bigint = 0",
    "verify_retries_used integer = 0",
    "verifiers_tried json",
    "result_json text",
    "result_ref json",
    "error json",
    "started_ms bigint",
    "completed_ms bigint",
    "cost_micro bigint = 0",
    "metrics json",
    "input_hash text",
    "selection_json text",
    "price_json text",
    "stake_micro bigint = 0",
    "promised_ms bigint = 10000",
    "is_own boolean = false",
    "counts_as text",
    "auction_round integer = 0",
    "auction_closes_ms bigint",
    "key_version smallint = 0",
)
ATTEMPT: Final = Table.of(
    "attempt",
    "workflow_id uuid",
    "id bigint",
    "node text",
    "attempt integer",
    "kind text",
    "agent_did text",
    "outcome text",
    "started_ms bigint",
    "completed_ms bigint",
    "input_hash text",
    "output_hash text",
    "error_code text",
    "error_message text",
)
AUCTION: Final = Table.of(
    "auction",
    "workflow_id uuid",
    "node text",
    "round integer",
    "capability_id text",
    "reserve_micro bigint",
    "stake_bps integer",
    "opened_ms bigint",
    "closes_ms bigint",
    "status text",
    "winner_did text",
    "price_micro bigint",
    "excluded json",
    "closed_ms bigint",
)
BID: Final = Table.of(
    "bid",
    "workflow_id uuid",
    "node text",
    "round integer",
    "agent_did text",
    "amount_micro bigint",
    "eta_ms bigint",
    "stake_offered_micro bigint",
    "is_standing boolean",
    "received_ms bigint",
    "stake_locked_micro bigint = 0",
)

WORKFLOWS: Final = insert(
    "workflows",
    WORKFLOW,
    without=("is_halted", "quarantined_ms", "quarantine_code"),
    is_frequent=True,
)
# Those that started or ended.
WORKFLOW_CHANGES: Final = change(
    "workflow_changes",
    WORKFLOW,
    [
        "id",
        "status",
        "started_ms",
        "completed_ms",
        "spent_micro",
        "error",
        "end_reason",
        "end_details",
        "ended_by_did",
    ],
    key=("id",),
    where="o.completed_ms IS NULL",
    computed={"started_ms": "coalesce(o.started_ms, r.started_ms)"},
    guard=Guard("CB003", "a finished or unknown workflow would change"),
    is_frequent=True,
)
# Their next step is decided from the rows; or they are quarantined, or no longer.
HALTS: Final = change(
    "halts",
    WORKFLOW,
    ["id", "is_halted", "quarantine_code"],
    key=("id",),
    computed={
        "quarantined_ms": "CASE WHEN r.quarantine_code IS NOT NULL\n"
        f"    THEN coalesce(o.quarantined_ms, {NOW}) END"
    },
)
NODES: Final = upsert(
    "nodes",
    NODE,
    ("workflow_id", "name"),
    only_if="o.status <> 'success'",
    guard=Guard("CB004", "a node that succeeded would change"),
    is_frequent=True,
)
# Stake that a dispute has taken or freed while its attempt was open.
ENDED_LOCKS: Final = change(
    "ended_locks",
    NODE,
    ["workflow_id", "name"],
    key=("workflow_id", "name"),
    computed={"stake_micro": "0"},
)
ATTEMPTS: Final = insert("attempts", ATTEMPT, without=("id",), is_frequent=True)
AUCTIONS: Final = insert(
    "auctions",
    AUCTION,
    fixed={"status": "'open'"},
    without=("winner_did", "price_micro", "excluded", "closed_ms"),
)
CLOSED_AUCTIONS: Final = change(
    "closed_auctions",
    AUCTION,
    ["workflow_id", "node", "round", "status", "winner_did", "price_micro", "excluded"],
    key=("workflow_id", "node", "round"),
    where="o.status = 'open'",
    computed={"closed_ms": NOW},
    guard=Guard("CB003", "an auction would close twice"),
)
BIDS: Final = insert("bids", BID)
