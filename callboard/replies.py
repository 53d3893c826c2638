"""What requests return, by the names of the service's document: one record type per schema.

Spec: Resources and their fields; contract.md section 6.
"""

from __future__ import annotations

from typing import Any

from callboard.errors import STILL_RUNNING, StillRunning, WorkflowFailed
from callboard.record import Json, Page, Record

FINISHED = frozenset({"success", "failed", "cancelled", "timeout"})

# Credits, at most 6 decimals; text where a double would round.
Credits = float | str

# -- workflows -------------------------------------------------------------------------------------


class ResultRef(Record):
    """Where a result is that the record has no room for."""

    sha256: str
    size: int


class Quarantine(Record):
    """Since when a workflow waits for being resumed, and why."""

    since: str
    code: str


class Node(Record):
    """A node of a workflow as it stands."""

    status: str
    result: Json | None
    result_ref: ResultRef | None
    error: Json | None
    agent_did: str | None
    attempts: int | None
    started_at: str | None
    completed_at: str | None
    metrics: Json | None
    cost_credits: Credits | None


class Workflow(Record):
    """A workflow record."""

    id: str
    workflow_id: str
    task_id: str
    status: str
    intent: str | None
    payer_did: str | None
    nodes: dict[str, Node]
    created_at: str
    started_at: str | None
    completed_at: str | None
    trace_id: str | None
    spent_credits: Credits | None
    error: Json | None
    quarantine: Quarantine | None

    @property
    def is_finished(self) -> bool:
        """Whether it has ended, well or not."""
        return self.status in FINISHED

    @property
    def results(self) -> dict[str, Json]:
        """The result of every node that has one."""
        return {name: node.result for name, node in self.nodes.items() if node.result is not None}


class Published(Record):
    """What publishing answers: the ids; with a wait, the whole record once it has ended."""

    id: str | None
    workflow_id: str
    task_id: str
    status: str


class BulkPublished(Record):
    """A reply or a problem for each workflow, in order."""

    results: list[Json]


class Cancelled(Record):
    """A cancelled workflow."""

    success: bool
    workflow_id: str
    status: str
    cancelled_at: str
    cancelled_by: str
    nodes_affected: int
    refunded_credits: Credits


class Resumed(Record):
    """A workflow that is driven on."""

    success: bool
    id: str | None
    workflow_id: str
    status: str
    resumed_at: str
    resumed_by: str


class NodeResultTaken(Record):
    """A result that was handed in and taken."""

    success: bool
    ok: bool | None
    workflow_id: str
    node_id: str
    attempt: int
    status: str


class WorkflowPage(Page[Workflow]):
    """A page of workflows, newest first."""

    plural = "workflows"
    row = Workflow


def successful(record: Workflow) -> Workflow:
    """Return the record of a workflow that has succeeded.

    Raises:
        StillRunning: it has not ended.
        WorkflowFailed: it has ended otherwise.
    """
    if record.status == "success":
        return record
    if not record.is_finished:
        waiting = f"workflow {record.id} is {record.status}"
        raise StillRunning(STILL_RUNNING, 200, waiting)
    failed = {name: node.error for name, node in record.nodes.items() if node.error}
    # What follows from a failure of another node is the lesser reason.
    first = next((n for n, e in failed.items() if e.get("code") != "UPSTREAM_FAILED"), None)
    error = record.error or (failed[first] if first is not None else {})
    code = str(error.get("code") or record.status.upper())
    reason = error.get("message") or error.get("error") or record.status
    where = "" if first is None else f" at node {first}"
    detail = f"workflow {record.id} ended as {record.status}{where}: {reason}"
    raise WorkflowFailed(code, 200, detail, record)


# -- agents ----------------------------------------------------------------------------------------


class Registered(Record):
    """A registration; `heartbeat_token` is the Bearer token for heartbeats."""

    ok: bool
    success: bool
    id: str | None
    did: str
    agent_id: str | None
    registered: int
    heartbeat_token: str | None


class Deregistered(Record):
    """An agent that is out of service."""

    ok: bool
    success: bool
    did: str
    status: str


class HeartbeatTaken(Record):
    """A heartbeat's answer; `ttl_ms` is how long it speaks."""

    ok: bool
    ack: bool
    did: str | None
    status: str | None
    availability: str | float
    ttl_ms: int | None


