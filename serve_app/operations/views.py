"""Converts database rows to the JSON records of replies.

`shown` converts a row by the declaration of the record in `core/records/api`, so the names of
members are written only there. Two kinds of records are built by hand. Workflows and their nodes
are built by hand for speed, because every publish that waits returns a workflow (`shown` takes 1 µs
more). Agents are built by hand because their record includes the members of the card.
Reference: features.md (Workflows), money.md (Entries, Audit chain).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, get_args

from core.json_text import Raw, read_json
from core.market.agent_liveness import NO_SIGNALS, availability, drop_older_signals
from core.market.ranking import render_reasons
from core.market.reputation import LATENCY_MS_MAX, Tally, score
from core.market.sharing.quota import QuotaLimits, QuotaUsage
from core.money import CURRENCY, credits_number
from core.records.api.agents import Live
from core.records.api.kinds import Credits, Timestamp, Uuid
from core.records.api.market import Auction, BidShown, Entry, Round
from core.records.api.operators import Key
from core.records.api.record import Record
from core.records.api.shape import members_of
from core.records.manifest import read_stored_manifest
from core.records.statuses import Availability
from core.timestamps import iso_ms
from core.workflow.events import BlobRef
from core.workflow.traces import trace_of
from core.workflow.transitions import NodeStatus, WorkflowStatus, is_terminal
from core.workflow.workflow_state import CHOICE, WAITING_FOR, is_wait_record
from ledger.commands import Outcome
from ledger.features.agent_live import liveness_of
from ledger.reads.agent_pages import live_of
from ledger.reads.reader import RowDict, StoredWorkflow
from ledger.reads.stored import Balance
from serve_app.http.calls import Call

Row = Mapping[str, Any]


def iso_time(at_ms: int | None) -> str | None:
    """Return Unix milliseconds in the API's time format: UTC with milliseconds and `Z`."""
    return None if at_ms is None else iso_ms(at_ms)


def shown(declared: type[Record], row: Row, **others: Any) -> dict[str, Any]:
    """Return the JSON record of a row.

    A member has the value of the column with the same name. A time `created_at` comes from the
    column `created_ms`, and an amount `held_credits` from the column `held_micro`. A member that
    may be absent but not null is omitted if the column is null or missing.

    Args:
        declared: the declaration of the record.
        row: the row.
        others: values of members that have no column, keyed by their Python names.
    """
    record: dict[str, Any] = {}
    for name, json_name, column, convert, is_left_out in _columns(declared):
        if name in others:
            value = others[name]
        else:
            value = row.get(column) if is_left_out else row[column]
            if convert is not None and value is not None:
                value = convert(value)
        if value is not None or not is_left_out:
            record[json_name] = value
    return record


def shown_result(declared: type[Record], outcome: Outcome, **others: Any) -> dict[str, Any]:
    """Return the JSON record of a command's outcome, with `success: true`.

    Args:
        declared: the declaration of the record.
        outcome: the outcome; the members of its result are column names in camel case.
        others: as for `shown`.
    """
    row = {_CAPITAL.sub(_snake, name): value for name, value in outcome.result.items()}
    return shown(declared, row, success=True, **others)


_CAPITAL: Final = re.compile("[A-Z]")


def _snake(capital: re.Match[str]) -> str:
    return f"_{capital[0].lower()}"


_CONVERTED: Final[Mapping[Any, tuple[str, str, Callable[[Any], Any]]]] = {
    get_args(Timestamp)[1]: ("_at", "_ms", iso_ms),
    get_args(Credits)[1]: ("_credits", "_micro", credits_number),
    get_args(Uuid)[1]: ("", "", str),
}


@cache
def _columns(
    declared: type[Record],
) -> tuple[tuple[str, str, str, Callable[[Any], Any] | None, bool], ...]:
    """Return for each member: Python name, JSON name, column, conversion, is null omitted."""
    found = []
    for member in members_of(declared):
        suffix, unit, convert = _CONVERTED.get(member.kind, ("", "", None))
        column = member.name.removesuffix(suffix) + unit
        is_left_out = member.may_be_absent and not member.may_be_null
        found.append((member.name, member.json_name, column, convert, is_left_out))
    return tuple(found)


