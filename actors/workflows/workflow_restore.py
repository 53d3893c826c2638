"""Restores a running workflow from its rows; every start of an owner uses this path.

The stored manifest is compiled again, and the machine restores its state from the node rows. The
machine's decision is committed and performed like the decision of any other step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import DecodeError
from msgspec.structs import replace

from actors.workflows.running_workflow import RunningWorkflow
from core.errors import NodeErrorCode
from core.json_text import read_json
from core.records.manifest import parse_manifest, read_stored_manifest
from core.settings import Settings
from core.workflow.actions import Action
from core.workflow.dag import CompiledWorkflow, WorkflowLimits, compile_workflow
from core.workflow.events import (
    AuctionClosed,
    BlobRef,
    CancelRequested,
    NodeChanged,
    Record,
    RuntimeExceeded,
    StakeUnlocked,
    WorkflowChanged,
)
from core.workflow.machine import WorkflowMachine
from core.workflow.terms import reserved_from_json
from core.workflow.transitions import NodeStatus, WorkflowStatus, is_terminal
from ledger.reads.reader import RowDict, StoredWorkflow


class RowReads:
    """One runner's unfinished reads of rows, and the workflows that changed since each read began.

    This process may change a workflow while its rows are read. The rows may then be out of date, so
    the workflow is not restored from these rows.
    """

    def __init__(self) -> None:
        self._open: list[set[str]] = []

    @contextmanager
    def open(self) -> Iterator[set[str]]:
        """Begin a read. The block must contain the read and the restore of all its workflows.

        Yields: the set of ids of workflows whose rows in this read are out of date. The set grows
        during the read.
        """
        changed_ids: set[str] = set()
        self._open.append(changed_ids)
        try:
            yield changed_ids
        finally:
            self._open = [other for other in self._open if other is not changed_ids]

    def mark_changed(self, workflow_id: str) -> None:
        """Note that the workflow's rows in all unfinished reads are out of date."""
        for changed_ids in self._open:
            changed_ids.add(workflow_id)


def restore_workflow(
    stored: StoredWorkflow, settings: Settings, now_ms: int
) -> tuple[RunningWorkflow, list[Record], list[Action]]:
    """Return the restored workflow, with the records and the actions of its restore.

    Args:
        stored: an unfinished workflow's row and its node rows.
        settings: gives the version of the deployment's keys.
        now_ms: the time of the restore, Unix milliseconds.
    """
    row = stored.row
    reserved, terms = reserved_from_json(row["reserved"])
    machine = WorkflowMachine(
        stored.id,
        compile_stored_manifest(row["manifest"]),
        hold_micro=row["hold_micro"],
        reserved=reserved,
        terms=terms,
        deadline_ms=row["deadline_ms"],
        key_version=settings.deployment_keys.version,
    )
    decision = machine.restore(
        stored.status,
        [_node_changed(node) for node in stored.nodes],
        {node["name"]: node["agents_used"] or () for node in stored.nodes},
        now_ms,
    )
    running = RunningWorkflow(
        stored.task_id, machine, payer_did=stored.payer_did, traceparent=row["traceparent"]
    )
    return running, decision.records, decision.actions


def build_end_from_rows(
    stored: StoredWorkflow, event: CancelRequested | RuntimeExceeded
) -> list[Record]:
    """Return the records that end a quarantined workflow and release its escrow.

    All unfinished nodes become `skipped`, whatever their state. Their locked stakes are freed,
    because the agents are not to blame.
    """
    records: list[Record] = []
    is_cancelled = isinstance(event, CancelRequested)
    code = NodeErrorCode.CANCELLED if is_cancelled else NodeErrorCode.WORKFLOW_TIMEOUT
    error = {"code": str(code), "message": "the workflow was quarantined until its end"}
    for node in stored.nodes:
        if is_terminal(NodeStatus(node["status"])):
            continue
        if node["stake_micro"]:
            records.append(
                StakeUnlocked(node["name"], node["attempt"], node["agent_did"], node["stake_micro"])
            )
        if node["auction_closes_ms"] is not None:  # frees the stakes of the round's bids
            name, number = node["name"], node["auction_round"]
            records.append(AuctionClosed(name, number, None, None, is_cancelled=True))
        records.append(
            replace(
                _node_changed(node),
                status=NodeStatus.SKIPPED,
                stake_micro=0,
                retry_at_ms=None,
                verifier_did=None,
                auction_closes_ms=None,
                error=error,
                completed_ms=event.at_ms,
            )
        )
    started = {node["name"] for node in stored.nodes}
    records += (
        NodeChanged(name, NodeStatus.SKIPPED, error=error, completed_ms=event.at_ms)
        for name in _node_names(stored)
        if name not in started
    )
    if isinstance(event, CancelRequested):
        end = WorkflowChanged(
            WorkflowStatus.CANCELLED,
            event.at_ms,
            reason=event.reason,
            by_did=event.by_did,
            details=event.details,
        )
    else:
        end = WorkflowChanged(WorkflowStatus.TIMEOUT, event.at_ms, error=error)
    return [*records, end]


def compile_stored_manifest(manifest_json: str) -> CompiledWorkflow:
    """Compile a stored manifest again.

    The publish checked the deployment's limits. The limits are not checked again, because a
    workflow that was accepted under higher limits must continue.
    """
    limits = WorkflowLimits(
        nodes_max=2**31,
        max_runtime_ms_max=2**62,
    )
    return compile_workflow(parse_manifest(read_json(manifest_json), is_stored=True), limits)


def _node_names(stored: StoredWorkflow) -> Iterable[str]:
    try:
        return read_stored_manifest(stored.row["manifest"]).nodes
    except DecodeError:  # the workflow may be quarantined because of it
        return ()


def _node_changed(node: RowDict) -> NodeChanged:
    """Return a node's stored row as the record that the machine restores."""
    fields: dict[str, Any] = {
        name: node[name]
        for name in NodeChanged.__struct_fields__
        if name != "node" and name in node
    }
    fields["status"] = NodeStatus(node["status"])
    fields["agents_tried"] = tuple(node["agents_tried"] or ())
    fields["verifiers_tried"] = tuple(node["verifiers_tried"] or ())
    ref = node.get("result_ref")
    fields["result_ref"] = None if ref is None else BlobRef.from_json(ref)
    return NodeChanged(node=node["name"], **fields)
