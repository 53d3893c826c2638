"""Workflows: the plans that publish and advance workflows, and the rows that these plans store.

Reference: money.md (Settlement), features.md (Workflows).
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final, assert_never

from core.errors import ErrorCode
from core.market.reputation import PROMISED_MS
from core.market.settlement import split_payment
from core.market.sharing.quota import day_start_ms
from core.money import credits_text
from core.records.audit import AuditEventType
from core.trust.signatures import signature_text
from core.workflow.events import (
    AttemptFinished,
    AuctionClosed,
    AuctionOpened,
    NodeChanged,
    NodePaid,
    StakeLocked,
    StakeUnlocked,
    WorkflowChanged,
)
from core.workflow.transitions import NodeStatus, WorkflowStatus, is_terminal
from ledger.features.auctions import record_auctions
from ledger.features.quarantine import held_escrow
from ledger.features.quotas import give_back, use_quota
from ledger.features.reputation import count_end
from ledger.features.stakes import add_risk_reads, move_stakes
from ledger.features.subnets import count_nodes
from ledger.features.triggers import add_run_reads, check_run, store_run
from ledger.features.trust import check_step_accepted, resume, revoked_attempts
from ledger.features.workflow_commands import PUBLISH_KEY, AdvanceWorkflow, PublishWorkflow
from ledger.tables.money_tables import ESCROWS, RELEASES
from ledger.tables.table import Row
from ledger.tables.work_tables import (
    ATTEMPTS,
    NODES,
    WORKFLOW_CHANGES,
    WORKFLOWS,
)
from ledger.writer.batch import Batch, Refusal, Result
from ledger.writer.command_kind import plans
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import (
    FEE_ADDRESS,
    Account,
    Escrow,
    escrow_address,
    wallet_address,
)

# Rows of a machine's records: only this file knows both the fields and the columns. A column that a
# row lacks has its default (`ledger/tables/work_tables.py`).


def node_payload(change: NodeChanged, attempt: AttemptFinished | None) -> dict[str, Any]:
    """Return the payload of the audit event of a node's end."""
    payload: dict[str, Any] = {"nodeId": change.node, "attempt": change.attempt}
    if change.agent_did is not None:
        payload["agentDid"] = change.agent_did
    if attempt is not None and attempt.input_hash is not None:
        payload["inputHash"] = attempt.input_hash
    if attempt is not None and attempt.output_hash is not None:
        payload["outputHash"] = attempt.output_hash
    if change.error is not None:
        # The specification's AGENT_UNAVAILABLE object has its code in `error`.
        payload["code"] = str(change.error.get("code", change.error.get("error", "")))
    return payload


def change_workflow(row: Row, change: WorkflowChanged) -> None:
    """Apply a change of status to a workflow's row."""
    row["status"] = change.status
    if not is_terminal(change.status):
        row.setdefault("started_ms", change.at_ms)
        return
    row["completed_ms"] = change.at_ms
    row["error"] = change.error
    row["end_reason"] = change.reason
    row["end_details"] = change.details
    row["ended_by_did"] = change.by_did


_PUBLISHED_FIELDS: Final = (
    "task_id", "payer_did", "intent", "created_ms", "deadline_ms", "estimate_micro", "hold_micro",
    "fee_bps", "traceparent", "webhook_url",
)  # fmt: skip


def workflow_row(command: PublishWorkflow) -> Row:
    """Return the row of a new workflow."""
    return {
        **{name: getattr(command, name) for name in _PUBLISHED_FIELDS},
        "id": command.workflow_id,
        "status": WorkflowStatus.PENDING,
        "manifest": command.manifest_json,
        "reserved": command.reserved_json,
        **(
            {"template_id": command.run.trigger_id, "template_version": command.run.version}
            if command.run
            else {}
        ),
    }


# A node's columns besides its key; the record has a field for each.
_NODE_FIELDS: Final = tuple(
    column.name for column in NODES.given if column.name not in ("workflow_id", "name")
)
_node_values: Final = attrgetter(*_NODE_FIELDS)


def node_row(workflow_id: str, change: NodeChanged) -> Row:
    """Return a node's row, without the columns that have their default."""
    values = zip(_NODE_FIELDS, _node_values(change), strict=True)
    row: Row = {name: value for name, value in values if value}
    row["workflow_id"] = workflow_id
    row["name"] = change.node
    if change.promised_ms == PROMISED_MS:
        del row["promised_ms"]
    else:  # 0 is stored too, because it is not the default
        row["promised_ms"] = change.promised_ms
    if change.result_ref is not None:
        row["result_ref"] = change.result_ref.to_json()
    return row


_ATTEMPT_FIELDS: Final = tuple(c.name for c in ATTEMPTS.given if c.name != "workflow_id")
_attempt_values: Final = attrgetter(*_ATTEMPT_FIELDS)