def workflow_summary(row: Row) -> dict[str, Any]:
    """Return a workflow's record without its nodes, as lists show it."""
    workflow_id = str(row["id"])
    of_trigger = {}
    if row["template_id"] is not None:
        of_trigger["templateId"] = str(row["template_id"])
        of_trigger["templateVersion"] = row["template_version"]
    return {
        **of_trigger,
        "id": workflow_id,
        "workflowId": workflow_id,
        "taskId": str(row["task_id"]),
        "status": row["status"],
        "intent": row["intent"],
        "payerDid": row["payer_did"],
        "createdAt": iso_time(row["created_ms"]),
        "startedAt": iso_time(row["started_ms"]),
        "completedAt": iso_time(row["completed_ms"]),
        "traceId": trace_of(workflow_id, row["traceparent"]).trace_id,
        "spentCredits": credits_number(row["spent_micro"]),
        "error": _json(row["error"]),
        "quarantine": _quarantine(row),
    }


def _quarantine(row: Row) -> dict[str, Any] | None:
    """Return the time and the reason of a workflow's quarantine, also if the workflow has ended."""
    if row["quarantined_ms"] is None:
        return None
    return {"since": iso_time(row["quarantined_ms"]), "code": row["quarantine_code"]}


def workflow_record(stored: StoredWorkflow) -> dict[str, Any]:
    """Return a workflow's record, built from its row, the rows of its nodes and its manifest.

    A node without a row is `pending`, or `skipped` if the workflow has ended.
    """
    record = workflow_summary(stored.row)
    rows = {node["name"]: node for node in stored.nodes}
    is_over = is_terminal(WorkflowStatus(stored.status))
    unseen = NodeStatus.SKIPPED if is_over else NodeStatus.PENDING
    nodes: dict[str, Any] = {}
    for name, definition in read_stored_manifest(stored.row["manifest"]).nodes.items():
        nodes[name] = node_state(rows[name]) if name in rows else {"status": unseen}
        if definition.depends_on:
            nodes[name]["dependsOn"] = definition.depends_on
    record["nodes"] = nodes
    return record


# The members of a workflow's record that an agent sees, besides its own nodes. The payer, the
# purpose and the cost stay hidden.
_SEEN_BY_AGENTS: Final = (
    "id",
    "workflowId",
    "taskId",
    "status",
    "createdAt",
    "startedAt",
    "completedAt",
    "traceId",
)


def visible_workflow(stored: StoredWorkflow, call: Call) -> dict[str, Any] | None:
    """Return the part of a workflow's record that the caller may see; None for other callers.

    The payer and administrators see the complete record. An agent sees its own nodes and the
    members `_SEEN_BY_AGENTS`.
    """
    if call.may((stored.payer_did,)):
        return workflow_record(stored)
    own = {node["name"] for node in stored.nodes if call.is_party((node["agent_did"],))}
    if not own:
        return None
    record = workflow_record(stored)
    nodes = {
        name: {member: value for member, value in node.items() if member != "selection"}
        for name, node in record["nodes"].items()
        if name in own
    }
    return {**{member: record[member] for member in _SEEN_BY_AGENTS}, "nodes": nodes}


def node_state(node: Row) -> dict[str, Any]:
    """Return one node of a workflow record."""
    state: dict[str, Any] = {"status": node["status"]}
    # A result is hidden until it is settled: the payer could read it and cancel without paying.
    is_settled = node["status"] == NodeStatus.SUCCESS
    if is_settled and node["result_json"] is not None:
        # The stored text is compact JSON already, so it is copied without parsing.
        state["result"] = Raw(node["result_json"])
    elif is_settled and node["result_ref"] is not None:
        ref = BlobRef.from_json(_json(node["result_ref"]))
        state["resultRef"] = {"sha256": ref.hash, "size": ref.size}
    error = _json(node["error"])
    if error is not None:
        state["error"] = error
    state["agentDid"] = node["agent_did"]
    state["attempts"] = node["attempt"]
    state["startedAt"] = iso_time(node["started_ms"])
    state["completedAt"] = iso_time(node["completed_ms"])
    metrics = _json(node["metrics"])
    if metrics is not None and not is_settled:
        # The agent reports all metrics except the latency, and could put the result into them.
        metrics = {name: value for name, value in metrics.items() if name == "latency_ms"}
    if metrics is not None:
        state["metrics"] = metrics
    selection = node["selection_json"]
    if is_wait_record(selection):
        kept = read_json(selection)
        selection = kept[CHOICE] and render_reasons(kept[CHOICE])
        if node["retry_at_ms"] is not None:
            told = kept[WAITING_FOR]
            since, until = iso_time(told["sinceMs"]), iso_time(node["retry_at_ms"])
            state["waitingFor"] = {"reason": told["reason"], "since": since, "until": until}
    if selection is not None:
        state["selection"] = Raw(selection)
    state["costCredits"] = credits_number(node["cost_micro"])
    return state


