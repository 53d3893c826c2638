"""The tables of work: workflows, their nodes and attempts, auctions with their bids.

Reference: features.md (Workflows), money.md (Auctions).
"""

from __future__ import annotations

from typing import Final

from ledger.tables.table import Table
from ledger.tables.writes import NOW, Guard, change, insert, upsert

# spent_micro: written when the workflow ends. Until then readers compute it from the escrow.
# traceparent: the publish request's traceparent as version 00 (W3C Trace Context). NULL: the
# request had no valid one.
# template_id, template_version: the trigger that started the workflow. NULL: no trigger did.
# webhook_url: the URL that gets a message when the workflow ends.
# is_halted: a step was refused. The next step must be decided from rows that were read again.
# quarantined_ms, quarantine_code: when and why the workflow was quarantined. Both stay when the
# workflow ends, and are cleared when it is resumed.
WORKFLOW: Final = Table.of(
    "workflow",
    "id uuid PRIMARY KEY",
    "task_id uuid NOT NULL UNIQUE",
    "payer_did text NOT NULL",
    "status text NOT NULL CHECK (status IN ('pending', 'running', 'success', 'failed', "
    "'cancelled', 'timeout'))",
    "intent text NOT NULL",
    "manifest text NOT NULL",
    "created_ms bigint NOT NULL",
    "started_ms bigint",
    "completed_ms bigint",
    "deadline_ms bigint NOT NULL",
    "estimate_micro bigint NOT NULL CHECK (estimate_micro >= 0)",
    "hold_micro bigint NOT NULL CHECK (hold_micro >= 0)",
    "reserved text NOT NULL",
    "fee_bps integer NOT NULL",
    "spent_micro bigint",
    "error json",
    "end_reason text",
    "end_details text",
    "ended_by_did text",
    "traceparent text",
    "template_id uuid",
    "template_version integer CHECK ((template_version IS NULL) = (template_id IS NULL))",
    "webhook_url text",
    "is_halted boolean NOT NULL DEFAULT false",
    "quarantined_ms bigint",
    "quarantine_code text",
    "CHECK ((quarantined_ms IS NULL) = (quarantine_code IS NULL))",
    "CHECK ((completed_ms IS NULL) = (status IN ('pending', 'running')))",
    storage="fillfactor = 85",
)
# Each column except the key has the name of a field of `NodeChanged` (core/workflow/events.py).
# A row is inserted when its node leaves `pending`; readers add the other nodes from the manifest.
# result_ref: {"$blob": "sha256:…", "size": n}. A node with it has no result_json.
# input_hash: the hash of the inputs of an accepted attempt, until the result arrives.
# selection_json: why the agent was selected. price_json: the agent's rates per token; NULL: a fixed
# price.
# stake_micro: the part of the agent's stake that the open attempt locks.
# promised_ms: the promised time of the open attempt. is_own: whether the payer owns the agent.
# counts_as: how the node's end counts for the agent's reputation.
# auction_closes_ms: until when the auction round accepts bids.
# key_version: the version of the deployment key from which the attempt's tokens are derived. 0: the
# node was never dispatched.
NODE: Final = Table.of(
    "node",
    "workflow_id uuid NOT NULL",
    "name text NOT NULL",
    "status text NOT NULL CHECK (status IN ('pending', 'ready', 'dispatched', 'running', "
    "'success', 'failed', 'skipped', 'timeout'))",
    "attempt integer NOT NULL DEFAULT 0",
    "agent_did text",
    "price_micro bigint NOT NULL DEFAULT 0",
    "dispatched_ms bigint",
    "deadline_ms bigint",
    "retry_at_ms bigint",
    "retries_used integer NOT NULL DEFAULT 0",
    "agents_tried json",
    "verifier_did text",
    "verify_attempt integer NOT NULL DEFAULT 0",
    "verifier_price_micro bigint NOT NULL DEFAULT 0",
    "verify_retries_used integer NOT NULL DEFAULT 0",
    "verifiers_tried json",
    "result_json text",
    "result_ref json",
    "error json",
    "started_ms bigint",
    "completed_ms bigint",
    "cost_micro bigint NOT NULL DEFAULT 0 CHECK (cost_micro >= 0)",
    "metrics json",
    "input_hash text",
    "selection_json text",
    "price_json text",
    "stake_micro bigint NOT NULL DEFAULT 0 CHECK (stake_micro >= 0)",
    "auction_round integer NOT NULL DEFAULT 0",
    "auction_closes_ms bigint",
    "key_version smallint NOT NULL DEFAULT 0 CHECK (key_version >= 0)",
    "promised_ms bigint NOT NULL DEFAULT 10000 CHECK (promised_ms >= 0)",
    "is_own boolean NOT NULL DEFAULT false",
    "counts_as text CHECK (counts_as IN ('successful', 'failed', 'cancelled'))",
    "PRIMARY KEY (workflow_id, name)",
    "CONSTRAINT node_result_once CHECK (result_json IS NULL OR result_ref IS NULL)",
    storage="fillfactor = 70",
)
# queued_ms: when the attempt was opened; started_ms: when its request was sent; completed_ms: when
# its reply or result arrived. signature: the agent's signature of its result. signed_key: the
# public key that verifies it, base64.
ATTEMPT: Final = Table.of(
    "attempt",
    "workflow_id uuid NOT NULL",
    "id bigint GENERATED ALWAYS AS IDENTITY",
    "node text NOT NULL",
    "attempt integer NOT NULL",
    "kind text NOT NULL CHECK (kind IN ('primary', 'verify'))",
    "agent_did text NOT NULL",
    "outcome text NOT NULL CHECK (outcome IN ('success', 'error', 'timeout', 'lost', "
    "'discarded', 'rejected'))",
    "started_ms bigint NOT NULL",
    "completed_ms bigint NOT NULL",
    "input_hash text",
    "output_hash text",
    "error_code text",
    "error_message text",
    "queued_ms bigint",
    "signature text",
    "signed_key text",
    "PRIMARY KEY (workflow_id, id)",
)
# The terms of an open round never change, and a round closes once. excluded: by agent, why its bid
# was left out.
AUCTION: Final = Table.of(
    "auction",
    "workflow_id uuid NOT NULL",
    "node text NOT NULL",
    "round integer NOT NULL CHECK (round > 0)",
    "capability_id text NOT NULL",
    "reserve_micro bigint NOT NULL CHECK (reserve_micro >= 0)",
    "stake_bps integer NOT NULL CHECK (stake_bps BETWEEN 0 AND 10000)",
    "opened_ms bigint NOT NULL",
    "closes_ms bigint NOT NULL CHECK (closes_ms >= opened_ms)",
    "status text NOT NULL CHECK (status IN ('open', 'awarded', 'no_bids', 'cancelled'))",
    "winner_did text",
    "price_micro bigint CHECK (price_micro BETWEEN 0 AND reserve_micro)",
    "excluded json",
    "closed_ms bigint",
    "PRIMARY KEY (workflow_id, node, round)",
    "CHECK ((status = 'open') = (closed_ms IS NULL))",
    "CHECK ((status = 'awarded') = (winner_did IS NOT NULL AND price_micro IS NOT NULL))",
    storage="fillfactor = 70",
)
# Live bids are stored when they are received. Standing bids of cards are stored when the round
# closes. stake_offered_micro NULL: the bidder offers as much as the round requires.
# stake_locked_micro: the bidder's stake that is locked until the round closes.
BID: Final = Table.of(
    "bid",
    "workflow_id uuid NOT NULL",
    "node text NOT NULL",
    "round integer NOT NULL",
    "agent_did text NOT NULL",
    "amount_micro bigint NOT NULL CHECK (amount_micro BETWEEN 0 AND 1000000000000000)",
    "eta_ms bigint CHECK (eta_ms >= 0)",
    "stake_offered_micro bigint CHECK (stake_offered_micro >= 0)",
    "is_standing boolean NOT NULL",
    "received_ms bigint NOT NULL",
    "stake_locked_micro bigint NOT NULL DEFAULT 0 CHECK (stake_locked_micro >= 0)",
    "PRIMARY KEY (workflow_id, node, round, agent_did)",
)