class Live(Record):
    """What an agent has last said of itself, and what asking it showed."""

    status: str | None
    load: float | None
    queue_depth: int | None
    version: str | None
    latency_ms: float | None
    heartbeat_at: str | None
    probed_at: str | None
    is_probe_ok: bool | None


class Agent(Record):
    """A registered agent with its card."""

    did: str
    endpoint: str
    version: int | None
    capabilities: list[Json]
    acard: Json
    owner_did: str | None
    status: str | None
    is_revoked: bool | None
    registered_at: str | None
    updated_at: str | None
    availability: str | None
    live: Live | None


class AgentPage(Page[Agent]):
    """A page of agents."""

    plural = "agents"
    row = Agent


class Revocation(Record):
    """Whether an agent is revoked, since when and why."""

    success: bool | None
    id: str | None
    did: str
    revoked: bool
    reason: str | None
    revoked_at: str | None
    expires_at: str | None
    revoked_by_did: str | None
    evidence: Json | None
    unrevoked_at: str | None


class RevocationPage(Page[Revocation]):
    """A page of revocations."""

    plural = "revoked"
    row = Revocation


# -- money -----------------------------------------------------------------------------------------


class Balance(Record):
    """A wallet; `pending` is held in escrows of running workflows."""

    owner_did: str
    balance: Credits
    credits: Credits
    currency: str
    pending: Credits


class Entry(Record):
    """One transfer of credits."""

    id: int
    debit_account_id: int
    credit_account_id: int
    amount: Credits
    kind: str | None
    description: str
    workflow_id: str | None
    node_id: str | None
    created_at: str


class Deposited(Record):
    """A deposit's entry and the new balance."""

    success: bool
    id: int
    entry: Entry
    balance: Credits
    currency: str


class EntryPage(Page[Entry]):
    """A page of a wallet's entries, newest first."""

    plural = "transactions"
    row = Entry


class Account(Record):
    """An owner's account."""

    id: int
    owner_did: str
    balance: Credits
    currency: str
    created_at: str


class Price(Record):
    """A capability's registered price: cents a node, or `pricing` per token."""

    success: bool | None
    id: str | None
    capability_id: str
    price_cents: int | None
    pricing: Json | None
    set_by_did: str
    updated_at: str


class Stake(Record):
    """An agent's stake; moving it answers with the wallet's balance as well."""

    success: bool | None
    id: str | None
    agent_did: str
    staked_amount: Credits
    locked_amount: Credits
    currency: str | None
    updated_at: str | None
    wallet_did: str | None
    balance: Credits | None


class StakeSlashed(Record):
    """What was taken of an agent's stake for a node."""

    success: bool
    id: str | None
    agent_did: str
    workflow_id: str
    node_id: str
    payer_did: str
    credits_slashed: Credits
    staked_amount: Credits
    locked_amount: Credits
    currency: str | None


class Reputation(Record):
    """An agent's reputation."""

    agent_did: str
    overall_score: float
    success_rate: float
    completion_rate: float | None
    avg_latency_ms: int | None
    total_tasks: int
    successful_tasks: int
    failed_tasks: int
    cancelled_tasks: int
    updated_at: str | None


class ReputationCompared(Record):
    """Whether every agent's counts are those of history."""

    success: bool
    is_same: bool
    agents: int
    differences: list[Json]
    rebuilt: int


class Limits(Record):
    """What a payer may publish; None has no limit."""

    max_workflows_per_day: int | None
    max_concurrent_workflows: int | None
    max_spend_per_day_cents: int | None


class Usage(Record):
    """What a payer has published today and has running."""

    daily_workflows: int
    daily_spend_cents: int
    concurrent_workflows: int


class Quota(Limits):
    """A payer's quota."""

    success: bool | None
    id: str
    did: str
    limits: Limits | None
    current_usage: Usage | None
    resets_at: str | None
    set_by_did: str | None
    updated_at: str | None


class QuotaCheck(Record):
    """Whether a payer may publish now, and why not."""

    allowed: bool
    reason: str
    current_usage: Usage
    limits: Limits | None
    resets_at: str


# -- invoices, disputes, feedback, tasks -----------------------------------------------------------


class InvoiceLine(Record):
    """One payment or refund on an invoice."""

    entry_id: int
    kind: str
    workflow_id: str | None
    node_id: str | None
    amount_credits: Credits
    created_at: str | None