def attempt_row(workflow_id: str, record: AttemptFinished) -> Row:
    """Return the row of a finished attempt."""
    values = zip(_ATTEMPT_FIELDS, _attempt_values(record), strict=True)
    row: Row = {name: value for name, value in values if value is not None}
    row["workflow_id"] = workflow_id
    row["completed_ms"] = max(record.started_ms, record.completed_ms)
    if record.queued_ms is not None:
        # The owner process has queued the attempt, and another process may have sent it. Their
        # clocks may differ.
        row["queued_ms"] = min(record.queued_ms, record.started_ms)
    if record.signature is not None:
        row["signature"] = signature_text(record.signature)
    return row


# Plans of the two commands: publish and advance. They turn machine records into rows, payments and
# audit events. All checks come before the first row, so that a refused command changes nothing.

# A constant, because a union that is written in the condition would be built at each check.
_AT_RISK: Final = (NodeChanged, StakeLocked, StakeUnlocked)
_NODE_EVENTS: Final = {
    NodeStatus.SUCCESS: AuditEventType.NODE_SUCCEEDED,
    NodeStatus.FAILED: AuditEventType.NODE_FAILED,
    NodeStatus.TIMEOUT: AuditEventType.NODE_TIMED_OUT,
}


def add_publish_reads(command: PublishWorkflow, read_set: ReadSet) -> None:
    """Add the keys of the rows that planning a publish reads."""
    for record in command.records:
        if type(record) is StakeLocked:
            add_risk_reads(command.workflow_id, record, read_set)
        elif type(record) is NodeChanged and record.agent_did is not None:
            read_set.trusted.add(record.agent_did)
    read_set.wallets.add(command.payer_did)
    read_set.published.add((command.payer_did, day_start_ms(command.created_ms)))
    if command.run is not None:
        add_run_reads(command.run, command.payer_did, read_set)


def add_advance_reads(command: AdvanceWorkflow, read_set: ReadSet) -> None:
    """Add the keys of the rows that planning a step reads."""
    read_set.workflow_ids.add(command.workflow_id)
    for record in command.records:
        if type(record) is NodePaid:
            read_set.wallets.add(record.agent_did)
            read_set.trusted.add(record.agent_did)
        elif type(record) is WorkflowChanged and is_terminal(record.status):
            read_set.ending.add(command.workflow_id)
        elif type(record) is AttemptFinished:
            read_set.trusted.add(record.agent_did)
        elif isinstance(record, _AT_RISK):
            add_risk_reads(command.workflow_id, record, read_set)
            if type(record) is NodeChanged and record.agent_did is not None:
                read_set.trusted.add(record.agent_did)
        elif type(record) is AuctionClosed:
            read_set.agent_dids.update(bid.agent_did for bid in record.bids)
            if not _opens(command, record):
                read_set.rounds.add((command.workflow_id, record.node))


def _opens(command: AdvanceWorkflow, closed: AuctionClosed) -> bool:
    """Say whether a step opens the round that it closes; such a round has no live bids."""
    place = (closed.node, closed.round)
    return any(
        type(one) is AuctionOpened and (one.node, one.round) == place for one in command.records
    )


@plans(
    PublishWorkflow,
    reads=add_publish_reads,
    may_repeat=lambda command: not command.key.startswith(PUBLISH_KEY),
)
def plan_publish(command: PublishWorkflow, batch: Batch) -> Result:
    """Store the workflow, hold its budget, and store the first attempts of its root nodes.

    Steps: (0) check that a run may start, (1) check the payer's wallet, (2) check the payer's rate
    policies and quota, (3) store the workflow, (4) open its escrow, (5) store the machine's
    records, (6) lock stakes, (7) release the hold if the workflow ended at once, (8) store the
    trigger's run.
    """
    cache = batch.cache
    hold = command.hold_micro
    trigger = None if command.run is None else check_run(command.run, hold, batch)  # (0)
    wallet = cache.accounts.get(wallet_address(command.payer_did))
    available = cache.balance(wallet_address(command.payer_did))
    if hold > available:  # (1)
        raise Refusal(
            ErrorCode.INSUFFICIENT_CREDITS,
            f"{command.payer_did} has {credits_text(available)} credits available, the workflow"
            f" needs {credits_text(hold)}: deposit credits, or lower its budget",
        )
    counts = count_nodes(command, batch)  # (2)
    use_quota(command, hold, batch)
    batch.cache.rates.update(counts)
    row = workflow_row(command)  # (3)
    batch.put(WORKFLOWS, command.workflow_id, row)
    batch.record(
        AuditEventType.WORKFLOW_PUBLISHED,
        ("workflow", command.workflow_id),
        payerDid=command.payer_did,
        taskId=command.task_id,
        estimateCredits=credits_text(command.estimate_micro),
        **({} if command.run is None else {"templateId": command.run.trigger_id}),
    )
    if command.has_hold:
        _hold(command, wallet, batch)  # (4)
    end = _store_records(command, batch, row)  # (5)
    record_auctions(command, batch)
    unstaked = move_stakes(command, batch)  # (6)
    if end is not None:  # (7)
        _finish(command, batch, row, end)
    if trigger is not None:  # (8)
        store_run(command, trigger, batch, has_failed=end is not None)
    # An accepted workflow is `pending` in the reply, even if its first nodes are dispatched.
    status = WorkflowStatus.PENDING if end is None else end.status
    result: dict[str, Any] = {
        "workflowId": command.workflow_id,
        "taskId": command.task_id,
        "status": status.value,
    }
    if unstaked:
        result["unstaked"] = unstaked
    if revoked := revoked_attempts(command, batch):
        result["revoked"] = revoked
    return result