def entry_record(row: Row) -> dict[str, Any]:
    """Return a ledger entry. Reference: money.md (Entries)."""
    return shown(Entry, row, amount=credits_number(row["amount"]))


def current_card(row: Row) -> dict[str, Any]:
    """Return an agent's registered card. After a key rotation it has the agent's current key."""
    card: dict[str, Any] = read_json(row["card"])
    if row["key_number"] > 1:
        card["publicKey"] = row["public_key"]
    return card


def agent_record(row: Row, card: Row, now_ms: int) -> dict[str, Any]:
    """Return an agent's record: the members of its card, the complete card, and the agent's state.

    Args:
        row: the agent's row, as `LedgerReader.heard_agent` returns it.
        card: the agent's card, as `current_card` returns it.
        now_ms: the current Unix time in milliseconds, for the availability.
    """
    live = live_of(row)
    heard = None
    if live is not None:
        probed_at, is_ok = iso_time(live["probe_ms"]), live["probe_ok"]
        heard = shown(Live, live, probed_at=probed_at, is_probe_ok=is_ok)
    return {
        **card,
        "id": row["did"],
        "agentId": row["did"],
        "did": row["did"],
        "acard": card,
        "ownerDid": row["owner_did"],
        "ownership": {
            "ownerDid": row["owner_did"],
            "proven": row["proven_by"] is not None,
            "provenBy": row["proven_by"],
            "cardCounter": row["card_counter"],
        },
        "status": row["status"],
        "isRevoked": row["is_revoked"],
        "registeredAt": iso_time(row["registered_ms"]),
        "updatedAt": iso_time(row["updated_ms"]),
        "availability": availability_of(row, live, now_ms),
        "live": heard,
    }


def availability_of(row: Row, live: Row | None, now_ms: int) -> Availability:
    """Return the availability of an agent.

    Args:
        row: the agent's row.
        live: the row of the agent's heartbeats and probes; None if no row exists.
        now_ms: the current Unix time in milliseconds.
    """
    if row["status"] != "active":
        return Availability.INACTIVE
    if not row["endpoint"]:
        return Availability.OFFLINE
    known = NO_SIGNALS if live is None else liveness_of(live)
    return availability(drop_older_signals(known, row["updated_ms"]), now_ms)


def key_record(row: Row, declared: type[Record] = Key, **others: Any) -> dict[str, Any]:
    """Return the record of an API key. The secret is not stored, so `Key` lacks it."""
    limits = _json(row["rate_limits"])
    return shown(declared, row, key_id=row["id"], rate_limits=limits, **others)


def audit_id(row: Row) -> int:
    """Return the number of an audit entry."""
    return int(row["id"])


def audit_record(row: Row) -> dict[str, Any]:
    """Return an audit entry: its stored body and its hash, which a reader can recompute."""
    record: dict[str, Any] = read_json(row["body"])
    record["hash"] = f"sha256:{bytes(row['hash']).hex()}"
    return record


def audit_link(row: Row) -> dict[str, Any]:
    """Return the part of an audit entry that everyone may see: its id, event type and hash."""
    record = audit_record(row)
    return {member: record[member] for member in ("id", "eventType", "hash")}


def _json(value: Any) -> Any:
    return read_json(value) if isinstance(value, str | bytes) else value