class Invoice(Record):
    """An invoice; read alone, with its lines."""

    success: bool | None
    id: str
    invoice_id: str
    payer_did: str
    period_start: str | None
    period_end: str | None
    workflow_id: str | None
    subtotal_cents: int
    protocol_fee_cents: int
    total_cents: int
    currency: str | None
    status: str
    created_at: str
    settled_at: str | None
    settled_by: str | None
    line_count: int | None
    lines: list[InvoiceLine] | None


class InvoicePage(Page[Invoice]):
    """A page of invoices, newest first."""

    plural = "invoices"
    row = Invoice


class Dispute(Record):
    """A dispute and, once decided, its resolution."""

    success: bool | None
    id: str
    dispute_id: str
    workflow_id: str | None
    node_id: str | None
    complainant_did: str
    respondent_did: str | None
    dispute_type: str
    description: str
    evidence: Json | None
    status: str
    resolution: str | None
    credits_asked: Credits | None
    credits_refunded: Credits
    credits_short: Credits | None
    credits_slashed: Credits | None
    created_at: str
    resolved_at: str | None
    resolved_by: str | None


class DisputePage(Page[Dispute]):
    """A page of disputes, newest first."""

    plural = "disputes"
    row = Dispute


class Feedback(Record):
    """A payer's rating of an agent's work in a workflow, 0 to 1."""

    success: bool | None
    workflow_id: str
    agent_did: str
    payer_did: str
    rating: float
    comment: str | None
    created_at: str


class TaskPublished(Record):
    """A published task."""

    success: bool | None
    id: str | None
    task_id: str
    workflow_id: str
    capability_id: str
    status: str


class Task(Record):
    """A task: the view of a workflow as one piece of work."""

    id: str
    task_id: str
    workflow_id: str
    status: str
    description: str | None
    result: Any
    error: Json | None
    agent_did: str | None
    metrics: Json | None
    spent_credits: Credits | None
    created_at: str
    started_at: str | None
    completed_at: str | None


# -- auctions --------------------------------------------------------------------------------------


class Bid(Record):
    """A bid for a node."""

    success: bool | None
    workflow_id: str
    node_id: str
    round: int
    task_id: str | None
    agent_did: str
    bid_amount: Credits
    eta_ms: int | None
    stake_offered: Credits | None
    received_at: str
    closes_at: str


class BidShown(Record):
    """A bid as a closed round shows it."""

    agent_did: str
    bid_amount: Credits
    eta_ms: int | None
    stake_offered: Credits | None
    received_at: str | None
    is_standing: bool
    excluded: str | None


class AuctionRound(Record):
    """One round of an auction; `bids` once it has closed."""

    round: int
    status: str
    reserve_credits: Credits | None
    stake_bps: int | None
    opened_at: str | None
    closes_at: str | None
    closed_at: str | None
    winner_did: str | None
    price_credits: Credits | None
    bids: list[BidShown] | None


class Auction(Record):
    """The auction of a node: its newest round, and all rounds."""

    workflow_id: str
    node_id: str
    capability_id: str
    round: int
    status: str
    reserve_credits: Credits
    stake_bps: int
    opened_at: str | None
    closes_at: str | None
    closed_at: str | None
    winner_did: str | None
    price_credits: Credits | None
    rounds: list[AuctionRound]


# -- audit, keys, health ---------------------------------------------------------------------------


class AuditEntry(Record):
    """One entry of the audit chain."""

    id: int
    event_type: str
    actor_did: str
    target_type: str
    target_id: str
    action: str
    payload: Json
    hash: str
    prev_hash: str
    created_at: str


class AuditPage(Page[AuditEntry]):
    """A page of audit entries, newest first."""

    plural = "entries"
    row = AuditEntry


class Key(Record):
    """An API key; `key` is its secret, in the reply that made it and never again."""

    success: bool | None
    key: str | None
    id: str
    key_id: str
    owner_did: str
    name: str | None
    scopes: list[str]
    rate_class: str | None
    rate_limits: Json | None
    created_at: str | None
    expires_at: str | None
    revoked_at: str | None
    parent_id: str | None


class KeyPage(Page[Key]):
    """A page of keys."""

    plural = "keys"
    row = Key


class KeyRevoked(Record):
    """A revoked key; `ended_keys` counts it and all made with it."""

    success: bool
    id: str
    key_id: str
    ended_keys: int | None


class Health(Record):
    """The service's health."""

    status: str
    version: str
    components: Json