@plans(AdvanceWorkflow, reads=add_advance_reads, may_repeat=lambda command: not command.records)
def plan_advance(command: AdvanceWorkflow, batch: Batch) -> Result:
    """Store one step of a workflow: node rows, attempts, payments, and the end if it ends.

    Steps: (1) check that the step is accepted and can be paid, (2) store nodes and attempts with
    their audit events, (3) pay, (4) at the end release the rest of the escrow, (5) move stakes.
    """
    payments = [record for record in command.records if type(record) is NodePaid]
    escrow = held_escrow(command.workflow_id, batch)  # (1)
    check_step_accepted(command, escrow, batch)
    _check_not_settled(command, batch)
    _check_payments(payments, escrow, batch)
    resume(command, escrow, batch)
    record_auctions(command, batch)
    new_row = batch.row(WORKFLOWS, command.workflow_id)
    row = new_row or batch.row(WORKFLOW_CHANGES, command.workflow_id) or {}
    end = _store_records(command, batch, row)  # (2)
    for payment in payments:
        _pay(command, payment, batch)  # (3)
    result: dict[str, Any] = {}
    if end is not None:
        result["releasedMicro"] = _finish(command, batch, row, end)  # (4)
    if unstaked := move_stakes(command, batch):  # (5)
        result["unstaked"] = unstaked
    if revoked := revoked_attempts(command, batch):
        result["revoked"] = revoked
    if row and new_row is None:
        row["id"] = command.workflow_id
        batch.put(WORKFLOW_CHANGES, command.workflow_id, row)
    return result


def _check_not_settled(command: AdvanceWorkflow, batch: Batch) -> None:
    """Refuse a step that changes or pays a settled node, because the first settlement wins
    (money.md, Settlement)."""
    settled = batch.cache.settled
    if not settled:
        return
    for record in command.records:
        if type(record) is NodePaid:
            name = record.line
        elif type(record) is NodeChanged:
            name = record.node
        else:
            continue
        if (command.workflow_id, name) in settled:
            raise Refusal(
                ErrorCode.ALREADY_SETTLED,
                f"node {name!r} has already succeeded or is paid",
                is_audited=True,
            )


def _check_payments(payments: list[NodePaid], escrow: Escrow, batch: Batch) -> None:
    due = 0
    for payment in payments:
        assert payment.gross_micro >= 0, payment
        due += payment.gross_micro
    if due > escrow.account.balance:
        # The machine reserves before it dispatches, so this is a defect of the service. Only this
        # step is refused and audited. The writer continues with all other commands (money.md,
        # Settlement).
        raise Refusal(
            ErrorCode.INTERNAL_ERROR,
            f"got payments of {credits_text(due)} credits,"
            f" expected at most {credits_text(escrow.account.balance)} left in the escrow",
            is_audited=True,
        )


def _hold(command: PublishWorkflow, wallet: Account | None, batch: Batch) -> None:
    """Open the workflow's escrow and move the budget into it; a budget of 0 has no entry."""
    hold = command.hold_micro
    account = batch.account(escrow_address(command.workflow_id), "escrow", command.payer_did)
    batch.cache.escrows[command.workflow_id] = Escrow(
        account, command.payer_did, hold, command.fee_bps, command.created_ms
    )
    batch.store(ESCROWS, command.workflow_id, command, account_id=account.id, amount=hold)
    if hold == 0:
        return
    of_workflow = {"workflow_id": command.workflow_id}
    held = batch.transfer(
        wallet, account, hold, "escrow_hold", "budget held for a workflow", **of_workflow
    )
    batch.record(
        AuditEventType.ESCROW_HELD,
        ("workflow", command.workflow_id),
        amountCredits=credits_text(hold),
        entryIds=held,
        feeBps=command.fee_bps,
    )