WORKFLOWS: Final = insert(
    WORKFLOW, without=("is_halted", "quarantined_ms", "quarantine_code"), is_frequent=True
)
_CHANGED: Final = (
    "status", "started_ms", "completed_ms", "spent_micro", "error", "end_reason", "end_details",
    "ended_by_did",
)  # fmt: skip
# Workflows that have started or ended.
WORKFLOW_CHANGES: Final = change(
    WORKFLOW,
    _CHANGED,
    where="o.completed_ms IS NULL",
    computed={"started_ms": "coalesce(o.started_ms, r.started_ms)"},
    guard=Guard("CB003", "a finished or unknown workflow would change"),
    is_frequent=True,
)
# Workflows that were halted, resumed or quarantined.
HALTS: Final = change(
    WORKFLOW,
    ["is_halted", "quarantine_code"],
    computed={
        "quarantined_ms": "CASE WHEN r.quarantine_code IS NOT NULL"
        f" THEN coalesce(o.quarantined_ms, {NOW}) END"
    },
)
NODES: Final = upsert(
    NODE,
    only_if="o.status <> 'success'",
    guard=Guard("CB004", "a node that succeeded would change"),
    is_frequent=True,
)
# Nodes whose stake lock was ended by a fraud dispute or an administrator while the attempt was
# open.
ENDED_LOCKS: Final = change(NODE, computed={"stake_micro": "0"})
ATTEMPTS: Final = insert(ATTEMPT, without=("id",), is_frequent=True)
AUCTIONS: Final = insert(
    AUCTION,
    fixed={"status": "'open'"},
    without=("winner_did", "price_micro", "excluded", "closed_ms"),
)
CLOSED_AUCTIONS: Final = change(
    AUCTION,
    ["status", "winner_did", "price_micro", "excluded"],
    where="o.status = 'open'",
    computed={"closed_ms": NOW},
    guard=Guard("CB003", "an auction would close twice"),
)
BIDS: Final = insert(BID)