def balance_record(did: str, balance: Balance) -> dict[str, Any]:
    """Return the balance of a DID, and the credits in escrow for its running workflows."""
    amount = credits_number(balance.balance_micro)
    return {
        "ownerDid": did,
        "balance": amount,
        "credits": amount,
        "currency": CURRENCY,
        "pending": credits_number(balance.pending_micro),
    }


def stake_record(
    agent_did: str, free_micro: int, locked_micro: int, updated_ms: int | None
) -> dict[str, Any]:
    """Return the record of an agent's stake.

    Args:
        agent_did: the agent.
        free_micro, locked_micro: the parts of the stake, micro-credits.
        updated_ms: the last change, Unix milliseconds.
    """
    return {
        "agentDid": agent_did,
        "stakedAmount": credits_number(free_micro + locked_micro),
        "lockedAmount": credits_number(locked_micro),
        "currency": CURRENCY,
        "updatedAt": iso_time(updated_ms),
    }


def reputation_record(agent_did: str, tally: Tally, updated_ms: int | None) -> dict[str, Any]:
    """Return an agent's reputation. An agent without history has a neutral score."""
    return {
        "agentDid": agent_did,
        "overallScore": score(tally, latency_ms_max=LATENCY_MS_MAX),
        "successRate": tally.success_rate,
        "completionRate": tally.completion_rate,
        "avgLatencyMs": tally.latency_ms_avg,
        "totalTasks": tally.total,
        "successfulTasks": tally.successful,
        "failedTasks": tally.failed,
        "cancelledTasks": tally.cancelled,
        "updatedAt": iso_time(updated_ms),
    }


def counts_record(tally: Tally) -> dict[str, int]:
    """Return the counts from which an agent's reputation is computed."""
    paid = tally.counted(asks_price=True)
    return {
        "successful": tally.successful,
        "failed": tally.failed,
        "cancelled": tally.cancelled,
        "latencyMs": tally.latency_ms_sum,
        "paidSuccessful": paid.successful,
        "paidFailed": paid.failed,
        "paidCancelled": paid.cancelled,
        "paidLatencyMs": paid.latency_ms_sum,
    }


def limits_record(limits: QuotaLimits | None) -> dict[str, int | None] | None:
    """Return the limits of a quota; None without a quota."""
    if limits is None:
        return None
    return {
        "maxWorkflowsPerDay": limits.workflows_per_day,
        "maxConcurrentWorkflows": limits.workflows_concurrent,
        "maxSpendPerDayCents": limits.spend_cents_per_day,
    }


def usage_record(usage: QuotaUsage) -> dict[str, int]:
    """Return the current usage of a quota."""
    return {
        "dailyWorkflows": usage.workflows_today,
        "dailySpendCents": usage.spend_cents_today,
        "concurrentWorkflows": usage.workflows_running,
    }


def auction_record(
    rounds: Sequence[Row], bids: Sequence[RowDict], may_read: Callable[[RowDict], bool]
) -> dict[str, Any]:
    """Return a node's auction: the terms and the outcome of the last round, and all rounds.

    Args:
        rounds: the rows of the rounds in order; at least one.
        bids: the bids of the closed rounds, lowest first.
        may_read: returns whether the caller may see a bid. Other bids are only counted.
    """
    last = rounds[-1]
    each = [{**shown(Round, row), **_bids_of(row, bids, may_read)} for row in rounds]
    return shown(Auction, last, node_id=last["node"], rounds=each)


def _bids_of(
    row: Row, bids: Iterable[RowDict], may_read: Callable[[RowDict], bool]
) -> dict[str, Any]:
    """Return the bids of a round, each with the reason why it could not win, if any.

    While the round is open, its bids are hidden.
    """
    excluded: Mapping[str, str] = row["excluded"] or {}
    made = [bid for bid in bids if bid["round"] == row["round"]]
    listed = [
        shown(
            BidShown,
            bid,
            bid_amount=credits_number(bid["amount_micro"]),
            excluded=excluded.get(bid["agent_did"]),
        )
        for bid in made
        if may_read(bid)
    ]
    return {
        "bids": None if row["status"] == "open" else listed,
        "unlistedBids": len(made) - len(listed),
    }