def _pay(command: AdvanceWorkflow, payment: NodePaid, batch: Batch) -> None:
    """Pay an agent and the protocol fee for one payment line; an amount of 0 has no entry
    (money.md, Fees)."""
    escrow = batch.cache.escrows[command.workflow_id]
    assert escrow is not None
    split = split_payment(payment.gross_micro, escrow.fee_bps)
    entry_ids: list[int] = []
    place = {"workflow_id": command.workflow_id, "node_id": payment.line}
    batch.cache.settled.add((command.workflow_id, payment.line))
    wallet = batch.account(wallet_address(payment.agent_did), "wallet", payment.agent_did)
    fee_account = batch.cache.accounts[FEE_ADDRESS]
    for account, micro, *said in (
        (wallet, split.agent_micro, "node_payment", "payment for a node"),
        (fee_account, split.fee_micro, "protocol_fee", "protocol fee on a node payment"),
    ):
        entry_ids += batch.transfer(escrow.account, account, micro, *said, **place)
    batch.record(
        AuditEventType.PAYMENT_SETTLED,
        ("workflow", command.workflow_id),
        nodeId=payment.line,
        agentDid=payment.agent_did,
        agentCredits=credits_text(split.agent_micro),
        feeCredits=credits_text(split.fee_micro),
        entryIds=entry_ids,
    )


def _finish(
    command: PublishWorkflow | AdvanceWorkflow, batch: Batch, row: Row, end: WorkflowChanged
) -> int:
    """Record the workflow's end and release the rest of its escrow; return that rest,
    micro-credits."""
    workflow_id = command.workflow_id
    escrow = batch.cache.escrows.get(workflow_id)
    rest = escrow.account.balance if escrow is not None else 0
    spent = escrow.amount - rest if escrow is not None else 0
    row["spent_micro"] = spent
    target = ("workflow", workflow_id)
    payload: dict[str, Any] = {"status": end.status.value, "spentCredits": credits_text(spent)}
    if end.reason is not None:
        payload["reason"] = end.reason
    if end.error is not None and isinstance(end.error.get("code"), str):
        payload["code"] = str(end.error["code"])
    is_cancelled = end.status is WorkflowStatus.CANCELLED
    batch.record(
        AuditEventType.WORKFLOW_CANCELLED if is_cancelled else AuditEventType.WORKFLOW_FINISHED,
        target,
        **payload,
    )
    if escrow is None:
        return 0
    payer = batch.cache.accounts.get(wallet_address(escrow.payer_did))
    said = ("escrow_release", "unused budget returned")
    entry_ids = batch.transfer(escrow.account, payer, rest, *said, workflow_id=workflow_id)
    escrow.is_released = True
    give_back(escrow, rest, batch)
    batch.add(RELEASES, {"workflow_id": workflow_id})
    batch.record(
        AuditEventType.ESCROW_RELEASED,
        target,
        refundedCredits=credits_text(rest),
        entryIds=entry_ids,
    )
    return rest


def _store_records(
    command: PublishWorkflow | AdvanceWorkflow, batch: Batch, row: Row
) -> WorkflowChanged | None:
    """Add the rows and audit events of a step's records; return the workflow's end, if any."""
    workflow_id = command.workflow_id
    end: WorkflowChanged | None = None
    ended: list[NodeChanged] = []
    skipped: list[NodeChanged] = []
    attempts: dict[str, AttemptFinished] = {}
    for record in command.records:
        match record:
            case NodeChanged():
                batch.put(NODES, (workflow_id, record.node), node_row(workflow_id, record))
                if record.status in _NODE_EVENTS:
                    ended.append(record)
                    if record.status is NodeStatus.SUCCESS:
                        batch.cache.settled.add((workflow_id, record.node))
                elif record.status is NodeStatus.SKIPPED:
                    skipped.append(record)
            case AttemptFinished():
                batch.add(ATTEMPTS, attempt_row(workflow_id, record))
                if record.kind == "primary":
                    attempts[record.node] = record
            case WorkflowChanged():
                change_workflow(row, record)
                if is_terminal(record.status):
                    end = record
                elif isinstance(command, AdvanceWorkflow):
                    batch.record(AuditEventType.WORKFLOW_STARTED, ("workflow", workflow_id))
            case NodePaid():
                assert isinstance(command, AdvanceWorkflow), "nothing is paid at publish"
            case StakeLocked() | StakeUnlocked() | AuctionOpened() | AuctionClosed():
                pass  # handled by move_stakes and record_auctions
            case _:
                assert_never(record)
    for change in [*ended, *skipped]:
        count_end(change, batch)
    for change in ended:
        batch.record(
            _NODE_EVENTS[change.status],
            ("workflow", workflow_id),
            **node_payload(change, attempts.get(change.node)),
        )
    if skipped:
        batch.record(
            AuditEventType.NODE_SKIPPED,
            ("workflow", workflow_id),
            nodeIds=[change.node for change in skipped],
        )
    return end
